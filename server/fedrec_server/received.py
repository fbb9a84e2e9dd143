"""Bounds on what clients told, against what was asked of them: shapes, numbers of users, and how
far one client reaches.

Anybody who holds a client's key may lie. A lie is either no answer, and left out, or an answer like
others, and bounded:

- A report is shortened to what a true one does not pass (`bounded_mean.within_reach`), and a client
  answers for so many impressions a user.
- A gradient of `dp-fedrec` is shortened to its clip and its noise: longer is a true one by
  exp(-32). Other gradients have no such bound by the protocol: they are shortened to `_FAR` times
  the median of the clients', by users, so that fewer than half of the users cannot raise it (norm
  bounding, Sun et al. 2019). Weights likewise; one of `dp-fedrec` is its number of users.

All of it is post-processing of what left the clients. A true answer is changed where a client is
far from the median alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from fedrec.errors import RefusedError
from fedrec.federation.protocol import Refusal
from fedrec.news.messages import Arrays
from fedrec.operations import logs

log = logging.getLogger(__name__)

Told = tuple[str, Arrays]
"""A client's name, and what it told."""

_FAR = 8.0
"""Times the median client's impressions a user: more than honest clients differ by."""
_IMPRESSIONS = 16
"""A user may always have so many impressions."""
_SURE = 8.0
"""In standard deviations: a Gaussian vector of P entries is longer than std (sqrt(P) + 8) with
probability below exp(-32)."""


def sound(told: Sequence[Told], require: Callable[[str, Arrays], None]) -> list[Told]:
    """Those whose answers `require` accepts; the others are left out, and named in the log.

    Raises its refusal where none is left."""
    kept = list[Told]()
    refused = list[RefusedError]()
    for name, arrays in told:
        try:
            require(name, arrays)
            kept.append((name, arrays))
        except RefusedError as failure:
            logs.say(log, "left-out", level=logging.WARNING, cause=failure.cause, code=failure.code)
            refused.append(failure)
    if told and not kept:
        raise refused[0]
    return kept


def bounded_impressions(told: Sequence[Told], users: dict[str, int]) -> list[Told]:
    """Reports of at most so many impressions a user, the first ones of each client."""
    each = most_each(
        [len(arrays["users"]) for _, arrays in told], [users[name] for name, _ in told]
    )
    return [(name, _first(arrays, each * users[name])) for name, arrays in told]


def bounded_gradients(
    told: Sequence[Told], asked: dict[str, int], *, longest: Callable[[int], float] | None
) -> list[Told]:
    """Gradients no longer, and weights no larger, than a client with so many users `asked` may
    have.

    longest: by the protocol, of so many users, where it says so; such gradients weigh their users.
    """
    present = [
        (name, arrays) for name, arrays in told if asked.get(name, 0) and arrays["weight"][0]
    ]
    if not present:
        return []
    users = [asked[name] for name, _ in present]
    norms = [float(np.linalg.norm(arrays["gradient"].astype(np.float64))) for _, arrays in present]
    typical = _FAR * _median(norms, users)
    each = 1 if longest else most_each([int(arrays["weight"][0]) for _, arrays in present], users)
    bounded = list[Told]()
    for (name, arrays), norm, count in zip(present, norms, users, strict=True):
        most = longest(count) if longest else typical
        gradient = (
            arrays["gradient"]
            if norm <= most
            else (arrays["gradient"].astype(np.float64) * (most / norm)).astype(np.float32)
        )
        weight = np.minimum(arrays["weight"], each * count)
        bounded.append((name, {**arrays, "gradient": gradient, "weight": weight}))
    return bounded


def longest_noised(clip: float, std: float, numbers: int) -> Callable[[int], float]:
    """How long a mean of n users' gradients is at most, each at most `clip` long, with noise of
    `std` on each of so many numbers."""
    return lambda users: clip + std * (math.sqrt(numbers) + _SURE) / math.sqrt(users)


def most_each(impressions: Sequence[int], users: Sequence[int]) -> int:
    """Impressions a user that one client may answer for: far beyond the median client, by users."""
    means = [count / max(n, 1) for count, n in zip(impressions, users, strict=True)]
    # upwards: nobody at the bound is refused
    return max(_IMPRESSIONS, math.ceil(_FAR * _median(means, users)))


def _median(values: Sequence[float], weights: Sequence[int]) -> float:
    """The lower median: at least half of the weight is at it or above."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(np.asarray(weights, np.float64)[order])
    return float(values[int(order[np.searchsorted(reached, reached[-1] / 2)])])


def _first(arrays: Arrays, most: int) -> Arrays:
    if len(arrays["users"]) <= most:
        return arrays
    end = int(arrays["candidate_ptr"][most])
    kept = {name: arrays[name][:most] for name in ("users", "candidates", "null")}
    return {
        **arrays,
        **kept,
        "candidate_ptr": arrays["candidate_ptr"][: most + 1],
        "reported": arrays["reported"][:end],
    }


def require_reports(client: str, arrays: Arrays, *, users: int, items: int, topics: int) -> None:
    """Raises RefusedError where a client's reports are not what was asked for: nobody's word is
    taken for a shape."""
    forms = {
        "coefficients": "f",
        "users": "i",
        "candidates": "i",
        "candidate_ptr": "i",
        "reported": "u",
        "null": "u",
    }
    with suppress(IndexError, ValueError, KeyError):
        sizes = np.diff(arrays["candidate_ptr"])
        rows = arrays["candidates"]
        shown = arrays["candidates"] >= 0
        if (
            all(arrays[name].dtype.kind == kind for name, kind in forms.items())
            and arrays["coefficients"].shape == (users, topics)
            and np.isfinite(arrays["coefficients"]).all()
            and arrays["candidate_ptr"][0] == 0
            and len(rows) == len(arrays["users"]) == len(sizes) == len(arrays["null"])
            and (shown.sum(1) == sizes).all()
            and (shown == (np.arange(rows.shape[1]) < sizes[:, None])).all()
            and rows.max(initial=0) < items
            and len(arrays["reported"]) == int(sizes.sum())
            and (len(rows) == 0 or 0 <= arrays["users"].min() <= arrays["users"].max() < users)
        ):
            return
    raise RefusedError(
        Refusal.MALFORMED.value,
        f"{client} told something that is no report",
        "Use the same version of fedrec everywhere.",
    )


def require_gradient(client: str, arrays: Arrays, *, length: int) -> None:
    """Raises RefusedError where a client's answer is no gradient of so many numbers with its
    weight."""
    gradient, weight, loss = (
        arrays.get(name, np.zeros(0)) for name in ("gradient", "weight", "loss")
    )
    plausible = (
        gradient.shape == (length,)
        and gradient.dtype.kind == "f"
        and bool(np.isfinite(gradient).all())
    )
    if (
        not plausible
        or weight.shape != (1,)
        or weight.dtype.kind != "i"
        or not 0 <= int(weight[0]) < 2**40
        or loss.shape != (1,)
        or np.isinf(loss).any()
    ):
        raise RefusedError(
            Refusal.MALFORMED.value,
            f"{client} told something that is no gradient",
            "Leave it out, and start again.",
        )
