"""A site that adds its users up and shares the sum: as few rows as a block's vectors have entries.

The sums S (rows, width) of a block are the sum over k < width of S's column k times the unit vector
e_k. So `site_rows` rows of the ordinary layout, with these columns as coefficients and unit vectors
as vectors, give modulo 2^64 what the rows of all the site's users give. They are shared, agreed on,
summed and passed on as users' rows are; only who stands behind them differs.

Guarantee, unit user: as of users' own rows (`servers`), whose total this is, number for number; a
user's part of it is bounded by the site before it is added. It cannot be checked, since a row is of
many users: with checked clients no such row is taken. Aggregators count the users that the site
names. Each names the site's rows by a hash of that list, so that rows are alike only where lists
are. A sum counts where all its rows are held alike by all three, else none of its users.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from fedrec.arrays import UInt64s
from fedrec.sharing.layout import RowLayout
from fedrec.sharing.share_products import add_products
from fedrec.sharing.shares import ID_BYTES


def site_rows(layout: RowLayout) -> int:
    """Rows that stand for the users of a site, however many."""
    return max(part.spec.width for part in layout.parts)


class SiteSum:
    """Sum of rows that are not shared yet: this must not leave a device."""

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self._sums = [np.zeros(part.shape, np.uint64) for part in layout.parts]

    def add(self, numbers: UInt64s) -> None:
        """Adds (n, length) plain numbers, `layout.plain_numbers`."""
        for part, sums in zip(self.layout.parts, self._sums, strict=True):
            left, right = (
                np.ascontiguousarray(numbers[:, where]) for where in (part.left, part.right)
            )
            add_products(left, right, sums, folds=part.spec.folds)

    def rows(self) -> UInt64s:
        """(`site_rows`, length): their products add up to the sums."""
        found = np.zeros((site_rows(self.layout), self.layout.length), np.uint64)
        for part, sums in zip(self.layout.parts, self._sums, strict=True):
            width = part.spec.width
            folds = part.spec.folds
            found[:width, part.left] = sums.T
            found[:width, part.right] = np.tile(np.eye(width, dtype=np.uint64), folds)
        return found


def row_names(users: Sequence[bytes], rows: int) -> list[bytes]:
    """16 bytes a row, in place of a pseudonym. users: pseudonyms of whom the sum is."""
    of = hashlib.sha256(b"fedrec/site" + struct.pack("<I", rows) + b"".join(users)).digest()
    return [hashlib.sha256(of + struct.pack("<I", k)).digest()[:ID_BYTES] for k in range(rows)]
