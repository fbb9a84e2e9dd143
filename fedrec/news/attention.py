"""PrivateRec's one-vector form: attention of a user vector over B public basis vectors, clipped,
noised, renormalised.

Alg. 2, Liu et al. 2022, in this order; vectorised over n users:

    mask = padded_clicks(...)              l. 2-5  on the device; r0 stands where it is True, in the
                                                   user encoder (l. 6)
    alpha = attention(U, b)                l. 7
    noised = release(alpha, plan, key=)    l. 8-9
    renormalise_softplus(noised)           l. 10   (Alg. 3 uses `renormalise_relu`)
    reconstruct(weights, b) @ r'           Alg. 1 l. 3-5; Alg. 3 l. 20 prints the raw u, which would
                                           not be private

Guarantee of `release` with a plan of `gaussian_plan` or `laplace_plan`: (epsilon, delta)-DP; unit
"click", neighbours "replace": one click of a history exchanged for any other item. Everything after
it is post-processing.

Proof. Clipped weights are non-negative of L2 norm at most theta, so two of them have an inner
product >= 0 and are at most sqrt2 theta apart, and this is reached. Rounding them down to a lattice
keeps both properties. One click may change the user vector, hence alpha, in any way; the release is
Gaussian of mu = sqrt2 theta / std (`privacy.gaussian`). In L1, clipped at theta1, they are at most
2 theta1 apart (`privacy.laplace`). Padding amplifies as `privacy.mixtures` proves: r0 is one more
item to exchange a click for.

As printed, l. 1 takes theta for the sensitivity ("because the attention scores are always
positive") and l. 9 the classical conversion, proved for epsilon0 < 1 only: the plans `*_as_printed`
reproduce it and say what epsilon is true.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedrec.arrays import Bools, Float64s
from fedrec.privacy import gaussian, keystream, laplace
from fedrec.privacy.accounting import GaussianEvent, epsilon_of
from fedrec.privacy.clipping import clip_rows
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event, PaddedEvent, amplified, inner_epsilon, inner_mu
from fedrec.privacy.selection import PureEvent

_LATTICE_BITS = 20  # the grid is 2^-20 of the noise, give or take a factor 2
ServingNoise = Literal["gaussian", "laplace", "laplace-printed"]
"""Values of news.serving_noise."""


@dataclass(frozen=True)
class GaussianAttention:
    """A calibrated release in L2: clip at `theta`, noise of real std `noise_std` on a lattice of
    `step`, after `padding`."""

    guarantee: Guarantee
    theta: float
    padding: float
    mu: float
    noise_std: float
    step: float

    @property
    def event(self) -> Event:
        """What one answer costs a click of the history."""
        if self.padding == 0:
            return GaussianEvent("attention", self.mu, "click", "replace")
        return PaddedEvent("attention", self.mu, self.padding)


@dataclass(frozen=True)
class LaplaceAttention:
    """A calibrated release in L1: clip at `theta`, in L1 or as printed in L2; Laplace noise of real
    `parameter` (std sqrt2 times that)."""

    guarantee: Guarantee
    theta: float
    padding: float
    epsilon: float
    parameter: float
    step: float
    clip_order: int = 1

    @property
    def noise_std(self) -> float:
        """Real std of the noise on one weight."""
        return math.sqrt(2) * self.parameter

    @property
    def event(self) -> Event:
        """What one answer costs a click of the history: pure, padding included."""
        return PureEvent("attention", self.epsilon)


Plan = GaussianAttention | LaplaceAttention


def serving_plan(
    guarantee: Guarantee, noise: ServingNoise, *, theta: float, basis: int, padding: float
) -> Plan:
    """Plan of one served answer. Without privacy there is neither noise nor padding."""
    if not guarantee.private:
        return gaussian_plan(guarantee, theta=theta)
    if noise == "laplace":
        return laplace_plan(guarantee, theta=theta, padding=padding)
    if noise == "laplace-printed":
        return laplace_plan_as_printed(guarantee, theta=theta, basis=basis, padding=padding)
    return gaussian_plan(guarantee, theta=theta, padding=padding)


def gaussian_plan(guarantee: Guarantee, *, theta: float, padding: float = 0.0) -> GaussianAttention:
    """One answer with exactly `guarantee`; the analytic Gaussian at (epsilon0, delta0), sensitivity
    sqrt2 theta (sqrt2 at most)."""
    _require_click(guarantee)
    mu = inner_mu(guarantee, padding)
    radius = math.sqrt(2) * min(theta, 1.0)
    step = _step(radius / mu)
    return GaussianAttention(
        guarantee,
        theta,
        padding,
        mu,
        gaussian.noise_std(radius=radius, mu=mu, coarsest_step=step),
        step,
    )


def gaussian_plan_as_printed(
    guarantee: Guarantee, *, theta: float, padding: float = 0.0
) -> GaussianAttention:
    """Alg. 2, l. 1 and 9, to the letter: sigma = theta / epsilon0 sqrt(2 log(1.25 (1 - p) /
    delta)). NOT ESTABLISHED."""
    _require_click(guarantee)
    inner = inner_epsilon(guarantee.epsilon, padding)
    std = theta / inner * math.sqrt(2 * math.log(1.25 * (1 - padding) / guarantee.delta))
    mu = math.sqrt(2) * min(theta, 1.0) / std if std else math.inf
    true = amplified(epsilon_of(mu, guarantee.delta / (1 - padding)), padding)
    return GaussianAttention(_not_established(guarantee, true), theta, padding, mu, std, _step(std))


def laplace_plan(guarantee: Guarantee, *, theta: float, padding: float = 0.0) -> LaplaceAttention:
    """One answer, pure epsilon: clip at theta in L1, parameter 2 theta / epsilon0 (theta at most 1:
    weights add up to 1)."""
    _require_click(guarantee)
    parameter = 2 * min(theta, 1.0) / inner_epsilon(guarantee.epsilon, padding)
    return LaplaceAttention(
        guarantee, theta, padding, guarantee.epsilon, parameter, _step(parameter)
    )


def laplace_plan_as_printed(
    guarantee: Guarantee, *, theta: float, basis: int, padding: float = 0.0
) -> LaplaceAttention:
    """Sec. 4's Laplace runs: clip at theta in L2, parameter theta / epsilon0, for `basis` vectors.
    NOT ESTABLISHED."""
    _require_click(guarantee)
    parameter = theta / inner_epsilon(guarantee.epsilon, padding)
    true = amplified(l1_diameter(basis, theta) / parameter, padding) if parameter else math.inf
    return LaplaceAttention(
        _not_established(guarantee, true),
        theta,
        padding,
        true,
        parameter,
        _step(parameter),
        clip_order=2,
    )


def l1_diameter(basis: int, theta: float) -> float:
    """The largest L1 distance of two non-negative (B,) vectors of L2 norm <= theta and L1 norm <=
    1.

    What both have in one coordinate can be taken from both, so the farthest have disjoint supports
    of k and B - k coordinates, on which L1 <= sqrt(k) L2: the largest min(sqrt(k) theta, 1) +
    min(sqrt(B - k) theta, 1). 2.41 theta at B = 3, 3.15 theta at B = 5.
    """
    longest = [min(math.sqrt(k) * theta, 1.0) for k in range(basis + 1)]
    return max(longest[k] + longest[basis - k] for k in range(basis + 1))


def padded_clicks(users: int, history: int, *, padding: float, key: bytes) -> Bools:
    """(n, H) which clicks become the anonymous news r0 (Alg. 2 l. 4): drawn on the device for every
    answer, and secret."""
    return keystream.coins(users * history, probability=padding, key=key).reshape(users, history)


def attention(users: Float64s, basis: Float64s) -> Float64s:
    """(n, B) softmax(u b' / sqrt d) for (n, d) user vectors and (B, d) public basis vectors (Alg. 2
    l. 7)."""
    scores = users @ basis.T / math.sqrt(basis.shape[1])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float64)


def clip(weights: Float64s, plan: Plan) -> Float64s:
    """(n, B) weights shortened to norm theta where longer (Alg. 2 l. 8). Raises ValueError on a
    negative or infinite weight."""
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(
            "attention weights are finite and not negative: the sensitivity rests on it"
        )
    if isinstance(plan, GaussianAttention) or plan.clip_order == 2:
        return clip_rows(weights, radius=plan.theta).rows
    lengths = weights.sum(1, keepdims=True)
    return weights * np.where(
        lengths > plan.theta,
        plan.theta * (1 - 1e-15 * weights.shape[1]) / np.maximum(lengths, plan.theta),
        1.0,
    )


def release(weights: Float64s, plan: Plan, *, key: bytes) -> tuple[Float64s, Event]:
    """(n, B) clipped and noised weights, one row per user, and the price of one row (Alg. 2 l.
    8-9)."""
    clipped = clip(weights, plan)
    if plan.step == 0:  # infinite epsilon: no noise, and no lattice
        return clipped, plan.event
    # downwards: weights are not negative, so none becomes longer than its clip
    lattice = np.floor(clipped / plan.step).astype(np.int64)
    if isinstance(plan, GaussianAttention):
        return gaussian.add_to_rows(
            lattice, step=plan.step, std=plan.noise_std, key=key
        ), plan.event
    noise = laplace.sample(lattice.size, parameter=plan.parameter / plan.step, key=key)
    return np.asarray((lattice + noise.reshape(lattice.shape)) * plan.step, np.float64), plan.event


def release_vectors(
    vectors: Float64s, *, radius: float, epsilon: float, order: Literal[1, 2], key: bytes
) -> tuple[Float64s, Event]:
    """(n, d) whole user vectors cut to `radius` with Laplace noise of parameter 2 radius / epsilon
    on each number, and what one row costs.

    In L1 (`order` 1) two cut vectors are at most 2 radius apart, so a row is (epsilon, 0)-DP for
    any change of its history. In L2, as Sec. 3.2.1 prints it, they are up to 2 radius sqrt(d) apart
    in L1: the price is sqrt(d) epsilon.
    """
    width = vectors.shape[1]
    parameter = 2 * radius / epsilon
    step = _step(parameter)
    lengths = np.linalg.norm(vectors, order, axis=1, keepdims=True)
    cut = vectors * (np.minimum(1.0, radius / np.maximum(lengths, 1e-300)) * (1 - 1e-12))
    noise = laplace.sample(cut.size, parameter=parameter / step, key=key)
    lattice = np.trunc(cut / step).astype(np.int64) + noise.reshape(cut.shape)
    true = epsilon * (math.sqrt(width) if order == 2 else 1.0)
    return np.asarray(lattice * step, np.float64), PureEvent("vector", true)


def release_each(weights: Float64s, plan: Plan, *, keys: Sequence[bytes]) -> Float64s:
    """Releases as `release` does, each user's row under a key of its own."""
    rows = [release(row[None], plan, key=key)[0] for row, key in zip(weights, keys, strict=True)]
    return np.concatenate(rows) if rows else np.zeros(weights.shape)


