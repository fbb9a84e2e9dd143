import math
import resource
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import first_words
from fedrec.federation.messages import Question, Release, ReleaseSpec, Reports
from fedrec.federation.protocol import Opening
from fedrec.federation.releases import noise_stds, release
from fedrec.federation.reports import within_radius
from fedrec.federation.rounds import State, train
from fedrec.federation.sums import exact_sums
from fedrec.federation.updates import BLOCK_NUMBERS, COUNT_SHARE, bounded_updates, mean_update, noised_count, update_release
from fedrec.federation.wire import Batch, pack_reports, question_digest, question_header, read_header, unpack_release, unpack_reports
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger

NO_NOISE = calibrate(non_private(1e-5), {"update": 1.0})
PLAN = calibrate(Guarantee(2.0, 1e-5), {"update": 1.0})


def answered(updates: np.ndarray, spec: ReleaseSpec, plan: Plan = NO_NOISE, seed: int = 1) -> Release:
    sums = exact_sums(bounded_updates(updates, spec), spec.blocks)
    return release(Question(0, "update", {}, (spec,)), sums, plan, Ledger(plan.guarantee), noise=Streams(seed))[0]


def clipped(updates: np.ndarray, radius: float) -> np.ndarray:
    """Second code: McMahan et al. 2018, Sec. 2.1."""
    return updates * np.minimum(1, radius / np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), 1e-300))


def contributions(reports: Reports, spec: ReleaseSpec) -> np.ndarray:
    """Every user's whole vector in real units, spelled out."""
    parts = zip(reports.blocks, spec.blocks, strict=True)
    return np.hstack([part.coefficients[:, None] * shape.coefficient_step * part.vectors * shape.vector_step for part, shape in parts])


def lopsided(num_users: int, width: int, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(num_users, width)) * rng.lognormal(0, 2, size=(num_users, 1)) / math.sqrt(width)
    updates[0] = 0.0
    updates[1] = np.where(np.arange(width) == width // 2, 0.7, 0.0)  # one number is all there is
    return updates


@pytest.mark.parametrize("width", [1, 7, BLOCK_NUMBERS, BLOCK_NUMBERS + 5])
@pytest.mark.parametrize("counted", [False, True])
def test_without_noise_the_sum_is_that_of_clipped_updates_up_to_the_declared_rounding(width: int, counted: bool) -> None:
    updates, spec = lopsided(6, width), update_release("update", width, radius=1.5, counted=counted)
    plain = clipped(updates, 1.5)
    rounding = (np.abs(plain).max(axis=1) / 32_767 + 1.5 * 2.0**-28).sum() + 6e-12
    assert np.abs(mean_update(answered(updates, spec), spec, users=6) * 6 - plain.sum(axis=0)).max() <= rounding


def test_rounding_is_towards_zero_and_keeps_nearly_all_of_a_long_update() -> None:
    updates = lopsided(4, 200_000)
    spec = update_release("update", 200_000)
    sent, plain = contributions(bounded_updates(updates, spec), spec), clipped(updates, 1.0)
    assert np.all(np.abs(sent) <= np.abs(plain) * (1 + 1e-15))
    kept = np.linalg.norm(sent, axis=1)[1:] / np.linalg.norm(plain, axis=1)[1:]
    assert kept.min() > 0.999


@settings(max_examples=200)
@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.floats(-1e308, 1e308)),
    st.sampled_from([1e-6, 0.3, 1.0, 64.0, 1e6]),
    st.booleans(),
)
def test_removing_a_user_moves_the_sum_by_at_most_the_declared_radius(updates: np.ndarray, radius: float, counted: bool) -> None:
    spec = update_release("update", updates.shape[1], radius=radius, counted=counted)
    reports = bounded_updates(updates, spec)
    assert within_radius(reports, [spec]).all()
    assert np.linalg.norm(contributions(reports, spec), axis=1).max() <= spec.radius
    whole, without = (
        exact_sums(reports, spec.blocks),
        exact_sums(bounded_updates(updates[1:], spec), spec.blocks) if len(updates) > 1 else None,
    )
    if without:
        moved = np.hstack([(a - b) * shape.step for a, b, shape in zip(whole, without, spec.blocks, strict=True)])
        assert np.linalg.norm(moved) <= spec.radius


def test_a_report_depends_on_that_user_alone() -> None:
    updates, spec = lopsided(5, 12), update_release("update", 12, counted=True)
    whole = bounded_updates(updates, spec)
    for user in range(5):
        alone = bounded_updates(updates[user : user + 1], spec)
        for one, all_ in zip(alone.blocks, whole.blocks, strict=True):
            assert one.coefficients[0] == all_.coefficients[user]
            np.testing.assert_array_equal(one.vectors[0], all_.vectors[user])


