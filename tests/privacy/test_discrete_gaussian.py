"""Statistical tests have fixed keys; each would fail by chance for one key in a million (`ALARM`),
times its cases."""

import itertools
import math
from decimal import Decimal

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedrec.numerics import threads
from fedrec.privacy import discrete_gaussian
from fedrec.privacy.discrete_gaussian import law_of, sample, settle
from fedrec.privacy.keystream import derive

KEY = b"k" * 32
ALARM = 1e-6
DRAWS = 200_000


def probabilities(std: float, low: int, high: int) -> npt.NDArray[np.float64]:
    """Of the integers in [low, high], by the definition."""
    reach = math.ceil(12 * std) + 2
    total = math.fsum(math.exp(-((z / std) ** 2) / 2) for z in range(-reach, reach + 1))
    return np.array([math.exp(-((z / std) ** 2) / 2) / total for z in range(low, high + 1)])


def chi_square(draws: npt.NDArray[np.int64], std: float) -> float:
    """p-value that the draws have this std: up to 60 bins, the tails in the outermost."""
    edge = max(1, math.floor(3.5 * std))
    p = probabilities(std, -edge, edge)
    p[0] += (1 - p.sum()) / 2
    p[-1] += 1 - p.sum()
    counts = np.bincount(np.clip(draws, -edge, edge) + edge, minlength=2 * edge + 1)
    cuts = np.unique(np.linspace(0, len(p), 61).astype(int)[:-1])
    return float(
        stats.chisquare(np.add.reduceat(counts, cuts), np.add.reduceat(p, cuts) * len(draws)).pvalue
    )


@pytest.mark.parametrize("std", [0.5, 0.8, 1.0, 3.3, 31.9, 63.9, 64.0, 100.25, 700.0])
def test_draws_have_the_exact_law_and_not_that_of_two_thirds_or_three_halves_of_the_std(
    std: float,
) -> None:
    draws = sample(DRAWS, std=std, key=KEY)
    assert chi_square(draws, std) > ALARM
    assert chi_square(draws, std * 2 / 3) < ALARM
    assert chi_square(draws, std * 3 / 2) < ALARM


@pytest.mark.parametrize("std", [2.0**14 + 0.3, 2.0**24, 2.0**33, 2.0**40])
def test_wide_draws_pass_kolmogorov_smirnov_at_their_std_only(std: float) -> None:
    draws = sample(DRAWS, std=std, key=KEY)
    assert stats.kstest(draws / std, "norm").pvalue > ALARM
    assert stats.kstest(draws / std * 2 / 3, "norm").pvalue < ALARM
    assert stats.kstest(draws / std * 3 / 2, "norm").pvalue < ALARM
    residues = np.bincount(draws % 8, minlength=8)  # the low bits are uniform, also beside the sign
    assert stats.chisquare(residues).pvalue > ALARM


def test_moments_are_those_of_the_law() -> None:
    std = 50.0
    n = 1_000_000
    z = sample(n, std=std, key=KEY) / std
    limit = 5  # standard errors: one key in 1.7 million
    for power, expected, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(float(np.mean(z**power)) - expected) < limit * math.sqrt(variance / n)
    assert abs(float(np.corrcoef(z[:-1], z[1:])[0, 1])) < limit / math.sqrt(n)


@pytest.mark.parametrize("std", [0.5, 20.0, 100.25, 2.0**24 + 1, 2.0**40])
def test_settling_every_try_in_exact_arithmetic_changes_no_draw(std: float) -> None:
    key = derive(KEY, "discrete-gaussian")
    # a margin of 2 leaves every acceptance undecided
    slow = discrete_gaussian._sample(300, law_of(std), key, margin=2.0)
    assert slow.tobytes() == sample(300, std=std, key=KEY).tobytes()


