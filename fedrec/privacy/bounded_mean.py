"""The default form: a public row for each click, their average, noise once. One report per user for
all of training.

    a_u = (1/H) sum_i s_i + noise of std s on each of B numbers

s_i is the public row of item i (signed directions, or shares of topics; no longer than 1), H is
fixed, and a padding place or a missing click contributes 0. The noise is discrete, on the grid of
the integer sums (`privacy.gaussian`): Gaussian noise made of floating-point numbers leaks through
its gaps (Mironov 2012); rows are rounded towards 0 to the grid once, in public.

Guarantee: mu-GDP, mu = S / (H s) with S the largest distance of two public rows or of one and 0;
unit "click", neighbours "replace". Proof: the sum is over places; exchanging one click changes one
term from s_i to s_j, and adding or removing one, which is covered too, from or to 0. That moves a_u
by at most S / H, where S <= 2, and <= sqrt2 where no row has a negative entry. S is computed
exactly, in integers, from the public table alone. A public centre instead of 0 for padding would
seldom make it smaller: it leaves the distances of rows as they are, and two rows are further apart
than one is long. The window of H places must follow a public schedule: if exchanging a click could
move others in or out of it, the bound would not hold.

Any number of training epochs on one report is post-processing: its epsilon is that of training.
Serving uses the same mechanism at its own mu; an answer is remembered until a public date, so that
asking again costs nothing (`click_accounting`). `decode` needs the population's mean and
covariance, taken from noised reports only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.privacy import gaussian
from fedrec.privacy.accounting import GaussianEvent

BITS = 20
"""A public row has entries of at most 2^20 grid steps: squares of distances stay exact in double
precision."""
_BLOCK = 1024
"""Rows compared at a time: products of two blocks have 8 MB."""


@dataclass(frozen=True)
class TopicTable:
    """rows (m, B) int64: every item over B public topics in steps of 2^-20. diameter: S, exact up
    to one rounding upwards.

    told: how many of the last coordinates are reported without noise; rows with anything there,
    `open_items` (m,), have nothing elsewhere and no protection (`sensitivity`). The diameter is
    that of the others.
    """

    rows: Int64s
    diameter: float
    told: int = 0
    open_items: npt.NDArray[np.bool_] | None = None

    @property
    def topics(self) -> int:
        """B."""
        return int(self.rows.shape[1])

    @property
    def weights(self) -> Float64s:
        """(m, B) the same rows in real units, what is told added to its topic."""
        return folded(self.rows * 2.0**-BITS, self.told)


@dataclass(frozen=True)
class Coefficients:
    """values (n, B) with noise of real std `noise_std` on every entry but the last `told`; `event`
    is the price of one row."""

    values: Float64s
    noise_std: float
    event: GaussianEvent
    told: int = 0

    @property
    def variances(self) -> Float64s:
        """(B,) of the noise."""
        B = self.values.shape[1]
        return np.where(np.arange(B) < B - self.told, self.noise_std**2, 0.0)


@dataclass(frozen=True)
class Population:
    """Mean (B,) and covariance (B, B) of true coefficients over users, estimated from noised
    reports."""

    mean: Float64s
    covariance: Float64s


def topic_table(public: npt.NDArray[np.floating]) -> TopicTable:
    """Public rows (m, B), rounded towards 0 to the grid.

    Raises ValueError where a row is then longer than 1."""
    s = np.asarray(public, np.float64)
    # float32 rows of length 1 are a little longer; cutting towards 0 must then make them shorter
    if s.ndim != 2 or not s.size or not (np.abs(s) <= 1 + 1e-6).all():
        raise ValueError("a public row must be finite and no longer than 1")
    rows = np.trunc(s * 2**BITS).astype(np.int64)
    if (longest := int((rows**2).sum(1).max())) > 4**BITS:
        raise ValueError(
            f"a public row must be no longer than 1, found {math.sqrt(longest) * 2.0**-BITS:.7g}"
        )
    return TopicTable(rows, diameter(rows) * 2.0**-BITS)


def diameter(rows: Int64s) -> float:
    """The largest distance of two (m, B) integer rows, or of one and 0.

    ||x - y||^2 <= 2 (||x||^2 + ||y||^2), without the 2 where no entry is negative, so pairs are
    tried by falling norm and those that cannot matter are not. Squares are integers below 2^53,
    hence exact; the root is rounded up.
    """
    distinct = np.unique(rows, axis=0).astype(np.float64)
    squares = (distinct**2).sum(1)
    order = np.argsort(-squares, kind="stable")
    X = distinct[order]
    norms = squares[order]
    # left right' = ||y||^2 - 2 x'y
    left = np.column_stack([X, np.ones(len(X))])
    right = np.column_stack([-2 * X, norms])
    most = 2 if (X < 0).any() else 1
    largest = float(norms[0])
    for start in range(0, len(X), _BLOCK):
        if most * (norms[start] + norms[0]) <= largest:
            break
        here = slice(start, start + _BLOCK)
        for other in range(0, start + 1, _BLOCK):
            if most * (norms[start] + norms[other]) <= largest:
                break
            there = slice(other, other + _BLOCK)
            largest = max(
                largest, float(((left[here] @ right[there].T).max(1) + norms[here]).max())
            )
    return math.nextafter(math.sqrt(largest), math.inf)


def coefficients(history: npt.NDArray[np.integer], topics: TopicTable) -> Float64s:
    """(n, B) without noise, for (n, H) item indices with -1 for padding.

    Private: for tests, and where epsilon is infinite."""
    return np.asarray(_sums(history, topics) * (2.0**-BITS / history.shape[1]), np.float64)


def report(
    history: npt.NDArray[np.integer], topics: TopicTable, *, mu: float, name: str, key: bytes
) -> Coefficients:
    """Noised coefficients of n users, mu-GDP per click replaced each; exact for infinite mu.

    history: (n, H) item indices, -1 for padding; H is public and the same for all. Raises
    ValueError on an item that the table does not have, or a mu so large that the grid would be too
    coarse for its noise.
    """
    return _report(
        history,
        topics,
        mu,
        name,
        lambda sums, step, std: gaussian.add_to_rows(sums, step=step, std=std, key=key),
    )


def report_each(
    history: npt.NDArray[np.integer],
    topics: TopicTable,
    *,
    mu: float,
    name: str,
    keys: Sequence[bytes],
) -> Coefficients:
    """Reports as `report` does, each of the n users under a key of its own."""
    return _report(
        history,
        topics,
        mu,
        name,
        lambda sums, step, std: gaussian.add_row_by_row(sums, step=step, std=std, keys=keys),
    )


def _report(
    history: npt.NDArray[np.integer],
    topics: TopicTable,
    mu: float,
    name: str,
    noise: Callable[[Int64s, float, float], Float64s],
) -> Coefficients:
    sums = _sums(history, topics)
    H = history.shape[1]
    step = 2.0**-BITS / H
    std = noise_std(topics, H, mu=mu)
    noised = topics.topics - topics.told
    values = np.concatenate([noise(sums[:, :noised], step, std), sums[:, noised:] * step], axis=1)
    return Coefficients(values, std, GaussianEvent(name, mu, "click", "replace"), topics.told)


def noise_std(topics: TopicTable, history: int, *, mu: float) -> float:
    """The real std of one coefficient for mu-GDP with histories of H places; 0 for infinite mu."""
    return gaussian.noise_std(
        radius=topics.diameter / history, mu=mu, coarsest_step=2.0**-BITS / history
    )


def within_reach(values: Float64s, topics: TopicTable, *, noise_std: float) -> Float64s:
    """(n, B) reports as received, shortened to what a true one does not pass: the longest public
    row, and noise of its std.

    A mean of rows is no longer than the longest, and noise on B numbers is longer than s (sqrt(B) +
    8) with probability below exp(-32).
    """
    longest = math.sqrt(float((topics.rows.astype(np.float64) ** 2).sum(1).max())) * 2.0**-BITS
    reach = longest + noise_std * (math.sqrt(topics.topics - topics.told) + 8)
    inside = np.clip(np.asarray(values, np.float64), -reach, reach)
    norms = np.linalg.norm(inside, axis=1, keepdims=True)
    return np.where(norms > reach, inside * (reach / np.maximum(norms, reach)), inside)


def population(reports: Coefficients) -> Population:
    """Mean, and covariance less the noise's with negative eigenvalues set to 0.

    At least two users."""
    values = reports.values
    spread = np.cov(values, rowvar=False).reshape(values.shape[1], -1) - np.diag(reports.variances)
    eigenvalues, Q = np.linalg.eigh(spread)
    return Population(values.mean(0), (Q * np.maximum(eigenvalues, 0.0)) @ Q.T)


def decode(reports: Coefficients, over: Population) -> Float64s:
    """(n, B) posterior means m + C (C + s^2 I)^-1 (a - m), what is told added to its topic; the
    reports where they carry no noise."""
    if reports.noise_std == 0:
        return folded(reports.values, reports.told)
    if reports.told:  # what is told helps to guess the rest, and is itself
        gain = (
            np.linalg.pinv(over.covariance + np.diag(reports.variances), hermitian=True)
            @ over.covariance
        )
        guessed = over.mean + (reports.values - over.mean) @ gain
        return folded(np.where(reports.variances > 0, guessed, reports.values), reports.told)
    eigenvalues, Q = np.linalg.eigh(over.covariance)
    w = np.maximum(eigenvalues, 0.0)
    shrink = (Q * (w / (w + reports.noise_std**2))) @ Q.T
    return np.asarray(over.mean + (reports.values - over.mean) @ shrink, np.float64)


def folded(values: npt.NDArray[np.floating], told: int) -> Float64s:
    """(n, B - told): the last `told` columns added to the first ones, which are of the same
    topics."""
    return np.asarray(values[:, :-told] + values[:, -told:] if told else values, np.float64)


def _sums(history: npt.NDArray[np.integer], topics: TopicTable) -> Int64s:
    if (
        history.ndim != 2
        or history.shape[1] < 1
        or (history.size and not -1 <= history.min() <= history.max() < len(topics.rows))
    ):
        raise ValueError(
            f"a history is (n, H) items of 0 .. {len(topics.rows) - 1}, or -1 for padding; "
            f"found shape {history.shape}"
        )
    padded = np.concatenate([topics.rows, np.zeros((1, topics.topics), np.int64)])
    total = np.zeros((len(history), topics.topics), np.int64)
    # one place at a time: (n, H, B) would not fit for many users
    for place in range(history.shape[1]):
        total += padded[history[:, place]]
    return total
