"""Public rows for the items of a factorisation model, and what their sums say of a user: both from the release alone.

    rows      s_j = the B leading directions of item vectors, under the released popularity; cut to length r, divided by it
    map       E[u | a] = u0 + A (a - mean): least squares over synthetic users, u being the local solve of the model's ranker

r is the median length: few items are far out, and they would set everyone's noise. Directions, and not soft topics of items: at the same
epsilon they lose less (`docs/results/serving-basis-ml1m.json`). One vector of attention (PrivateRec Alg. 2) is nearest to the exact list
without noise, but is noised by sqrt2 theta whatever the length of the history: at epsilon 5 it is worse than no history at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.errors import SettingsError
from fedrec.privaterec.additive import BITS, Population, TopicTable, coefficients, topic_table
from fedrec.serving.histories import latest_liked
from fedrec.serving.synthetic import Released, SyntheticSettings, centred_tastes, synthetic_users

Floats = npt.NDArray[np.float64]

_MOST_PAIRED = 20_000
"""Items of a catalogue whose rows are all compared; for more, the diameter is bounded by 2, which no rows of length 1 exceed."""


@dataclass(frozen=True)
class BasisSettings:
    """B coefficients from H places, rows cut at this quantile of their lengths; chosen on validation of MovieLens 1M at epsilon 5 and 1."""

    coefficients: int = 16
    history: int = 100
    cut: float = 0.5


@dataclass(frozen=True)
class Basis:
    """The rows, the synthetic population's coefficients, and the map: u = mean_user + (a - population.mean) @ matrix (B, D)."""

    table: TopicTable
    population: Population
    mean_user: Floats
    matrix: Floats


def factorization_basis(
    released: Released, settings: BasisSettings, synthetic: SyntheticSettings, *, liked: float, rng: np.random.Generator
) -> Basis:
    """Deterministic given the release and rng."""
    table = directions(released, settings)
    return fitted(released, table, settings, synthetic, liked=liked, rng=rng)


def directions(released: Released, settings: BasisSettings) -> TopicTable:
    """Signed rows (m, B) of length at most 1; fewer than B where item vectors have fewer directions.

    Raises SettingsError where they have none.
    """
    centred = centred_tastes(released)
    if not centred.shape[1]:
        cause = "a user without events differs from nobody in no coordinate of this model: a history cannot become coefficients of it"
        raise SettingsError(cause, 'Serve a model of another recipe, for example "default".')
    moments, Q = np.linalg.eigh((centred * released.shares[:, None]).T @ centred)
    leading = Q[:, ::-1][:, : settings.coefficients][:, moments[::-1][: settings.coefficients] > 1e-9 * max(float(moments[-1]), 1e-15)]
    if not leading.size:
        raise SettingsError("the item vectors of this model are all alike: there is nothing to rank by", "Train it with a larger epsilon.")
    rows = centred @ leading
    lengths = np.linalg.norm(rows, axis=1)
    rows /= np.maximum(lengths, max(float(np.quantile(lengths, settings.cut)), 1e-12))[:, None]
    if len(rows) <= _MOST_PAIRED:
        return topic_table(rows)
    return TopicTable(np.trunc(rows * 2**BITS).astype(np.int64), 2.0 * (1 + 1e-12))


def fitted(
    released: Released, table: TopicTable, settings: BasisSettings, synthetic: SyntheticSettings, *, liked: float, rng: np.random.Generator
) -> Basis:
    """The map for any public rows."""
    events = synthetic_users(released, synthetic, rng=rng)
    a = coefficients(latest_liked(events, places=settings.history, liked=liked), table)
    U = np.asarray(released.ranker.user_vectors(events), np.float64)
    mean, mean_user = a.mean(0), U.mean(0)
    X = a - mean
    C = X.T @ X / len(X)
    ridge = 1e-6 * max(float(np.trace(C)) / len(C), 1e-30)
    return Basis(table, Population(mean, C), mean_user, np.linalg.solve(C + ridge * np.eye(len(C)), X.T @ (U - mean_user) / len(X)))


def scale_of(population: Population) -> float:
    """The root mean variance of a coefficient: what queries are divided by, so that they are of size 1."""
    return math.sqrt(float(np.trace(population.covariance)) / len(population.mean)) or 1.0
