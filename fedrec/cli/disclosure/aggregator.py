"""Contents of an aggregator's folder: users enrolled, what it was charged, what it counted by
reason, what it released."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from fedrec.errors import RunError
from fedrec.ledgers.sqlite_ledger import opened_to_look
from fedrec.privacy.accounting import GaussianEvent, compose, epsilon_of
from fedrec.privacy.guarantee import compared
from fedrec_aggregator.chain import Charge, LedgerLink, RoundReleased, read
from fedrec_aggregator.outputs import MAGIC
from fedrec_aggregator.postgres_ledger import held_in

if TYPE_CHECKING:
    from fedrec_aggregator.settings import AggregatorSettings  # brings grpc, which no reader needs

Content = dict[str, Any]

DELTA = 1e-5
"""At which what was spent is stated here; the operator's own delta stands in the settings, not in
the folder."""


def aggregator(folder: Path, round: int | None) -> Content:
    """An aggregator's chain of charges and releases. Raises RunError where the chain is broken."""
    links, users = ledger_of(folder / "ledger.sqlite")
    rounds = [
        _round(folder, new)
        for new in links
        if isinstance(new.entry, RoundReleased) and round in {None, new.entry.round}
    ]
    charges = [
        _charge(new)
        for new in links
        if isinstance(new.entry, Charge) and round in {None, new.entry.round}
    ]
    head = links[-1].head if links else ""
    return {
        "enrolled_by_client": users,
        "ledger_head": head,
        "spent": spent_of(new.entry.event for new in links if isinstance(new.entry, Charge)),
        "charges": charges,
        "rounds": rounds,
    }


def ledger_by(settings: AggregatorSettings) -> tuple[tuple[LedgerLink, ...], Content]:
    """Reads a ledger as `ledger_of` does, wherever the settings say that it lies; nothing before
    its first entry."""
    if settings.postgres is not None:
        held = held_in(settings.postgres.conninfo)
        return held.links, dict(held.users)
    path = settings.state / "ledger.sqlite"
    return ledger_of(path) if path.exists() else ((), {})


def ledger_of(path: Path) -> tuple[tuple[LedgerLink, ...], Content]:
    """The chain of an aggregator that may be running, and its users by client.

    Raises RunError where it is damaged."""
    try:
        with closing(opened_to_look(path)) as database:
            links = read(database, path)
            return links, dict(
                database.execute(
                    "SELECT sender, count(*) FROM users GROUP BY sender ORDER BY sender"
                )
            )
    except (sqlite3.Error, ValueError, TypeError, KeyError) as failure:
        raise RunError(
            f"{path} is damaged: {failure}",
            "Restore the newest backup of this folder, never an older one.",
        ) from None


def release_file(path: Path) -> Content:
    """A release as it lies on a disk: bytes, SHA-256, and each block's shape and noise std; its
    numbers are not read.

    Of one of three aggregators it is a masked part of the sums, whose blocks the file does not
    name.
    """
    try:
        with open(path, "rb") as content:
            of_three = content.read(len(MAGIC)) == MAGIC
            content.seek(0)
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if of_three:
            return {
                "file": path.name,
                "bytes": path.stat().st_size,
                "sha256": digest,
                "blocks": [],
                "of_three": True,
            }
        with safe_open(path, framework="np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
            noise = (file.metadata() or {}).get("noise_std", "")
    except FileNotFoundError:
        return {"file": path.name, "missing": True}
    except (OSError, SafetensorError) as failure:
        raise RunError(
            f"{path} cannot be read: {failure}", "Put the file back as it was."
        ) from None
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "sha256": digest,
        "blocks": _blocks(shapes, noise),
    }


def _blocks(shapes: dict[str, list[int]], noise: str) -> list[Content]:
    try:
        stds = {name: float.fromhex(std) for name, std in json.loads(noise).items()}
    except (ValueError, AttributeError, TypeError):
        stds = {}
    return [
        {"block": name, "shape": shape, "noise_std": stds.get(name)}
        for name, shape in sorted(shapes.items())
    ]


def _charge(new: LedgerLink) -> Content:
    assert isinstance(new.entry, Charge)
    return {"time_s": new.time_s, "hash": new.head, **vars(new.entry)}


def spent_of(events: Iterable[GaussianEvent]) -> Content:
    """Epsilon of all of them by unit: guarantees of different units do not add."""
    by_unit = dict[str, list[GaussianEvent]]()
    for event in events:
        by_unit.setdefault(compared(event.unit, event.neighbours).removeprefix("per "), []).append(
            event
        )
    return {
        unit: {"epsilon": epsilon_of(compose(some), DELTA), "delta": DELTA}
        for unit, some in by_unit.items()
    }


def _round(folder: Path, new: LedgerLink) -> Content:
    assert isinstance(new.entry, RoundReleased)
    entry = new.entry
    file = release_file(folder / "releases" / entry.run / f"round-{entry.round:03d}.safetensors")
    same = file.get("sha256") == entry.release_sha256
    return {
        "time_s": new.time_s,
        "hash": new.head,
        **vars(entry),
        "rejected": dict(entry.rejected),
        "release": {**file, "as_recorded": same},
    }
