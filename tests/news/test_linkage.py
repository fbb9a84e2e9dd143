"""Linkage finds what a plant holds: everybody without noise, nobody beyond chance under much noise
or between strangers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import mu_for
from fedrec.randomness import Streams
from fedrec.report.news_person import Answers, Linkage, linkage

USERS = 400
H = 20


def tastes(seed: int = 1) -> tuple[np.ndarray, bounded_mean.TopicTable]:
    """Histories of people who like two of eight kinds of items, and the public rows of the
    items."""
    rng = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(8), 10)
    likes = rng.integers(8, size=(USERS, 2))
    liked = likes[np.arange(USERS)[:, None], rng.integers(2, size=(USERS, H))]
    history = liked * 10 + rng.integers(10, size=(USERS, H))
    rows = np.eye(8)[kinds] + 0.3 * rng.standard_normal((80, 8))
    return history, bounded_mean.topic_table(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def answers(epsilon: float, name: str, history: np.ndarray | None = None) -> Answers:
    own, table = tastes()
    asked = own if history is None else history
    found = bounded_mean.report(
        asked, table, mu=mu_for(epsilon, 1e-5), name=name, key=Streams(3).key(name)
    )
    return Answers(found.values, found.noise_std)


def test_two_answers_of_one_person_are_linked_far_beyond_chance_at_a_small_epsilon_per_click() -> None:  # fmt: skip
    found = [
        linkage(answers(epsilon, "report"), answers(epsilon, "query"))
        for epsilon in (1.0, 5.0, 20.0)
    ]
    assert found[0].rate < found[1].rate < found[2].rate
    assert found[1].interval(0.999)[0] > 10 * found[1].chance
    assert found[1].median_rank < USERS / 10


def test_without_noise_everybody_is_linked_and_under_much_noise_nobody_beyond_chance() -> None:
    bare = linkage(answers(np.inf, "report"), answers(np.inf, "query"))
    assert bare.rate > 0.99
    lost = linkage(answers(0.01, "report"), answers(0.01, "query"))
    assert lost.interval(0.999)[0] <= lost.chance
    assert abs(lost.median_rank - USERS / 2) < USERS / 8


def test_answers_of_strangers_are_linked_as_often_as_by_chance() -> None:
    swapped = np.roll(tastes()[0], 1, axis=0)
    found = linkage(answers(10.0, "report"), answers(10.0, "query", swapped))
    assert found.interval(0.999)[0] <= found.chance


@pytest.mark.slow
def test_the_matcher_finds_more_than_the_nearest_answer_where_people_differ_more_in_some_directions() -> None:  # fmt: skip
    """Two directions that tell people apart and forty that hold noise alone."""
    rng = np.random.default_rng(0)
    true = rng.standard_normal((1_000, 42)) * np.array([3.0, 3.0, *[0.05] * 40])
    one, two = (true + 0.3 * rng.standard_normal(true.shape) for _ in range(2))
    nearest = ((one[:, None] - two[None]) ** 2).sum(2).argmin(0)
    assert (
        linkage(Answers(one, 0.3), Answers(two, 0.3)).linked
        > 1.3 * (nearest == np.arange(1_000)).sum()
        > 13
    )


def test_the_noise_that_is_known_is_that_of_each_answer() -> None:
    """A noisy report beside a query with little noise: told the wrong stds, the matcher finds
    fewer."""
    one = answers(3.0, "report")
    two = answers(20.0, "query")
    assert (
        linkage(one, two).linked
        >= linkage(Answers(one.values, two.noise_std), Answers(two.values, one.noise_std)).linked
    )


def test_the_interval_is_clopper_and_pearson_s() -> None:
    found = Linkage(people=400, linked=12, median_rank=9.0)
    low, high = found.interval(0.95)
    assert low == pytest.approx(stats.beta.ppf(0.025, 12, 389), rel=1e-6)
    assert high == pytest.approx(stats.beta.ppf(0.975, 13, 388), rel=1e-6)
    assert found.as_dict()["chance"] == 1 / 400


def test_equal_answers_link_nobody_and_other_shapes_are_refused() -> None:
    same = Answers(np.ones((5, 2)), 0.1)
    assert linkage(same, same).linked == 0
    with pytest.raises(ValueError, match="same 2 or more people"):
        linkage(same, Answers(np.ones((4, 2)), 0.1))
