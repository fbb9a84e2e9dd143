"""Contents of a client's folder: what it was charged, what it was asked, and every byte of the
messages that it kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.cli.disclosure.aggregator import spent_of
from fedrec.errors import RefusedError, RunError
from fedrec.federation.messages import BlockReports, BlockSpec
from fedrec.federation.report_batches import Batch, batch_bytes, unpack_reports
from fedrec.federation.wire import QuestionHeader, read_header, read_terms, report_digest
from fedrec.storage import bounded_bytes, read_json
from fedrec_client.ledger import read_entries

HEADER_BYTES = batch_bytes((), users=0, events=0)

Content = dict[str, Any]


def client(folder: Path, round: int | None) -> Content:
    """A client's ledger, the terms it knows, and its rounds, each with its kept messages decoded.

    Raises RunError."""
    entries = read_entries(folder / "ledger.sqlite")
    charges = [
        {
            "time_s": e.time_s,
            "run": e.run,
            "round": e.round,
            "question": e.question,
            "plan": e.plan,
            "releases": dict(e.releases),
        }
        for e in entries
        if round in {None, e.round}
    ]
    runs = [_run(path) for path in sorted((folder / "terms").glob("*.json"))]
    rounds = [
        _round(path, number)
        for path, number in _numbered(folder / "sent")
        if round in {None, number}
    ]
    spent = spent_of(event for entry in entries for event in entry.events)
    return {
        "charges": charges,
        "ledger_head": entries[-1].head if entries else "",
        "spent": spent,
        "runs": runs,
        "rounds": rounds,
    }


def _run(path: Path) -> Content:
    try:
        terms = read_terms(bounded_bytes(path))
    except (OSError, RefusedError) as failure:
        raise RunError(
            f"{path} cannot be read: {failure}", "Remove it: the server tells the terms again."
        ) from None
    return {
        "run": terms.run,
        "kind": terms.kind,
        "value_range": list(terms.value_range),
        "items": len(terms.items),
        "bytes": path.stat().st_size,
    }


def _numbered(folder: Path) -> list[tuple[Path, int]]:
    """What was kept of each round, by run and round: `round-003.json`."""
    return [
        (path, int(path.stem.removeprefix("round-")))
        for path in sorted(folder.glob("*/round-*.json"))
    ]


def _round(path: Path, number: int) -> Content:
    kept = read_json(path)
    try:
        header = read_header(
            json.dumps(kept["header"], sort_keys=True, separators=(",", ":")).encode()
        )
        content = {
            "run": header.run,
            "round": number,
            "digest": kept["digest"],
            "quorum": kept.get("quorum", 0),
            "receipt": kept["receipt"],
            "bytes_sent": kept["bytes_sent"],
        }
    except (KeyError, TypeError, RefusedError) as failure:
        raise RunError(
            f"{path} is not what a client keeps of a round: {failure}",
            "Remove it; nothing else depends on it.",
        ) from None
    named = report_digest(content["digest"], content["quorum"])
    batches = [
        _batch(file, header, named) for file in sorted(path.parent.glob(f"{path.stem}-*.frr"))
    ]
    asked = {
        "step": header.step,
        "releases": [r.name for r in header.releases],
        "public": {n: a.shape for n, a in header.public.items()},
    }
    return {**content, "asked": asked, "messages": kept["batches"], "kept": batches}


def _batch(path: Path, header: QuestionHeader, digest: str) -> Content:
    data = path.read_bytes()
    specs = tuple(block for release in header.specs() for block in release.blocks)
    try:
        batch = unpack_reports(data, specs, digest, max_users=2**32, max_events_per_user=2**32)
    except RefusedError as failure:
        raise RunError(
            f"{path} is damaged: {failure.cause}", "Remove it; nothing else depends on it."
        ) from None
    lengths = np.diff(batch.reports.user_ptr)
    per_user = [batch_bytes(specs, users=1, events=int(n)) - HEADER_BYTES for n in lengths]
    content = {
        "file": path.name,
        "bytes": len(data),
        "users": len(lengths),
        "events": int(lengths.sum()),
    }
    content["bytes_per_user"] = {
        "least": min(per_user, default=0),
        "mean": float(np.mean(per_user or [0])),
        "most": max(per_user, default=0),
    }
    content["fields"] = _layout(specs, users=len(lengths), events=int(lengths.sum()))
    return {**content, "one_user": _user(batch, specs, 0) if len(lengths) else []}


def _layout(specs: Sequence[BlockSpec], *, users: int, events: int) -> list[Content]:
    """Every field of the message in order: where it begins, how long it is, what it means.

    The lengths add up to the message."""
    fields = [
        ("format", "4 bytes", 4, "FRR1"),
        (
            "question",
            "SHA-256",
            32,
            "run, plan, round, blocks and public arrays that are answered, and the quorum",
        ),
        ("users, events", "2 x u32", 8, "how many users and events the message holds"),
        (
            "report ids",
            "16 bytes a user",
            16 * users,
            "the same when sent again, so that it is counted once",
        ),
        (
            "pseudonyms",
            "16 bytes a user",
            16 * users,
            "who, to the aggregator alone; the secret behind it stays here",
        ),
        ("lengths", "u32 a user", 4 * users, "how many items each user names"),
        ("items", "u32 an event", 4 * events, "which items, in order"),
    ]
    for spec in specs:
        number = users if spec.rows == 1 else events
        fields.append(
            (
                f"{spec.name}: coefficients",
                f"i16 {'a user' if spec.rows == 1 else 'an event'}",
                2 * number,
                _coefficient(spec),
            )
        )
        fields.append(
            (
                f"{spec.name}: vectors",
                f"{_times(spec)} x i16 a user",
                2 * users * spec.folds * spec.width,
                _vector(spec),
            )
        )
    starts = np.cumsum([0, *(size for _, _, size, _ in fields)])
    return [
        {"field": name, "type": kind, "offset": int(start), "bytes": size, "meaning": meaning}
        for (name, kind, size, meaning), start in zip(fields, starts, strict=False)
    ]


def _coefficient(spec: BlockSpec) -> str:
    return (
        f"c, in steps of {spec.coefficient_step:g}: one "
        f"{'for the user' if spec.rows == 1 else 'for each item'}"
    )


def _times(spec: BlockSpec) -> str:
    return str(spec.width) if spec.folds == 1 else f"{spec.folds} x {spec.width}"


def _vector(spec: BlockSpec) -> str:
    which = "" if spec.folds == 1 else f", x the one of item mod {spec.folds}"
    return f"x, in steps of {spec.vector_step:g}: {spec.form.formula} is added up{which}"


def _user(batch: Batch, specs: Sequence[BlockSpec], user: int) -> list[Content]:
    """One user's part, number by number in real units beside its bytes."""
    events = slice(*batch.reports.user_ptr[user : user + 2].tolist())
    items = batch.reports.items[events]
    fields: list[Content] = [
        {"field": "report id", "hex": batch.ids[user].tobytes().hex()},
        {"field": "pseudonym", "hex": batch.tokens[user].tobytes().hex()},
        {
            "field": "length",
            "values": [len(items)],
            "hex": np.array([len(items)], "<u4").tobytes().hex(),
        },
        {"field": "items", "values": items.tolist(), "hex": items.astype("<u4").tobytes().hex()},
    ]
    for spec, part in zip(specs, batch.reports.blocks, strict=True):
        fields += _numbers(spec, part, slice(user, user + 1) if spec.rows == 1 else events, user)
    return fields


def _numbers(spec: BlockSpec, part: BlockReports, events: slice, user: int) -> list[Content]:
    return [
        _field(f"{spec.name}: coefficients", part.coefficients[events], spec.coefficient_step),
        _field(
            f"{spec.name}: vector",
            part.vectors[user * spec.folds : (user + 1) * spec.folds].ravel(),
            spec.vector_step,
        ),
    ]


def _field(name: str, integers: npt.NDArray[np.int32], step: float) -> Content:
    return {
        "field": name,
        "values": (integers * step).tolist(),
        "hex": integers.astype("<i2").tobytes().hex(),
    }
