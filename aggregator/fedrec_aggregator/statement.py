"""Statements of one run: what `certificates.statements` verifies, from the ledger's chain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrec.errors import FedRecError
from fedrec.federation.protocol import (
    STATEMENT,
    Refusal,
    SignedStatement,
    refused,
    signed_bytes,
)
from fedrec.operations.signatures import sign
from fedrec_aggregator.chain import Charge, RoundReleased
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.outputs import MAGIC, output_head


def statement_of(ledger: ReleaseLedger, run: str) -> str:
    """Canonical JSON. Raises RefusedError (`RUN_UNKNOWN`) where nothing of the run was charged."""
    links = ledger.links()
    plan = ledger.plan(run)
    own = [k for k, link in enumerate(links) if getattr(link.entry, "run", None) == run]
    if plan is None or not own:
        raise refused(Refusal.RUN_UNKNOWN, f"nothing of run {run!r} was charged here")
    since = links[own[0] - 1] if own[0] else None
    rounds = {
        link.entry.round: {**_round(link.entry, link.head), **_head_of_output(ledger, link.entry)}
        for link in links
        if isinstance(link.entry, RoundReleased) and link.entry.run == run
    }
    content = {
        "format": STATEMENT,
        "run": run,
        "plan": plan.digest(),
        "since": {"number": own[0], "head": "" if since is None else since.head},
        "entries": [
            (hashlib.sha256(link.content.encode()).hexdigest()) for link in links[own[0] :]
        ],
        "charges": [links[k].content for k in own if isinstance(links[k].entry, Charge)],
        "rounds": [rounds[number] for number in sorted(rounds)],
        "head": links[-1].head,
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _round(entry: RoundReleased, head: str) -> Mapping[str, Any]:
    return {
        "question": entry.digest,
        "release": entry.release_sha256,
        "reported": entry.reported,
        "head": head,
    }


def _head_of_output(ledger: ReleaseLedger, entry: RoundReleased) -> Mapping[str, str]:
    """One of three aggregators: what stands before its output in the file whose SHA-256 is in the
    chain; nothing where one aggregator released the sum, or the file is removed."""
    try:
        content = ledger.content(entry.run, entry.round) or b""
    except FedRecError:
        content = b""
    return {"output": output_head(content).hex()} if content.startswith(MAGIC) else {}


def signed(
    text: str, signer: tuple[Path, Path] | None, *, form: str = STATEMENT
) -> SignedStatement:
    """The statement, signed with the key of this certificate, where there is one."""
    if signer is None:
        return SignedStatement(text)
    certificate, key = signer
    signature = sign(key, signed_bytes(text, form))
    return SignedStatement(text, signature.hex(), certificate.read_text())
