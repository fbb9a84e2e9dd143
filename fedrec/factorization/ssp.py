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
weighted sum and public (SOUNDNESS: inside, it is private); the mean is of per-user means, bounded
by half the scale; SSP1's resamples are charged in full. Three aggregators sum A as svec(u u')
(`factorization.svec`), whose noise is smaller off the diagonal by sqrt(2) than the papers' iid
triangle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Floats
from fedrec.budget import counts as item_counts
from fedrec.budget import sampling, weights
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS, Kind
from fedrec.encoders import items as encoder
from fedrec.encoders.items import ItemInputs
from fedrec.factorization import closed_form, gradient
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.item_statistics import ItemStatistics
from fedrec.factorization.least_squares import solve_clicks, solve_users
from fedrec.factorization.local_stage import LocalStageModel, solved
from fedrec.factorization.svec import packed, svec
from fedrec.federation.messages import Question, Release, ReleaseSpec, Reports
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.federation.rounds import ClientStep, State
from fedrec.numerics import segments
from fedrec.privacy.calibration import Plan
from fedrec.privacy.clipping import clip_rows, clip_values
from fedrec.randomness import Streams

WeightRule = Literal["printed", "normalised", "clipped", "uniform", "constant"]


@dataclass(frozen=True)
class PublishedSettings:
    """The papers' hyper-parameters. `user_radius` is Gamma_u, `target_radius` Gamma_y (after
    centring, in rating units).

    `encoder` None is the id-only model. `weights`: "printed" is AM-SSP App. E, "clipped" Ada-DPALS
    eq. 12 and 16, "constant" 1 / sqrt(max_items) on every item that is kept: DPALS (Ada-DPALS Rem.
    3.5).
    `example_share` below 1 gives each resample a fresh batch of examples (mini-batch SSP1, Alg. 4),
    charged without amplification. `click_weight` is alpha of Hu et al.; `max_items` 0 keeps all
    items of a user. `own_means`, which no paper has: item vectors are (v_j, b_j / Gamma_u), users
    (u_k, Gamma_u), and a device takes its own mean off its ratings first (`local_stage`).
    `pseudo_inverse`: Ada-DPALS Alg. 1 l. 7 to the letter.
    """

    dimension: int
    steps: int
    user_ridge: float
    item_ridge: float
    weights: WeightRule
    weight_exponent: float
    descent: gradient.Descent
    resamples: int = 1
    example_share: float = 1.0
    user_radius: float = 1.0
    target_radius: float = 1.0
    count_limit: int = 50
    click_weight: float = 10.0
    max_items: int = 0
    sampling: Literal["uniform", "tail"] = "uniform"
    unit: Literal["user", "example"] = "user"
    own_means: bool = False
    pseudo_inverse: bool = False

    @property
    def width(self) -> int:
        """d, or d + 1 where an item's last coordinate is its bias."""
        return self.dimension + self.own_means

    @property
    def report_radius(self) -> float:
        """Gamma_u, or the norm of (u, Gamma_u) where u is longest: a vector and what biases are
        learnt by are then heard alike."""
        return self.user_radius * (math.sqrt(2) if self.own_means else 1.0)


def shares(settings: PublishedSettings, kind: Kind, *, count_share: float) -> dict[str, float]:
    """Shares of mu^2: counts, mean, then the outer steps equally, A and b of a step equally (the
    papers' choice)."""
    rest, names = 1 - count_share - 0.01, _release_names(settings, kind)
    return {"counts": count_share, "mean": 0.01} | {name: rest / len(names) for name in names}


