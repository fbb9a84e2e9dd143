"""Contents of a server's folder: the run, what every client told it, what the aggregator told it,
and the releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedrec.cli.disclosure.aggregator import release_file
from fedrec.errors import RunError
from fedrec.storage import read_arrays, read_json
from fedrec_server.run_record import FORMAT

Content = dict[str, Any]

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
