"""Which numbers of a report are shared: one row for each user, of a length that the question alone decides.

Every block becomes two factors. The row of item j is its coefficient times the vector of its fold, so a block is its `rows` coefficients,
zero where the user has not the item, and its folds * width vector entries; the sum over users is a sum of products. The matrix of a
dense block (kind "outer", one row) is c x x': its factors are c x and x, and the packed triangle is read off the sum. Which items a user
has is thus hidden among all: a row is as long for one item as for all of them.

Blocks of many matrices (kind "outer", many rows) have three factors and are refused: they would need a product of products. Recipes ask
for svec(x x') as a plain vector instead (`factorization.svec`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.errors import PrivacyError
from fedrec.federation.block_kinds import COMPILED
from fedrec.federation.messages import BlockSpec, Question, Reports, triangle
from fedrec.federation.reports import require_distinct
from fedrec.sharing.ring import UInt64s

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """One block in a row of shared numbers: where its coefficients are and where its vectors."""

    spec: BlockSpec
    left: slice
    right: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Of the sums: rows of the block, or of its one matrix; entries of a vector."""
        return self.left.stop - self.left.start, self.spec.width

    def packed(self, sums: UInt64s) -> UInt64s:
        """Sums (shape) as the block's (rows, columns)."""
        if not self.spec.form.matrix:
            return sums
        return sums[triangle(self.spec.width)][None]


@dataclass(frozen=True)
class Layout:
    """All blocks of a question, one after the other, in `length` numbers a user."""

    parts: tuple[Part, ...]
    length: int


def layout(question: Question) -> Layout:
    """Raises PrivacyError where a block has no two factors."""
    parts, at = list[Part](), 0
    for spec in question.blocks:
        if spec.kind not in COMPILED:
            raise PrivacyError(f"three aggregators cannot sum blocks of kind {spec.kind!r}", 'Use privacy.aggregation = "trusted".')
        if spec.form.matrix and spec.rows > 1:
            raise PrivacyError(
                f"block {spec.name!r} sums a matrix for each of {spec.rows} items, which three aggregators cannot",
                'Use another recipe, or privacy.aggregation = "trusted".',
            )
        middle = at + (spec.width if spec.form.matrix else spec.rows)
        end = middle + spec.folds * spec.width
        parts.append(Part(spec, slice(at, middle), slice(middle, end)))
        at = end
    return Layout(tuple(parts), at)


def plain_numbers(reports: Reports, layout: Layout) -> UInt64s:
    """(num_users, length) what is shared of these reports, not shared yet: this must not leave a device.

    Raises ValueError where a user names an item twice: one of its numbers would be lost.
    """
    require_distinct(reports.user_ptr, reports.items)
    n, users = reports.num_users, np.repeat(np.arange(reports.num_users), np.diff(reports.user_ptr))
    numbers = np.zeros((n, layout.length), np.int64)
    for part, block in zip(layout.parts, reports.blocks, strict=True):
        vectors = block.vectors.astype(np.int64)
        if part.spec.form.matrix:
            numbers[:, part.left] = vectors * block.coefficients[:, None].astype(np.int64)
        elif part.spec.rows == 1:
            numbers[:, part.left.start] = block.coefficients
        else:
            numbers[users, part.left.start + reports.items] = block.coefficients
        numbers[:, part.right] = vectors.reshape(n, part.spec.folds * part.spec.width)
    return numbers.view(np.uint64)
