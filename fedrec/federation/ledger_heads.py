"""Heads of an aggregator's ledger that others keep, and the proof that it still holds them: how the
chain grew since.

The ledger is a chain of hashes, each over the one before it and the SHA-256 of an entry. Who keeps
a head (how many entries, and their hash) asks for the SHA-256 of every entry after it: they must
lead from the head that is kept to the one that the ledger states. A ledger that was put back to an
earlier state, or another one, cannot show that, whatever its later entries are. The entries
themselves, with counts of users and runs of others, stay with the aggregator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Refusal
from fedrec.federation.wire import refused

REMEDY = (
    "Its operator must restore the newest backup of its ledger. Where that is gone for good, "
    "what it released since is "
    "counted by the clients' ledgers alone; to go on all the same, start once with "
    "--new-aggregator-ledger."
)


STATEMENT = "fedrec-statement/1"
"""Format of what an aggregator signs of a run."""


def signed_bytes(statement: str) -> bytes:
    """What is signed: no other signature of the same key is taken for one."""
    return f"{STATEMENT}\n{statement}".encode()


def next_hash(before: str, entry_sha256: str) -> str:
    """The chain's hash after an entry; `before` is "" for the first."""
    return hashlib.sha256(f"{before}\n{entry_sha256}".encode()).hexdigest()


def grown(head: LedgerHead, entries_sha256: Sequence[str]) -> LedgerHead:
    """The head that these entries lead to."""
    end = head.head
    for entry in entries_sha256:
        end = next_hash(end, entry)
    return LedgerHead(head.number + len(entries_sha256), end)


class HeadMemory(Protocol):
    """Where a party keeps the newest head that it has seen, over runs."""

    def ledger_head(self) -> LedgerHead:
        """The newest; `LedgerHead()` before the first."""

    def keep_ledger_head(self, head: LedgerHead) -> None:
        """Durably."""


def follow(grow: Callable[[LedgerHead], LedgerGrowth], memory: HeadMemory) -> None:
    """See that the aggregator's ledger holds what was seen of it, and keep its newest head.

    Raises RefusedError (`STALE_LEDGER`) where it does not; then nothing new is kept.
    """
    seen = memory.ledger_head()
    while True:
        growth = grow(seen)
        if grown(seen, growth.entries_sha256) != growth.head:
            cause = (
                f"the aggregator's ledger does not follow from the {seen.number} entries that "
                "were seen of it"
            )
            raise refused(Refusal.STALE_LEDGER, cause, REMEDY)
        if growth.head != seen:
            memory.keep_ledger_head(growth.head)
            seen = growth.head
        if not growth.more or not growth.entries_sha256:
            return
