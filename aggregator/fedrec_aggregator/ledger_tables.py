"""Tables of an aggregator's ledger in SQL, and what they say, in memory."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fedrec.federation.protocol import LedgerHead
from fedrec.privacy.calibration import Plan
from fedrec_aggregator.chain import Chain, read

TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    seq INTEGER PRIMARY KEY, content TEXT NOT NULL, hash TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS users (token BLOB PRIMARY KEY, sender TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS senders (sender TEXT PRIMARY KEY, charged INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sender_heads (sender TEXT PRIMARY KEY, head TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, plan TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (
    run TEXT, round INTEGER, digest TEXT NOT NULL, attempt INTEGER NOT NULL,
    PRIMARY KEY (run, round)
);
CREATE TABLE IF NOT EXISTS removed (run TEXT, round INTEGER, PRIMARY KEY (run, round));
CREATE TABLE IF NOT EXISTS weeks (
    run TEXT, release TEXT, week INTEGER, grid TEXT NOT NULL, secret BLOB NOT NULL,
    PRIMARY KEY (run, release, week)
);
"""


@dataclass(frozen=True)
class BegunAttempt:
    """How often a round was opened, and for which question."""

    digest: str
    attempt: int


@dataclass
class LedgerRows:
    """What the tables say. owners: the sender of every user who has not left, by token.
    enrolled_by: how many users a sender has had. plans: by run. attempts: the last one at a round,
    by run and round. removed: releases whose files are not kept. seen_of: how far a sender's own
    ledger reached."""

    chain: Chain
    owners: dict[bytes, str]
    enrolled_by: Counter[str]
    plans: dict[str, Plan]
    attempts: dict[tuple[str, int], BegunAttempt]
    removed: set[tuple[str, int]]
    seen_of: dict[str, LedgerHead]


def read_rows(database: Any, where: object) -> LedgerRows:
    """All of them, over a connection. Raises RunError where the chain is broken, ValueError,
    TypeError or KeyError on other rows that no ledger wrote, and whatever the connection raises."""
    chain = Chain(read(database, where))
    names = dict[str, str]()  # one string for each sender, not one for each user
    rows = database.execute("SELECT token, sender FROM users")
    owners = {token: names.setdefault(sender, sender) for token, sender in rows}
    enrolled_by = Counter(owners.values())
    for token in chain.departed:
        owners.pop(token, None)
    plans = {
        run: Plan.of(json.loads(plan))
        for run, plan in database.execute("SELECT run, plan FROM runs")
    }
    rows = database.execute("SELECT run, round, digest, attempt FROM rounds")
    attempts = {(run, round): BegunAttempt(digest, attempt) for run, round, digest, attempt in rows}
    removed = set[tuple[str, int]](database.execute("SELECT run, round FROM removed"))
    heads = dict[str, str](database.execute("SELECT sender, head FROM sender_heads"))
    seen_of = {
        sender: LedgerHead(number, heads.get(sender, ""))
        for sender, number in database.execute("SELECT sender, charged FROM senders")
    }
    return LedgerRows(chain, owners, enrolled_by, plans, attempts, removed, seen_of)
