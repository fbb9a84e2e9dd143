import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.factorization import example_choice
from fedrec.randomness import Streams
from tests.histories import clicks_of

M = 40
KEY = Streams(7).key("sampling")

histories = st.lists(st.sets(st.integers(0, M - 1), max_size=M), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(histories, st.integers(1, 45), st.booleans())
def test_every_user_keeps_exactly_the_smaller_of_the_limit_and_its_items(
    h: list[set[int]], limit: int, biased: bool
) -> None:
    data = clicks_of(h, M)
    flat = np.ones(M)  # equal counts everywhere: ties must not let a user pass the limit
    mask = (
        example_choice.tail_choice(data, flat, limit=limit, key=KEY)
        if biased
        else example_choice.uniform_choice(data, limit=limit, key=KEY)
    )
    kept = np.add.reduceat(np.append(mask, False), data.user_ptr[:-1]) * (
        np.diff(data.user_ptr) > 0
    )
    np.testing.assert_array_equal(kept, np.minimum([len(x) for x in h], limit))


@settings(max_examples=40, deadline=None)
@given(histories, st.integers(1, 10), st.integers(0, 11))
def test_a_user_is_sampled_the_same_alone_and_in_company(
    h: list[set[int]], limit: int, user: int
) -> None:
    k = user % len(h)
    noisy = np.random.default_rng(0).normal(10, 5, M)
    data = clicks_of(h, M)
    alone = clicks_of(h, M).users_subset(np.array([k]))
    mine = slice(data.user_ptr[k], data.user_ptr[k + 1])
    for whole, single in (
        (
            example_choice.uniform_choice(data, limit=limit, key=KEY),
            example_choice.uniform_choice(alone, limit=limit, key=KEY),
        ),
        (
            example_choice.tail_choice(data, noisy, limit=limit, key=KEY),
            example_choice.tail_choice(alone, noisy, limit=limit, key=KEY),
        ),
    ):
        np.testing.assert_array_equal(whole[mine], single)


def test_tail_sampling_keeps_the_items_of_smallest_noisy_count() -> None:
    noisy = np.random.default_rng(1).permutation(M).astype(np.float64)
    data = clicks_of([set(range(0, M, 2)), set(range(25))], M)
    mask = example_choice.tail_choice(data, noisy, limit=6, key=KEY)
    for k in range(2):
        mine = slice(data.user_ptr[k], data.user_ptr[k + 1])
        kept = noisy[data.items[mine][mask[mine]]]
        left = noisy[data.items[mine][~mask[mine]]]
        assert kept.max() < left.min()


def test_uniform_sampling_draws_every_item_equally_often() -> None:
    """4,000 users draw 10 of 40 items; each item's share has std .0068, and 5 std are left: false
    alarms below 1e-4."""
    users = 4000
    data = clicks_of([set(range(M))] * users, M)
    shares = (
        np.bincount(data.items[example_choice.uniform_choice(data, limit=10, key=KEY)], minlength=M)
        / users
    )
    assert np.abs(shares - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / users)


def test_pairs_of_items_are_drawn_together_as_often_as_chance_says() -> None:
    """Guards against a hash that orders items alike for all users: 780 pairs, 5.5 std, false alarms
    below 1e-4."""
    users = 4000
    data = clicks_of([set(range(M))] * users, M)
    chosen = example_choice.uniform_choice(data, limit=10, key=KEY).reshape(users, M).astype(float)
    together = (chosen.T @ chosen / users)[np.triu_indices(M, 1)]
    p = 10 / 40 * 9 / 39
    assert np.abs(together - p).max() < 5.5 * np.sqrt(p * (1 - p) / users)


def test_another_key_gives_another_sample_and_ties_do_not_favour_small_numbers() -> None:
    data = clicks_of([set(range(M))] * 200, M)
    one, other = (
        example_choice.tail_choice(data, np.ones(M), limit=10, key=Streams(seed).key("sampling"))
        for seed in (1, 2)
    )
    assert not np.array_equal(one, other)
    assert abs(float(data.items[one].mean()) - (M - 1) / 2) < 1.5  # std of the mean is .22


def test_a_limit_below_one_and_missing_counts_are_refused() -> None:
    data = clicks_of([{1, 2}], M)
    with pytest.raises(ValueError, match="limit 0"):
        example_choice.uniform_choice(data, limit=0, key=KEY)
    with pytest.raises(ValueError, match="40 items, found 3"):
        example_choice.tail_choice(data, np.ones(3), limit=1, key=KEY)


def test_a_share_of_the_examples_is_drawn_one_by_one_and_the_same_in_any_company() -> None:
    """16,000 examples: the kept share within 5 standard deviations of what was asked (false alarm
    below 1e-6)."""
    data = clicks_of([set(range(M))] * 400, M)
    for share in (0.1, 0.5):
        mask = example_choice.share_of_examples(data, share=share, key=b"k")
        assert abs(mask.mean() - share) < 5 * np.sqrt(share * (1 - share) / len(data))
        alone = example_choice.share_of_examples(
            data.users_subset(np.array([7])), share=share, key=b"k"
        )
        np.testing.assert_array_equal(alone, mask[7 * M : 8 * M])
    assert example_choice.share_of_examples(data, share=1.0, key=b"k").all()
    for share in (0.0, 1.5):
        with pytest.raises(ValueError):
            example_choice.share_of_examples(data, share=share, key=b"k")
