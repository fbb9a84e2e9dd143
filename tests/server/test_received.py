"""A client that lies reaches no further than a true one could, and one that talks nonsense is left
out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedrec.data.features import PublicFeatures
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.errors import RefusedError
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.messages import Arrays
from fedrec.news.reports_training import Collected, Decoder, collect, collected_arrays, collected_of
from fedrec.news.text_topics import directions
from fedrec.news.topics import public_vectors
from fedrec.privacy import bounded_mean
from fedrec.privacy.bounded_mean import TopicTable, noise_std, within_reach
from fedrec.privacy.click_accounting import plan_training
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec_server import received

SHAPE = PlantedNewsShape(
    users=300, news=500, history_mean=10, impressions_mean=3, candidates=6, strength=3.0
)
PLAN = plan_training(Guarantee(5.0, 1e-5, "click", "replace"))
H = 12


@pytest.fixture(scope="module")
def honest() -> tuple[Collected, TopicTable]:
    planted = planted_news(SHAPE, seed=2)
    table = directions(
        public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=16), width=16
    )
    train = planted.log.train
    return collect(
        train, table, PLAN, history=H, noise=DeviceNoise.numbered(Streams(1), train.num_users)
    ), table


def spread_of_others(values: np.ndarray, honest: Collected, std: float) -> float:
    """How large the first of the other users' inputs are after the decoder that all reports
    make."""
    arrays = {**collected_arrays(honest), "coefficients": values}
    coefficients = collected_of(arrays, PLAN, noise_std=std).coefficients
    return float(np.std(Decoder.of(coefficients)(coefficients)[1:]))


def test_true_reports_pass_untouched_and_a_false_one_moves_the_others_little(
    honest: tuple[Collected, TopicTable],
) -> None:
    """One coefficient of 50 alone would shrink everybody else's inputs a hundredfold."""
    got, table = honest
    std = noise_std(table, H, mu=PLAN.report_mu)
    values = got.coefficients.values
    assert within_reach(values, table, noise_std=std).tobytes() == values.tobytes()
    before = spread_of_others(values, got, std)
    for lie in (50.0, 1e150):
        false = values.copy()
        false[0] = lie
        assert lie > 50 or spread_of_others(false, got, std) < before / 20
        held = within_reach(false, table, noise_std=std)
        assert held[1:].tobytes() == values[1:].tobytes()
        assert np.linalg.norm(held[0]) <= 1 + std * (math.sqrt(table.topics) + 8) + 1e-9
        assert spread_of_others(held, got, std) > 0.8 * before


def test_the_reach_of_a_report_is_passed_by_noise_as_often_as_is_said() -> None:
    """At 2 instead of 8 standard deviations the same formula fails by exp(-2) at most: far tails
    are not drawn."""
    B = 16
    n = 20_000
    lengths = np.linalg.norm(np.random.default_rng(1).standard_normal((n, B)), axis=1)
    assert 0 < (lengths > math.sqrt(B) + 2).mean() < math.exp(-2)
    table = bounded_mean.topic_table(np.eye(B))
    longest = within_reach(np.full((1, B), 1e6), table, noise_std=0.5)
    assert np.linalg.norm(longest) == pytest.approx(1 + 0.5 * (4 + 8), rel=1e-6)


def report(impressions: int) -> dict[str, Any]:
    return {
        "coefficients": np.zeros((1, 3)),
        "users": np.zeros(impressions, np.int32),
        "candidates": np.zeros((impressions, 2), np.int64),
        "candidate_ptr": np.arange(impressions + 1) * 2,
        "reported": np.zeros(2 * impressions, np.uint8),
        "null": np.zeros(impressions, np.uint8),
    }


def test_a_client_answers_for_so_many_impressions_a_user_and_no_more() -> None:
    told = [("a", report(300)), ("b", report(320)), ("liar", report(100_000))]
    bounded = dict(received.bounded_impressions(told, {"a": 100, "b": 100, "liar": 1}))
    # 8 times 3.2, rounded up
    assert [len(bounded[name]["users"]) for name in ("a", "b", "liar")] == [300, 320, 26]
    arrays = bounded["liar"]
    received.require_reports(
        "liar", {**arrays, "coefficients": np.zeros((1, 3))}, users=1, items=10, topics=3
    )


def gradient(length: float, weight: int, P: int = 100) -> dict[str, Any]:
    values = np.full(P, length / math.sqrt(P), np.float32)
    return {"gradient": values, "weight": np.array([weight], np.int64), "loss": np.zeros(1)}


def test_a_gradient_and_its_weight_are_held_to_the_other_clients() -> None:
    told: list[tuple[str, Arrays]] = [
        ("a", gradient(1.0, 30)),
        ("b", gradient(2.0, 40)),
        ("liar", gradient(1e9, 10**9)),
    ]
    bounded = dict(received.bounded_gradients(told, {"a": 10, "b": 10, "liar": 1}, longest=None))
    assert bounded["a"]["gradient"].tobytes() == told[0][1]["gradient"].tobytes()
    assert bounded["a"]["weight"] == 30
    assert np.linalg.norm(bounded["liar"]["gradient"]) == pytest.approx(16.0, rel=1e-5)
    assert bounded["liar"]["weight"] == 32
    assert set(
        dict(received.bounded_gradients(told, {"a": 10, "b": 10, "liar": 0}, longest=None))
    ) == {"a", "b"}


def test_a_noised_gradient_is_held_to_its_clip_and_its_noise_and_weighs_its_users() -> None:
    P = 10_000
    std = 0.3
    rng = np.random.default_rng(2)
    longest = received.longest_noised(0.01, std, P)
    true = {
        "gradient": (std / 2 * rng.standard_normal(P)).astype(np.float32),
        "weight": np.array([4]),
        "loss": np.array([math.nan]),
    }
    told: list[tuple[str, Arrays]] = [("true", true), ("liar", gradient(1e6, 10**6, P))]
    bounded = dict(received.bounded_gradients(told, {"true": 4, "liar": 1}, longest=longest))
    assert bounded["true"]["gradient"].tobytes() == true["gradient"].tobytes()
    assert np.linalg.norm(bounded["liar"]["gradient"]) == pytest.approx(0.01 + std * 108, rel=1e-4)
    assert [int(bounded[name]["weight"][0]) for name in ("true", "liar")] == [4, 1]


def test_numbers_that_are_none_are_left_out_and_the_others_go_on() -> None:
    broken = gradient(math.inf, 3)
    told: list[tuple[str, Arrays]] = [("a", gradient(1.0, 3)), ("b", broken), ("c", {})]

    def require(name: str, arrays: Arrays) -> None:
        received.require_gradient(name, arrays, length=100)

    assert [name for name, _ in received.sound(told, require)] == ["a"]
    with pytest.raises(RefusedError, match="b told"):
        received.sound(told[1:], require)
