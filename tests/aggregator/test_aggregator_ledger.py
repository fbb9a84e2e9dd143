import hashlib
import inspect
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import RefusedError, RunError
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, OwnLedger, follow, grown
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec_aggregator import ledger as ledger_module
from fedrec_aggregator.chain import LINKS, Birth, ClockSet, link
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.ledger import ReleaseLedger

EVERYBODY = list(range(12))
RUN = "run-1"
DAY_S = 86_400.0


def released(world: Any) -> None:
    world.send(EVERYBODY)
    world.aggregator.tick()


def changed(world: Any, statement: str) -> None:
    world.stop()
    with sqlite3.connect(world.folder / "ledger.sqlite") as database:
        database.execute(statement)
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries WHERE seq = 1",
        "DELETE FROM entries WHERE seq = 0",
        "UPDATE entries SET content = replace(content, 's/0', 's/1') WHERE seq = 1",
        "UPDATE entries SET hash = (SELECT hash FROM entries WHERE seq = 0) WHERE seq = 2",
        "UPDATE entries SET seq = 99 WHERE seq = 1",
    ],
)
def test_a_damaged_chain_is_not_opened(world: Any, statement: str) -> None:
    released(world)
    changed(world, statement)
    with pytest.raises(RunError, match="damaged") as caught:
        world.start()
    assert "backup" in caught.value.remedy


