"""Shares that a device sends: its numbers as three shares, of which each aggregator gets two.

x = x_0 + x_1 + x_2 modulo 2^64. x_0 and x_1 are what two seeds of the user expand to, x_2 is the
rest and is sent as it is. Aggregator i holds x_i and x_(i+1) (replicated sharing: Araki, Furukawa,
Lindell, Nof, Ohara 2016).

Hidden from one aggregator. Aggregator 0 holds x_0 and x_1, which are of seeds alone. Aggregator 1
holds x_1 and x_2 = x - x_0 - x_1, where x_0 is of a seed that it lacks; aggregator 2 holds x_2 and
x_0, and lacks that of x_1. So any one aggregator's two shares cannot be told from 2 L uniform
numbers, whatever x is, without breaking AES-256: a number minus a uniform one is uniform. This
needs fresh seeds for every user, round and attempt: two rows under one seed differ by the
difference of what they hide. Any two aggregators have x.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from fedrec.arrays import UInt8s, UInt64s
from fedrec.sharing.ring import SEED_BYTES, expand

SEEDS = 2
"""Shares that are sent as seeds."""


@dataclass(frozen=True)
class Shares:
    """Shares of consecutive users. seeds: (n, 2, 32) of the shares 0 and 1. explicit: (n, L) the
    shares 2."""

    seeds: UInt8s
    explicit: UInt64s

    def of(self, number: int) -> UInt64s:
        """(n, L) the shares of one number, 0 to 2."""
        if number == SEEDS:
            return self.explicit
        return expanded(self.seeds[:, number], self.explicit.shape[1])

    def held_by(self, aggregator: int) -> tuple[UInt64s, UInt64s]:
        """The two shares that one aggregator holds: its own number's, and the next one's."""
        return self.of(aggregator), self.of((aggregator + 1) % 3)


def fresh_seeds(num_users: int) -> UInt8s:
    """(num_users, 2, 32) of the operating system, whatever a run's seed is: shares do not show in
    the sums."""
    return np.frombuffer(os.urandom(num_users * SEEDS * SEED_BYTES), np.uint8).reshape(
        num_users, SEEDS, SEED_BYTES
    )


def share(numbers: UInt64s, seeds: UInt8s) -> Shares:
    """Shares of (n, L) numbers under (n, 2, 32) seeds, which must not have been used before."""
    length = numbers.shape[1]
    explicit = numbers - expanded(seeds[:, 0], length) - expanded(seeds[:, 1], length)
    return Shares(seeds, explicit)


def expanded(seeds: UInt8s, length: int) -> UInt64s:
    """(n, length) what (n, 32) seeds expand to."""
    out = np.empty((len(seeds), length), np.uint64)
    for row, seed in zip(out, seeds, strict=True):
        row[:] = expand(seed.tobytes(), length)
    return out
