"""Arithmetic of one of three aggregators on the shares of a round: it multiplies, adds, and gives
away its masked part of the noised sums.

With x = x_0 + x_1 + x_2 and y likewise, x y = sum over i of x_i (y_i + y_(i+1)) + x_(i+1) y_i: each
of the nine products once, and each of them within reach of one aggregator. Sums over users commute
with that. So aggregator i adds its term over all users, then its own noise n_i and its mask z_i,
and the server adds three outputs: S + n_0 + n_1 + n_2 modulo 2^64, the integers that one trusted
aggregator with the same three noises would have.

Guarantee, unit user. Of honest users, the server, aggregator i and any clients see shares that are
uniform (`shares`), and two outputs of which only the sum is not masked (`zeros`): S + n_a + n_b of
the two honest ones, after taking off what they know. That is the release of `privacy.three_noises`,
mu-GDP as planned. It needs both honest aggregators to sum the same users, and to give out one
output a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedrec.arrays import Int64s, UInt64s
from fedrec.sharing.layout import RowLayout
from fedrec.sharing.shares import add_products, zero_share


class ShareSums:
    """The sums of one aggregator, over any number of batches; order and batches do not show."""

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self._sums = [np.zeros(part.shape, np.uint64) for part in layout.parts]

    def add(self, own: UInt64s, following: UInt64s, *, off: bool = False) -> None:
        """Add users' shares (n, length), of the aggregator's own number and of the next; `off`
        takes them off again.

        Raises ValueError on other shapes.
        """
        if own.shape != following.shape or own.ndim != 2 or own.shape[1] != self.layout.length:
            raise ValueError(
                f"shares must have {self.layout.length} numbers a user, found {own.shape} "
                f"and {following.shape}"
            )
        minus_one = np.uint64(2**64 - 1)
        for part, sums in zip(self.layout.parts, self._sums, strict=True):
            x = np.ascontiguousarray(own[:, part.left])
            after = np.ascontiguousarray(following[:, part.left])
            y = np.ascontiguousarray(own[:, part.right])
            together = own[:, part.right] + following[:, part.right]
            if off:
                together = together * minus_one
                y = y * minus_one
            add_products(x, together, sums, folds=part.spec.folds)
            add_products(after, y, sums, folds=part.spec.folds)

    def output(
        self, noise: Iterable[Int64s], keys: tuple[bytes, bytes], context: bytes
    ) -> tuple[UInt64s, ...]:
        """One (rows, columns) array a block for the server: the sums, the aggregator's noise and
        its mask. Given away once.

        keys: its own and the following aggregator's. context: of the run, the round and the
        attempt.
        """
        return masked_output(self.packed(), noise, keys, context)

    def packed(self) -> tuple[UInt64s, ...]:
        """One (rows, columns) array a block: its term of the sums, which another aggregator must
        not see (`zeros`)."""
        return tuple(
            part.packed(sums) for part, sums in zip(self.layout.parts, self._sums, strict=True)
        )


def masked_output(
    terms: Sequence[UInt64s],
    noise: Iterable[Int64s],
    keys: tuple[bytes, bytes],
    context: bytes,
) -> tuple[UInt64s, ...]:
    """`ShareSums.output` of terms (rows, columns) a block."""
    out = list[UInt64s]()
    for number, (packed, drawn) in enumerate(zip(terms, noise, strict=True)):
        mask = zero_share(*keys, context + f"/output/{number}".encode(), packed.size)
        out.append(packed + drawn.view(np.uint64) + mask.reshape(packed.shape))
    return tuple(out)


def total(outputs: Sequence[Sequence[UInt64s]]) -> tuple[Int64s, ...]:
    """What the server makes of three aggregators' outputs: noised sums, in units of each block's
    grid."""
    first, second, third = outputs
    return tuple((a + b + c).view(np.int64) for a, b, c in zip(first, second, third, strict=True))
