"""Layout of the numbers of a report that are shared: one row for each user, of a length that the
question alone decides.

Every block becomes two factors. The row of item j is its coefficient times the vector of its fold,
so a block is its `rows` coefficients, zero where the user has not the item, and its folds * width
vector entries; the sum over users is a sum of products. The matrix of a dense block (kind "outer",
one row) is c x x': its factors are c x and x, and the packed triangle is read off the sum. Which
items a user has is thus hidden among all: a row is as long for one item as for all of them.

Blocks of many matrices (kind "outer", many rows) have three factors and are refused: they would
need a product of products. Recipes ask for svec(x x') as a plain vector instead
(`am_ssp.client.svec`).

Where clients are checked (`federation.hostile_clients`), a matrix's two factors are both x, and its
coefficient is the question's. Four slack numbers follow for every bound, and the client's own
noise: nothing but the checks reads these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int64s, UInt64s
from fedrec.errors import PrivacyError
from fedrec.federation.block_kinds import COMPILED
from fedrec.federation.hostile_clients import (
    MARGIN,
    ROWS,
    SLACKS,
    matrix_coefficient,
    norm_bounds,
    projection_limit,
    too_fine,
    uncheckable,
)
from fedrec.federation.messages import BlockSpec, Question, Reports, triangle
from fedrec.federation.reports import require_distinct
from fedrec.numerics import compiled
from fedrec.privacy import gaussian
from fedrec.privacy.calibration import Plan

_TABLE = 1 << 20
"""Numbers below have their three squares in the table: above 4 sqrt(n), the most that the second
first leaves of n below `LARGEST`."""
LARGEST = 1 << 34
"""Slacks and bounds are below: `_TABLE` is then large enough."""


def four_squares(numbers: Int64s) -> Int64s:
    """(n, 4), none negative.

    Raises ValueError on a number that is negative, or `LARGEST` or more.

    Every whole number is such a sum (Lagrange 1770): the slack that makes a bound an equation.

    A number is divided by four as long as it can be, which scales the four by two. Of what is left,
    n, the first is the square root or one less, and a table has the other three. For n is 1, 2 or 3
    modulo 4: with an even first in the first two cases, an odd one in the third, the rest is 1 or 2
    modulo 4, and such a number is a sum of three squares (Legendre 1798).
    """
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < LARGEST:
        raise ValueError(
            f"numbers must lie in 0..{LARGEST - 1}, found "
            f"{int(numbers.min())}..{int(numbers.max())}"
        )
    left = numbers.astype(np.int64)
    scale = np.ones(len(numbers), np.int64)
    while (fours := (left % 4 == 0) & (left > 0)).any():
        left[fours] //= 4
        scale[fours] *= 2
    out = np.zeros((len(numbers), 4), np.int64)
    table = _three_squares()
    todo = np.arange(len(numbers))
    first = np.array([math.isqrt(int(each)) for each in left], np.int64)
    while len(todo):
        three = table[left[todo] - first[todo] ** 2]
        found = three[:, 0] >= 0
        out[todo[found]] = np.column_stack([first[todo[found]], three[found]])
        todo = todo[~found]
        first[todo] -= 1
    return np.asarray(out * scale[:, None], np.int64)


@cache
def _three_squares() -> npt.NDArray[np.int16]:
    """(`_TABLE`, 3) three squares of every number below; -1 where there are none."""
    table = np.full((_TABLE, 3), -1, np.int16)
    _fill(table)
    return table


@compiled()
def _fill(table: npt.NDArray[np.int16]) -> None:
    a = 0
    while a * a < len(table):
        b = 0
        while b <= a and a * a + b * b < len(table):
            c = 0
            while c <= b and a * a + b * b + c * c < len(table):
                row = table[a * a + b * b + c * c]
                row[0] = a
                row[1] = b
                row[2] = c
                c += 1
            b += 1
        a += 1


@dataclass(frozen=True)
class BlockPlace:
    """One block in a row of shared numbers: where its coefficients are and where its vectors.

    Sums are `factor` times the products."""

    spec: BlockSpec
    left: slice
    right: slice
    factor: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the sums: rows of the block, or of its one matrix; entries of a vector."""
        return self.left.stop - self.left.start, self.spec.width

    def packed(self, sums: UInt64s) -> UInt64s:
        """Sums (shape) as the block's (rows, columns)."""
        if not self.spec.form.matrix:
            return sums
        return sums[triangle(self.spec.width)][None] * np.uint64(self.factor)


