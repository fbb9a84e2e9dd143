from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

from fedrec.data.interactions import Interactions
from fedrec.data.splits import (
    Fold,
    Split,
    check_no_leak,
    given,
    held_out_users,
    leave_last_out,
    random_split,
    temporal,
)
from fedrec.errors import DataError, LeakageError

SPLITS = {
    "random": random_split,
    "held-out": held_out_users,
    "temporal": temporal,
    "leave-last-out": leave_last_out,
}


def events_of(seed: int, users: int, items: int, density: float) -> Interactions:
    """A random data set; the first twelve users have at least three events each."""
    rng = np.random.default_rng(seed)
    known = rng.random((users, items)) < density
    known[:12, :3] = True
    u, j = np.nonzero(known)
    values = rng.integers(1, 6, len(u)).astype(np.float32)
    times = rng.permutation(len(u)) + 1
    return Interactions.from_columns(
        u, j, values, num_users=users, num_items=items, value_range=(1, 5), times=times
    )


def triples(
    events: Interactions, users: np.ndarray | None = None
) -> list[tuple[int, int, float, int]]:
    """(user of the data set, item, value, time) of every event."""
    numbers = events.users if users is None else users[events.users]
    return list(
        zip(
            numbers.tolist(),
            events.items.tolist(),
            events.values.tolist(),
            events.times.tolist(),
            strict=True,
        )
    )


def pieces(split: Split) -> list[list[tuple[int, int, float, int]]]:
    parts = [triples(split.train, split.train_users)]
    for fold in (split.validation, split.test):
        parts += [triples(fold.targets, fold.users)] + (
            [] if fold.history is split.train else [triples(fold.history, fold.users)]
        )
    return parts


@pytest.mark.parametrize("name", SPLITS)
@settings(max_examples=40)
@drawn(
    seed=st.integers(0, 2**32),
    data=st.integers(0, 10**6),
    users=st.integers(12, 40),
    items=st.integers(3, 30),
    density=st.floats(0, 0.9),
)
def test_every_split_is_a_partition_without_leak_and_a_function_of_the_seed(
    name, seed, data, users, items, density
):
    events = events_of(data, users, items, density)
    try:
        split = SPLITS[name](events, seed=seed)
    except DataError:
        # shares are met in expectation: of a few users or events, a part may get none
        assume(False)
    check_no_leak(split)
    everything = [event for part in pieces(split) for event in part]
    assert len(everything) == len(events)
    assert set(everything) == set(triples(events))
    assert SPLITS[name](events, seed=seed).describe() == split.describe()


@pytest.mark.parametrize("name", ["random", "held-out"])
def test_another_seed_is_another_split(name):
    events = events_of(1, 40, 30, 0.5)
    # not their digests, which name the seed
    one, other = (SPLITS[name](events, seed=seed) for seed in (1, 2))
    assert set(triples(one.train, one.train_users)) != set(triples(other.train, other.train_users))


def test_random_split_is_80_10_10_and_train_is_the_history():
    events = events_of(1, 40, 30, 0.5)
    split = random_split(events, seed=3)
    n = len(events)
    # a binomial number, within four of its standard deviations
    for fold in (split.validation, split.test):
        assert abs(len(fold.targets) - n / 10) < 4 * np.sqrt(0.09 * n)
    assert split.validation.history is split.train
    assert split.test.history is split.train


def test_held_out_users_are_disjoint_renumbered_and_keep_a_fifth_for_targets():
    events = events_of(2, 100, 50, 0.5)
    split = held_out_users(events, seed=3)
    owners = [split.train_users, split.validation.users, split.test.users]
    assert sorted(np.concatenate(owners)) == list(range(100))
    for fold in (split.validation, split.test):
        assert 1 <= len(fold.users) <= 22
        assert fold.history.num_users == fold.targets.num_users == len(fold.users)
        sizes = np.diff(events.user_ptr)[fold.users]
        targets = np.diff(fold.targets.user_ptr)
        np.testing.assert_array_equal(targets, np.maximum(1, np.round(sizes / 5)))
    assert len(held_out_users(events, seed=3, share=0.25).test.users) > len(split.test.users)


def test_temporal_split_trains_on_the_past():
    split = temporal(events_of(3, 40, 30, 0.5), seed=0)
    assert split.train.times.max() < split.validation.targets.times.min()
    assert split.validation.targets.times.max() < split.test.targets.times.min()


