"""Tables of an aggregator's ledger in SQL, and what they say, in memory.

Spending of an aggregator over all of its runs: what charges add up to, and what the operator's
limit leaves.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedrec.privacy.accounting import Ledger, compose, epsilon_of, mu_for
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec_aggregator.chain import Chain, Charge, read

TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    seq INTEGER PRIMARY KEY, content TEXT NOT NULL, hash TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS users (token BLOB PRIMARY KEY, sender TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS senders (sender TEXT PRIMARY KEY, charged INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, plan TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (
    run TEXT, round INTEGER, digest TEXT NOT NULL, attempt INTEGER NOT NULL,
    PRIMARY KEY (run, round)
);
CREATE TABLE IF NOT EXISTS removed (run TEXT, round INTEGER, PRIMARY KEY (run, round));
"""


@dataclass(frozen=True)
class BegunAttempt:
    """How often a round was opened, and for which question."""

    digest: str
    attempt: int


@dataclass
class LedgerRows:
    """What the tables say. owners: the sender of every user, by token. enrolled_by: how many users
    a sender has. plans: by run. attempts: the last one at a round, by run and round. removed:
    releases whose files are not kept. charged_by: how many entries a sender's own ledger had."""

    chain: Chain
    owners: dict[bytes, str]
    enrolled_by: Counter[str]
    plans: dict[str, Plan]
    attempts: dict[tuple[str, int], BegunAttempt]
    removed: set[tuple[str, int]]
    charged_by: dict[str, int]


def read_rows(database: Any, where: object) -> LedgerRows:
    """All of them, over a connection. Raises RunError where the chain is broken, ValueError,
    TypeError or KeyError on other rows that no ledger wrote, and whatever the connection raises."""
    chain = Chain(read(database, where))
    names = dict[str, str]()  # one string for each sender, not one for each user
    rows = database.execute("SELECT token, sender FROM users")
    owners = {token: names.setdefault(sender, sender) for token, sender in rows}
    enrolled_by = Counter(owners.values())
    plans = {
        run: Plan.of(json.loads(plan))
        for run, plan in database.execute("SELECT run, plan FROM runs")
    }
    rows = database.execute("SELECT run, round, digest, attempt FROM rounds")
    attempts = {(run, round): BegunAttempt(digest, attempt) for run, round, digest, attempt in rows}
    removed = set[tuple[str, int]](database.execute("SELECT run, round FROM removed"))
    charged_by = dict[str, int](database.execute("SELECT sender, charged FROM senders"))
    return LedgerRows(chain, owners, enrolled_by, plans, attempts, removed, charged_by)


@dataclass(frozen=True)
class Spends:
    """Over all runs: every charge, the epsilon they add up to, and what the operator's limit leaves
    (inf without one).

    possible: epsilon of the largest run that still fits. Not the difference: guarantees do not add
    up plainly.
    """

    charges: tuple[Charge, ...]
    epsilon: float
    left: float
    possible: float


def spends_of(charges: tuple[Charge, ...], limit: Guarantee | None) -> Spends:
    """What they come to, at the limit's delta (1e-5 without a limit); of several units the
    dearest."""
    by_unit = dict[tuple[str, str], list[Charge]]()
    for charge in charges:
        by_unit.setdefault((charge.unit, charge.neighbours), []).append(charge)
    delta = limit.delta if limit else 1e-5
    mu = max((compose([c.event for c in some]) for some in by_unit.values()), default=0.0)
    epsilon = epsilon_of(mu, delta) if mu else 0.0
    allowed = limit.epsilon if limit else float("inf")
    if allowed == float("inf"):
        return Spends(charges, epsilon, allowed, allowed)
    square = mu_for(allowed, delta) ** 2 - mu**2
    return Spends(
        charges,
        epsilon,
        max(0.0, allowed - epsilon),
        epsilon_of(math.sqrt(square), delta) if square > 0 else 0.0,
    )


def account_of(charges: Sequence[Charge], limit: Guarantee | None, guarantee: Guarantee) -> Ledger:
    """The charges against the limit; without one that is of privacy, those of the guarantee's unit
    and neighbours against none.

    Raises UnitMismatchError where the limit is of another unit."""
    if limit is not None and limit.private:
        limit.require_same_unit(guarantee)
        return Ledger(limit, tuple(c.event for c in charges))
    same = [c for c in charges if (c.unit, c.neighbours) == (guarantee.unit, guarantee.neighbours)]
    return Ledger(
        non_private(guarantee.delta, guarantee.unit, guarantee.neighbours),
        tuple(c.event for c in same),
    )
