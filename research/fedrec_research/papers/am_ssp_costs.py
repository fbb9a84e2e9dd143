"""Costs of AM-SSP beside DP-SGD (Krichene et al. 2024, Prop. 2 and App. C): Figures 5 and 6 by
formula, and the same measured.

Visits: how many forward and backward passes of the item encoder an epoch of DP-SGD takes, if a
batch shares those of an item (Alg. 6). Costs: eq. 9, with 1 for every constant that O() hides.
Measured are our own Alg. 5 and Alg. 6 on the features of the data: processor seconds of the
statistics (float32, in one process), of an epoch over items, and of an epoch over examples from a
few batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s, Integers
from fedrec.data.interactions import Interactions
from fedrec.encoders import items as encoder
from fedrec.encoders.items import EncoderGradient, EncoderParameters, ItemInputs
from fedrec.factorization.am_ssp import gradient
from fedrec.factorization.am_ssp.gradient import Constant, Descent, GradientDescent
from fedrec.factorization.item_statistics import ItemStatistics, item_statistics
from fedrec.numerics.segments import order_by_item

EXAMPLES = 1_000_000
ITEMS = 1_000
DIMENSION = 64
"""D and m of Figures 5 and 6; they do not name d, which the panel c = d needs: 64 is the paper's
largest."""


def power_law(alpha: float, *, num_items: int = ITEMS, examples: int = EXAMPLES) -> Float64s:
    """(m,) counts proportional to rank^-alpha, most frequent first.

    The paper says density x^-alpha, not of what; rank is ours."""
    shares = np.arange(1, num_items + 1, dtype=np.float64) ** -alpha
    return np.asarray(examples * shares / shares.sum())


def visits(counts: npt.NDArray[np.number], batch: int) -> float:
    """beta / m: expected batches of `batch` examples in which an item appears, per epoch, drawn
    with replacement (App. C)."""
    D = float(counts.sum())
    return float(
        np.mean(D / batch * -np.expm1(batch * np.log1p(-np.asarray(counts, np.float64) / D)))
    )


def counted_visits(
    items: Integers, batch: int, num_items: int, *, rng: np.random.Generator
) -> float:
    """Count the visits per item in one epoch of batches of the events whose items are `items`."""
    drawn = rng.choice(items, len(items) // batch * batch)
    return len(np.unique(np.arange(len(drawn)) // batch * num_items + drawn)) / num_items


def cost_ratio(
    *, visits: float, epochs: float, pass_cost: float, dimension: int, examples_per_item: float
) -> float:
    """Eq. 9: cost of SSP2 / cost of DP-SGD, m / beta (1 + d^2 / c + D d^2 / (c e m)); `pass_cost`
    is c."""
    d2 = dimension**2
    return (1 + d2 / pass_cost + examples_per_item * d2 / (pass_cost * epochs)) / visits


def shared_step(
    theta: EncoderParameters,
    inputs: ItemInputs,
    items: Integers,
    U: Float32s,
    y: Float32s,
    *,
    radius: float,
    rng: np.random.Generator,
) -> EncoderGradient:
    """Alg. 6 l. 4-8 on examples (item, u, y): each item's passes once, each example clipped to
    `radius`, noise on every parameter.

    To be measured, not to be trusted: it clips examples, not users, and nobody accounts for its
    noise. The norm of an example's gradient needs no gradient: ||r||^2 (1 + ||h_j||^2) + sum_c
    ||x_jc||^2 ||W_c r||^2, r = (u v_j - y) u (Goodfellow 2015).
    """
    seen, at = np.unique(items, return_inverse=True)
    batch = inputs.batch(seen)
    H = encoder.hidden(theta, batch)  # l. 6
    R = (np.einsum("ed,ed->e", U, (H @ theta.dense + theta.bias)[at]) - y)[:, None] * U
    C = len(inputs.categories)
    d = U.shape[1]
    bags = np.asarray(batch.csr.multiply(batch.csr).sum(axis=1)).reshape(len(seen), C)
    through = ((R @ theta.dense.T).reshape(-1, C, d) ** 2).sum(axis=2)
    squares = (R**2).sum(axis=1) * (1 + (H**2).sum(axis=1)[at]) + (through * bags[at]).sum(axis=1)
    R *= np.minimum(1, radius / np.sqrt(np.maximum(squares, 1e-30)))[:, None]
    dV = np.zeros((len(seen), d), np.float32)
    np.add.at(dV, at, R)
    g = encoder.pullback(theta, batch, dV, hidden_layer=H)  # l. 7-8
    return _noised(g, theta, radius, rng)


def _noised(
    g: EncoderGradient, theta: EncoderParameters, std: float, rng: np.random.Generator
) -> EncoderGradient:
    """All parameters, those of features that no item of the batch has too: no gradient stays
    sparse."""
    dense = [
        std * rng.standard_normal(a.shape, np.float32)
        for a in (theta.embeddings, theta.dense, theta.bias)
    ]
    dense[0][g.features] += g.embeddings
    return EncoderGradient(
        np.arange(len(theta.embeddings)), dense[0], dense[1] + g.dense, dense[2] + g.bias
    )


@dataclass(frozen=True)
class Measured:
    """Seconds: of the statistics, of an SSP2 epoch by items per batch (0 for all), of a DP-SGD
    epoch by examples per batch."""

    statistics: float
    by_items: Mapping[int, float]
    by_examples: Mapping[int, float]


def measure(
    data: Interactions,
    inputs: ItemInputs,
    dimension: int,
    *,
    item_batches: tuple[int, ...],
    batches: tuple[int, ...],
) -> Measured:
    """On this machine, of random user vectors and the data's own items: times depend on sizes, not
    on values."""
    rng = np.random.default_rng(0)
    theta = encoder.init(inputs, dimension, rng=rng)
    U = rng.standard_normal((data.num_users, dimension)).astype(np.float32) / np.float32(dimension)
    y = data.values.astype(np.float32) - np.float32(np.mean(data.values))
    order = order_by_item(data.user_ptr, data.items, data.num_items)
    stats = item_statistics(order, U, y)
    return Measured(
        _least_seconds(lambda: item_statistics(order, U, y)),
        {
            size: _least_seconds(partial(_item_epoch, theta, inputs, stats, size))
            for size in item_batches
        },
        {
            size: _least_seconds(
                partial(_example_step, theta, inputs, data.items, data.users, U, y, size)
            )
            * len(data)
            / size
            for size in batches
        },
    )


def _item_epoch(
    theta: EncoderParameters, inputs: ItemInputs, stats: ItemStatistics, size: int
) -> None:
    steps = -(-inputs.num_items // size) if size else 1
    descent = Descent(steps, Constant(1e-6), optimizer=GradientDescent(), batch_items=size or None)
    gradient.ssp2(theta, inputs, stats, descent=descent, ridge=1.0, rng=np.random.default_rng(0))


def _example_step(
    theta: EncoderParameters,
    inputs: ItemInputs,
    items: Integers,
    users: Integers,
    U: Float32s,
    y: Float32s,
    size: int,
) -> None:
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(items), size=size)
    g = shared_step(theta, inputs, items[chosen], U[users[chosen]], y[chosen], radius=1.0, rng=rng)
    moved = theta.embeddings - np.float32(1e-6) * g.embeddings  # l. 9
    assert moved.shape == theta.embeddings.shape


def _least_seconds(call: Callable[[], object], turns: int = 3) -> float:
    """Return the least processor seconds, all threads together, in three turns after one that
    compiles."""
    call()
    seconds = list[float]()
    for _ in range(turns):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return min(seconds)


def visits_of_power_laws(batches: Sequence[int]) -> Iterator[tuple[str, str, float, float]]:
    """Figure 5 as (metric, series, x, value): counts of power laws, visits against batch size."""
    for alpha in (0.1, 0.3, 1.0):
        counts = power_law(alpha)
        series = f"alpha = {alpha:g}"
        yield from (
            ("count", series, float(rank), float(counts[rank - 1])) for rank in (1, 10, 100, ITEMS)
        )
        yield from (
            ("visits per item", series, float(size), visits(counts, size)) for size in batches
        )


def visits_of_data(
    items: Integers, num_items: int, batches: Sequence[int], seed: int
) -> Iterator[tuple[str, str, float, float]]:
    """Yield Figure 5 for events whose items are `items`: visits by formula, and counted in batches
    drawn by `seed`."""
    counts = np.bincount(items, minlength=num_items)
    rng = np.random.default_rng(seed)
    for size in (size for size in batches if 100 <= size <= len(items)):
        yield "visits per item", "this data, by formula", float(size), visits(counts, size)
        yield (
            "visits per item",
            "this data, counted",
            float(size),
            counted_visits(items, size, num_items, rng=rng),
        )
