"""Bounded reports to a question, whatever the question: checked before private data is touched,
silent where it fails.

The server is not trusted. What it learns of a client is when and whether it refuses, and how many
users were counted; so neither may depend on an event:

- A question is refused on public grounds alone: its step, its arrays' shapes and numbers, its
  sizes, and a rehearsal of the step on invented users, before anything is charged.
- Afterwards a user whose report cannot be made, or would be larger than the radius or longer than
  an aggregator takes, or could not be shared among three, sends an empty report. Arrays made to
  fail on certain items only, or bags of features made long for them, then tell the server nothing:
  the user is counted as any other.

What is left is time: how long a client takes depends on how many events its users have.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS
from fedrec.errors import RefusedError
from fedrec.federation.messages import (
    COEFFICIENT_BITS,
    VECTOR_BITS,
    BlockReports,
    BlockSpec,
    ClientStep,
    Question,
    ReleaseSpec,
    Reports,
)
from fedrec.federation.protocol import Refusal, Terms
from fedrec.federation.report_batches import MAX_EVENTS_PER_USER, batch_bytes
from fedrec.federation.reports import within_radius
from fedrec.operations import logs

log = logging.getLogger(__name__)


Private = Interactions | Impressions
"""What a site's users have: ratings and clicks, or impressions of news."""
Check = Callable[[Reports], object]
"""What else reports must pass: it raises where they do not."""
OF_DIRECTIONS = ("base", "pull")
"""Public arrays of (d, d) and (d,), d the width of V: the sum of a convex loss over the whole
catalogue (`Catalogue` of `convex-ssp`)."""


def _passed(reports: Reports) -> None:
    """Nothing else."""


@dataclass(frozen=True)
class AnswerBounds:
    """What one question may ask of this machine. Bytes; `columns` are numbers per item in one array
    (a user solve is cubic in them).

    features: rows that a block may have beyond one for each item, for parameters that items share.
    """

    public_bytes: int = 1 << 30
    columns: int = 1_024
    features: int = 1 << 16
    batch_bytes: int = 1 << 22


def require_answerable(
    question: Question,
    step: ClientStep,
    terms: Terms,
    bounds: AnswerBounds,
    *,
    check: Check = _passed,
) -> None:
    """Raises RefusedError on a question that is malformed, too large, or that the step cannot
    answer by reports that pass. Touches no private data."""
    items = len(terms.items)
    if sum(array.nbytes for array in question.public.values()) > bounds.public_bytes:
        raise _malformed(
            f"the public arrays have more than {bounds.public_bytes} bytes", Refusal.TOO_LARGE
        )
    width = question.public["V"].shape[1:] if "V" in question.public else ()
    for name, array in question.public.items():
        if (
            name in OF_DIRECTIONS
            and len(width) == 1 <= width[0] <= bounds.columns
            and array.shape in (width, 2 * width)
        ):
            _require_finite(name, array)
            continue
        _require_plausible(name, array, items=items, columns=bounds.columns, news=terms.of_news)
    listed = len(question.public["items"]) if "items" in question.public else 1
    # of a stream, places for items that come later
    places = items if any(release.week for release in question.releases) else listed
    for release in question.releases:
        if not all(abs(math.log2(size)) <= 64 for size in (release.radius, *_steps(release))):
            raise _malformed(
                f"release {release.name!r}: its radius and steps must lie between 2^-64 and 2^64"
            )
    for spec in question.blocks:
        more = (
            spec.rows <= bounds.columns
            if terms.of_news
            else items < spec.rows <= items + bounds.features
        )
        if spec.rows not in (1, items) and not (listed <= spec.rows <= places or more):
            raise _malformed(
                f"block {spec.name!r} has {spec.rows} rows, the catalogue {items} items"
            )
    # a report names its rows once, for all blocks
    if len({spec.rows for spec in question.blocks} - {1}) > 1:
        raise _malformed("its blocks have different numbers of rows")
    if batch_bytes(question.blocks, users=1, events=0) > bounds.batch_bytes:
        raise _malformed(
            f"one user's report would have more than {bounds.batch_bytes} bytes", Refusal.TOO_LARGE
        )
    _rehearse(question, step, terms, check)


