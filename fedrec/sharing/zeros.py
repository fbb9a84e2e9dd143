"""Masks that three aggregators add to what they give away, and that cancel in the sum.

Aggregator i makes a key k_i and gives it to aggregator i - 1, so that each knows two of three. Its
mask is F(k_i) - F(k_(i+1)), with F a pseudo-random function to Z_2^64; the three add up to zero.

Why. An aggregator's sum of products is of shares, one of which another aggregator may lack but can
work out from a report that it guesses: together with the server it would compare, and know. The
mask of an honest aggregator holds F of a key that the adversary lacks, so that what two honest
aggregators give away tells no more than their sum does. Masks must be of one use: the context names
what is masked.
"""

from __future__ import annotations

import hmac

from fedrec.arrays import UInt64s
from fedrec.sharing.ring import expand


def zero_share(own: bytes, following: bytes, context: bytes, count: int) -> UInt64s:
    """(count,) F(k_i) - F(k_(i+1)) for aggregator i, of its key and the following aggregator's,
    each of 32 bytes.

    context: run, round, attempt and what is masked; used once.
    """
    return _of(own, context, count) - _of(following, context, count)


def _of(key: bytes, context: bytes, count: int) -> UInt64s:
    return expand(hmac.digest(key, b"fedrec/zero/" + context, "sha256"), count)