def test_float32_updates_are_the_same_as_their_float64_values() -> None:
    updates, spec = lopsided(5, 12).astype(np.float32), update_release("update", 12)
    for one, other in zip(bounded_updates(updates, spec).blocks, bounded_updates(updates.astype(np.float64), spec).blocks, strict=True):
        np.testing.assert_array_equal(one.vectors, other.vectors)


def test_noise_has_its_declared_std_and_the_test_would_notice_two_thirds_or_three_halves_of_it() -> None:
    spec = update_release("update", 5_000, radius=2.0, counted=True)
    answer, std = answered(np.zeros((1, 5_000)), spec, PLAN), noise_stds(Question(0, "update", {}, (spec,)), PLAN)["update"]
    assert std == pytest.approx(spec.radius / PLAN["update"].mu, rel=1e-9)
    noise = mean_update(answer, spec, users=1)
    for factor, passes in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert bool(stats.kstest(noise / (std * factor), "norm").pvalue > 0.01) is passes


def test_noise_of_the_count_has_its_declared_std() -> None:
    spec = update_release("update", 1, counted=True)
    counts = np.array([noised_count(answered(np.ones((300, 1)), spec, PLAN, seed), spec) for seed in range(400)])
    std = spec.radius / PLAN["update"].mu / COUNT_SHARE
    for factor, passes in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert bool(stats.kstest((counts - 300) / (std * factor), "norm").pvalue > 0.01) is passes


def test_epsilon_of_noise_over_radius_is_the_planned_one_by_an_independent_accountant() -> None:
    spec = update_release("update", 40, radius=3.0, counted=True)
    std = noise_stds(Question(0, "update", {}, (spec,)), PLAN)["update"]
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(GaussianDpEvent(std / spec.radius))
    assert accountant.get_epsilon(1e-5) == pytest.approx(2.0, rel=1e-3)


def test_users_are_counted_exactly_where_there_is_no_noise_and_zeros_count_too() -> None:
    spec = update_release("update", 3, radius=0.7, counted=True)
    assert noised_count(answered(lopsided(9, 3), spec), spec) == 9
    with pytest.raises(ValueError, match="count"):
        noised_count(answered(lopsided(9, 3), update_release("update", 3)), update_release("update", 3))


