from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedrec.federation.messages import BlockReports, ReleaseSpec, Reports
from fedrec.federation.protocol import Phase
from fedrec.federation.report_batches import pack_reports
from fedrec.federation.reports import block, squared_norms
from fedrec_aggregator.opening_checks import clip

ITEMS = 6
WIDTH = 3
LARGEST = 2**15 - 1
RELEASES = [
    ReleaseSpec(
        "s",
        (
            block("gram", "outer", rows=ITEMS, width=WIDTH),
            block("moment", "linear", rows=ITEMS, width=WIDTH),
        ),
    ),
    ReleaseSpec("m", (block("mean", "linear", rows=1, width=1, radius=2.0),), radius=2.0),
]
SPECS = [spec for release in RELEASES for spec in release.blocks]
RUN = "run-1"
kept_world = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def forged(draw: st.DrawFn) -> Reports:
    """Any integers that fit the wire: nothing that a client could send is missing."""
    sizes = draw(st.lists(st.integers(0, ITEMS), min_size=1, max_size=4))
    n = sum(sizes)
    users = len(sizes)
    integers = lambda count: np.array(  # noqa: E731
        draw(st.lists(st.integers(-LARGEST, LARGEST), min_size=count, max_size=count)), np.int32
    )
    blocks = tuple(
        BlockReports(
            integers(users if s.rows == 1 else n), integers(users * s.width).reshape(users, s.width)
        )
        for s in SPECS
    )
    items = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)
    return Reports(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), items, blocks)


def exact_square(reports: Reports, blocks: list[int], user: int) -> float:
    """One user's squared norm in integers and rational steps (powers of two): second code, nothing
    rounded but the last conversion."""
    from fractions import Fraction

    total = Fraction(0)
    start = int(reports.user_ptr[user])
    stop = int(reports.user_ptr[user + 1])
    for b in blocks:
        spec = SPECS[b]
        part = reports.blocks[b]
        mine = (
            part.coefficients[user : user + 1] if spec.rows == 1 else part.coefficients[start:stop]
        )
        vector = sum(int(x) ** 2 for x in part.vectors[user])
        total += (
            sum(int(c) ** 2 for c in mine)
            * vector ** (1 if spec.kind == "linear" else 2)
            * Fraction(spec.step) ** 2
        )
    return float(total)


@settings(max_examples=300)
@given(forged())
def test_whatever_is_sent_no_user_moves_a_release_by_more_than_its_radius(reports: Reports) -> None:
    bounded, clipped = clip(reports, RELEASES)
    before = squared_norms(reports, RELEASES)
    for user in range(reports.num_users):
        assert exact_square(bounded, [0, 1], user) <= 1.0
        assert exact_square(bounded, [2], user) <= 4.0
        assert clipped[user] == (before[0, user] > 1.0 or before[1, user] > 4.0)


@settings(max_examples=150)
@given(forged())
def test_clipping_shrinks_towards_zero_and_leaves_bounded_users_alone(reports: Reports) -> None:
    bounded, clipped = clip(reports, RELEASES)
    within = squared_norms(reports, RELEASES) <= np.array([[1.0], [4.0]])
    for b, (old, new, spec) in enumerate(zip(reports.blocks, bounded.blocks, SPECS, strict=True)):
        assert (np.abs(new.coefficients) <= np.abs(old.coefficients)).all()
        assert (new.coefficients * old.coefficients >= 0).all()
        np.testing.assert_array_equal(new.vectors, old.vectors)
        untouched = within[0 if b < 2 else 1]
        events = untouched if spec.rows == 1 else np.repeat(untouched, np.diff(reports.user_ptr))
        np.testing.assert_array_equal(new.coefficients[events], old.coefficients[events])
    assert clipped.any() or bounded is reports


@kept_world
@given(st.binary(max_size=400))
def test_no_bytes_at_all_make_report_raise(world: Any, junk: bytes) -> None:
    receipt = world.aggregator.report("client-0", RUN, 0, junk)
    assert receipt.accepted == 0
    assert sum(receipt.rejected.values()) >= 1


@kept_world
@given(st.data())
def test_no_damage_to_a_sound_batch_makes_report_raise_or_loses_count_of_its_users(
    world: Any, data: st.DataObject
) -> None:
    sound = bytearray(world.packed([0, 1, 2]))
    for _ in range(data.draw(st.integers(1, 6))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del sound[data.draw(st.integers(0, len(sound))) :]
    receipt = world.aggregator.report("client-0", RUN, 0, bytes(sound))
    assert receipt.accepted + sum(receipt.rejected.values()) >= 1
    assert world.aggregator.status(RUN, 0).phase in {Phase.OPEN, Phase.RELEASED}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(forged())
def test_a_forged_batch_is_added_clipped_and_nothing_else(make: Any, reports: Reports) -> None:
    world = make().begun()
    users = list(range(reports.num_users))
    batch = world.batch(users)
    receipt = world.aggregator.report(
        "client-0",
        RUN,
        0,
        pack_reports(type(batch)(batch.ids, batch.tokens, reports), world.opening().digest),
    )
    sums = world.aggregator._rounds[RUN, 0].sums
    world.stop()
    assert receipt.accepted == reports.num_users
    bounded, _ = clip(reports, RELEASES)
    for spec, part, total in zip(SPECS, bounded.blocks, sums.blocks, strict=True):
        np.testing.assert_array_equal(total, by_hand(spec, part, bounded))


def by_hand(spec: Any, part: BlockReports, reports: Reports) -> np.ndarray:
    total = np.zeros((spec.rows, spec.columns), np.int64)
    row, column = np.triu_indices(spec.width)
    for user in range(reports.num_users):
        x = part.vectors[user].astype(np.int64)
        content = x if spec.kind == "linear" else x[row] * x[column]
        for e in range(int(reports.user_ptr[user]), int(reports.user_ptr[user + 1])):
            if spec.rows > 1:
                total[reports.items[e]] += int(part.coefficients[e]) * content
        if spec.rows == 1:
            total[0] += int(part.coefficients[user]) * content
    return total


@pytest.mark.parametrize("users", [0, 2**32 - 1])
def test_a_lying_header_allocates_nothing_and_counts_within_the_limits(
    world: Any, users: int
) -> None:
    header = (
        b"FRR1"
        + bytes.fromhex(world.opening().digest)
        + users.to_bytes(4, "little")
        + (2**32 - 1).to_bytes(4, "little")
    )
    receipt = world.aggregator.report("client-0", RUN, 0, header)
    assert sum(receipt.rejected.values()) == min(max(users, 1), world.limits.max_users_per_batch)
