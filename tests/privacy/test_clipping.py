import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedrec.privacy.clipping import clip_rows, clip_values

rows = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(-1e150, 1e150)
)


@given(rows, st.floats(1e-6, 1e6))
def test_no_row_is_longer_than_the_radius_and_short_rows_keep_their_bits(
    x: np.ndarray, radius: float
) -> None:
    bounded = clip_rows(x, radius=radius)
    assert (np.linalg.norm(bounded.rows, axis=1) <= radius).all()
    short = np.linalg.norm(x, axis=1) <= radius
    np.testing.assert_array_equal(bounded.rows[short], x[short])


def test_values_are_cut_on_both_sides() -> None:
    np.testing.assert_array_equal(
        clip_values(np.array([-9.0, 0.5, 9.0]), low=-2, high=2).values, [-2, 0.5, 2]
    )


def test_what_cannot_be_bounded_is_refused() -> None:
    with pytest.raises(ValueError):
        clip_rows(np.array([[np.nan]]), radius=1)
    with pytest.raises(ValueError):
        clip_rows(np.array([[1.0]]), radius=0)
    with pytest.raises(ValueError):
        clip_values(np.array([np.inf]), low=0, high=1)
    with pytest.raises(ValueError):
        clip_values(np.array([1.0]), low=1, high=1)
