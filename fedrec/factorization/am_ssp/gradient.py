"""The item update of AM-SSP by gradient: SSP2 (Alg. 3, 5) and SSP1 (Alg. 2, 4), Krichene et al.
2023.

The encoder's loss given frozen users is, up to a constant,
L(theta_v) = sum_j [ v_j' A_j v_j / 2 - b_j' v_j + ridge_j ||v_j||^2 / 2 ],
whose gradient is sum_j J_j [A_j v_j - b_j + ridge_j v_j] (Prop. 1, eq. 4). Only A_j and b_j know of
anybody.

Guarantee. These functions add no noise and see no user: given statistics that were released with
noise, what they return is post-processing of them and costs nothing, however many steps they take
(Rem. 5). SSP1 asks for a fresh release when it resamples, and whoever serves the request pays for
each one. Mini-batches of SSP2 sample items, which is neither needed for privacy nor claimed to
amplify it; those of SSP1 sample examples, which is no amplification for users (the paper's hint at
one does not hold).

`ridge` is the paper's lambda_v with the half of App. E over the whole bracket, as its own closed
form for users has it. It is public, or a function of released counts. Noise can make A_j + ridge_j
I indefinite: then L has no minimum, and only few steps, a large enough ridge or a projection of A_j
beforehand (post-processing) keep the iterates bounded.

First-order steps on a table of parameters, in place: plain, Adam.

An optimizer is an object without state. Whoever descends owns the parameters and the `slots`
(running sums shaped like them) and lends both for one step. Gradients may name the rows they touch:
other rows and their slots then stay as they are ("lazy" where the optimizer has memory), so that a
mini-batch costs what its features cost and no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedrec.arrays import Float64s, Floats, Integers
from fedrec.encoders import items as encoder
from fedrec.encoders.items import EncoderGradient, EncoderParameters, ItemInputs, Scratch
from fedrec.errors import SettingsError
from fedrec.factorization.item_statistics import ItemStatistics
from fedrec.numerics import compiled
from fedrec.numerics.threads import map_ranges

Schedule = Callable[[int], float]


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


@compiled()
def _subtract(
    table: Floats, rows: Integers, gradient: Floats, rate: Floats, start: int, stop: int
) -> None:
    for i in range(start, stop):
        r = rows[i]
        for c in range(table.shape[1]):
            table[r, c] -= rate[()] * gradient[i, c]


@compiled(fastmath={"contract"}, error_model="numpy")
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


@dataclass(frozen=True)
class Constant:
    """One learning rate for every step."""

    rate: float

    def __call__(self, step: int) -> float:
        """eta_t for t = 0, 1, ..."""
        return self.rate


@dataclass(frozen=True)
class Descent:
    """How to descend; decides speed and quality, never privacy.

    steps: T. batch_items: |B| of Alg. 5, or None for all items (Alg. 3). rate: eta_t.
    """

    steps: int
    rate: Schedule
    optimizer: Optimizer = field(default_factory=Adam)
    batch_items: int | None = None

    def __post_init__(self) -> None:
        if self.steps < 0 or (self.batch_items is not None and self.batch_items < 1):
            raise ValueError(
                f"need steps >= 0 and at least one item per batch, found {self.steps} and "
                f"{self.batch_items}"
            )


@dataclass(frozen=True)
class Descended:
    """Where a descent ended, and `losses` (steps,): L of the items of each step's batch before that
    step."""

    parameters: EncoderParameters
    losses: Float64s


def ssp2(
    start: EncoderParameters,
    inputs: ItemInputs,
    statistics: ItemStatistics,
    *,
    descent: Descent,
    ridge: float | Floats,
    rng: np.random.Generator,
) -> Descended:
    """Algorithms 3 and 5, lines 6-9: T steps on statistics that are noised once. `start` is left as
    it is.

    ridge: one number, or (m,). rng: draws the batches, unused without them. Raises ValueError where
    shapes do not fit `inputs`, SettingsError where the loss stops being finite.
    """
    return _descend(start, inputs, lambda step: statistics, descent, ridge, rng)


def ssp1(
    start: EncoderParameters,
    inputs: ItemInputs,
    release: Callable[[int], ItemStatistics],
    *,
    resamples: int,
    descent: Descent,
    ridge: float | Floats,
    rng: np.random.Generator,
) -> Descended:
    """Algorithms 2 and 4, lines 6-11: like `ssp2`, on `resamples` releases in turn, each used for
    consecutive steps.

    release: called with 0, 1, ... `resamples` - 1, once each; gives statistics with noise of their
    own (Alg. 4: of fresh examples). `resamples` = steps is Alg. 2 as printed, 1 is SSP2, between
    them lies Fig. 4. The caller pays for every call.
    """
    if not 1 <= resamples <= max(descent.steps, 1):
        raise ValueError(
            f"{descent.steps} steps can use 1..{descent.steps} releases, found {resamples}"
        )
    current: list[tuple[int, ItemStatistics]] = []

    def at(step: int) -> ItemStatistics:
        turn = step * resamples // descent.steps
        if not current or current[0][0] != turn:
            current[:] = [(turn, release(turn))]
        return current[0][1]

    return _descend(start, inputs, at, descent, ridge, rng)


def residuals(
    statistics: ItemStatistics, V: Floats, *, ridge: float | Floats, items: Integers | None = None
) -> tuple[Floats, Float64s]:
    """(A_j v_j - b_j + ridge_j v_j, L_j) for rows v_j of V, of shapes (r, d) and (r,); `items` (r,)
    says which j, all if None.

    L_j = v_j' A_j v_j / 2 - b_j' v_j + ridge_j ||v_j||^2 / 2. Bound by memory: reads each packed
    A_j once.
    """
    m, d = statistics.moment.shape
    which = np.arange(m) if items is None else np.asarray(items, np.int64)
    if statistics.gram.shape != (m, d * (d + 1) // 2) or V.shape != (len(which), d):
        raise ValueError(
            f"statistics {statistics.gram.shape}, {statistics.moment.shape} do not fit "
            f"embeddings {V.shape}"
        )
    out = np.empty_like(V)
    losses = np.empty(len(which), np.float64)
    ridges = np.broadcast_to(np.asarray(ridge, V.dtype), (m,))[which]

    def piece(start: int, stop: int) -> None:
        _residuals(statistics.gram, statistics.moment, V, ridges, which, out, losses, start, stop)

    map_ranges(piece, len(which))
    return out, losses


def gradient(
    parameters: EncoderParameters,
    inputs: ItemInputs,
    statistics: ItemStatistics,
    *,
    ridge: float | Floats,
    items: Integers | None = None,
    scratch: Scratch | None = None,
) -> tuple[EncoderGradient, float]:
    """(gradient of L, L) over the items of `inputs`, which are items `items` of the statistics: eq.
    4, Alg. 3 l. 7, Alg. 5 l. 8."""
    H = encoder.hidden(parameters, inputs, scratch=scratch)
    V = H @ parameters.dense + parameters.bias
    R, losses = residuals(statistics, V, ridge=ridge, items=items)
    return encoder.pullback(parameters, inputs, R, hidden_layer=H, scratch=scratch), float(
        losses.sum()
    )


def _descend(
    start: EncoderParameters,
    inputs: ItemInputs,
    statistics_at: Callable[[int], ItemStatistics],
    descent: Descent,
    ridge: float | Floats,
    rng: np.random.Generator,
) -> Descended:
    # ours to overwrite
    theta = EncoderParameters(start.embeddings.copy(), start.dense.copy(), start.bias.copy())
    memory = [
        np.zeros((descent.optimizer.slots, *table.shape), table.dtype) for table in _tables(theta)
    ]
    losses = np.empty(descent.steps, np.float64)
    scratch = Scratch.like(theta, inputs) if descent.batch_items is None else None
    with np.errstate(over="ignore", invalid="ignore"):  # told apart below
        for t in range(descent.steps):
            chosen, batch = _batch(inputs, descent.batch_items, rng)
            g, losses[t] = gradient(
                theta, batch, statistics_at(t), ridge=ridge, items=chosen, scratch=scratch
            )
            if not math.isfinite(losses[t]):
                raise SettingsError(
                    f"the item encoder diverged at step {t} of {descent.steps}",
                    "Lower the learning rate or raise the ridge.",
                )
            _step(theta, g, memory, descent, t)
    return Descended(theta, losses)


def _batch(
    inputs: ItemInputs, size: int | None, rng: np.random.Generator
) -> tuple[Integers | None, ItemInputs]:
    """Alg. 5 l. 7, without replacement; in rising order, so that statistics are read forward."""
    if size is None or size >= inputs.num_items:
        return None, inputs
    chosen = np.sort(rng.choice(inputs.num_items, size, replace=False))
    return chosen, inputs.batch(chosen)


def _step(
    theta: EncoderParameters, g: EncoderGradient, memory: list[Floats], descent: Descent, t: int
) -> None:
    rows = (g.features, np.arange(len(g.dense)), np.arange(1))
    gradients = (g.embeddings, g.dense, g.bias[None, :])
    for table, touched, change, slots in zip(_tables(theta), rows, gradients, memory, strict=True):
        descent.optimizer.step(table, touched, change, slots, rate=descent.rate(t), time=t + 1)


def _tables(theta: EncoderParameters) -> tuple[Floats, Floats, Floats]:
    return theta.embeddings, theta.dense, theta.bias[None, :]


@compiled(fastmath={"reassoc", "nsz", "contract"})
def _residuals(
    gram: Floats,
    moment: Floats,
    V: Floats,
    ridges: Floats,
    items: Integers,
    out: Floats,
    losses: Float64s,
    start: int,
    stop: int,
) -> None:
    """Rows i and i + 1 of a triangle at a time, each used as a row (dot product with v) and as a
    column (update of what comes later).

    Loops run from the multiple of 32 below i, to have no ragged end: three times as fast as from i.
    What they read before the diagonal are entries of earlier rows of the same matrix; `w`, v with
    zeros before the diagonal, keeps them out of the dot products, and what they add to `later`
    comes after it was taken (`now`).
    """
    d = V.shape[1]
    later = np.empty(d, V.dtype)
    w = np.empty(d, V.dtype)
    for k in range(start, stop):
        a = gram[items[k]]
        b = moment[items[k]]
        v = V[k]
        r = out[k]
        for i in range(d):
            later[i] = ridges[k] * v[i] - b[i]
            w[i] = v[i]
        at = 0  # entry (i, c) is a[at + c], entry (i + 1, c) is a[beyond + c]
        for i in range(0, d - 1, 2):
            beyond = at + d - i - 1
            x = v[i]
            y = v[i + 1]
            now = later[i] + a[at + i] * x
            next_now = later[i + 1] + a[at + i + 1] * x + a[beyond + i + 1] * y
            s = a[at + i + 1] * y
            t = V.dtype.type(0)
            w[i] = 0
            w[i + 1] = 0
            first = i - i % 32
            row = a[at + first : at + d]
            next_row = a[beyond + first : beyond + d]
            ww = w[first:]
            rest = later[first:]
            for c in range(d - first):
                s += row[c] * ww[c]
                t += next_row[c] * ww[c]
                rest[c] += row[c] * x + next_row[c] * y
            r[i] = now + s
            r[i + 1] = next_now + t
            at = beyond + d - i - 2
        if d % 2:
            r[d - 1] = later[d - 1] + a[at + d - 1] * v[d - 1]
        total = 0.0
        for i in range(d):
            total += v[i] * (r[i] - b[i])
        losses[k] = 0.5 * total
