"""A question as one person's device reads it: by digests, so that whoever carries or caches it can
change nothing."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrec.errors import RefusedError
from fedrec.federation.block_kinds import kind_named
from fedrec.federation.messages import BlockSpec, Question, ReleaseSpec
from fedrec.federation.protocol import Refusal

_MOST_BYTES = 1 << 30  # of a question in a device's memory, before anything is allocated
_DTYPES = {"<f4", "<f8", "<i4", "<i8"}


@dataclass(frozen=True)
class DevicePromise:
    """What of a plan a person's ledger needs: its digest, its guarantee, and mu by release."""

    digest: str
    epsilon: float
    delta: float
    mus: Mapping[str, float]


@dataclass(frozen=True)
class Header:
    """A question without its arrays; `digest` is that of the bytes it was read from."""

    digest: str
    run: str
    plan: str
    round: int
    step: str
    releases: tuple[ReleaseSpec, ...]
    arrays: Mapping[str, tuple[str, tuple[int, ...], str]]

    def question(self, arrays: Mapping[str, bytes]) -> Question:
        """With its arrays: of each the numbers' bytes, little endian.

        Raises RefusedError where they are not the announced ones."""
        public = dict[str, np.ndarray[Any, Any]]()
        for name, (dtype, shape, sha256) in self.arrays.items():
            content = arrays[name]
            if (
                hashlib.sha256(content).hexdigest() != sha256
                or len(content) != math.prod(shape) * np.dtype(dtype).itemsize
            ):
                raise refused(
                    Refusal.WRONG_QUESTION,
                    f"array {name!r} is not the one that the question announces",
                )
            public[name] = np.frombuffer(content, dtype).reshape(shape)
            if not np.isfinite(public[name]).all():
                raise refused(Refusal.MALFORMED, f"array {name!r} has numbers that are not finite")
        return Question(self.round, self.step, public, self.releases)


def read_header(content: bytes) -> Header:
    """Raises RefusedError where it is not what `federation.wire.question_header` writes, or asks
    for more than a device holds."""
    try:
        told = parsed(content)
        releases = tuple(
            ReleaseSpec(
                text(r["name"]),
                tuple(_block(block) for block in listed(r["blocks"])),
                number(r["radius"]),
                flag(r["isometric"]),
            )
            for r in listed(told["releases"])
        )
        arrays = {
            name: (
                text(a["dtype"]),
                tuple(count(rows) for rows in listed(a["shape"])),
                text(a["sha256"]),
            )
            for name, a in told["public"].items()
        }
        header = Header(
            hashlib.sha256(content).hexdigest(),
            text(told["run"]),
            text(told["plan"]),
            count(told["round"]),
            text(told["step"]),
            releases,
            arrays,
        )
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape, _ in arrays.values()]
        sound = (
            all(dtype in _DTYPES for dtype, _, _ in arrays.values()) and min(sizes, default=0) >= 0
        )
        steps = [
            size
            for r in releases
            for b in r.blocks
            for size in (r.radius, b.coefficient_step, b.vector_step)
        ]
        sound = sound and all(abs(math.log2(size)) <= 64 for size in steps) and bool(releases)
        sound = sound and all(
            b.rows >= 1 and b.width >= 1 and b.folds >= 1 for r in releases for b in r.blocks
        )
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        raise refused(Refusal.MALFORMED, f"this is no question: {failure}") from None
    if not sound:
        raise refused(Refusal.MALFORMED, "the question's arrays or blocks have impossible sizes")
    if sum(sizes) > _MOST_BYTES:
        raise refused(
            Refusal.TOO_LARGE, f"the question's arrays have more than {_MOST_BYTES} bytes"
        )
    return header