@dataclass(frozen=True)
class RowLayout:
    """All blocks of a question, one after the other, in `length` numbers a user."""

    parts: tuple[BlockPlace, ...]
    length: int
    checked: CheckedRow | None = None


@dataclass(frozen=True)
class Equation:
    """The sum of weight * number^2 over `terms`, with the squares of `slack`, is `square`."""

    terms: tuple[tuple[slice, int], ...]
    slack: slice
    square: int


@dataclass(frozen=True)
class CheckedRow:
    """What is checked of a row. data: numbers that are projected, slack among them. noise: the
    client's. limit: of a projection."""

    equations: tuple[Equation, ...]
    data: slice
    noise: slice
    limit: int

    @property
    def noise_std(self) -> float:
        """Standard deviation of the client's noise, in whole numbers."""
        return self.limit / MARGIN


def plan_layout(question: Question, plan: Plan) -> RowLayout:
    """The layout with checks of clients where the plan has them.

    Raises PrivacyError where a block has no two factors, or cannot be checked."""
    return checked_layout(question) if plan.checked else layout(question)


def checked_layout(question: Question) -> RowLayout:
    """With what checks need. Raises PrivacyError as `plan_layout`."""
    plain = layout(question)
    parts = list[BlockPlace]()
    places = dict[str, BlockPlace]()
    at = 0
    releases = [(release, block) for release in question.releases for block in release.blocks]
    for part, (release, spec) in zip(plain.parts, releases, strict=True):
        rows = part.left.stop - part.left.start
        vectors = part.right.stop - part.right.start
        if spec.form.matrix:
            both = slice(at, at := at + vectors)
            parts.append(BlockPlace(spec, both, both, matrix_coefficient(release, spec)))
        else:
            parts.append(
                BlockPlace(spec, slice(at, at + rows), slice(at + rows, at := at + rows + vectors))
            )
        places[spec.name] = parts[-1]
    equations = list[Equation]()
    for bound in norm_bounds(question):
        if bound.square >= LARGEST:
            raise too_fine(question)
        if bound.vector is None:
            terms = tuple((places[name].left, weight) for name, weight in bound.coefficients)
        else:
            name, fold = bound.vector
            start = places[name].right.start
            width = places[name].spec.width
            terms = ((slice(start + fold * width, start + (fold + 1) * width), 1),)
        equations.append(Equation(terms, slice(at, at := at + SLACKS), bound.square))
    checked = CheckedRow(
        tuple(equations), slice(0, at), slice(at, at + ROWS), projection_limit(question)
    )
    return RowLayout(tuple(parts), at + ROWS, checked)


def layout(question: Question) -> RowLayout:
    """Without checks. Raises PrivacyError where a block has no two factors, or blocks have
    different numbers of rows: an item beyond the rows of one would be written into another."""
    parts = list[BlockPlace]()
    at = 0
    if len(sizes := {spec.rows for spec in question.blocks} - {1}) > 1:
        raise PrivacyError(
            f"blocks of one question have {sorted(sizes)} rows",
            "Blocks must have one row, or all the same number.",
        )
    for spec in question.blocks:
        if spec.kind not in COMPILED:
            raise PrivacyError(
                f"three aggregators cannot sum blocks of kind {spec.kind!r}",
                'Use privacy.aggregation = "trusted".',
            )
        if spec.form.matrix and spec.rows > 1:
            raise PrivacyError(
                (
                    f"block {spec.name!r} sums a matrix for each of {spec.rows} items, which "
                    "three aggregators cannot"
                ),
                'Use another recipe, or privacy.aggregation = "trusted".',
            )
        middle = at + (spec.width if spec.form.matrix else spec.rows)
        end = middle + spec.folds * spec.width
        parts.append(BlockPlace(spec, slice(at, middle), slice(middle, end)))
        at = end
    return RowLayout(tuple(parts), at)


