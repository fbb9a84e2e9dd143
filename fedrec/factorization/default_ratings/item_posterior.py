"""Posterior means and variances of items' biases and deviations, given what the steps observed.

Guarantee: post-processing of releases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.factorization.empirical_bayes import USUAL_BIASES, ItemPosterior
from fedrec.federation.messages import State

USUAL_DEVIATIONS = 0.18
FEW_DIRECTIONS = 9
"""Mean square of an item's deviations in all directions together, as long as noise hides them,
shared by so many directions or more."""
OWN_MEAN_DEVIATIONS = 0.25
"""Of a direction's part of `USUAL_DEVIATIONS`, what items deviate by in how they follow a user's
own mean.

Validation RMSE with 1 and .25 (means of three draws, of one on MovieLens 1M, of eight on the
planted data): MovieLens 100K at epsilon 1 .9617, .9618, at 5 .9255, .9250, at 20 .9078, .9071;
MovieLens 1M at 1 .8887, .8884, at 5 .8620, .8615; 2,000 planted users x 2,000 items at 1 .8250,
.8235. A tenth, or a fiftieth, is within .0002 of a quarter.
"""


def bias_features(log_count: Float64s, content: Float64s | None) -> Float64s:
    """(m, p) what an item's bias is told by: its log count (m,), and content (m, f)."""
    plain = np.column_stack([0.5 * log_count, 0.2 * log_count**2, np.ones(len(log_count))])
    return plain if content is None else np.column_stack([content, plain])


def remembered(
    state: State, observed: Float64s, precision: Float64s, *, memory: float
) -> tuple[Float64s, Float64s]:
    """Average of a step's (m, d + 1) with what earlier rounds observed, which counts `memory` times
    as much; and the precision of it."""
    old = np.zeros_like(observed)
    weight = np.zeros_like(precision)
    if "observed" in state:
        old = _floats(state, "observed")
        weight = memory * _floats(state, "precision")
    elif "bias_observed" in state:  # the biases of round 1 are an observation too
        old[:, 0] = _floats(state, "bias_observed")
        weight[:, 0] = 1 / _floats(state, "bias_variance")
    return (weight * old + precision * observed) / (weight + precision), weight + precision


def shrunk(
    state: State,
    observed: Float64s,
    variance: Float64s,
    *,
    own: Float64s,
    slopes: Float64s,
    content: Float64s | None,
    read: Callable[..., ItemPosterior],
) -> dict[str, npt.NDArray[np.generic]]:
    """Posterior means and variances of b_j and phi_j, of what was observed (m, d + 1) with these
    variances; phi goes 1 / slopes (d,) of the way there. With them the parameters fitted
    to each (d + 1,).

    own: (m, d + 1) part of the observations' precision that is these people's own, of which no
    others were known. read: `empirical_bayes.regress`, or what stands in for it.
    """
    log_count = _floats(state, "log_count")
    start = _floats(state, "public_phi")
    features = np.column_stack([3 * start[:, :24], 0.3 * log_count, np.full(len(log_count), 0.3)])
    bias = read(
        observed[:, 0],
        variance[:, 0],
        bias_features(log_count, content),
        sweeps=8,
        start=USUAL_BIASES,
    )
    phi = _floats(state, "phi").copy()
    variances = np.zeros_like(observed)
    if "variances" in state:
        earlier = _floats(state, "variances")
        variances = np.zeros((len(earlier), max(earlier.shape[1], observed.shape[1])))
        variances[:, : earlier.shape[1]] = earlier
    variances[:, 0] = bias.variance
    usual = USUAL_DEVIATIONS / max(observed.shape[1] - 1, FEW_DIRECTIONS)
    fitted = [np.sum(own[:, 0] * bias.follows)]
    for k in range(1, observed.shape[1]):
        expected = usual * OWN_MEAN_DEVIATIONS if k == 1 else usual
        deviation = read(
            observed[:, k], variance[:, k], features, sweeps=8, start=expected, trust=1.0
        )
        phi[:, k - 1] += (start[:, k - 1] + deviation.mean - phi[:, k - 1]) / slopes[k - 1]
        variances[:, k] = deviation.variance
        fitted.append(np.sum(own[:, k] * deviation.follows))
    return {
        "bias": bias.mean,
        "variance": variances.sum(axis=1),
        "variances": variances,
        "phi": phi,
        "fitted": np.array(fitted),
    }


def _floats(state: Mapping[str, npt.NDArray[np.generic]], name: str) -> Float64s:
    return np.asarray(state[name], np.float64)
