"""Scales of a step of the default recipe, which decide its length: what the model expects of them,
and what a release says.

A step divides sums of residuals by counts times second moments of user vectors. Were they taken
from a model fitted elsewhere, a direction that users' ratings hardly determine would be divided by
far too little, and the step would overshoot: users report them (`default_client.step_scales`), and
each number is the posterior mean of its expectation and its observation.

Prior widths of users' vectors, from a step's release: item vectors are scaled so that N(0, I) is
the prior again.

Directions of public features start with a spread that other data had. Where people's tastes fill
them less, every vector is shrunk too little, and the model learns noise: on 2,000 planted users and
2,000 items it ended above biases alone. A step reports the mean squares of cross-fitted vectors
(above); with the posterior variance they make the M-step of EM for the variance of each
coordinate.

Devices leave out of w the rating that they ask, but items have learned from it. Of few people's
ratings, without noise, they know it nearly by heart: reported means are then corrected by how many
parameters were fitted (`_left_out`). Validation RMSE without features and noise, three seeds,
before and with it: 290 people and 300 films of MovieLens 1M .915, .906; of 100K .949, .936; 840
people and 1,000 films of 1M .888, .879; planted ratings of 1,191 people and 120 items .811, .811.
With features or noise it shrinks too much: the planted ones with features .827, .835 at epsilon 5.

A model that is wrong elsewhere deceives EM. So a step also asks the ratings themselves: users
report the regression, through the origin, of what their own mean leaves of a rating on what tastes,
fitted to their other ratings, add (stacking: Wolpert 1992, Breiman 1996). Where its slope is below
1 they add too much. What they add goes with the prior variance where ratings are few, so that
variance is multiplied by the slope, in every direction but the first, the user's own mean. One
number for all: single directions are lost in the noise.

Guarantee: post-processing of a release.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.factorization.default_ratings.client import UNITS
from fedrec.federation.messages import Release, State

MOST = 4.0
"""A user's averages count in proportion to the root of its number of ratings, up to so many times
the typical number."""
_TRUST = 0.5
"""Standard deviation of what is expected of a scale, over its size."""
_ALIKE = 0.3
"""The same for a single direction, once all directions' common factor is known."""
_ADDED = 0.4
"""Of what the model expects tastes to add: a unit of what they are found to add. A longer vector is
cut: its slope stays, its weight falls.

Validation RMSE with 2, .7, .3, .15 (means of two draws): planted, 25 ratings a user, 2,000 users:
2,000 items at epsilon 1 .8289, .8271, .8250, .8230, 500 items at .5 .8143, .8134, .8120, .8107;
MovieLens 100K at 5 .9175, .9175, .9178, .9186.
"""
MOST_FITTED = 0.5
"""Parameters a rating, beyond which nothing more is corrected."""
_LENGTH = math.sqrt(7)
"""Six averages of at most about 1 and a vector of at most about 1: their joint length."""
_NARROWEST = 0.05
_WIDEST = 4.0
"""Of a variance, in one step: a release of few users may say anything."""
_DAMPING = 0.5
"""Of an M-step, on a logarithmic scale: item vectors move in the same step, and early ones make
tastes look narrower than they are.

Validation RMSE with none, half and all of it: MovieLens 1M .8805, .8807, .8816 at epsilon 1, .8555,
.8561, .8562 at 5; planted, 25 ratings a user: 20,000 users x 10,000 items .8258 and .8192 (none,
half) at .5, where biases alone have .8209; 2,000 x 2,000 .8026, .7958, .7932 without noise (before
slopes).
"""


