"""What a client sends and what an aggregator returns: integers on a public grid.

A report is a list of blocks. A block of a user with n rated items is n integer coefficients and one integer vector x of
length `width`; it stands for the rows `c_j * x` ("linear") or the packed symmetric matrices `c_j * x x'` ("outer") of
those n items, and for zero elsewhere. A block of "rows" has a vector for each item instead, and stands for `c_j * x_j`. A dense
vector is a block with one row, whose coefficient is 1. Item statistics (A_j, b_j) of AM-SSP eq. 5, item counts, residual sums and
taste Grams are linear or outer; sums of leave-one-out residuals, whose user vector differs from item to item, are rows.

Integers make sums exact: the order of arrival, the sharding and the process do not show in the sum (DESIGN.md,
"Exact, order-free sums"). `step` maps them to real units: real = integer * step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

COEFFICIENT_BITS = 15
VECTOR_BITS = 15
"""Magnitude bits of coefficients and of vector entries. An outer product then has 45 bits, so that 256 of them add up
exactly in float64, and 2^17 users in int64."""


Form = Literal["linear", "outer", "rows"]
"""How coefficients and vectors of a block make its rows: see the module's first lines."""


@dataclass(frozen=True)
class BlockSpec:
    """Public shape and grid of one block: `rows` items (1 if dense), vectors of `width` entries, steps in real units."""

    name: str
    kind: Form
    rows: int
    width: int
    coefficient_step: float
    vector_step: float

    @property
    def columns(self) -> int:
        """Numbers per row: `width`, or the upper triangle of width x width in `numpy.triu_indices` order."""
        return self.width * (self.width + 1) // 2 if self.kind == "outer" else self.width

    @property
    def step(self) -> float:
        """Real value of one unit of the accumulated integers."""
        return self.coefficient_step * self.vector_step**self.degree

    @property
    def degree(self) -> int:
        """How often a vector enters a row: twice in a symmetric matrix."""
        return 2 if self.kind == "outer" else 1

    @property
    def by_item(self) -> bool:
        """Whether every named item has a vector of its own; else a user has one."""
        return self.kind == "rows" and self.rows > 1


@dataclass(frozen=True)
class ReleaseSpec:
    """Blocks that are noised together: one user's contribution to all of them has joint L2 norm at most `radius`.

    The norm of an outer block is the Frobenius norm of its matrices. `isometric` noise on outer blocks has std / sqrt(2)
    off the diagonal (svec is an isometry); without it the papers' iid upper triangle is drawn, for reproduction.
    """

    name: str
    blocks: tuple[BlockSpec, ...]
    radius: float = 1.0
    isometric: bool = True


@dataclass(frozen=True)
class Question:
    """What the server broadcasts in a round: public arrays, the client step that answers, and what will be released."""

    round: int
    step: str
    public: Mapping[str, npt.NDArray[np.generic]]
    releases: tuple[ReleaseSpec, ...]

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """All blocks of all releases, in report order."""
        return tuple(block for release in self.releases for block in release.blocks)


@dataclass(frozen=True)
class Release:
    """What the aggregator returns: noised sums in real units, (rows, columns) float64 by block name, and each block's noise std.

    For an outer block the std is that of the diagonal.
    """

    values: Mapping[str, npt.NDArray[np.float64]]
    noise_std: Mapping[str, float]


@dataclass(frozen=True)
class BlockReports:
    """One block of the reports of consecutive users.

    coefficients: (n,) int32 aligned with the reports' items, or (num_users,) for a dense block (rows = 1; 0 = silent).
    vectors: (num_users, width) int32, or (n, width) where the block is `by_item`.
    """

    coefficients: Int32s
    vectors: Int32s


@dataclass(frozen=True)
class Reports:
    """Reports of consecutive users: user k names `items[user_ptr[k]:user_ptr[k + 1]]`; one entry of `blocks` per BlockSpec."""

    user_ptr: Int64s
    items: Int32s
    blocks: tuple[BlockReports, ...]

    @property
    def num_users(self) -> int:
        """Users in this batch."""
        return len(self.user_ptr) - 1

    @property
    def wire_bytes(self) -> int:
        """4 an item id, 2 a coefficient or vector entry (15 bits and a sign), 64 a user for report id, plan hash and round."""
        numbers = sum(len(block.coefficients) + block.vectors.size for block in self.blocks)
        return 4 * len(self.items) + 2 * numbers + 64 * self.num_users


def quantise(values: npt.NDArray[np.floating], step: float | npt.NDArray[np.floating], *, bits: int) -> Int32s:
    """Towards zero on the grid of `step`: a rounded number is never larger than the number, so no norm ever grows.

    Raises ValueError where a magnitude would need more than `bits` bits or is not a number.
    """
    grid = np.asarray(values, np.float64) / step
    if grid.size and not (float(grid.min()) > -(2.0**bits) and float(grid.max()) < 2.0**bits):  # false for what is not a number
        raise ValueError(f"values up to {float(np.max(np.abs(values))):g} do not fit {bits} bits of step {step!r}")
    return grid.astype(np.int32)  # cuts towards zero


def triangle(width: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Row and column of each packed entry of a symmetric width x width matrix."""
    return np.triu_indices(width)


def step_for(bound: float, *, bits: int) -> float:
    """The finest power-of-two step that holds magnitudes up to `bound` > 0 in `bits` bits."""
    return 2.0 ** (math.floor(math.log2(bound)) + 1 - bits)
