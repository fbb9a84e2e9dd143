"""Whatever looks at a ledger that a crash left in the middle of a write reads what was there before
the write, and does not send its party away."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedrec.api.persons import account_of_person
from fedrec.cli.disclosure.aggregator import ledger_of
from fedrec.cli.disclosure.overview import inspected
from fedrec.cli.ledgers.restoring import _entries_in
from fedrec.errors import RunError
from fedrec.ledgers.sqlite_ledger import opened_to_look, read_clock
from fedrec.privacy.guarantee import Guarantee
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client import click_ledger, ledger, serving_ledger
from tests.aggregator.conftest import World
from tests.ledgers.crash import crash_in_a_write
from tests.ledgers.test_kept_ledgers import kept

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "entries of rounds": ("rounds.sqlite", ledger.read_entries),
    "the head that was seen": ("rounds.sqlite", ledger.read_seen),
    "a clock's jumps": ("rounds.sqlite", read_clock),
    "a person's account": ("rounds.sqlite", lambda path: account_of_person(path)),
    "what left a client": ("rounds.sqlite", lambda path: inspected(path.parent)),
    "entries of clicks": ("clicks.sqlite", click_ledger.read_entries),
    "what left a client of news": ("clicks.sqlite", lambda path: inspected(path.parent)),
    "answers": (
        "answers.sqlite",
        lambda path: [answer.head for answer in serving_ledger.read_answers(path)],
    ),
    "what left a device": ("answers.sqlite", lambda path: inspected(path.parent)),
    "entries, before a backup is put back": (
        "rounds.sqlite",
        lambda path: _entries_in(path.parent),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_ledger_is_read_as_it_was_before_the_write(tmp_path: Path, name: str) -> None:
    ledger_name, read = READERS[name]
    path = kept(tmp_path, ledger_name)
    if ledger_name != "clicks.sqlite":  # as a party names it
        path = path.rename(path.with_name("ledger.sqlite"))
    before = read(path)
    journal = crash_in_a_write(path)
    assert read(path) == before
    assert not journal.exists()


def test_an_aggregators_ledger_is_read_as_it_was_before_the_write(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enroll()
    world.open(0)
    world.stop()
    before = ledger_of(tmp_path / "ledger.sqlite")
    crash_in_a_write(tmp_path / "ledger.sqlite")
    assert ledger_of(tmp_path / "ledger.sqlite") == before
    assert before[0]


def test_who_looks_writes_nothing(tmp_path: Path) -> None:
    with closing(opened_to_look(kept(tmp_path, "rounds.sqlite"))) as database:  # noqa: SIM117
        with pytest.raises(Exception, match="readonly"):
            database.execute("DELETE FROM entries")


def test_a_ledger_whose_opening_is_refused_keeps_no_file_open(tmp_path: Path) -> None:
    """By a file that is no database, which SQLite finds after it has opened it."""
    limit = Guarantee(5.0, 1e-5)
    openings: list[Callable[[Path], object]] = [
        lambda path: ledger.ClientLedger(path, limit=limit),
        lambda path: click_ledger.ClickLedger(path, limit=limit),
        lambda path: serving_ledger.ServingLedger(
            path, limit=Guarantee(5.0, 1e-5, "click", "replace")
        ),
        lambda path: ReleaseLedger(path.parent, limit=None),
    ]
    held = list[object]()  # what is refused still refers to what it opened, as a caller's log may
    for number, opening in enumerate(openings):
        path = tmp_path / str(number) / "ledger.sqlite"
        path.parent.mkdir()
        path.write_bytes(b"this is no database" * 100)
        with pytest.raises(RunError) as refused:
            opening(path)
        held.append(refused.value)
        opened = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        assert not [name for name in opened if name.startswith(str(tmp_path))], opening