def read_plan(content: bytes, digest: str) -> DevicePromise:
    """Raises RefusedError where the plan is not the one named, not per user, not proved, or adds up
    to more than its guarantee."""
    try:
        told = parsed(content)
        found = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        guarantee = told["guarantee"]
        releases = listed(told["releases"])
        mus = {text(r["name"]): number(r["mu"]) for r in releases}
        promise = DevicePromise(
            found, number(guarantee["epsilon"]), number(guarantee["delta"]), mus
        )
        per_user = (
            text(guarantee["unit"]) == "user"
            and text(guarantee["neighbours"]) == "add/remove"
            and flag(guarantee.get("established", True))
            and text(told.get("aggregation", "trusted")) == "trusted"
        )
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        raise refused(Refusal.WRONG_PLAN, f"this is no plan: {failure}") from None
    if not (promise.epsilon > 0 and 0 <= promise.delta < 1):
        raise refused(Refusal.WRONG_PLAN, f"({promise.epsilon}, {promise.delta}) is no guarantee")
    if found != digest:
        raise refused(Refusal.WRONG_PLAN, "the plan is not the one that the question names")
    if not per_user or len(mus) != len(releases) or not all(mu > 0 for mu in mus.values()):
        raise refused(
            Refusal.WRONG_PLAN,
            "the plan does not protect a user, is not proved, or is for three aggregators",
        )
    true_delta = delta_of(math.hypot(*mus.values()) * (1 - 1e-9), promise.epsilon)
    # the server's own `delta_of` may round otherwise
    if not true_delta <= promise.delta * (1 + 1e-6):
        raise refused(
            Refusal.WRONG_PLAN,
            "the plan's releases add up to more than its guarantee",
            "Do not take part: it is not true.",
        )
    return promise


@dataclass(frozen=True)
class RunTerms:
    """The terms of a run on ratings; `digest` is that of the bytes they were read from."""

    digest: str
    run: str
    value_range: tuple[float, float]
    items: tuple[str, ...]


def read_terms(content: bytes) -> RunTerms:
    """Raises RefusedError where these are not the terms of a run on ratings with a scale."""
    try:
        told = parsed(content)
        low, high = (number(end) for end in listed(told["value_range"]))
        items = tuple(text(item) for item in listed(told["items"]))
        terms = RunTerms(hashlib.sha256(content).hexdigest(), text(told["run"]), (low, high), items)
        sound = text(told["kind"]) == "ratings" and low < high
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        raise refused(Refusal.MALFORMED, f"these are no terms of a run: {failure}") from None
    if not sound:
        raise refused(Refusal.MALFORMED, "this device answers runs on ratings with a scale")
    return terms


def parsed(content: bytes) -> dict[str, Any]:
    """The object of a JSON text. Raises ValueError where it is none, is nested deeper than Python
    reads, or has a number that is not finite: those are no JSON, and every comparison with NaN is
    false."""
    try:
        told = json.loads(content.decode(), parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(told, dict):
        raise TypeError("it is no JSON object")
    return told


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def number(value: object) -> float:
    """A finite number. Raises TypeError on anything else: a string or a list that would become one
    is shown to a person as one thing and compared as another."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, found {value!r:.60}")
    if not abs(value) <= sys.float_info.max:  # a whole number may be past every float
        raise TypeError(f"expected a finite number, found {value!r:.60}")
    return float(value)


def count(value: object) -> int:
    """A whole number from 0 to 2^53, the largest that every reader of JSON keeps.

    Raises TypeError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise TypeError(f"expected a count, found {value!r}")
    return value


def text(value: object) -> str:
    """A string. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found {value!r}")
    return value


def flag(value: object) -> bool:
    """True or false. Raises TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {value!r}")
    return value


def listed(value: object) -> list[Any]:
    """A list. Raises TypeError."""
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {value!r}")
    return value


def _block(told: dict[str, Any]) -> BlockSpec:
    return BlockSpec(
        text(told["name"]),
        kind_named(text(told["kind"])).name,
        count(told["rows"]),
        count(told["width"]),
        number(told["coefficient_step"]),
        number(told["vector_step"]),
        count(told.get("folds", 1)),
    )


def delta_of(mu: float, epsilon: float) -> float:
    """The exact delta of mu-GDP at epsilon (Dong, Roth, Su 2022, Cor. 1), as
    `privacy.accounting.delta_of` computes it with scipy."""
    if math.isinf(epsilon) or mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    low = (-epsilon / mu + mu / 2) / math.sqrt(2)
    high = (-epsilon / mu - mu / 2) / math.sqrt(2)
    tail = math.erfc(-high) / 2
    # where it underflows, delta is said too large: nothing is let pass
    less = math.exp(epsilon + math.log(tail)) if tail else 0.0
    return max(0.0, math.erfc(-low) / 2 - less)


def refused(
    code: Refusal, cause: str, remedy: str = "Nothing was charged and nothing left."
) -> RefusedError:
    """A refusal with its stable code."""
    return RefusedError(code.value, cause, remedy)
