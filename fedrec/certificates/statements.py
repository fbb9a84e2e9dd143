"""Statements of aggregators: what a ledger says of one run, or of a person who left, signed with
the key that the aggregator's TLS certificate vouches for.

A statement is canonical JSON. It holds the chain of the ledger from before the run's first entry to
its head, an entry by its SHA-256; of the run's charges the entries themselves, which name release
and mu; and for each round what it asked, what was released, and the head then. One of three
aggregators releases an output: the round's SHA-256 is that of `output`, in hexadecimal, and its
bytes behind. Entries of other runs stay hashes, and so do those that say how many bytes came.

Of a person who left it names every run that may hold a report of hers, with the mu that it cost at
most: what was charged before she left, and the whole plan of a run that was unfinished then.
Guarantee: her part in all of them together is mu-Gaussian, mu the root of the sum of squares, and
nothing that was released after is a function of a report of hers that came later.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from fedrec.errors import RunError
from fedrec.federation.protocol import (
    DEPARTURE,
    STATEMENT,
    SignedStatement,
    next_hash,
    signed_bytes,
)
from fedrec.operations.certificates import Pins, pins, signer_of
from fedrec.operations.signatures import signature_holds
from fedrec.privacy.accounting import epsilon_of
from fedrec.privacy.calibration import Plan
from fedrec.storage import told_json


@dataclass(frozen=True)
class Signed:
    """One aggregator's statement that holds. pin: SHA-256 of its public key, as clients pin it, ""
    where nothing is signed; number, head: its ledger's."""

    name: str
    pin: str
    number: int
    head: str
    whole: bool

    @property
    def words(self) -> str:
        """The statement in one sentence."""
        what = (
            "released these bytes"
            if self.whole
            else "released the output of each that is here, which adds up with two others to it"
        )
        how = f"signed with the key {self.pin}" if self.pin else "states, without a signature"
        return (
            f"Aggregator {self.name} {how}: its ledger of {self.number} entries, head "
            f"{self.head[:16]}, charged every release to these questions and {what}."
        )


@dataclass(frozen=True)
class Departed:
    """What an aggregator states of a person who left. pin: as `Signed`. number: of the entry in its
    ledger. runs: those that may hold a report, with their mu."""

    pin: str
    number: int
    runs: Mapping[str, float]
    delta: float

    @property
    def words(self) -> str:
        """The statement in two sentences."""
        how = f"signed with the key {self.pin}" if self.pin else "states, without a signature"
        spent = epsilon_of(math.hypot(*self.runs.values()), self.delta)
        return (
            f"The aggregator {how}: from entry {self.number} of its ledger on it counts no report "
            f"of this person. What was released before, of {', '.join(self.runs) or 'no run'}, "
            f"holds of her at most epsilon {spent:.4g} at delta {self.delta:g}, and stays released."
        )


def require_departed(told: SignedStatement, user: bytes, *, pin: str) -> Departed:
    """What is stated of this user. pin: of the aggregator's key or certificate, "" where any is
    believed, and none is asked for.

    Raises RunError where that key did not sign it, or it is of somebody else."""
    try:
        own = pins(told.certificate.encode()) if told.certificate else Pins("", "")
        sound = pin in {"", *vars(own).values()}
        if told.certificate:
            text = signed_bytes(told.statement, DEPARTURE)
            signature = bytes.fromhex(told.signature)
            sound &= signature_holds(told.certificate.encode(), text, signature)
        said = told_json(told.statement)
        sound &= (said["format"], said["user"]) == (DEPARTURE, user.hex())
        runs = {printable(run): float(mu) for run, mu in said["runs"].items()}
        left = Departed(own.public_key, int(said["number"]), runs, float(said["delta"]))
        sound &= 0 < left.delta < 1 and all(mu >= 0 for mu in runs.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise RunError(
            "the statement does not hold: another key signed it, or it is of somebody else",
            "Ask the aggregator again with `fedrec forget`.",
        )
    return left


def require_signed(
    content: Mapping[str, Any],
    plan: Plan,
    sha256: Sequence[str],
    outputs: Sequence[Sequence[bytes]],
) -> tuple[Signed, ...]:
    """The statements of a certificate. sha256: of each round's release. outputs: of each round,
    three; none of one aggregator.

    Raises RunError where one does not hold, or where they are not one, or three, or none."""
    statements = content["statements"]
    parties = 1 if plan.aggregation == "trusted" else 3
    if len(statements) not in {0, parties}:
        fails(f"{len(statements)} aggregators signed, of {parties}")
    found = tuple(
        _holding(one, content, plan, sha256, [three[place] for three in outputs])
        for place, one in enumerate(statements)
    )
    if len({one.pin for one in found if one.pin}) != len([one for one in found if one.pin]):
        fails("two aggregators have one key")
    return found


def _holding(
    signed: Mapping[str, Any],
    content: Mapping[str, Any],
    plan: Plan,
    sha256: Sequence[str],
    outputs: Sequence[bytes],
) -> Signed:
    text = signed["statement"]
    if set(signed) != {"statement", "signature", "certificate"}:
        fails("a statement says more than was signed")
    name, pin = "in the server's process", ""
    if signed["certificate"]:
        called, pin = signer_of(signed["certificate"].encode())
        name = printable(called)
        signature = bytes.fromhex(signed["signature"])
        if not signature_holds(signed["certificate"].encode(), signed_bytes(text), signature):
            fails(f"aggregator {name} did not sign its statement")
    said = told_json(text)
    if (said["format"], said["run"], said["plan"]) != (STATEMENT, content["run"], plan.digest()):
        fails(f"aggregator {name} speaks of another run or plan")
    heads = [said["since"]["head"]]
    for entry in said["entries"]:
        heads.append(next_hash(heads[-1], entry))
    if heads[-1] != said["head"]:
        fails(f"the ledger of aggregator {name} does not lead to its head")
    charged = list[tuple[str, float]]()
    for entry in said["charges"]:
        if hashlib.sha256(entry.encode()).hexdigest() not in said["entries"]:
            fails(f"the ledger of aggregator {name} does not hold a charge that it states")
        charge = told_json(entry)
        if charge["run"] == content["run"]:
            charged.append((charge["release"], charge["mu"]))
    if sorted(charged) != sorted((release.name, release.mu) for release in plan.releases):
        fails(f"the ledger of aggregator {name} has not charged what the plan promises")
    whole = plan.aggregation == "trusted"
    # news scales no sum by who reported, and counts nobody
    compared = ("question", "reported") if content["users"] else ("question",)
    rounds, stated = (
        [[one[key] for key in compared] for one in told["rounds"]] for told in (content, said)
    )
    if stated != rounds or not all(one["head"] in heads for one in said["rounds"]):
        fails(f"aggregator {name} released other rounds")
    released = sha256 if whole else [
        hashlib.sha256(bytes.fromhex(one["output"]) + output).hexdigest()
        for one, output in zip(said["rounds"], outputs, strict=True)
    ]  # fmt: skip
    if [one["release"] for one in said["rounds"]] != list(released):
        fails(f"aggregator {name} released other bytes")
    return Signed(name, pin, said["since"]["number"] + len(said["entries"]), said["head"], whole)


def printable(text: str) -> str:
    """What a forger wrote, without what a terminal would obey."""
    return "".join(sign for sign in text if sign.isprintable())


def fails(cause: str) -> NoReturn:
    """Raises RunError: the certificate does not hold."""
    raise RunError(
        f"the certificate does not hold: {printable(cause)}",
        "Do not rely on this model's guarantee. Copy the whole folder again, or ask who made it "
        "and the aggregators' operators.",
    ) from None