def batches(
    mine: Private, specs: tuple[BlockSpec, ...], *, users: int, max_bytes: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Consecutive users, at most so many, whose reports on all of their items fit `max_bytes`; at
    least one user."""
    lengths = _lengths(mine, specs)
    start = 0
    while start < mine.num_users:
        sizes = lengths[start : start + users]
        events = np.cumsum(sizes)
        reached = [
            batch_bytes(specs, users=n + 1, events=int(events[n])) for n in range(len(sizes))
        ]
        taken = max(1, int(np.searchsorted(reached, max_bytes, side="right")))
        yield np.arange(start, start + taken)
        start += taken


def _lengths(mine: Private, specs: tuple[BlockSpec, ...]) -> npt.NDArray[np.int64]:
    """(num_users,) rows that each user's report may name: its own items, or for features and news
    all rows of a block."""
    rows = max((spec.rows for spec in specs if spec.rows > 1), default=0)
    if isinstance(mine, Interactions) and rows <= mine.num_items:
        return np.diff(mine.user_ptr)
    return np.full(mine.num_users, rows, np.int64)


def answered(
    question: Question,
    step: ClientStep,
    mine: Private,
    users: npt.NDArray[np.int64],
    *,
    check: Check = _passed,
) -> Reports:
    """One report for each of `users` (consecutive), each within its radius, each from that user's
    events alone; who would not pass is silent."""
    try:
        return _made(question, step, mine, users, check)
    except Exception:
        # whatever a hostile array brings about: one user after the other, so that none speaks for
        # another
        one_by_one = [
            _made_or_silent(question, step, mine, users[k : k + 1], check)
            for k in range(len(users))
        ]
        logs.say(
            log,
            "users-stay-silent",
            level=logging.WARNING,
            round=question.round,
            step=question.step,
        )
        return _joined(
            [reports or _silence(question.blocks) for reports in one_by_one], question.blocks
        )


def _require_plausible(
    name: str, array: npt.NDArray[np.generic], *, items: int, columns: int, news: bool
) -> None:
    """Compiled steps trust shapes: an array has one number, or one row per item, or is a list of
    items.

    Steps of `news` have small matrices besides, and look at every shape themselves
    (`central_client`).
    """
    _require_finite(name, array)
    if name == "items":
        if array.ndim != 1 or array.dtype.kind != "i" or len(np.unique(array)) != array.size:
            raise _malformed("public array 'items' must list different items")
        if array.size and (int(array.min()) < 0 or int(array.max()) >= items):
            raise _malformed(f"public array 'items' names items outside of the catalogue's {items}")
    elif news and array.ndim <= 2 and max(array.shape, default=0) <= columns:
        return
    elif array.ndim and (array.ndim > 2 or len(array) != items or array.size > items * columns):
        raise _malformed(
            f"public array {name!r} of shape {array.shape} does not fit {items} items and at "
            f"most {columns} columns"
        )


def _require_finite(name: str, array: npt.NDArray[np.generic]) -> None:
    if not np.isfinite(np.asarray(array, np.float64)).all():
        raise _malformed(f"public array {name!r} has numbers that are not finite")


def _steps(release: ReleaseSpec) -> list[float]:
    return [
        step for block in release.blocks for step in (block.coefficient_step, block.vector_step)
    ]


def _rehearse(question: Question, step: ClientStep, terms: Terms, check: Check) -> None:
    try:
        _made(question, step, invented(terms), np.arange(3), check)
    except Exception as failure:  # of invented users: its words are public
        raise _malformed(
            f"step {question.step!r} cannot answer this question ({type(failure).__name__}: "
            f"{str(failure)[:200]})"
        ) from None


def invented(terms: Terms) -> Private:
    """Three users: without anything, with one item, with a few."""
    low, high = terms.value_range
    few = np.arange(min(5, len(terms.items)), dtype=np.int32)
    pointer = np.array([0, 0, 1, 1 + len(few)], np.int64)
    items = np.concatenate([[0], few]).astype(np.int32)
    if terms.of_news:
        owner = np.array([1, 2], np.int32)
        return Impressions(
            len(terms.items),
            pointer,
            items,
            owner,
            pointer[1:],
            items,
            np.concatenate([[True], few == 0]),
        )
    kind = KINDS[terms.kind]
    values = np.concatenate([[low], np.full(len(few), high)])
    values = (values if kind.rated else np.ones_like(values)).astype(np.float32)
    return Interactions(pointer, items, values, len(terms.items), terms.value_range, kind.name)


def _made(
    question: Question,
    step: ClientStep,
    mine: Private,
    users: npt.NDArray[np.int64],
    check: Check,
) -> Reports:
    with np.errstate(all="ignore"):  # what is not finite is refused below, by its value
        reports = step(question, mine.users_subset(users))
    _require_form(reports, question.blocks, users=len(users))
    if not within_radius(reports, question.releases).all():
        raise ValueError("a report is larger than its radius")
    if int(np.diff(reports.user_ptr).max(initial=0)) > MAX_EVENTS_PER_USER:
        raise ValueError("a report names more rows than an aggregator takes")
    check(reports)
    return reports


def _made_or_silent(
    question: Question,
    step: ClientStep,
    mine: Private,
    user: npt.NDArray[np.int64],
    check: Check,
) -> Reports | None:
    try:
        return _made(question, step, mine, user, check)
    except Exception:  # see the module's first lines
        return None


def _require_form(reports: Reports, specs: tuple[BlockSpec, ...], *, users: int) -> None:
    """ValueError where the reports do not have the announced form: one for each user, one block for
    each spec."""
    pointer = reports.user_ptr
    items = reports.items
    if (
        len(pointer) != users + 1
        or pointer[0] != 0
        or pointer[-1] != len(items)
        or len(reports.blocks) != len(specs)
    ):
        raise ValueError(
            f"the step made {len(pointer) - 1} reports of {len(reports.blocks)} blocks, "
            f"asked for were {users} of {len(specs)}"
        )
    rows = min((spec.rows for spec in specs if spec.rows > 1), default=1)
    if len(items) and not 0 <= int(items.min()) <= int(items.max()) < rows:
        raise ValueError("a report names an item outside of its block")
    for part, spec in zip(reports.blocks, specs, strict=True):
        vectors = (users * spec.folds, spec.width)
        if (
            len(part.coefficients) != (users if spec.rows == 1 else len(items))
            or part.vectors.shape != vectors
        ):
            raise ValueError(f"block {spec.name!r} is not of the announced shape")
        for numbers, bits in ((part.coefficients, COEFFICIENT_BITS), (part.vectors, VECTOR_BITS)):
            if max(-int(numbers.min(initial=0)), int(numbers.max(initial=0))) >= 2**bits:
                raise ValueError(f"block {spec.name!r} has numbers of more than {bits} bits")


def _silence(specs: tuple[BlockSpec, ...]) -> Reports:
    """The report of one user who says nothing."""
    blocks = (
        BlockReports(
            np.zeros(1 if s.rows == 1 else 0, np.int32), np.zeros((s.folds, s.width), np.int32)
        )
        for s in specs
    )
    return Reports(np.zeros(2, np.int64), np.zeros(0, np.int32), tuple(blocks))


def _joined(one_by_one: list[Reports], specs: tuple[BlockSpec, ...]) -> Reports:
    lengths = [len(reports.items) for reports in one_by_one]
    blocks = tuple(
        BlockReports(
            np.concatenate([reports.blocks[b].coefficients for reports in one_by_one]),
            np.concatenate([reports.blocks[b].vectors for reports in one_by_one]),
        )
        for b in range(len(specs))
    )
    pointer = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Reports(pointer, np.concatenate([reports.items for reports in one_by_one]), blocks)


def _malformed(cause: str, code: Refusal = Refusal.MALFORMED) -> RefusedError:
    return RefusedError(
        code.value, cause, "Nothing was charged and nothing left: the server must ask otherwise."
    )
