"""A site's sum is shared as a few rows: it adds up to its users' reports, counts its users once, and
counts all of them or none."""

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from fedrec.federation.protocol import Invitation, Refusal
from fedrec.federation.reports import exact_sums
from fedrec.sharing.holding import Holding
from fedrec.sharing.layout import layout, plain_numbers
from fedrec.sharing.record import SharedUser, addressed, pack_shares, read_output
from fedrec.sharing.servers import ShareSums, total
from fedrec.sharing.shares import fresh_seeds, share
from fedrec.sharing.site_messages import pack_site, read_site
from fedrec.sharing.site_sums import SiteSum, row_names, site_rows
from tests.sharing import reports as invented
from tests.sharing.test_one_of_three import begun, finish, send
from tests.sharing.three_cores import RUN, USERS, Cores, federation
from tests.sharing.three_worlds import CHECKED, QUESTION, World, reports_of

TOKENS = tuple(bytes([k]) * 16 for k in range(3))
SITE = [0, 1, 2]


def sums_of(users: list[int]) -> list[np.ndarray]:
    return [np.asarray(found) for found in exact_sums(reports_of(users), QUESTION.blocks)]


def site_of(
    found: bytes,
    *,
    users: list[int] = SITE,
    tokens: Sequence[bytes] = TOKENS,
    secret: bytes = b"s" * 32,
) -> tuple[list[SharedUser], ...]:
    shape = layout(QUESTION)
    total = SiteSum(shape)
    for user in users:
        total.add(plain_numbers(reports_of([user]), shape))
    rows = total.rows()
    names = row_names(tokens, len(rows))
    return addressed(rows, names, names, found, secret=secret)


def deliver(
    world: World, found: bytes, sent: tuple[list[SharedUser], ...], tokens: Sequence[bytes] = TOKENS
) -> list[str]:
    return [
        party.receive_site("run", 1, found, tuple(tokens), sent[i])
        for i, party in enumerate(world.parties)
    ]


