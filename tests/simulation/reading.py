"""What was sent and what was kept, read without the code that is being checked: batches, exact
sums, and ledgers on disk."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.arrays import Int64s
from fedrec.federation.messages import BlockSpec, ReleaseSpec

_CLIPPED_TO = 1 - 1e-6
"""Of its radius: what the aggregator documents it scales a report down to that is larger."""


@dataclass(frozen=True)
class UserReport:
    """One user's report. coefficients: one array for each block, of one entry per item, or one
    entry where the block is dense."""

    id: bytes
    token: bytes
    items: tuple[int, ...]
    coefficients: tuple[Int64s, ...]
    vectors: tuple[Int64s, ...]


def digest_of(batch: bytes) -> str:
    """The question and quorum that a batch says it answers (`named`)."""
    return batch[4:36].hex()


def named(question: str, quorum: int) -> str:
    """What a report of a round with that quorum says it answers: digests in hex."""
    if quorum == 0:
        return question
    return hashlib.sha256(
        b"fedrec/quorum" + bytes.fromhex(question) + struct.pack(">Q", quorum)
    ).hexdigest()


def read_batch(batch: bytes, specs: Sequence[BlockSpec]) -> list[UserReport] | None:
    """The reports, or None where the bytes are no batch for these blocks."""
    if len(batch) < 44 or batch[:4] != b"FRR1":
        return None
    users, events = struct.unpack_from("<II", batch, 36)
    expected = 44 + 36 * users + 4 * events
    expected += sum(
        2 * ((users if spec.rows == 1 else events) + users * spec.folds * spec.width)
        for spec in specs
    )
    if len(batch) != expected:
        return None
    return _sound(list(_reports(batch, specs, users, events)), batch, specs, users, events)


def _reports(
    batch: bytes, specs: Sequence[BlockSpec], users: int, events: int
) -> Iterator[UserReport]:
    lengths = struct.unpack_from(f"<{users}I", batch, 44 + 32 * users)
    first = 44 + 36 * users
    start = 0
    for k in range(users):
        end = min(start + lengths[k], events)
        items = struct.unpack_from(f"<{end - start}I", batch, first + 4 * start)
        offset = first + 4 * events
        coefficients = list[Int64s]()
        vectors = list[Int64s]()
        for spec in specs:
            count, mine = (
                (users, slice(k, k + 1)) if spec.rows == 1 else (events, slice(start, end))
            )
            coefficients.append(np.frombuffer(batch, "<i2", count, offset)[mine].astype(np.int64))
            size = users * spec.folds
            table = np.frombuffer(batch, "<i2", size * spec.width, offset + 2 * count).reshape(
                size, spec.width
            )
            vectors.append(table[k * spec.folds : (k + 1) * spec.folds].astype(np.int64))
            offset += 2 * (count + size * spec.width)
        ids = batch[44 + 16 * k : 60 + 16 * k], batch[44 + 16 * (users + k) : 60 + 16 * (users + k)]
        yield UserReport(*ids, items, tuple(coefficients), tuple(vectors))
        start = end


def _sound(
    reports: list[UserReport], batch: bytes, specs: Sequence[BlockSpec], users: int, events: int
) -> list[UserReport] | None:
    rows = max(spec.rows for spec in specs)
    if sum(struct.unpack_from(f"<{users}I", batch, 44 + 32 * users)) != events:
        return None
    for report in reports:
        rising = all(a < b for a, b in zip(report.items, report.items[1:], strict=False))
        small = all(
            int(np.abs(part).max(initial=0)) < 2**15
            for part in (*report.coefficients, *report.vectors)
        )
        if not (rising and small and all(item < rows for item in report.items)):
            return None
    return reports


def within_radius(report: UserReport, releases: Sequence[ReleaseSpec]) -> UserReport:
    """The report, scaled down in every release whose joint norm passes its radius.

    Norms are exact: all steps are powers of two."""
    coefficients = list(report.coefficients)
    parts = iter(range(len(report.coefficients)))
    for release in releases:
        mine = [(next(parts), spec) for spec in release.blocks]
        square = sum(_squared_norm(report, n, spec) for n, spec in mine)
        if square > release.radius**2:
            factor = release.radius * _CLIPPED_TO / math.sqrt(square)
            for n, _ in mine:
                coefficients[n] = np.trunc(report.coefficients[n] * factor).astype(np.int64)
    return replace(report, coefficients=tuple(coefficients))


def _squared_norm(report: UserReport, n: int, spec: BlockSpec) -> float:
    power = 2 if spec.form.matrix else 1
    lengths = [sum(int(x) ** 2 for x in vector) ** power for vector in report.vectors[n]]
    pairs = zip(_places(report, spec), report.coefficients[n], strict=True)
    return float(
        sum(int(c) ** 2 * lengths[place % spec.folds] for place, c in pairs) * spec.step**2
    )


def _places(report: UserReport, spec: BlockSpec) -> Sequence[int]:
    """The row that each coefficient of a block adds to."""
    return (0,) if spec.rows == 1 else report.items


def exact_sums(reports: Iterable[UserReport], specs: Sequence[BlockSpec]) -> list[Int64s]:
    """One (rows, columns) array for each block, entry by entry as `messages` defines it."""
    totals = [np.zeros((spec.rows, spec.columns), np.int64) for spec in specs]
    for report in reports:
        for spec, total, coefficients, vectors in zip(
            specs, totals, report.coefficients, report.vectors, strict=True
        ):
            rows = (
                [np.outer(x, x)[np.triu_indices(spec.width)] for x in vectors]
                if spec.form.matrix
                else list(vectors)
            )
            for place, c in zip(_places(report, spec), coefficients, strict=True):
                total[place] += c * rows[place % spec.folds]
    return totals


# --- ledgers on disk ---


@dataclass(frozen=True)
class ReleaseBook:
    """An aggregator's ledger as it lies on disk: entries in order, every hash that was ever its
    head, and the owner of each user."""

    entries: tuple[dict[str, Any], ...]
    heads: frozenset[str]
    owners: dict[bytes, str]

    def charges(self) -> list[tuple[str, int, str, float]]:
        """Run, round, release and mu of every charge."""
        return [
            (e["run"], e["round"], e["release"], e["mu"])
            for e in self.entries
            if e["kind"] == "charge"
        ]

    def released(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The final entry of every released round; the last, should there be several."""
        return {(e["run"], e["round"]): e for e in self.entries if e["kind"] == "released"}


