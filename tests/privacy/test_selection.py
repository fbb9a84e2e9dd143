import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrec.privacy import keystream
from fedrec.privacy.selection import (
    PureEvent,
    Selection,
    draw,
    largest_log_ratio,
    output_table,
    randomised_response,
    subset_selection,
)
from fedrec.randomness import Streams

KEY = Streams(4).key("selection")


def test_at_infinite_epsilon_the_truth_is_reported() -> None:
    truth = np.arange(7).repeat(3)
    reported, event = draw(truth, randomised_response(7, math.inf), name="label", key=KEY)
    np.testing.assert_array_equal(reported[:, 0], truth)
    assert math.isinf(event.epsilon)
    assert subset_selection(7, math.inf).size == 1


@given(symbols=st.integers(2, 8), size=st.integers(1, 8), epsilon=st.floats(0.01, 20))
@settings(max_examples=60, deadline=None)
def test_the_largest_ratio_of_the_whole_table_is_exp_epsilon_to_rounding(
    symbols: int, size: int, epsilon: float
) -> None:
    mechanism = Selection(symbols, min(size, symbols), epsilon)
    table = output_table(mechanism)
    np.testing.assert_allclose(table.sum(1), 1, rtol=1e-12)
    assert largest_log_ratio(table) == pytest.approx(
        0.0 if size >= symbols else epsilon, rel=1e-9, abs=1e-9
    )


@given(
    weights=st.lists(
        st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any), min_size=2, max_size=2
    ),
    epsilon=st.floats(0.1, 6),
)
@settings(max_examples=60, deadline=None)
def test_inputs_drawn_at_random_stay_within_exp_epsilon(
    weights: list[list[int]], epsilon: float
) -> None:
    """Several clicks, one drawn: whatever the two laws of the drawn click."""
    laws = np.array(weights, float)
    mixtures = laws / laws.sum(1, keepdims=True) @ output_table(subset_selection(5, epsilon))
    assert largest_log_ratio(mixtures) <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize(
    ("symbols", "size", "epsilon"),
    [(5, 1, 1.0), (5, 2, 0.5), (4, 3, 2.0), (3, 3, 1.0), (1, 1, 1.0)],
)
def test_draws_follow_the_table_and_not_the_one_of_two_thirds_of_the_noise(
    symbols: int, size: int, epsilon: float
) -> None:
    """Chi-squared at level 1e-4, 40,000 draws of one truth; three sets of each table: false alarm
    below 1e-3."""
    truth = symbols // 2
    reported, _ = draw(np.full(40_000, truth), Selection(symbols, size, epsilon), name="x", key=KEY)
    sets = {S: i for i, S in enumerate(itertools.combinations(range(symbols), size))}
    counts = np.bincount([sets[tuple(row)] for row in reported.tolist()], minlength=len(sets))
    if len(sets) == 1:
        assert counts[0] == 40_000
        return
    for factor, expected in ((1, True), (3 / 2, False), (2 / 3, False)):
        law = output_table(Selection(symbols, size, factor * epsilon))[truth]
        assert bool(stats.chisquare(counts, law * counts.sum()).pvalue > 1e-4) is expected


def test_a_large_epsilon_keeps_the_chance_of_a_lie_to_full_precision() -> None:
    mechanism = randomised_response(37, 40.0)
    assert mechanism.omit == pytest.approx(36 * math.exp(-40), rel=1e-12)
    assert math.log(mechanism.keep / (mechanism.omit / 36)) == pytest.approx(40.0, rel=1e-12)


def test_keep_probabilities_and_gains_are_those_of_the_literature() -> None:
    """Keep: e / (e + C - 1) at C = 37.

    Subset selection has several times the information at small epsilon, none more at large."""
    for epsilon, keep in ((1, 0.070), (5, 0.805), (10, 0.998)):
        assert randomised_response(37, epsilon).keep == pytest.approx(keep, abs=5e-4)
    gains = [
        subset_selection(37, e).information / randomised_response(37, e).information
        for e in (1.0, 2.0, 5.0)
    ]
    assert gains[0] > 3.5
    assert gains[1] > 1.6
    assert gains[2] == 1.0