def renormalise_softplus(noised: Float64s) -> Float64s:
    """(n, B) SoftPlus, divided by its sum (Alg. 2 l. 10): best under heavy noise. Defined for
    weights of any size."""
    positive = np.logaddexp(0.0, noised)
    # log(1 + e^x) = e^x there, to 1e-13
    logs = np.where(noised < -30, noised, np.log(np.where(noised < -30, 1.0, positive)))
    weights = np.exp(logs - logs.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float64)


def renormalise_relu(noised: Float64s) -> Float64s:
    """(n, B) positive parts divided by their sum (Sec. 3.3): best without noise. Uniform where none
    is positive; undefined as printed."""
    positive = np.maximum(noised, 0.0)
    totals = positive.sum(1, keepdims=True)
    return np.where(totals > 0, positive / np.where(totals > 0, totals, 1.0), 1 / noised.shape[1])


def reconstruct(weights: Float64s, basis: Float64s) -> Float64s:
    """(n, d) user vectors from (n, B) released weights (Alg. 1 l. 3): what scores are made of."""
    return np.asarray(weights @ basis, np.float64)


def _step(noise: float) -> float:
    # a power of two, so that dividing by it is exact
    return 2.0 ** (math.floor(math.log2(noise)) - _LATTICE_BITS) if 0 < noise < math.inf else 0.0


def _not_established(guarantee: Guarantee, true: float) -> Guarantee:
    note = (
        "as printed, with a sensitivity of theta; what one answer really costs is epsilon "
        f"{true:.4g}"
    )
    return replace(guarantee, established=False, note=note)


def _require_click(guarantee: Guarantee) -> None:
    guarantee.require_same_unit(Guarantee(1.0, 0.5, "click", "replace"))
