"""Rounded numbers: how far they may be off, how few bits they have, and that rounding is decided by
the numbers alone."""

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedrec.federation.coding import rounded_numbers, rounded_rows

NUMBERS = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6)
MATRICES = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=NUMBERS)


@given(MATRICES, st.integers(1, 8))
def test_no_number_of_a_row_is_off_by_more_than_half_a_step_of_its_root_mean_square(
    X: npt.NDArray[np.float64], bits: int
) -> None:
    off = np.abs(rounded_rows(X, bits=bits) - X)
    assert (off <= np.sqrt(np.mean(X**2, axis=1, keepdims=True)) / 2 ** (bits + 1)).all()


@given(MATRICES, st.integers(1, 8))
def test_a_row_is_integers_times_one_power_of_two_that_fit_few_bits(
    X: npt.NDArray[np.float64], bits: int
) -> None:
    size = np.sqrt(np.mean(X**2, axis=1, keepdims=True))
    step = 2.0 ** (np.floor(np.log2(np.where(size > 0, size, 1))) - bits)
    units = rounded_rows(X, bits=bits) / step
    assert (units == np.rint(units)).all()
    assert (np.abs(units) <= np.sqrt(X.shape[1]) * 2 ** (bits + 1) + 0.5).all()


@given(arrays(np.float64, st.integers(0, 20), elements=NUMBERS), st.integers(1, 12))
def test_single_numbers_are_off_by_at_most_half_a_unit_of_their_last_bit(
    x: npt.NDArray[np.float64], bits: int
) -> None:
    found = rounded_numbers(x, bits=bits).astype(np.float64)
    assert (np.abs(found - x) <= np.abs(x) / 2**bits).all()
    assert (rounded_numbers(found, bits=bits) == found).all()  # again changes nothing


def test_there_is_one_zero() -> None:
    X = np.array([[-1e-9, 1.0, -0.0], [-0.0, 0.0, 0.0]])
    assert not np.signbit(rounded_rows(X)[:, [0, 2]]).any()
    assert not np.signbit(rounded_numbers(np.array([-0.0]))).any()


def test_rows_do_not_see_each_other() -> None:
    X = np.random.default_rng(1).normal(size=(40, 7))
    assert np.array_equal(rounded_rows(X)[10:20], rounded_rows(X[10:20]))