def _release_names(settings: PublishedSettings, kind: Kind) -> list[str]:
    names = [
        f"{part}/{s}/{r}"
        for s in range(settings.steps)
        for r in range(settings.resamples)
        for part in ("gram", "moment")
    ]
    return names + [f"gramian/{s}" for s in range(settings.steps) if not KINDS[kind].rated]


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
        limit, half = math.sqrt(self.settings.count_limit), _half_range(self.facts.value_range)
        by_item = block("counts", "linear", rows=self.facts.num_items, width=1, radius=limit)
        mean = block("mean", "linear", rows=1, width=1, radius=half)
        return ReleaseSpec("counts", (by_item,), limit), ReleaseSpec("mean", (mean,), half)

    def _step_releases(self, s: int) -> tuple[ReleaseSpec, ...]:
        m, d = self.facts.num_items, self.settings.width
        specs = list[ReleaseSpec]()
        for r in range(self.settings.resamples):
            gram, moment = f"gram/{s}/{r}", f"moment/{s}/{r}"
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
        counts = item_counts.at_least_one(answer.values["counts"][:, 0])
        return {"mean": np.array(np.clip(mean, low, high)), "counts": counts}

    def _move_items(
        self, state: State, s: int, answer: Release
    ) -> dict[str, npt.NDArray[np.generic]]:
        settings = self.settings
        released = [self.statistics(s, r, answer) for r in range(settings.resamples)]
        if self.inputs is None:
            solve = closed_form.pseudo_inverse if settings.pseudo_inverse else closed_form.projected
            return {"V": solve(released[0], ridge=settings.item_ridge).astype(np.float32)}
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
            ridge=settings.item_ridge,
            rng=rng,
        ).parameters
        return {
            **encoder.to_named_arrays(moved, self.inputs),
            "V": encoder.forward(moved, self.inputs),
        }

    def statistics(self, s: int, r: int, answer: Release) -> ItemStatistics:
        """(A_j, b_j) in the units of the model: vectors were reported divided by `report_radius`,
        values by Gamma_y."""
        settings, radius = self.settings, self.settings.report_radius
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


@dataclass(frozen=True)
class PublishedModel:
    """Item vectors, the noisy mean, and what a device needs for its own solve."""

    item_vectors: npt.NDArray[np.float32]
    offset: float
    user_ridge: float
    click_weight: float

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> PublishedModel:
        """The model of a released file."""
        scalars = (float(arrays[name]) for name in ("offset", "user_ridge", "click_weight"))
        return PublishedModel(np.asarray(arrays["item_vectors"], np.float32), *scalars)

    def user_vectors(self, history: Interactions) -> Floats:
        """u_k = (sum v v' + lambda I)^-1 sum y v (AM-SSP App.

        E), or Hu et al. eq. 4 for clicks; in float64, user by user."""
        return _user_vectors(
            history,
            np.asarray(self.item_vectors, np.float64),
            self.offset,
            self.user_ridge,
            self.click_weight,
        )

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """For the released file."""
        scalars = {
            "offset": self.offset,
            "user_ridge": self.user_ridge,
            "click_weight": self.click_weight,
        }
        return {
            "item_vectors": self.item_vectors,
            **{name: np.array(value) for name, value in scalars.items()},
        }


