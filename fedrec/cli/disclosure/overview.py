"""`fedrec inspect`: every field and byte that left a client, reached the aggregator and reached the
server, from their own folders.

Each party is read from its own disk and says only what it has: a client what it kept of what it
sent and what its ledger was charged, a device that asks for recommendations the answers it paid
for, the aggregator what it counted, charged and released (it never keeps a report), the server what
it got. Nothing is asked over a network.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from fedrec.cli.disclosure.aggregator import aggregator
from fedrec.cli.disclosure.clicks import device, news_client
from fedrec.cli.disclosure.client import client
from fedrec.cli.disclosure.server import is_run, server
from fedrec.cli.disclosure.text import text
from fedrec.errors import RunError
from fedrec.storage import finite

__all__ = ["inspected", "text"]

Content = dict[str, Any]

_KINDS = ("clients", "news_clients", "devices", "aggregators", "servers")


def inspected(folder: Path, *, round: int | None = None) -> Content:
    """What the parties whose state lies in or under `folder` know of a round, or of all rounds:
    plain data, ready for JSON.

    Raises RunError where no party's state is there, or it is damaged.
    """
    found: Content = {"folder": str(folder), "round": round} | {kind: [] for kind in _KINDS}
    for kind, read, where in _parties(folder):
        found[kind].append({"folder": str(where.relative_to(folder)), **read(where, round)})
    if not any(found[kind] for kind in _KINDS):
        cause = f"{folder} holds no state of a client, a device, an aggregator or a server"
        raise RunError(cause, "Give a party's state folder, or a folder of them.")
    return dict(finite(found))


def _parties(folder: Path) -> list[tuple[str, Callable[[Path, int | None], Content], Path]]:
    tables = {path.parent: _tables(path) for path in sorted(folder.rglob("ledger.sqlite"))}
    clients = [("clients", client, where) for where, names in tables.items() if "secret" in names]
    news_clients = [
        ("news_clients", news_client, path.parent) for path in sorted(folder.rglob("clicks.sqlite"))
    ]
    devices = [("devices", device, where) for where, names in tables.items() if "answers" in names]
    aggregators = [
        ("aggregators", aggregator, where) for where, names in tables.items() if "users" in names
    ]
    servers = [
        ("servers", server, path.parent)
        for path in sorted(folder.rglob("run.json"))
        if is_run(path)
    ]
    return [*clients, *news_clients, *devices, *aggregators, *servers]


def _tables(path: Path) -> set[str]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return {
                name
                for (name,) in database.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table'"
                )
            }
    except sqlite3.Error as failure:
        raise RunError(
            f"{path} cannot be read: {failure}",
            "Run this as a user who may read it; it is no ledger otherwise.",
        ) from None