def release_book(folder: Path) -> ReleaseBook:
    """Raises ValueError where the chain is broken."""
    entries = list[dict[str, Any]]()
    head = ""
    heads = {""}
    for content, stated in _rows(folder, "SELECT content, hash FROM entries ORDER BY seq"):
        head = hashlib.sha256(
            f"{head}\n{hashlib.sha256(content.encode()).hexdigest()}".encode()
        ).hexdigest()
        if head != stated:
            raise ValueError(f"the chain is broken at entry {len(entries)}")
        heads.add(head)
        entries.append(json.loads(content))
    return ReleaseBook(
        tuple(entries), frozenset(heads), dict(_rows(folder, "SELECT token, sender FROM users"))
    )


@dataclass(frozen=True)
class SpentRound:
    """One round of a client's ledger: `question` is a digest, `releases` are names with their
    mu."""

    run: str
    round: int
    question: str
    releases: tuple[tuple[str, float], ...]


def client_book(folder: Path) -> list[SpentRound]:
    """A client's ledger as it lies on disk."""
    return [
        SpentRound(
            run,
            round,
            question,
            tuple((name, float.fromhex(mu)) for name, mu in json.loads(releases)),
        )
        for run, round, question, releases in _rows(
            folder, "SELECT run, round, question, releases FROM entries ORDER BY number"
        )
    ]


def _rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """None where the party never got so far as to have a ledger."""
    path = folder / "ledger.sqlite"
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            return database.execute(query).fetchall()
        except sqlite3.OperationalError:  # no such table yet
            return []