@dataclass(frozen=True)
class StepScales:
    """noise, noise_std: variance of a rating about the model, and how well it is known. residual:
    mean square of a left-out residual.

    ratio: mean over raters of sqrt(n) over the norm of the report before it is scaled to 1. known:
    (d,) mean squares of user vectors. users: sum of the users' weights in these means. added: mean
    square of what tastes add to a prediction from the user's own mean. slope, slope_std: of
    ratings, less that prediction, on what tastes add: 1 where they add as much as they should.
    """

    noise: float
    noise_std: float
    residual: float
    ratio: float
    known: Float64s
    users: float
    added: float
    slope: float
    slope_std: float

    @staticmethod
    def expected(
        noise: float,
        known: Float64s,
        added: float,
        *,
        stds: tuple[float, float],
        alpha: float,
        users: int,
        sizes: Sequence[tuple[float, float]],
    ) -> StepScales:
        """From the model alone. stds: of the noise and of the slope. sizes: of users over the
        typical one, and how many users have them."""
        weight = sum(share * math.sqrt(min(size / MOST, 1.0)) for size, share in sizes)
        ratio = 1 / math.sqrt(noise * (alpha**2 + float(known.sum())))
        return StepScales(noise, stds[0], noise, ratio, known, users * weight, added, 1.0, stds[1])

    @property
    def units(self) -> dict[str, float]:
        """What the device divides its averages by (`default_client.UNITS`), so that most users'
        vectors are shorter than 1."""
        added = _ADDED * self.added
        known = 2 * float(np.linalg.norm(self.known))
        lengths = 1.0, 3 * self.ratio, 3 * self.residual, 2 * self.noise, added, added, known
        return {name: _LENGTH * length for name, length in zip(UNITS, lengths, strict=True)}

    @property
    def _sizes(self) -> Float64s:
        """(d + 5,) what is expected of the averages; of the excess of noise, the noise; of the
        gain, its spread."""
        return np.array(
            [self.ratio, self.residual, self.noise, 1.5 * self.added, self.added, *self.known]
        )

    def _left_out(self, means: Float64s, biases: float, tastes: float) -> Float64s:
        """Means of r^2, excess, g p and g^2 as they would be, had items been learned without the
        rating that they are asked about.

        Generalised cross-validation (Golub, Heath and Wahba 1979): where h parameters a rating
        were fitted, the left-out residual is r / (1 - h) on average, and p / (1 - h) of the
        biases' h."""
        residual, excess, gain, lift = means
        kept = 1 - min(biases, MOST_FITTED)
        all_kept = 1 - min(biases + tastes, MOST_FITTED)
        plain = (2 * gain - lift + residual) / kept**2
        product = (gain - lift + residual) / (kept * all_kept)
        residual = residual / all_kept**2
        excess = (excess + self.noise) / all_kept**2 - self.noise
        return np.array([residual, excess, plain - product, plain - 2 * product + residual])

    def after(
        self,
        answer: Release,
        name: str,
        *,
        units: Float64s,
        energy: float,
        fitted: tuple[float, float] = (0.0, 0.0),
    ) -> StepScales:
        """With what the users' sums say. units: as devices had them. energy: the block's share of a
        report's squared norm. fitted: parameters a rating, of biases and of tastes."""
        sums = answer.values[name][0] * units / math.sqrt(energy)
        stds = answer.noise_std[name] * units / math.sqrt(energy)
        users, _ = _posterior(sums[0], stds[0], self.users, 0.2 * self.users)
        users = max(users, 0.1 * self.users)
        # users differ: a mean of squares over so many of them has this error besides the noise
        means = sums[1:] / users
        if any(fitted):
            means[1:5] = self._left_out(means[1:5], *fitted)
        stds = np.hypot(stds[1:] / users, math.sqrt(2 / users) * self._sizes)
        ratio, _ = _posterior(means[0], stds[0], self.ratio, _TRUST * self.ratio)
        residual, _ = _posterior(means[1], stds[1], self.residual, _TRUST * self.residual)
        excess, noise_std = _posterior(means[2], stds[2], 0.0, self.noise_std)
        noise = float(np.clip(self.noise + excess, 0.02, 2.0))
        added, _ = _posterior(means[4], stds[4], self.added, _TRUST * self.added)
        added = max(added, 0.1 * self.added)
        slope, slope_std = _posterior(
            means[3] / added, math.hypot(stds[3], stds[4]) / added, 1.0, self.slope_std
        )
        length = float(np.linalg.norm(self.known))
        common, _ = _posterior(
            float(self.known @ means[5:]) / length**2,
            float(np.linalg.norm(self.known * stds[5:])) / length**2,
            1.0,
            _TRUST,
        )
        around = max(common, 0.1) * self.known
        known = [
            _posterior(m, s, k, _ALIKE * k)[0]
            for m, s, k in zip(means[5:], stds[5:], around, strict=True)
        ]
        return StepScales(
            noise,
            math.hypot(noise_std, 0.03),
            max(residual, noise / 2),
            max(ratio, 0.1 * self.ratio),
            np.maximum(known, 0.1 * around),
            users,
            added,
            slope,
            slope_std,
        )


def _posterior(observed: float, std: float, expected: float, trust: float) -> tuple[float, float]:
    """Mean and standard deviation of a number expected with one standard deviation, `trust`, and
    observed with another."""
    gain = trust**2 / (trust**2 + std**2)
    return expected + gain * (observed - expected), math.sqrt(gain) * std


def widths(expected: StepScales, found: StepScales, known: Float64s) -> Float64s:
    """(D,) factors of item vectors: standard deviations of w's coordinates over those of the prior,
    damped, and the root of the slope.

    known: (D,) expected mean squares of posterior means under the prior; of the first d,
    `expected.known`, the release says what they are, and of the others what it says of those d
    together. E[w^2] = mean square of the posterior mean + posterior variance.
    """
    ratio = float(found.known @ expected.known) / float(expected.known @ expected.known)
    variances = 1 + (ratio - 1) * known
    variances[: len(found.known)] = found.known + 1 - expected.known
    factors = np.asarray(np.sqrt(np.clip(variances, _NARROWEST, _WIDEST)) ** _DAMPING)
    factors[1:] *= math.sqrt(np.clip(found.slope, _NARROWEST, _WIDEST))
    return factors


def rescaled(state: State, factors: Float64s) -> dict[str, npt.NDArray[np.generic]]:
    """What a state says of item vectors in units where a user's vector is N(0, I): column k of phi
    times factors[k].

    Arrays with a column for the bias first leave it as it is; variances go with the square,
    precisions with its inverse.
    """
    found: dict[str, npt.NDArray[np.generic]] = {
        name: np.asarray(state[name], np.float64) * factors for name in ("phi", "public_phi")
    }
    # of directions that are never learned, the same as of the last
    found["rest"] = np.asarray(state["rest"], np.float64) * factors[-1]
    beside_bias = {
        "observed": 1,
        "precision": -2,
        "observed_variance": 2,
        "variances": 2,
        "people_observed": 1,
        "people_precision": -2,
    }
    for name, power in beside_bias.items():
        if name in state:
            array = np.asarray(state[name], np.float64)
            found[name] = array * np.concatenate([[1.0], factors])[: array.shape[1]] ** power
    return found | {"variance": np.asarray(found["variances"], np.float64).sum(axis=1)}
