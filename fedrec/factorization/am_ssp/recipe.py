"""The published recipe: federated SSP2 (AM-SSP Alg. 8, Krichene et al. 2024) inside private
alternating minimisation (AM-SSP Alg. 1, Ada-DPALS Alg. 3, Krichene et al. 2023), with sound
accounting.

Round 0 releases item counts and the mean rating. Each outer step s then has one round: a device
solves its own user vectors (l. 2-3), sums of w u u' and w y u are noised once (l. 4-8), the server
moves the item encoder (l. 9-14), either the paper's feature encoder by gradient or one free vector
per item in closed form.

Guarantee (user, add/remove). The weights of a user satisfy sum w^2 <= 1, its vector is clipped to
norm Gamma_u, its centred values to [-Gamma_y, Gamma_y]. In units of Gamma_u^2 and Gamma_u Gamma_y
its part of all (A_j) and of all (b_j) has norm at most 1 each (AM-SSP Thm 2). What a device
computes from earlier releases and its own data reaches others only through such sums; so the run is
the adaptive composition of Gaussian releases that its plan lists, which GDP composes exactly.

Per example the same sums are bounded one event at a time, but the user vector is refit on the event
that is removed, which Thm 1 leaves out: `established` is then False.

Where we leave the papers: the encoder descends with Adam (Alg. 5 l. 9 prints plain gradient steps);
settings left at zero take values of ours, which are tuned to no data set; lambda outside the
weighted sum and public (inside, it is private); the mean is of per-user means, bounded
by half the scale; SSP1's resamples are charged in full. Three aggregators sum A as svec(u u')
(`client.svec`), whose noise is smaller off the diagonal by sqrt(2) than the papers' iid
triangle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Floats
from fedrec.encoders import items as encoder
from fedrec.encoders.items import ItemInputs
from fedrec.factorization import weights
from fedrec.factorization.am_ssp import gradient
from fedrec.factorization.am_ssp.client import PublishedModel, PublishedSettings, half_range, packed
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.item_statistics import ItemStatistics
from fedrec.factorization.least_squares import LocalStageModel
from fedrec.federation.messages import Question, Release, ReleaseSpec, State
from fedrec.federation.reports import block
from fedrec.numerics.segments import unpack
from fedrec.numerics.threads import map_ranges
from fedrec.privacy.calibration import Plan

_BLOCK = 512  # matrices unpacked at a time


def pseudo_inverse(statistics: ItemStatistics, *, ridge: float | Floats) -> Float64s:
    """The printed rule: theta_j = (projection of A_j + ridge_j I on the PSD cone)^+ b_j; (m, d)
    float64.

    Directions in which noise left no positive eigenvalue get 0. A small positive one is divided by,
    however small: the printed rule is unstable there, and `projected` is what one wants.

    Guarantee: post-processing of released statistics, no cost. `ridge` is public, or a function of
    released counts, and is added here, outside the sum over users. Alg. 1 l. 5 prints it inside, as
    w_ij (x x' + lambda I); then lambda I is part of what a user contributes, with norm up to
    sqrt(Gamma^4 + 2 lambda Gamma^2 + d lambda^2) instead of the Gamma^2 that the proof of Thm 3.3
    uses (5.9 times at d = 32, lambda = Gamma^2).
    """

    def invert(eigenvalues: Float64s, ridges: Float64s) -> Float64s:
        shifted = eigenvalues + ridges
        cutoff = (
            shifted.shape[1] * np.finfo(np.float64).eps * np.abs(shifted).max(axis=1, keepdims=True)
        )
        return np.where(shifted > cutoff, 1.0 / np.where(shifted > cutoff, shifted, 1.0), 0.0)

    return _solve(statistics, ridge, invert)


def projected(statistics: ItemStatistics, *, ridge: float | Floats) -> Float64s:
    """theta_j = (projection of A_j on the PSD cone + ridge_j I)^-1 b_j, as in the papers' public
    code; (m, d) float64, ridge > 0."""
    if not bool(np.all(np.asarray(ridge) > 0)):
        raise ValueError(
            f"the projected solution needs a positive ridge, found {float(np.min(ridge))!r}"
        )

    def invert(eigenvalues: Float64s, ridges: Float64s) -> Float64s:
        return np.asarray(1.0 / (np.maximum(eigenvalues, 0.0) + ridges), np.float64)

    return _solve(statistics, ridge, invert)


def _solve(
    statistics: ItemStatistics,
    ridge: float | Floats,
    invert: Callable[[Float64s, Float64s], Float64s],
) -> Float64s:
    """theta_j = Q invert(eigenvalues, ridge_j) Q' b_j with A_j = Q diag(eigenvalues) Q', in blocks
    of bounded memory."""
    m, d = statistics.moment.shape
    ridges = np.broadcast_to(np.asarray(ridge, np.float64), (m,))
    out = np.empty((m, d), np.float64)

    def piece(start: int, stop: int) -> None:
        for low in range(start, stop, _BLOCK):
            block = slice(low, min(low + _BLOCK, stop))
            eigenvalues, Q = np.linalg.eigh(unpack(statistics.gram[block].astype(np.float64), d))
            along = np.einsum("jri,jr->ji", Q, statistics.moment[block].astype(np.float64))
            out[block] = np.einsum(
                "jri,ji->jr", Q, along * invert(eigenvalues, ridges[block, None])
            )

    map_ranges(piece, m)
    return out


@dataclass(frozen=True)
class PublishedRecipe:
    """The server: post-processing of releases only."""

    plan: Plan
    settings: PublishedSettings
    facts: PublicFacts
    inputs: ItemInputs | None

    @staticmethod
    def of(
        plan: Plan, settings: PublishedSettings, facts: PublicFacts, *, with_features: bool
    ) -> PublishedRecipe:
        """Prepare the public features once; without any, the model is id-only."""
        usable = facts.features is not None and bool(facts.features.bags) and with_features
        return PublishedRecipe(
            plan,
            settings,
            facts,
            encoder.prepare(facts.features) if usable and facts.features else None,
        )

    def begin(self) -> State:
        """Random item vectors or encoder, from the run's seed."""
        rng = self.facts.streams.numpy("published-init")
        if self.inputs is not None:
            theta = encoder.init(self.inputs, self.settings.width, rng=rng)
            if self.settings.own_means:
                theta.dense[:, -1] = 0  # biases start at zero
            arrays: State = {
                **encoder.to_named_arrays(theta, self.inputs),
                "V": encoder.forward(theta, self.inputs),
            }
        else:
            d = self.settings.dimension
            V = (rng.standard_normal((self.facts.num_items, d)) / math.sqrt(d)).astype(np.float32)
            arrays = {
                "V": np.column_stack([V, np.zeros(len(V), np.float32)])
                if self.settings.own_means
                else V
            }
        return {**arrays, "round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """Counts and mean first, then one question per outer step."""
        t = int(state["round"])
        if t == 0:
            return Question(0, "published/counts", {}, self._count_releases())
        if t > self.settings.steps:
            return None
        public = {
            "V": state["V"],
            "mean": state["mean"],
            "counts": state["counts"],
            "num_users": np.array(self.facts.num_users),
        }
        return Question(t, "published/statistics", public, self._step_releases(t - 1))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Alg. 8 l. 9-14 after a step; the noisy counts and mean after round 0."""
        t = int(state["round"])
        learned = (
            self._counts_and_mean(answer) if t == 0 else self._move_items(state, t - 1, answer)
        )
        return {**state, **learned, "round": np.array(t + 1)}

    def model(self, state: State) -> PublishedModel | LocalStageModel:
        """What a device needs: item vectors, the mean, and the ridge of its own solve."""
        V = np.asarray(state["V"], np.float32)
        mean = float(state["mean"]) if "mean" in state else sum(self.facts.value_range) / 2
        offset = mean if self.facts.rated else 0.0
        if self.settings.own_means:
            bias = V[:, -1] * np.float32(self.settings.user_radius)
            return LocalStageModel.of(
                V[:, :-1], bias, offset=offset, user_ridge=self.settings.user_ridge
            )
        return PublishedModel(V, offset, self.settings.user_ridge, self.settings.click_weight)

    def _count_releases(self) -> tuple[ReleaseSpec, ...]:
        limit = math.sqrt(self.settings.count_limit)
        half = half_range(self.facts.value_range)
        by_item = block("counts", "linear", rows=self.facts.num_items, width=1, radius=limit)
        mean = block("mean", "linear", rows=1, width=1, radius=half)
        return ReleaseSpec("counts", (by_item,), limit), ReleaseSpec("mean", (mean,), half)

    def _step_releases(self, s: int) -> tuple[ReleaseSpec, ...]:
        m = self.facts.num_items
        d = self.settings.width
        specs = list[ReleaseSpec]()
        for r in range(self.settings.resamples):
            gram = f"gram/{s}/{r}"
            moment = f"moment/{s}/{r}"
            if self.plan.aggregation == "trusted":
                specs.append(
                    ReleaseSpec(gram, (block(gram, "outer", rows=m, width=d),), isometric=False)
                )
            else:
                specs.append(
                    ReleaseSpec(gram, (block(gram, "linear", rows=m, width=d * (d + 1) // 2),))
                )
            specs.append(ReleaseSpec(moment, (block(moment, "linear", rows=m, width=d),)))
        if not self.facts.rated:
            specs.append(
                ReleaseSpec(
                    f"gramian/{s}",
                    (block(f"gramian/{s}", "outer", rows=1, width=d),),
                    isometric=False,
                )
            )
        return tuple(specs)

    def _counts_and_mean(self, answer: Release) -> dict[str, npt.NDArray[np.generic]]:
        low, high = self.facts.value_range
        mean = (low + high) / 2 + answer.values["mean"][0, 0] / self.facts.num_users
        counts = weights.at_least_one(answer.values["counts"][:, 0])
        return {"mean": np.array(np.clip(mean, low, high)), "counts": counts}

    def _move_items(
        self, state: State, s: int, answer: Release
    ) -> dict[str, npt.NDArray[np.generic]]:
        settings = self.settings
        released = [self.statistics(s, r, answer) for r in range(settings.resamples)]
        if self.inputs is None:
            solve = pseudo_inverse if settings.pseudo_inverse else projected
            return {"V": solve(released[0], ridge=self.ridge(state)).astype(np.float32)}
        theta = encoder.from_named_arrays(
            {k: np.asarray(v, np.float32) for k, v in state.items()}, self.inputs
        )
        rng = self.facts.streams.numpy("published-batches", round=s)
        moved = gradient.ssp1(
            theta,
            self.inputs,
            released.__getitem__,
            resamples=settings.resamples,
            descent=settings.descent,
            ridge=self.ridge(state),
            rng=rng,
        ).parameters
        return {
            **encoder.to_named_arrays(moved, self.inputs),
            "V": encoder.forward(moved, self.inputs),
        }

    def ridge(self, state: State) -> Float64s:
        """(m,) of the items' update, after the counts."""
        counts = np.asarray(state["counts"], np.float64)
        return np.asarray(self.settings.item_ridge * counts**self.settings.ridge_exponent)

    def statistics(self, s: int, r: int, answer: Release) -> ItemStatistics:
        """(A_j, b_j) in the units of the model: vectors were reported divided by `report_radius`,
        values by Gamma_y."""
        settings = self.settings
        radius = self.settings.report_radius
        released = answer.values[f"gram/{s}/{r}"]
        gram = (
            released if self.plan.aggregation == "trusted" else packed(released, settings.width)
        ) * radius**2
        moment = answer.values[f"moment/{s}/{r}"] * radius
        if self.facts.rated:
            return ItemStatistics(
                gram.astype(np.float32), (moment * settings.target_radius).astype(np.float32)
            )
        gramian = answer.values[f"gramian/{s}"] * radius**2
        alpha = settings.click_weight
        return ItemStatistics(
            (alpha * gram + gramian).astype(np.float32), ((1 + alpha) * moment).astype(np.float32)
        )
