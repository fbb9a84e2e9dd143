"""Jumps of the machine's clock, kept beside a ledger's entries.

Not in the chain: times decide nothing.
"""

from __future__ import annotations

import sqlite3

from fedrec.operations.clock import LEAST_S, ClockJump

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS clock (after INTEGER NOT NULL, expected_s REAL NOT NULL, now_s "
    "REAL NOT NULL);"
)

Jumps = tuple[tuple[int, ClockJump], ...]
"""Each with the number of the entry before."""


def write_jump(database: sqlite3.Connection, after: int, jump: ClockJump) -> None:
    """Keep a jump, in the transaction of the caller."""
    database.execute("INSERT INTO clock VALUES (?, ?, ?)", (after, jump.expected_s, jump.now_s))


def read_jumps(database: sqlite3.Connection) -> Jumps:
    """All of them; none in a ledger of an earlier version."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'clock'").fetchone():
        return ()
    return tuple(
        (after, ClockJump(expected_s, now_s))
        for after, expected_s, now_s in database.execute("SELECT * FROM clock ORDER BY rowid")
    )


def behind(last_s: float, noted: Jumps, entries: int, now_s: float) -> ClockJump | None:
    """A clock that shows less than the time of the last entry by more than an hour, where that was
    not noted after this entry."""
    if last_s - now_s <= LEAST_S or any(after == entries for after, _ in noted):
        return None
    return ClockJump(last_s, now_s)
