"""Progress that a party keeps in its folder; read only, also while it runs."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedrec.cli.ledgers import account
from fedrec.errors import FedRecError
from fedrec.privacy.guarantee import Guarantee
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_client.settings import ClientSettings
from fedrec_server.runs import evaluation_in, run_folder


@dataclass(frozen=True)
class KnownProgress:
    """How far a party came, by its ledger or its notes; None where they do not say."""

    round: int | None = None
    users: int | None = None
    epsilon_left: float | None = None
    last_success_s: float | None = None
    phase: str = ""
    evaluation: str = ""


def kept_by_aggregator(settings: AggregatorSettings) -> KnownProgress:
    """Users, the last round released, and what its limit leaves."""
    with suppress(FedRecError):
        found = account.of_aggregator(settings)
        if found.entries:
            return _kept(found, settings.limit)
    return KnownProgress()


def kept_by_client(settings: ClientSettings) -> KnownProgress:
    """The last round charged, and what is left for each user, or click."""
    with suppress(FedRecError):
        if account.ledger_path(settings).exists():
            return _kept(account.of_client(settings), settings.privacy.limit)
    return KnownProgress()


def _kept(found: account.Account, limit: Guarantee | None) -> KnownProgress:
    users = None if found.users is None else sum(found.users.values())
    return KnownProgress(found.last_round, users, found.left(limit), found.last_success_s)


def kept_by_server(state: Path) -> KnownProgress:
    """The last round that is kept of the newest training, when, and whether its model is there."""
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError, FedRecError):
        folder = run_folder(state)
        phase = "finished" if (folder / "model" / "manifest.json").exists() else ""
        lines = folder / "rounds.jsonl"
        if not lines.exists():
            return KnownProgress(phase=phase)
        last = json.loads(lines.read_text().splitlines()[-1])
        said = evaluation_in((state / "model").resolve().parent).get("words", "")
        return KnownProgress(
            int(last["round"]), int(last["enrolled"]), None, lines.stat().st_mtime, phase, said
        )
    return KnownProgress()