def test_bytes_that_are_no_database_are_damage_not_a_traceback(make: Callable[..., Any]) -> None:
    world = make()
    world.stop()
    (world.folder / "ledger.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(RunError, match="damaged"):
        world.start()


def test_an_older_copy_does_not_know_what_the_server_has_seen(world: Any) -> None:
    old = (world.folder / "ledger.sqlite").read_bytes()
    released(world)
    head = world.aggregator.status(RUN, 0).ledger_head
    world.stop()
    (world.folder / "ledger.sqlite").write_bytes(old)
    world.start()
    with pytest.raises(RefusedError) as caught:
        world.aggregator.open_round(world.opening(head=head))
    assert caught.value.code == "stale-ledger"


def test_every_head_ever_told_is_known_after_a_restart(world: Any) -> None:
    heads = [world.aggregator.ledger.head()]
    for round in range(2):
        world.open(round)
        world.send(EVERYBODY, round)
        heads.append(world.aggregator.close(RUN, round).ledger_head)
    world.restart()
    assert all(world.aggregator.ledger.knows(head) for head in heads)
    assert world.aggregator.ledger.head() == heads[-1]
    assert len(set(heads)) == 3


def round_of(world: Any, round: int) -> None:
    world.open(round)
    world.send(EVERYBODY, round)
    world.aggregator.close(RUN, round)


def kinds(world: Any) -> list[str]:
    with closing(sqlite3.connect(world.folder / "ledger.sqlite")) as database:
        return [
            json.loads(content)["kind"]
            for (content,) in database.execute("SELECT content FROM entries ORDER BY seq")
        ]


def test_a_clock_that_jumped_ahead_and_is_set_right_bricks_nothing_and_is_noted_once(
    world: Any, caplog: Any
) -> None:
    world.clock.now_s += 3 * DAY_S
    round_of(world, 0)
    world.clock.now_s -= 3 * DAY_S
    world.restart()
    for round in (1, 2):
        world.open(round)
        world.send(EVERYBODY, round)
        assert world.aggregator.close(RUN, round).phase == "released"
    assert kinds(world).count("clock") == 1
    assert [record.getMessage() for record in caplog.records].count("clock-set") == 1
    note = next(
        link.entry
        for link in world.aggregator.ledger._rows.chain.links
        if isinstance(link.entry, ClockSet)
    )
    assert note.last_s - note.now_s == 3 * DAY_S
    world.restart()  # the chain with the note in it is whole
    assert len(world.aggregator.ledger.spends().charges) == 6


def test_a_clock_that_is_set_back_in_the_middle_of_a_round_ends_the_round_when_it_was_to_end(
    make: Callable[..., Any],
) -> None:
    """Deadlines are on a clock that nobody sets."""
    assert inspect.signature(Aggregator).parameters["clock"].default is time.monotonic


def test_entries_are_numbered_and_a_wrong_number_is_damage() -> None:
    first = link(Birth("00"), time_s=5.0, after=LedgerHead())
    second = link(Birth("01"), time_s=-5.0, after=LedgerHead(1, first.head))
    skipped = link(Birth("01"), time_s=-5.0, after=LedgerHead(2, first.head))
    first_row = first.content, first.head
    links = LINKS.verified([first_row, (second.content, second.head)], "it")
    assert [each.entry for each in links] == [Birth("00"), Birth("01")]
    with pytest.raises(RunError, match="entry 2"):
        LINKS.verified([first_row, (skipped.content, skipped.head)], "it")


@dataclass
class Memory:
    """What a party keeps."""

    head: LedgerHead = field(default_factory=LedgerHead)

    def ledger_head(self) -> LedgerHead:
        return self.head

    def keep_ledger_head(self, head: LedgerHead) -> None:
        self.head = head


@pytest.mark.parametrize("since", [0, 1])
def test_a_ledger_put_back_is_refused_in_a_new_run_by_whoever_saw_it_charged(
    world: Any, since: int
) -> None:
    """Also where it has grown as long again, or longer, on another way."""
    for round in range(since):
        round_of(world, round)
    world.stop()
    old = (world.folder / "ledger.sqlite").read_bytes()
    world.start()
    round_of(world, since)
    memory = Memory()
    follow(world.aggregator.growth, memory)
    seen = memory.head
    world.stop()
    (world.folder / "ledger.sqlite").write_bytes(old)
    world.start()
    for _ in range(2):
        world.clock.now_s += 1.0  # what is released now is another release
        with pytest.raises(RefusedError) as caught:
            follow(world.aggregator.growth, memory)
        assert caught.value.code == "stale-ledger"
        assert "newest backup" in caught.value.remedy
        assert "--new-aggregator-ledger" in caught.value.remedy
        assert memory.head == seen
        round_of(world, since)
        round_of(world, since + 1)


def test_a_head_that_the_ledger_never_had_is_refused_by_the_ledger_itself(world: Any) -> None:
    round_of(world, 0)
    links = world.aggregator.ledger._rows.chain.links
    assert world.aggregator.growth(LedgerHead(2, links[1].head)).head.number == len(links)
    for strange in (
        LedgerHead(2, links[0].head),
        LedgerHead(1, "0" * 64),
        LedgerHead(0, links[0].head),
        LedgerHead(99, links[-1].head),
    ):
        with pytest.raises(RefusedError, match="does not hold") as caught:
            world.aggregator.growth(strange)
        assert caught.value.code == "stale-ledger"


def test_a_growth_that_does_not_lead_to_the_head_it_states_is_refused() -> None:
    seen = grown(LedgerHead(), ["aa", "bb"])
    told = grown(seen, ["cc"])
    for lie in (
        LedgerGrowth(LedgerHead(3, "0" * 64), ("cc",)),
        LedgerGrowth(told, ("dd",)),
        LedgerGrowth(LedgerHead(9, told.head), ("cc",)),
        LedgerGrowth(told, ()),
        LedgerGrowth(LedgerHead()),
    ):
        memory = Memory(seen)
        with pytest.raises(RefusedError):
            follow(lambda _, lie=lie: lie, memory)
        assert memory.head == seen
    memory = Memory(seen)
    follow(lambda _: LedgerGrowth(told, ("cc",)), memory)
    assert memory.head == told


def test_a_long_growth_is_followed_piece_by_piece(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "ENTRIES_AT_ONCE", 2)
    for round in range(3):
        round_of(world, round)
    memory = Memory()
    asked = list[int]()

    def grow(since: LedgerHead) -> LedgerGrowth:
        asked.append(since.number)
        growth: LedgerGrowth = world.aggregator.growth(since)
        return growth

    follow(grow, memory)
    assert asked == list(range(0, memory.head.number, 2))
    assert memory.head.head == world.aggregator.ledger.head()


def test_a_client_whose_own_ledger_got_shorter_is_refused_also_after_a_restart(world: Any) -> None:
    endpoint = world.aggregator.client_endpoint("client-0")
    chain = [hashlib.sha256(bytes([n % 256, n // 256])).hexdigest() for n in range(400)]
    for charged in (0, 2, 2, 5):
        endpoint.growth(LedgerHead(), OwnLedger(charged, tuple(chain[:charged])))
    world.restart()
    endpoint = world.aggregator.client_endpoint("client-0")
    went_on = (*chain[:4], "0" * 64, *chain[5:8])
    for told, said in (
        (OwnLedger(4, tuple(chain[:4])), "has 4 entries, it had 5"),
        # put back by one entry, and charged again since: once and several times
        (OwnLedger(5, went_on[:5]), "does not hold the 5 entries"),
        (OwnLedger(8, went_on), "does not hold the 5 entries"),
    ):
        with pytest.raises(RefusedError, match=said) as caught:
            endpoint.growth(LedgerHead(), told)
        assert caught.value.code == "stale-ledger"
        assert "newest state folder" in caught.value.remedy
    endpoint.growth(LedgerHead(), OwnLedger(400, tuple(chain[-256:])))  # for other aggregators
    world.aggregator.client_endpoint("client-1").growth(LedgerHead(), OwnLedger())


def test_a_folder_has_one_aggregator(make: Callable[..., Any]) -> None:
    world = make()
    with pytest.raises(RunError, match="another aggregator"):
        ReleaseLedger(world.folder, limit=None)
    world.restart()


def test_a_folder_that_cannot_be_made_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be used"):
        ReleaseLedger(tmp_path / "file" / "folder", limit=None)


def test_a_damaged_or_missing_release_file_is_never_served(world: Any) -> None:
    released(world)
    (path,) = world.folder.rglob("round-000.safetensors")
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.raises(RunError, match="not the file"):
        world.aggregator.release(RUN, 0)
    path.unlink()
    with pytest.raises(RunError, match="cannot be read"):
        world.aggregator.release(RUN, 0)


def test_of_old_runs_the_newest_release_alone_is_kept_and_what_is_removed_is_never_released_again(
    world: Any,
) -> None:
    world.aggregator.ledger._runs_kept = 2
    # run-1 comes back: what counts is the last release
    released_to = ["run-1", "run-2", "run-3", "run-1", "run-4"]
    rounds = dict.fromkeys(released_to, 0)
    bytes_of = dict[tuple[str, int], bytes]()
    for run in released_to:
        for _ in range(2 if rounds[run] == 0 else 1):
            world.run = run
            world.open(rounds[run])
            world.send(EVERYBODY, rounds[run])
            world.aggregator.close(run, rounds[run])
            bytes_of[run, rounds[run]] = world.aggregator.release(run, rounds[run])
            rounds[run] += 1
    there = {
        (path.parent.name, int(path.stem[-3:]))
        for path in world.folder.rglob("round-*.safetensors")
    }
    assert there == {
        ("run-1", 1),
        ("run-1", 2),
        ("run-4", 0),
        ("run-4", 1),
        ("run-2", 1),
        ("run-3", 1),
    }
    world.restart()
    world.aggregator.ledger._runs_kept = 2
    assert all(world.aggregator.release(*key) == bytes_of[key] for key in there)
    for run in ("run-1", "run-2", "run-3"):
        with pytest.raises(RefusedError, match="was removed") as caught:
            world.aggregator.release(run, 0)
        assert caught.value.code == "round-closed"
    world.run = "run-2"
    world.open(0)
    assert world.aggregator.status("run-2", 0).phase == "released"  # it is not collected again
    charges = len(world.aggregator.ledger.spends().charges)
    world.send(EVERYBODY, 0)
    assert len(world.aggregator.ledger.spends().charges) == charges
    (world.folder / "releases" / "run-4" / "round-000.safetensors").unlink()
    # of a run whose releases are kept, a missing file is a loss
    with pytest.raises(RunError, match="cannot be read"):
        world.aggregator.release("run-4", 0)


def test_spends_of_several_units_are_not_added_without_a_limit_that_needs_it(
    tmp_path: Path,
) -> None:
    ledger = ReleaseLedger(tmp_path, limit=None)
    plans = [calibrate(Guarantee(2.0, 1e-5, unit), {"x": 1.0}) for unit in ("user", "example")]  # type: ignore[arg-type]
    for plan in plans:
        ledger.charge(plan.guarantee.unit, 0, plan, ["x"])
    assert ledger.spends().epsilon == pytest.approx(2.0)
    assert ledger.account(plans[1].guarantee).epsilon == pytest.approx(2.0)
    ledger.close()
