"""First-order steps on a table of parameters, in place: plain, Adam.

An optimizer is an object without state. Whoever descends owns the parameters and the `slots`
(running sums shaped like them) and lends both for one step. Gradients may name the rows they touch:
other rows and their slots then stay as they are ("lazy" where the optimizer has memory), so that a
mini-batch costs what its features cost and no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numba
import numpy as np

from fedrec.arrays import Floats, Integers
from fedrec.numerics.threads import map_ranges


class Optimizer(Protocol):
    """How one gradient moves one table."""

    @property
    def slots(self) -> int:
        """Arrays of memory per table, zero at the start."""

    def step(
        self,
        table: Floats,
        rows: Integers,
        gradient: Floats,
        memory: Floats,
        *,
        rate: float,
        time: int,
    ) -> None:
        """Move `table[rows]` against `gradient` (len(rows), columns); `memory` is (slots,
        *table.shape); `time` counts from 1."""


@dataclass(frozen=True)
class GradientDescent:
    """theta <- theta - rate g: Alg. 2, 3 and 5, last line."""

    slots: int = 0

    def step(
        self,
        table: Floats,
        rows: Integers,
        gradient: Floats,
        memory: Floats,
        *,
        rate: float,
        time: int,
    ) -> None:
        """See Optimizer."""
        change = np.asarray(rate, table.dtype)

        def piece(start: int, stop: int) -> None:
            _subtract(table, rows, gradient, change, start, stop)

        map_ranges(piece, len(rows))


@dataclass(frozen=True)
class Adam:
    """Kingma, Ba 2015, Alg. 1. Fused: the tables of an encoder are larger than the caches, and one
    pass is a third of ten.
    """

    first: float = 0.9
    second: float = 0.999
    epsilon: float = 1e-8
    slots: int = 2

    def step(
        self,
        table: Floats,
        rows: Integers,
        gradient: Floats,
        memory: Floats,
        *,
        rate: float,
        time: int,
    ) -> None:
        """See Optimizer."""
        root = math.sqrt(1 - self.second**time)  # bias correction, folded into rate and epsilon
        constants = np.array(
            [self.first, self.second, self.epsilon * root, rate * root / (1 - self.first**time)],
            table.dtype,
        )

        def piece(start: int, stop: int) -> None:
            _adam(table, rows, gradient, memory[0], memory[1], constants, start, stop)

        map_ranges(piece, len(rows))


@numba.njit(nogil=True, cache=True)
def _subtract(
    table: Floats, rows: Integers, gradient: Floats, rate: Floats, start: int, stop: int
) -> None:
    for i in range(start, stop):
        r = rows[i]
        for c in range(table.shape[1]):
            table[r, c] -= rate[()] * gradient[i, c]


@numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def _adam(
    table: Floats,
    rows: Integers,
    gradient: Floats,
    m: Floats,
    v: Floats,
    constants: Floats,
    start: int,
    stop: int,
) -> None:
    # in the dtype of the table
    first = constants[0]
    second = constants[1]
    epsilon = constants[2]
    rate = constants[3]
    one = first / first
    for i in range(start, stop):
        r = rows[i]
        for c in range(table.shape[1]):
            g = gradient[i, c]
            m[r, c] = first * m[r, c] + (one - first) * g
            v[r, c] = second * v[r, c] + (one - second) * g * g
            table[r, c] -= rate * m[r, c] / (np.sqrt(v[r, c]) + epsilon)