def plain_numbers(reports: Reports, layout: RowLayout) -> UInt64s:
    """(num_users, length) what is shared of these reports, not shared yet: this must not leave a
    device.

    Raises as `require_sharable`.
    """
    numbers, slacks = _before_slack(reports, layout)
    for where, slack in slacks:
        numbers[:, where] = four_squares(slack)
    return numbers.view(np.uint64)


def require_sharable(reports: Reports, layout: RowLayout) -> None:
    """Raises ValueError where a user names an item twice, of whose numbers one would be lost, or an
    item that a block does not have, or where a report is larger than a bound that is checked;
    PrivacyError where the question is not one that can be checked."""
    for _, slack in _before_slack(reports, layout)[1]:
        if slack.size and not 0 <= int(slack.min()) <= int(slack.max()) < LARGEST:
            raise ValueError("a report is larger than what is checked of it")


def _before_slack(reports: Reports, layout: RowLayout) -> tuple[Int64s, list[tuple[slice, Int64s]]]:
    """Rows without their slack numbers, and of every equation where these go and what their squares
    add up to, (num_users,)."""
    require_distinct(reports.user_ptr, reports.items)
    n = reports.num_users
    users = np.repeat(np.arange(reports.num_users), np.diff(reports.user_ptr))
    numbers = np.zeros((n, layout.length), np.int64)
    for part, block in zip(layout.parts, reports.blocks, strict=True):
        vectors = block.vectors.astype(np.int64)
        if part.spec.rows > 1 and int(reports.items.max(initial=-1)) >= part.spec.rows:
            raise ValueError(f"a report names an item that block {part.spec.name!r} does not have")
        if part.spec.form.matrix and layout.checked:
            if not np.isin(block.coefficients, (0, part.factor)).all():
                raise uncheckable(f"block {part.spec.name!r}")
            vectors = vectors * (block.coefficients != 0)[:, None]
        elif part.spec.form.matrix:
            numbers[:, part.left] = vectors * block.coefficients[:, None].astype(np.int64)
        elif part.spec.rows == 1:
            numbers[:, part.left.start] = block.coefficients
        else:
            numbers[users, part.left.start + reports.items] = block.coefficients
        numbers[:, part.right] = vectors.reshape(n, part.spec.folds * part.spec.width)
    slacks = list[tuple[slice, Int64s]]()
    for equation in layout.checked.equations if layout.checked else ():
        total = sum(
            weight * np.einsum("ij,ij->i", numbers[:, where], numbers[:, where])
            for where, weight in equation.terms
        )
        slacks.append((equation.slack, equation.square - np.asarray(total, np.int64)))
    return numbers, slacks


def with_own_noise(numbers: UInt64s, layout: RowLayout, keys: Sequence[bytes]) -> UInt64s:
    """Rows with the noise under which their projections are opened, each of a key that is used
    once; as they are where nothing is checked.

    Guarantee: an opening of the row is mu_c-GDP for the user (report replaced by the empty one);
    proof in `federation.hostile_clients`.
    """
    if layout.checked is None:
        return numbers
    found = numbers.copy()
    checked = layout.checked
    for row, key in zip(found, keys, strict=True):
        row[checked.noise] = own_noise(checked, key)[0].view(np.uint64)
    return found


def own_noise(checked: CheckedRow, key: bytes, *, attempts: int = 1) -> Int64s:
    """(attempts, `ROWS`) what a client adds to its projections, which are mu_c-GDP for the user
    under it: `with_own_noise`."""
    return gaussian.row_noise((attempts, ROWS), step=1.0, std=checked.noise_std, key=key)