def total_of(world: World) -> tuple[list[int], list[np.ndarray]]:
    """How many users each output says, and the sums without noise."""
    read = [read_output(next(iter(left)), QUESTION) for left in world.left]
    return [users for _, users, _ in read], list(total([parts for *_, parts in read]))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise, so that sums can be compared."""
    silence = lambda question, plan, source: [  # noqa: E731
        np.zeros((spec.rows, spec.columns), np.int64) for spec in question.blocks
    ]
    monkeypatch.setattr("fedrec.sharing.one_of_three.party_noise", silence)


@pytest.mark.parametrize("users", [1, 7, 40])
def test_a_sites_rows_add_up_to_its_users_reports_for_every_kind_of_block(users: int) -> None:
    shape = layout(invented.QUESTION)
    reports = invented.some_reports(users, users)
    summed = SiteSum(shape)
    summed.add(plain_numbers(reports, shape))
    rows = summed.rows()
    assert len(rows) == site_rows(shape) == max(s.width for s in invented.QUESTION.blocks)
    sent = share(rows, fresh_seeds(len(rows)))
    keys = [os.urandom(32) for _ in range(3)]
    outputs = []
    none = [np.zeros((s.rows, s.columns), np.int64) for s in invented.QUESTION.blocks]
    for i in range(3):
        sums = ShareSums(shape)
        sums.add(*sent.held_by(i))
        outputs.append(sums.output(none, (keys[i], keys[(i + 1) % 3]), b"context"))
    for ours, theirs in zip(
        total(outputs), exact_sums(reports, invented.QUESTION.blocks), strict=True
    ):
        assert np.array_equal(ours, theirs)


def test_a_site_beside_users_is_summed_and_its_users_are_counted(quiet: None) -> None:
    world, found = begun()
    sent = site_of(found)
    assert deliver(world, found, sent) == [""] * 3
    assert deliver(world, found, sent) == [""] * 3  # the same again is the same
    assert send(world, 3, found) == send(world, 4, found) == [""] * 3
    assert [p.progress("run", 1).users for p in world.parties] == [5] * 3  # type: ignore[union-attr]
    finish(world)
    users, sums = total_of(world)
    assert users == [5] * 3
    assert all(map(np.array_equal, sums, sums_of([0, 1, 2, 3, 4])))


def test_a_site_of_which_one_row_is_missing_at_one_aggregator_counts_for_none_of_its_users(
    quiet: None,
) -> None:
    """Half of its columns would be a sum of nothing that a user reported."""
    world, found = begun()
    sent = site_of(found)
    held = Holding.add
    calls = [0]

    def full(holding: Holding, user: SharedUser) -> None:
        calls[0] += holding.aggregator == 1
        if holding.aggregator == 1 and calls[0] == 2:
            raise OSError
        held(holding, user)

    with patch.object(Holding, "add", full):
        assert deliver(world, found, sent) == ["", "no-room", ""]
    send(world, 3, found)
    finish(world)
    users, sums = total_of(world)
    assert users == [1] * 3
    assert all(map(np.array_equal, sums, sums_of([3])))


def test_a_site_that_was_held_in_part_and_is_sent_again_counts(quiet: None) -> None:
    world, found = begun()
    sent = site_of(found)
    with patch.object(Holding, "add", side_effect=OSError):
        assert deliver(world, found, sent) == ["no-room"] * 3
    assert deliver(world, found, sent) == [""] * 3
    finish(world)
    assert total_of(world)[0] == [3] * 3


def test_a_quorum_is_of_a_sites_users_and_not_of_its_rows() -> None:
    for needed, left in ((3, 1), (4, 0)):
        world, found = begun(needed=needed)
        deliver(world, found, site_of(found))
        finish(world)
        assert [len(seen) for seen in world.left] == [left] * 3


def test_nobody_is_in_two_sums_or_in_a_sum_and_alone() -> None:
    world, found = begun()
    alone = world.sent(0, found)
    token = alone[0].committed.user
    assert send(world, 0, found) == [""] * 3
    for tokens, first in (((token, *TOKENS), "replayed"), (TOKENS, ""), (TOKENS[2:], "replayed")):
        sent = site_of(found, tokens=tokens, secret=os.urandom(32))
        assert deliver(world, found, sent, tokens) == [first] * 3
    changed = site_of(found, users=[0, 1], secret=os.urandom(32))
    assert deliver(world, found, changed) == ["replayed"] * 3  # other numbers of the same users


def test_a_sum_is_not_taken_where_clients_are_checked_or_its_rows_are_not_of_its_list() -> None:
    world, found = begun()
    sent = site_of(found)
    other = (*TOKENS[:2], b"x" * 16)
    assert deliver(world, found, sent, other) == ["malformed"] * 3
    assert deliver(world, found, tuple(rows[:1] for rows in sent)) == ["malformed"] * 3  # type: ignore[arg-type]
    assert deliver(world, b"another" * 4, sent) == ["another-ticket"] * 3
    checked, found = begun(plan=CHECKED)
    assert deliver(checked, found, site_of(found)) == ["malformed"] * 3


@pytest.mark.parametrize("broken", [b"FRG1", b"FRG1\2\0\0\0" + b"a" * 31, b"FRG1\0\0\0\0rest"])
def test_a_list_of_users_that_is_cut_off_empty_or_names_somebody_twice_is_refused(
    broken: bytes,
) -> None:
    with pytest.raises(ValueError, match="site's"):
        read_site(broken)
    with pytest.raises(ValueError, match="twice"):
        read_site(pack_site([b"a" * 16] * 2, b"rest"))
    assert read_site(pack_site(TOKENS, b"rest")) == (TOKENS, b"rest")
    assert read_site(b"FRS1...") == ((), b"FRS1...")


def test_a_client_of_many_users_sends_one_sum_and_takes_nobody_elses_users(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cores = stack.enter_context(closing(Cores(tmp_path)))
        sets = ("recipe=published", "model.steps=1", "model.encoder=id", "model.dimension=2")
        there = federation(cores, stack, *sets)
        there.join(there.terms)
        question = there.first
        there.opened()
        cores.sleep(1.0)
        rows = site_rows(layout(question))
        answer = there.participants[0].answer(Invitation(RUN, there.prepared.plan, question))
        assert answer.accepted == answer.users > rows
        core = cores.running[0]
        assert core is not None
        assert core._party.progress(RUN, 0).rows == rows  # type: ignore[union-attr]
        owners = core.ledger.owners()
        ticket = core.attempt(RUN, 0).ticket
        of_others = [token for token, owner in owners.items() if owner == "client-2"]
        for tokens, code in (
            (of_others, Refusal.FORBIDDEN),
            ([b"nobody" + bytes(10)], Refusal.NOT_ENROLLED),
        ):
            numbers = np.zeros((rows, layout(question).length), np.uint64)
            names = row_names(tokens, rows)
            sent = addressed(numbers, names, names, ticket, secret=b"s" * 32)[0]
            message = pack_site(tokens, pack_shares(sent, 0, ticket))
            receipt = core.share_endpoint("client-1").report(RUN, 0, message)
            assert (receipt.accepted, receipt.rejected) == (0, {code: len(tokens)})
        assert core.share_endpoint("client-2").report(RUN, 0, b"FRG1").rejected == {
            Refusal.MALFORMED: 1
        }
        there.released_as_alone()
        assert sum(each.users.num_users for each in there.participants) == USERS