def test_thresholds_are_those_of_an_independent_computation() -> None:
    for std in (0.5, 5.3, 2.0**20 + 7):
        law = law_of(std)
        with mpmath.workdps(80):
            weights = [
                mpmath.exp(-(mpmath.mpf(i) ** 2) / (2 * mpmath.mpf(law.base_std) ** 2))
                for i in range(3000)
            ]
            total = mpmath.fsum(weights)
            for i in {0, 1, len(law.thresholds) // 2, len(law.thresholds) - 1}:
                assert int(mpmath.floor(mpmath.fsum(weights[: i + 1]) / total * 2**64)) == int(
                    law.thresholds[i]
                )


def test_a_word_on_a_threshold_is_undecided_and_further_bits_decide_it() -> None:
    law = law_of(5.0)
    u = int(law.thresholds[3])
    accept = 0  # acceptance uniform 0, positive sign
    words = np.array([u, accept], np.uint64)
    out = np.zeros(1, np.int64)
    precision = 0.5 / law.std**2
    state = discrete_gaussian._draw(
        words, 0, law.thresholds, law.guide, law.shift, precision, 2.0**-40, out, 0
    )
    assert state == (0, 0, True)
    # all further bits 0: below the threshold
    assert settle(u, accept, law, itertools.repeat(0)) == 3
    assert settle(u, accept, law, itertools.repeat(2**64 - 1)) == 4
    assert settle(u, 1, law, itertools.repeat(0)) == -3
    assert settle(0, 1, law, itertools.repeat(0)) is None  # minus zero


def test_cumulative_weights_are_right_to_the_error_that_is_declared() -> None:
    """Against mpmath with 40 digits more."""
    for std, digits in itertools.product((0.5, 5.3, 63.9), (50, 75, 100)):
        cumulative, error = discrete_gaussian._cumulative(std, digits)
        with mpmath.workdps(digits + 40):
            spread = 2 * mpmath.mpf(std) ** 2
            weights = [mpmath.exp(-(mpmath.mpf(i) ** 2) / spread) for i in range(3000)]
            total = mpmath.fsum(weights)
            for i in {0, 1, len(cumulative) // 3, len(cumulative) // 2}:
                off = mpmath.fsum(weights[: i + 1]) / total - mpmath.mpf(str(cumulative[i]))
                assert abs(off) <= mpmath.mpf(str(error))
        assert error <= Decimal(10) ** (8 - digits)


@pytest.mark.parametrize("std", [5.3, 63.9, 1000.7])
def test_what_doubles_cannot_tell_is_undecided(std: float) -> None:
    """The acceptance uniform lies within the margin of the probability, on both sides: whether it
    is below depends on roundings of doubles there, which the margin of 2^-40 stands above."""
    law = law_of(std)
    x = 40 if law.shift else 0
    u = (int(law.thresholds[x - 1]) if x else 0) + 1
    y = (1 << law.shift) - 1
    if not y:
        return  # there is no acceptance where x alone is drawn
    exponent = mpmath.mpf(y * (y + 2 * (x << law.shift))) / (2 * mpmath.mpf(std) ** 2)
    accepted = mpmath.exp(-exponent)
    for off, stuck in ((0, True), (2.0**-42, True), (-(2.0**-42), True), (2.0**-38, False)):
        uniform = int(mpmath.floor((accepted + off) * mpmath.mpf(2) ** (63 - law.shift)))
        v = (uniform << (law.shift + 1)) | (y << 1)
        _, _, found = discrete_gaussian._draw(
            np.array([u, v], np.uint64), 0, law.thresholds, law.guide, law.shift,
            0.5 / law.std / law.std, discrete_gaussian._MARGIN, np.zeros(1, np.int64), 0,
        )  # fmt: skip
        assert found == stuck


def test_what_settles_a_try_is_secret_and_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tries undecided: each is settled by bits under a key of its own, none of which is that of
    another sample."""
    asked = list[bytes]()
    more = discrete_gaussian._more_bits
    monkeypatch.setattr(
        discrete_gaussian, "_more_bits", lambda key: (asked.append(key), more(key))[1]
    )
    monkeypatch.setattr(discrete_gaussian, "SECTION", 20)
    for key in (bytes(range(32)), bytes(range(1, 33))):
        discrete_gaussian._sample(40, law_of(100.0), key, margin=2.0)
    assert len(asked) >= 80
    assert len(set(asked)) == len(asked)


def test_the_last_word_reaches_beyond_the_table() -> None:
    law = law_of(5.0)
    assert (settle(2**64 - 1, 0, law, itertools.repeat(2**64 - 1 - 2**40)) or 0) >= len(
        law.thresholds
    )


def test_draws_depend_on_key_and_std_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    size = discrete_gaussian.SECTION + 1000
    draws = sample(size, std=300.0, key=KEY)
    assert sample(size - 2000, std=300.0, key=KEY).tobytes() == draws[:-2000].tobytes()
    assert not np.array_equal(sample(100, std=300.0, key=b"l" * 32), draws[:100])
    monkeypatch.setattr(threads, "cores", lambda: 1)
    assert sample(size, std=300.0, key=KEY).tobytes() == draws.tobytes()


@pytest.mark.parametrize("std", [0.0, 0.49, -1.0, math.nan, math.inf, 2.0**41])
def test_a_std_outside_the_proven_range_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="std must be in"):
        sample(1, std=std, key=KEY)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        sample(1, std=3.0, key=b"short")