def client_steps(settings: PublishedSettings) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives."""
    return {
        "published/counts": lambda question, mine: _report_counts(question, mine, settings),
        "published/statistics": lambda question, mine: _report_statistics(question, mine, settings),
    }


def _report_counts(question: Question, mine: Interactions, settings: PublishedSettings) -> Reports:
    """min(1, sqrt(limit / n_k)) on each item, norm at most sqrt(limit); and the user's mean above
    mid-scale, at most half of it."""
    ones = item_counts.clipped_contributions(mine, limit=settings.count_limit)
    n, (low, high), half = np.diff(mine.user_ptr), mine.value_range, _half_range(mine.value_range)
    totals = segments.sums(mine.user_ptr, np.asarray(mine.values, np.float64))
    means = np.where(n > 0, totals / np.maximum(n, 1) - (low + high) / 2, 0.0)
    one = np.ones((mine.num_users, 1))
    blocks = [
        RealBlock(ones.values, one),
        RealBlock(clip_values(means, low=-half, high=half).values, one),
    ]
    return bounded(mine.user_ptr, mine.items, blocks, question.releases, scaling="clip")


def _report_statistics(
    question: Question, mine: Interactions, settings: PublishedSettings
) -> Reports:
    """Alg.

    8 l. 2-5: solve u, clip it to Gamma_u and y to Gamma_y, weight; A and b come from these factors.
    """
    V, offset = (
        np.asarray(question.public["V"], np.float64),
        float(question.public["mean"]) if mine.rated else 0.0,
    )
    noisy = np.asarray(question.public["counts"], np.float64)
    U, means = _solved(mine, V, offset, settings)
    mine = _sampled(mine, settings, noisy)
    w = _weights(mine, settings, noisy, num_users=int(question.public["num_users"]))
    y = (
        clip_values(
            mine.values - offset - means[mine.users],
            low=-settings.target_radius,
            high=settings.target_radius,
        ).values
        / settings.target_radius
    )
    target = y if mine.rated else np.ones(len(mine))
    ptr, items = mine.user_ptr, mine.items
    if settings.unit == "example":  # every event reports for itself
        U, ptr = np.repeat(U, np.diff(ptr), axis=0), np.arange(len(mine) + 1, dtype=np.int64)
    blocks = list[RealBlock]()
    for w_batch in (w * batch for batch in _batches(mine, settings, question.round)):
        gram = U if question.releases[0].blocks[0].form.matrix else svec(U)
        blocks += [RealBlock(w_batch, gram), RealBlock(w_batch * target, U)]
    if not mine.rated:
        blocks.append(RealBlock(np.ones(len(U)), U))
    return bounded(ptr, items, blocks, question.releases, scaling="clip")


def _solved(
    mine: Interactions, V: Float64s, offset: float, settings: PublishedSettings
) -> tuple[Float64s, Float64s]:
    """What a user reports in place of its vector, of norm at most 1, and its own mean, 0 where
    users have none."""
    if not settings.own_means:
        found = _user_vectors(mine, V, offset, settings.user_ridge, settings.click_weight)
        return clip_rows(
            found, radius=settings.user_radius
        ).rows / settings.report_radius, np.zeros(mine.num_users)
    radius = settings.user_radius
    means, found, _ = solved(
        mine, np.ascontiguousarray(V[:, :-1]), radius * V[:, -1], offset, settings.user_ridge
    )
    return np.column_stack(
        [clip_rows(found, radius=radius).rows, np.full(len(found), radius)]
    ) / settings.report_radius, means


def _batches(
    mine: Interactions, settings: PublishedSettings, round: int
) -> list[npt.NDArray[np.bool_]]:
    """The examples of each resample: all of them (Alg.

    2), or a fresh share (Alg. 4 l. 4). Which ones is no secret."""
    if settings.example_share == 1:
        return [np.ones(len(mine), np.bool_)] * settings.resamples
    keys = [Streams(r).key("published-batch", round=round) for r in range(settings.resamples)]
    return [sampling.share_of_examples(mine, share=settings.example_share, key=key) for key in keys]


def _user_vectors(
    mine: Interactions, V: Float64s, offset: float, ridge: float, click_weight: float
) -> Float64s:
    if mine.rated:
        found = solve_users(mine, V, ridge=ridge, targets=mine.values - offset)
    else:
        found = solve_clicks(mine.user_ptr, mine.items, V, ridge=ridge, alpha=click_weight)
    return np.asarray(found, np.float64)


def _sampled(mine: Interactions, settings: PublishedSettings, noisy: Float64s) -> Interactions:
    if not settings.max_items:
        return mine
    # public: it chooses among a user's own items, nothing rests on its secrecy
    key = Streams(0).key("published-sampling")
    if settings.sampling == "uniform":
        return mine.select(sampling.uniform(mine, limit=settings.max_items, key=key))
    return mine.select(sampling.tail(mine, noisy, limit=settings.max_items, key=key))


def _weights(
    mine: Interactions, settings: PublishedSettings, noisy: Float64s, *, num_users: int
) -> Float64s:
    """Per event; sum of squares at most 1 for every user, or 1 for every event."""
    if settings.unit == "example":
        return np.ones(len(mine))
    if settings.weights == "uniform":
        return weights.uniform(mine, budget=1.0).values
    if settings.weights == "constant":
        return weights.constant(mine, limit=settings.max_items, budget=1.0).values
    if settings.weights == "normalised":
        return weights.normalised(mine, noisy, mu=settings.weight_exponent, budget=1.0).values
    if settings.weights == "clipped":
        return weights.adaptive_as_printed(
            mine, noisy, mu=settings.weight_exponent, budget=1.0, num_users=num_users
        ).values
    return weights.am_ssp_as_printed(mine, noisy, budget=1.0).values


def _half_range(value_range: tuple[float, float]) -> float:
    return (value_range[1] - value_range[0]) / 2