def test_public_cuts_divide_at_these_times_and_are_covered_where_quantiles_of_the_data_are_not():
    events = events_of(3, 40, 30, 0.5)
    cuts = (len(events) // 2, len(events) // 2 + 50)
    split = temporal(events, seed=0, cuts=cuts)
    assert (split.train.times.max(), split.validation.targets.times.max()) == cuts
    assert split.not_covered == ()
    assert "read off all events" in temporal(events, seed=0).not_covered[0]
    with pytest.raises(ValueError, match="second cut"):
        temporal(events, seed=0, cuts=cuts[::-1])
    with pytest.raises(DataError, match="leave no test"):
        temporal(events, seed=0, cuts=(1, len(events)))


def test_leave_last_out_takes_each_users_two_latest_events():
    events = events_of(4, 40, 30, 0.3)
    split = leave_last_out(events, seed=0)
    for k in range(events.num_users):
        times = np.sort(events.times[events.user_ptr[k] : events.user_ptr[k + 1]])
        expected = times[-2:] if len(times) >= 3 else []
        found = [
            fold.targets.times[fold.targets.user_ptr[k] : fold.targets.user_ptr[k + 1]]
            for fold in (split.validation, split.test)
        ]
        np.testing.assert_array_equal(np.concatenate(found), expected)


def test_leave_last_out_breaks_ties_by_the_seed_alone():
    events = events_of(5, 30, 20, 0.5)
    events = replace(
        events,
        times=np.repeat(
            np.arange(1, 4),
            [len(events) // 3, len(events) // 3, len(events) - 2 * (len(events) // 3)],
        ),
    )
    digests = {leave_last_out(events, seed=seed).describe()["sha256"] for seed in (1, 1, 2)}
    assert len(digests) == 2


@pytest.mark.parametrize("make", [temporal, leave_last_out])
@pytest.mark.parametrize(
    ("times", "reason"), [(None, "no times"), ("zeros", "unknown"), ("constant", "same time")]
)
def test_times_that_cannot_order_events_are_refused_with_the_reason(make, times, reason):
    events = events_of(6, 30, 20, 0.5)
    clock = np.array(events.times)
    if times == "zeros":
        clock[: 2 * len(clock) // 3] = 0
    elif times == "constant":
        clock[: 2 * len(clock) // 3] = 7
    with pytest.raises(DataError, match=reason):
        make(replace(events, times=None if times is None else clock), seed=0)


def test_given_split_keeps_the_sources_test_events_and_refuses_shared_ones():
    events = events_of(7, 30, 20, 0.5)
    mask = np.random.default_rng(0).random(len(events)) < 0.8
    train = events.select(mask)
    test = events.select(~mask)
    split = given(train, test, seed=1)
    assert split.test.targets is test
    assert len(split.train) + len(split.validation.targets) == len(train)
    assert set(triples(split.train) + triples(split.validation.targets)) == set(triples(train))
    with pytest.raises(
        LeakageError, match="events are in the history of test and in the targets of test"
    ):
        given(events, test, seed=1)


def test_what_a_given_split_keeps_for_validation_has_nothing_to_do_with_a_random_one():
    """5,000 events at .1: 4.5 standard deviations, false alarm 7e-6 for a new seed."""
    drawn_parts = random_split(events_of(11, 100, 100, 0.6), seed=3)
    train = drawn_parts.train
    kept = given(train, drawn_parts.test.targets, seed=3, validation_share=0.1).validation.targets
    assert abs(len(kept) - 0.1 * len(train)) < 4.5 * np.sqrt(0.09 * len(train))


def leaking() -> dict[str, Split]:
    events = events_of(8, 40, 20, 0.5)
    random = random_split(events, seed=0)
    held = held_out_users(events, seed=0)
    past = temporal(events, seed=0)
    return {
        "an event in train and in the test targets": replace(
            random, train=events, test=Fold(random.train, random.test.targets)
        ),
        "a history that holds its targets": replace(random, test=Fold(events, random.test.targets)),
        "the same targets in both folds": replace(random, test=random.validation),
        "a held-out user in train": replace(
            held, train=events, train_users=np.arange(40, dtype=np.int32)
        ),
        "a held-out user in both folds": replace(held, test=held.validation),
        "held-out users that are not named": replace(held, test=replace(held.test, users=None)),
        "a held-out history with its targets": replace(
            held, test=replace(held.test, history=held.test.targets)
        ),
        "train events later than the cut": replace(past, cuts=(past.cuts[0] - 1, past.cuts[1])),
        "test events before the cut": replace(past, cuts=(past.cuts[0], past.cuts[1] + 1)),
    }


@pytest.mark.parametrize("name", leaking())
def test_a_leak_is_refused(name):
    with pytest.raises(LeakageError):
        check_no_leak(leaking()[name])


def test_describe_names_kind_seed_and_sizes():
    record = random_split(events_of(1, 40, 30, 0.5), seed=3).describe()
    assert (record["kind"], record["seed"]) == ("random", 3)
    assert record["events"]["train"] > record["events"]["test_targets"] > 0
    assert len(record["sha256"]) == 64


@pytest.mark.slow
@pytest.mark.real_data
def test_the_times_of_this_movielens_1m_are_refused_for_a_temporal_split(real_data):
    from fedrec.data.read import read

    with pytest.raises(DataError, match=r"66\.7% of the times are 0"):
        temporal(read(real_data / "ml-1m", item_features="none").interactions, seed=0)