def test_a_mean_is_never_over_less_than_one_user() -> None:
    spec = update_release("update", 3)
    answer = answered(np.full((1, 3), 0.5), spec)
    np.testing.assert_array_equal(mean_update(answer, spec, users=-4.0), mean_update(answer, spec, users=1.0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_updates_that_are_not_finite_never_reach_the_grid(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        bounded_updates(np.array([[0.0, bad]]), update_release("update", 2))


@pytest.mark.parametrize(("width", "radius"), [(0, 1.0), (3, 0.0), (3, math.inf), (3, math.nan), (3, -1.0)])
def test_a_release_without_a_bound_is_refused(width: int, radius: float) -> None:
    with pytest.raises(ValueError, match="above zero"):
        update_release("update", width, radius=radius)


def test_updates_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="takes updates of 4 numbers"):
        bounded_updates(np.zeros((2, 3)), update_release("update", 4))


def test_a_million_numbers_cross_the_wire_whole_and_in_bounded_memory() -> None:
    width = 1_000_000
    spec = update_release("update", width, counted=True)
    header = question_header(Question(0, "update", {}, (spec,)), run="r", plan=PLAN.digest())
    assert read_header(header).specs() == (spec,)
    updates = np.random.default_rng(5).normal(size=(4, width)).astype(np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reports, ids = bounded_updates(updates, spec), np.arange(64, dtype=np.uint8).reshape(4, 16)
    data = pack_reports(Batch(ids, ids, reports), question_digest(header))
    assert len(data) < 4 * (2 * width + 200)
    got = unpack_reports(data, spec.blocks, question_digest(header), max_users=4, max_events_per_user=0).reports
    for sent, arrived in zip(reports.blocks, got.blocks, strict=True):
        np.testing.assert_array_equal(sent.vectors, arrived.vectors)
    total = np.concatenate([sums[0] for sums in exact_sums(got, spec.blocks)[:-1]]) * spec.blocks[0].step
    np.testing.assert_allclose(total, clipped(updates.astype(np.float64), 1.0).sum(axis=0), atol=4 * (6e-3 / 32_767 + 2.0**-28))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB; 8 GB with one block of 32 partial sums per number


def test_the_aggregator_takes_updates_as_they_are_and_shrinks_a_forged_one(tmp_path: Path) -> None:
    spec = update_release("update", 50, counted=True)
    question = Question(0, "gradient", {}, (spec,))
    header = question_header(question, run="run-1", plan=NO_NOISE.digest())
    updates, digest = lopsided(4, 50), question_digest(header)
    reports = bounded_updates(updates, spec)
    reports.blocks[0].coefficients[3] = 2**15 - 1  # as large as the format lets a liar be
    tokens = np.arange(64, dtype=np.uint8).reshape(4, 16)
    with closing(ReleaseLedger(tmp_path, limit=non_private(1e-5), clock=lambda: 0.0)) as ledger:
        core = Aggregator(ledger, Limits(min_cohort=4), noise=Streams(1), clock=lambda: 0.0)
        core.client_desk("site").enroll([token.tobytes() for token in tokens])
        core.open_run("run-1", NO_NOISE)
        core.open_round(Opening("run-1", 0, header, digest, timeout_s=60))
        receipt = core.client_desk("site").report("run-1", 0, pack_reports(Batch(tokens, tokens, reports), digest))
        status = core.close("run-1", 0)
        answer = unpack_release(core.release("run-1", 0), (spec,))
    assert (receipt.accepted, status.clipped) == (4, 1)
    assert noised_count(answer, spec) == pytest.approx(3, abs=1)
    others = contributions(bounded_updates(updates[:3], spec), spec).sum(axis=0)
    assert np.linalg.norm(np.concatenate([answer.values[b.name][0] for b in spec.blocks]) - others) <= spec.radius


# --- a planted answer: logistic regression by federated Adam ---


class Regression:
    """FedAdam (Reddi et al. 2021, Alg. 2) on one gradient step per user and round."""

    def __init__(self, width: int, rounds: int, guarantee: Guarantee) -> None:
        self.width, self.rounds = width, rounds
        self.plan = calibrate(guarantee, {f"update/{t}": 1.0 for t in range(rounds)})

    def begin(self) -> State:
        return {"round": np.array(0), "w": np.zeros(self.width), "m": np.zeros(self.width), "v": np.full(self.width, 1e-6)}

    def ask(self, state: State) -> Question | None:
        t = int(state["round"])
        spec = update_release(f"update/{t}", self.width, counted=True)
        return Question(t, "gradient", {"w": state["w"]}, (spec,)) if t < self.rounds else None

    def tell(self, state: State, question: Question, answer: Release) -> State:
        spec = question.releases[0]
        step = mean_update(answer, spec, users=noised_count(answer, spec))
        m, v = 0.9 * state["m"] + 0.1 * step, 0.99 * state["v"] + 0.01 * step**2
        return {"round": np.array(question.round + 1), "w": state["w"] + 0.3 * m / (np.sqrt(v) + 1e-3), "m": m, "v": v}


def gradient_step(features: np.ndarray, labels: np.ndarray) -> object:
    place = {word: number for number, word in enumerate(first_words(len(labels)).tolist())}

    def step(question: Question, mine: Interactions) -> Reports:
        rows = [place[word] for word in mine.user_words.tolist()]
        errors = labels[rows] - 1 / (1 + np.exp(-features[rows] @ question.public["w"]))
        return bounded_updates(features[rows] * errors[:, None], question.releases[0])

    return step


@pytest.mark.parametrize(("guarantee", "cosine"), [(non_private(1e-5), 0.99), (Guarantee(2.0, 1e-5), 0.9)])
def test_federated_adam_finds_a_planted_direction_with_privacy_for_each_user(guarantee: Guarantee, cosine: float) -> None:
    rng, num_users, width = np.random.default_rng(11), 20_000, 16
    planted = rng.normal(size=width)
    features = rng.normal(size=(num_users, width)) / math.sqrt(width)
    labels = (rng.random(num_users) < 1 / (1 + np.exp(-6 * features @ planted))).astype(np.float64)
    nobody = Interactions.from_columns(
        np.zeros(0, np.int64), np.zeros(0, np.int64), None, num_users=num_users, num_items=1, value_range=(0, 1), kind="clicks"
    )
    recipe = Regression(width, 15, guarantee)
    link = Loopback(nobody, {"gradient": gradient_step(features, labels)}, recipe.plan, Streams(2), Ledger(guarantee))  # type: ignore[dict-item]
    *_, last = train(recipe, link, recipe.begin())
    found = last.state["w"]
    assert float(found @ planted) / float(np.linalg.norm(found) * np.linalg.norm(planted)) > cosine
