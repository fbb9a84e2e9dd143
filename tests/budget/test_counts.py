import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.factorization import weights
from tests.histories import clicks_of

M = 25


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, M - 1), max_size=M), min_size=1, max_size=10),
    st.integers(1, 30),
    st.data(),
)
def test_removing_a_user_moves_the_sums_by_at_most_the_bound(
    h: list[set[int]], limit: int, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(h) - 1))
    everybody = clicks_of(h, M)
    emptied = clicks_of([x if k != gone else set() for k, x in enumerate(h)], M)
    with_user, without = (
        weights.clipped_contributions(i, limit=limit) for i in (everybody, emptied)
    )
    sums = [
        np.bincount(i.items, c.values, minlength=M)
        for i, c in ((everybody, with_user), (emptied, without))
    ]
    assert np.linalg.norm(sums[0] - sums[1]) <= with_user.bound * (1 + 1e-12)


def test_clipped_contributions_have_the_limit_s_norm_at_most_and_are_plain_counts_under_it() -> None:  # fmt: skip
    data = clicks_of([{1, 2, 3, 4}, {5}], M)
    np.testing.assert_allclose(
        weights.clipped_contributions(data, limit=1).values, [0.5, 0.5, 0.5, 0.5, 1.0]
    )
    np.testing.assert_array_equal(weights.clipped_contributions(data, limit=9).values, np.ones(5))
    assert weights.clipped_contributions(data, limit=9).bound == 3.0


def test_clipping_at_one_leaves_larger_counts() -> None:
    np.testing.assert_array_equal(weights.at_least_one(np.array([-4.0, 0.3, 7.5])), [1.0, 1.0, 7.5])
