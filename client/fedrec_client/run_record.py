"""Record of runs that a client keeps besides its ledger: their terms, and what it sent.

Losing it costs a second `join`, and no privacy: a ledger of clicks knows the terms of every run
that it charged (`click_ledger`), and reports on ratings carry no noise of this client's, are
charged by their question and what it cost, and counted once by the aggregator.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

from fedrec.errors import RefusedError
from fedrec.federation.protocol import Receipt, Refusal, Terms
from fedrec.federation.wire import pack_terms, question_digest, read_terms
from fedrec.storage import PRIVATE, write_bytes, write_json

MOST_RUNS = 10_000
"""A server that begins runs without end must not fill the disk."""

# it names a folder: nothing that could lead out of it
_RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}")


class Notes:
    """The folders `terms` and `sent` of a client's state."""

    def __init__(self, folder: Path) -> None:
        self._terms = folder / "terms"
        self._sent = folder / "sent"

    def keep_terms(self, terms: Terms) -> None:
        """Durably; again with the same terms is the same.

        Raises RefusedError where they changed, or the run's name is no name."""
        known = self.terms(terms.run)
        if known is not None and pack_terms(known) != pack_terms(terms):
            raise _refused(
                Refusal.WRONG_PLAN,
                f"the terms of run {terms.run} changed",
                "A run keeps its terms; the server must begin a new one.",
            )
        if known is None:
            if self._terms.is_dir() and sum(1 for _ in self._terms.glob("*.json")) >= MOST_RUNS:
                raise _refused(
                    Refusal.TOO_LARGE,
                    "this client knows too many runs",
                    f"Remove finished ones from {self._terms}.",
                )
            write_bytes(self._terms / f"{terms.run}.json", pack_terms(terms))

    def terms(self, run: str) -> Terms | None:
        """The terms of a run, None where they were never kept, or are damaged.

        Raises RefusedError where the name is no name, and OSError."""
        require_name(run)
        try:
            return read_terms((self._terms / f"{run}.json").read_bytes())
        except (FileNotFoundError, RefusedError):
            return None

    def keep_translation(self, run: str, *, users: int, events: int, unknown_events: int) -> None:
        """How much of the site's data the run's catalogue names: for the site's own eyes."""
        content = {"users": users, "events": events, "unknown_events": unknown_events}
        write_json(self._sent / run / "translation.json", content)

    def keep_batch(self, run: str, round: int, number: int, batch: bytes) -> None:
        """One message to the aggregator, as it left."""
        path = self._round(run, round).with_name(f"round-{round:03d}-{number:03d}.frr")
        write_bytes(path, batch, mode=PRIVATE)  # of ratings it has no noise yet

    def keep_receipt(
        self,
        run: str,
        round: int,
        header: bytes,
        quorum: int,
        receipt: Receipt,
        batches: int,
        bytes_sent: int,
    ) -> None:
        """What was asked in a round, and what the aggregator did with the answer."""
        content = {
            "header": json.loads(header),
            "digest": question_digest(header),
            "quorum": quorum,
            "receipt": asdict(receipt),
        }
        content |= {"batches": batches, "bytes_sent": bytes_sent}
        write_json(self._round(run, round), content)

    def _round(self, run: str, round: int) -> Path:
        return self._sent / run / f"round-{round:03d}.json"


def require_name(run: str) -> None:
    """A run's name becomes a file's and a folder's. Raises RefusedError."""
    if not _RUN.fullmatch(run):
        words = (
            "a run is named by 1 to 120 letters, digits, dots, dashes and underscores, no dot or "
            "dash first"
        )
        raise _refused(Refusal.MALFORMED, words, "The server must name it otherwise.")


def _refused(code: Refusal, cause: str, remedy: str) -> RefusedError:
    return RefusedError(code.value, cause, remedy)
