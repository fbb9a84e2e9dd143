"""`fedrec inspect`: every field and byte that left a client, reached the aggregator and reached the
server, from their own folders.

Each party is read from its own disk and says only what it has: a client what it kept of what it
sent and what its ledger was charged, a device that asks for recommendations the answers it paid
for, the aggregator what it counted, charged and released (it never keeps a report), the server what
it got. Nothing is asked over a network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedrec.cli.disclosure.aggregator import DELTA, aggregator, release_file
from fedrec.cli.disclosure.client import client
from fedrec.cli.disclosure.text import text
from fedrec.errors import RunError
from fedrec.ledgers.sqlite_ledger import reading
from fedrec.privacy.click_accounting import dearest_click
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event, epsilon_of_events
from fedrec.privacy.selection import PureEvent
from fedrec.storage import finite, read_arrays, read_json
from fedrec_client.click_ledger import ClickEntry, read_entries, runs_of
from fedrec_client.serving_ledger import read_answers
from fedrec_server.run_record import FORMAT

UNIT = "click (replace)"
NEVER = (
    "a rating or a click, or which items a person has",
    "a person's vector, or any sum without noise",
    "a report, a pseudonym or a report id: they go from client to aggregator",
)
"""What no message to the server has a field for."""
NEVER_FROM_DEVICES = (
    "a history, or a list of what a person clicked: a device tells what the variant makes of it",
    "a pseudonym, or the secret that a client's noise comes from",
)
"""The same for news without an aggregator, where devices answer the server itself."""
Content = dict[str, Any]
_KINDS = ("clients", "news_clients", "devices", "aggregators", "servers")


def news_client(folder: Path, round: int | None) -> Content:
    """A client's ledger of clicks, and how often it answered in each run. Raises RunError."""
    entries = read_entries(folder / "clicks.sqlite")
    runs = runs_of(entries)
    spent = dearest_click(
        [entry.price for entry in runs], Guarantee(math.inf, DELTA, "click", "replace")
    )
    charges = [
        {
            "time_s": entry.time_s,
            "run": entry.run,
            "history": [_price(event) for event in entry.price.history],
            "labels": [_price(event) for event in entry.price.labels],
            "rounds": _answered(entries, entry.run, round),
        }
        for entry in runs
    ]
    return {
        "charges": charges,
        "ledger_head": entries[-1].head if entries else "",
        "spent": _spent(spent),
    }


def device(folder: Path, round: int | None) -> Content:
    """A device's ledger of answers; it knows no rounds.

    `kept_bytes`: of the answer, which is repeated for nothing. Raises RunError."""
    answers = read_answers(folder / "ledger.sqlite")
    shown = [
        {
            "time_s": answer.time_s,
            "version": answer.version,
            **_price(answer.event),
            "noise_std": answer.noise_std,
            "sent": answer.sent.tolist(),
            "kept_bytes": answer.raw.nbytes + answer.sent.nbytes,
        }
        for answer in answers
    ]
    spent = epsilon_of_events([answer.event for answer in answers], DELTA)
    return {
        "answers": shown,
        "ledger_head": answers[-1].head if answers else "",
        "spent": _spent(spent),
    }


def _answered(entries: Sequence[ClickEntry], run: str, round: int | None) -> list[int]:
    """Numbers of the rounds of a run that were answered."""
    rounds = (entry.answer.round for entry in entries if (entry.run, entry.kind) == (run, "answer"))
    return sorted(number for number in rounds if round in {None, number})


def _price(event: Event) -> Content:
    """One release, and what it alone costs each click that it sees."""
    epsilon = event.epsilon if isinstance(event, PureEvent) else epsilon_of_events([event], DELTA)
    return {
        "release": event.name,
        "epsilon": epsilon,
        "delta": 0.0 if isinstance(event, PureEvent) else DELTA,
    }


def _spent(epsilon: float) -> Content:
    return {UNIT: {"epsilon": epsilon, "delta": DELTA}}


def is_run(path: Path) -> bool:
    """Whether this `run.json` is the notes of a server's run."""
    try:
        return bool(read_json(path).get("format") == FORMAT)
    except (RunError, AttributeError):
        return False


def server(folder: Path, round: int | None) -> Content:
    """A server's notes and rounds: each with the status, the answers and the release that reached
    it. Raises RunError."""
    notes = read_json(folder / "run.json")
    rounds = _rounds(folder, round)
    about = {name: notes.get(name) for name in ("run", "num_users", "plan_digest", "ledger_head")}
    guarantee = (notes.get("plan") or {}).get("guarantee")
    news = _news(folder, notes.get("trains") or {})
    if news:
        about["num_users"] = sum(news["users_by_client"].values())
    from_devices = news and news["unit"] == "click"
    never = NEVER_FROM_DEVICES if from_devices else NEVER
    return {
        **about,
        "guarantee": guarantee,
        "news": news,
        "rounds": rounds,
        "never_sees": list(never),
    }


def _news(folder: Path, trains: Content) -> Content | None:
    """Disclosure of a training of news: its variant and unit, the clients, and each array of the
    reports that devices told and the server keeps."""
    if "news" not in trains:
        return None
    clients = folder / "clients.json"
    reports = folder / "reports.safetensors"
    chosen = json.loads(trains["news"])
    arrays = (
        {name: array.shape for name, array in read_arrays(reports).items()}
        if reports.exists()
        else {}
    )
    return {
        "variant": chosen["news"]["variant"],
        "unit": chosen["privacy"]["unit"],
        "users_by_client": read_json(clients) if clients.exists() else {},
        "reports": {name: list(shape) for name, shape in arrays.items()},
    }


def _rounds(folder: Path, round: int | None) -> list[Content]:
    path = folder / "rounds.jsonl"
    try:
        lines = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [_with_release(folder, line) for line in lines if round in {None, line["round"]}]
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise RunError(
            f"{path} cannot be read: {failure}",
            "Move it away: the rounds themselves are in checkpoints.",
        ) from None


def _with_release(folder: Path, line: Content) -> Content:
    file = release_file(folder / "releases" / f"round-{line['round']:03d}.safetensors")
    answers = [
        {**answer, "bytes": len(json.dumps(answer, sort_keys=True, separators=(",", ":")))}
        for answer in line["answers"]
    ]
    return {
        **line,
        "answers": answers,
        "release": {**file, "as_recorded": file.get("sha256") == line["release_sha256"]},
    }


__all__ = ["inspected", "text"]


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
    with reading(path) as database:
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in found}