@given(symbols=st.integers(2, 60), epsilon=st.floats(0.05, 8))
def test_the_chosen_size_has_the_largest_information_of_all(symbols: int, epsilon: float) -> None:
    best = max(Selection(symbols, w, epsilon).information for w in range(1, symbols + 1))
    assert subset_selection(symbols, epsilon).information == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize(("symbols", "size"), [(6, 1), (6, 2), (5, 4)])
def test_the_price_is_the_loss_distribution_of_two_inputs(symbols: int, size: int) -> None:
    """Second code: enumerate the outputs of two inputs and collect the losses."""
    mechanism = Selection(symbols, size, 1.3)
    p, q = output_table(mechanism)[:2]
    for loss, probability in mechanism.event("x").losses:
        assert probability == pytest.approx(p[np.abs(np.log(p / q) - loss) < 1e-9].sum(), abs=1e-12)


def test_information_is_the_chi_squared_of_the_table() -> None:
    mechanism = Selection(6, 2, 0.8)
    table = output_table(mechanism)
    assert mechanism.information == pytest.approx((table**2 / table.mean(0)).sum(1).mean() - 1)


def test_a_support_that_tells_inputs_apart_is_infinite() -> None:
    assert math.isinf(largest_log_ratio(np.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]])))
    assert largest_log_ratio(np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])) == 0.0


def test_bad_arguments_are_refused() -> None:
    for call in (
        lambda: Selection(3, 4, 1.0),
        lambda: Selection(3, 1, 0.0),
        lambda: draw(np.array([3]), randomised_response(3, 1.0), name="x", key=KEY),
        lambda: draw(np.array([-1]), randomised_response(3, 1.0), name="x", key=KEY),
        lambda: PureEvent("x", 1.0, told=0.9),
        lambda: keystream.coins(3, probability=1.1, key=KEY),
        lambda: keystream.integers(3, below=0, key=KEY),
        lambda: keystream.subsets(3, members=4, of=3, key=KEY),
    ):
        with pytest.raises(ValueError):
            call()


def test_coins_integers_and_subsets_are_uniform() -> None:
    """Each at level 1e-5."""
    assert (
        stats.binomtest(
            int(keystream.coins(50_000, probability=0.3, key=KEY).sum()), 50_000, 0.3
        ).pvalue
        > 1e-5
    )
    assert keystream.coins(5, probability=1.0, key=KEY).all()
    assert not keystream.coins(5, probability=0.0, key=KEY).any()
    assert stats.chisquare(np.bincount(keystream.integers(50_000, below=7, key=KEY))).pvalue > 1e-5
    drawn = np.sort(keystream.subsets(50_000, members=2, of=5, key=KEY), 1)
    assert stats.chisquare(np.unique(drawn @ [5, 1], return_counts=True)[1]).pvalue > 1e-5
    ordered = keystream.subsets(48_000, members=3, of=4, key=KEY)
    assert stats.chisquare(np.unique(ordered @ [16, 4, 1], return_counts=True)[1]).pvalue > 1e-5
    assert len(np.unique(ordered @ [16, 4, 1])) == 24
    huge = keystream.integers(
        20_000, below=3 * 2**61, key=KEY
    )  # a quarter of the words is rejected
    assert stats.kstest(huge / (3 * 2**61), "uniform").pvalue > 1e-5


def test_coins_that_protect_are_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word on the edge of the probability, and one past it by less than the callers' own
    rounding, are heads."""
    for probability in (0.3, 1e-3, 2.0**-30):
        edge = int(Fraction(probability) * 2**64)
        monkeypatch.setattr(
            keystream,
            "_words",
            lambda size, key, *, section, edge=edge: np.full(size, edge + (edge >> 52), np.uint64),
        )
        assert keystream.coins(1, probability=probability, key=KEY).all()
