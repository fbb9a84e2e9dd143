"""Arithmetic of one of three aggregators on the shares of a round: it multiplies, adds, and gives
away its masked part of the noised sums.

With x = x_0 + x_1 + x_2 and y likewise, x y = sum over i of x_i (y_i + y_(i+1)) + x_(i+1) y_i: each
of the nine products once, and each of them within reach of one aggregator. Sums over users commute
with that. So aggregator i adds its term over all users, then its own noise n_i and its mask z_i,
and the server adds three outputs: S + n_0 + n_1 + n_2 modulo 2^64, the integers that one trusted
aggregator with the same three noises would have.

Guarantee, unit user. Of honest users, the server, aggregator i and any clients see shares that are
uniform (`shares`), and two outputs of which only the sum is not masked (`zeros`): S + n_a + n_b of
the two honest ones, after taking off what they know. That is the release of `privacy.calibration`,
mu-GDP as planned. It needs both honest aggregators to sum the same users, and to give out one
output a round.

Checks of hostile clients by three aggregators, none of whom sees a row: norms as equations, and
that no number wraps around.

What aggregators open of a user's row x (`layout.CheckedRow`), each opening the sum of three terms
that are masked by zeros (`zeros`):

- T = sum of weight x_j^2 + sum of slack^2 - square, of every equation: 0 for every honest user.
- y = C x + e, `ROWS` numbers, C the same for the whole batch. Accepted are |y_i| <= B.

Soundness, if all three aggregators keep to the protocol. Let a row have a number |x_j| > 2 B (as a
signed number). Given everything else, at most one of "C_ij = 0" and "C_ij is 1 or -1" leaves |y_i|
<= B, since the two differ by x_j, and each has probability 1/2. So the row passes with probability
at most 2^-ROWS: C is of a coin that nobody knows before the batch is fixed. Otherwise every term of
an equation is at most 4 B^2 times its weight, so that both sides are below 2^64
(`hostile_clients.projection_limit`), and T = 0 modulo 2^64 is the equation in integers: the bound
holds.

Completeness: T is 0 by construction, and y is e plus less than B / 100. Privacy:
`federation.hostile_clients`. An aggregator that lies moves openings by what it chooses, so that
users fall out or stay in; what it learns is the same, as long as the shares of both honest ones are
the client's (`commitments`): of another x + d, T would be 2 <x, d> + |d|^2. A corrupt aggregator
with hostile clients can let them in.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int64s, UInt64s
from fedrec.federation.hostile_clients import ROWS
from fedrec.sharing.layout import CheckedRow, RowLayout
from fedrec.sharing.share_products import add_products
from fedrec.sharing.shares import expand, zero_share


def coin_term(key: bytes, ticket: bytes, batch: bytes) -> bytes:
    """32 bytes of one masking key, for a batch.

    Told to nobody before the batch is fixed: with all three terms anybody knows C."""
    return hmac.digest(key, b"fedrec/coin/" + ticket + batch, "sha256")


def projection(terms: Sequence[bytes], numbers: int) -> UInt64s:
    """(numbers, ROWS) C of three terms: -1, 0, 1 with probabilities 1/4, 1/2, 1/4."""
    coin = hashlib.sha256(b"fedrec/coin" + b"".join(terms)).digest()
    bits = 2 * numbers * ROWS
    words = expand(coin, -(-bits // 64)).view(np.uint8)
    first, second = np.unpackbits(words)[:bits].reshape(2, numbers, ROWS).astype(np.int64)
    return np.asarray((first - second).view(np.uint64))


def opening(
    own: UInt64s,
    following: UInt64s,
    checked: CheckedRow,
    C: UInt64s,
    aggregator: int,
    keys: tuple[bytes, bytes],
    context: bytes,
) -> UInt64s:
    """(n, equations + ROWS) one aggregator's masked terms of T and y. context: of ticket, batch and
    which users; used once."""
    n = len(own)
    together = own + following + following
    found = np.zeros((n, len(checked.equations) + ROWS), np.uint64)
    for k, equation in enumerate(checked.equations):
        for where, weight in (*equation.terms, (equation.slack, 1)):
            found[:, k] += np.uint64(weight) * np.einsum(
                "ij,ij->i", own[:, where], together[:, where]
            )
        if aggregator == 0:
            found[:, k] -= np.uint64(equation.square)
    y = np.array(own[:, checked.noise], order="C")
    add_products(np.ascontiguousarray(own[:, checked.data].T), C, y)
    found[:, len(checked.equations) :] = y
    return np.asarray(found + zero_share(*keys, context, found.size).reshape(found.shape))


def accepted(openings: Sequence[UInt64s], checked: CheckedRow) -> npt.NDArray[np.bool_]:
    """(n,) whose three terms say that the row is within its bounds."""
    opened = openings[0] + openings[1] + openings[2]
    equations = len(checked.equations)
    y = opened[:, equations:].view(np.int64)
    return np.asarray(
        (opened[:, :equations] == 0).all(axis=1)
        & ((y <= checked.limit) & (y >= -checked.limit)).all(axis=1)
    )


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
