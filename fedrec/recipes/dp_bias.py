"""DP-bias: mean, item biases and the user's own mean; the simplest private predictor of ratings
that is worth something.

    x_uj = mean + b_j + c_u + e,   c_u ~ N(0, own),   e ~ N(0, noise + variance_j)

Ratings are mapped to the scale [-2, 2]. Rounds:

    counts     how often each item is rated, every user weighing 1 in all, and moments of the users'
               own ratings
    residuals  sums and weights per item of what the user's own mean leaves; once more where noise
               is small, with better own means

Guarantee (user, add/remove): a device scales its whole report of a release to norm 1 or less,
whatever its data (`federation.reports.bounded`), from released arrays and its own ratings alone.
Every release therefore has sensitivity 1; what the server makes of releases is post-processing, and
the composition of the plan's releases is exact. c_u is found on the device from the user's own
ratings and never leaves it but inside a report.

The recipe has no settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import Kind
from fedrec.factorization.default_ratings import client as default_client
from fedrec.factorization.default_ratings.client import scaled
from fedrec.factorization.default_ratings.liked_ranker import LikedRanker
from fedrec.factorization.default_ratings.model import DefaultModel
from fedrec.factorization.empirical_bayes import USUAL_BIASES, denoise_counts, regress, tail_weights
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, Reports, State
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.numerics import segments
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.calibration import Plan
from fedrec.registry import NoSettings, RecipeSpec

Arrays = dict[str, npt.NDArray[np.generic]]

MEAN = 0.03
"""Of the squared norm of the first report, the mean's part: one number summed over all users needs
little."""
MOMENTS = 0.05
"""Of the squared norm of a report of residuals, the part of its three moments."""
UNSETTLED = 0.1
"""Squared error of a round's biases because biases before it, and with them own means, were not
known; later rounds have a ninth each."""
LARGEST = np.array([1.0, 3.0, 1.5])
"""Moments as they are reported: whether there are two ratings, their variance, the squared distance
of their mean; cut to this."""
USUAL = np.array([[1.0, 1.0, 0.2], [0.0, 0.4, 0.15]])
"""Of the moments, mean and std over data sets of ratings on [-2, 2]: what is taken as far as noise
leaves them open."""


@dataclass(frozen=True)
class BiasSettings:
    """Public choices. counts, residuals: shares of mu^2, the last ones per round. weight_exponent:
    mu of n^-mu (Ada-DPALS eq. 16).

    kappa: size of a weight beside a residual. Later rounds know own means better: with one of share
    .85 errors on halves of MovieLens and on planted ratings were up to .009 larger, with two up to
    .005, at epsilon 1 to infinity; counts may have .12 to .35 alike.
    """

    counts: float = 0.12
    residuals: tuple[float, ...] = (0.13, 0.25, 0.5)
    weight_exponent: float = 0.25
    kappa: float = 0.35
    shares: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "shares",
            {"counts": self.counts}
            | {f"residuals/{t}": share for t, share in enumerate(self.residuals)},
        )


@dataclass(frozen=True)
class BiasRecipe:
    """The server: post-processing of releases only."""

    plan: Plan
    settings: BiasSettings
    facts: PublicFacts

    def begin(self) -> State:
        """Nothing is known."""
        return {"round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """The next round of the module's list."""
        t = int(state["round"])
        m = self.facts.num_items
        if t > len(self.settings.residuals):
            return None
        if t == 0:
            first = (
                block("counts", "linear", rows=m, width=1),
                block("mean", "linear", rows=1, width=1),
            )
            return Question(
                t, "bias/counts", {"mean_energy": np.array(MEAN)}, (ReleaseSpec("counts", first),)
            )
        name = f"residuals/{t - 1}"
        public = {key: state[key] for key in ("mean", "bias", "variance", "own", "noise")}
        public |= {"omega": self._omega(state, name), "kappa": np.array(self.settings.kappa)}
        blocks = (
            *(block(part, "linear", rows=m, width=1) for part in ("residuals", "weights")),
            block("moments", "linear", rows=1, width=3),
        )
        return Question(t, "bias/residuals", public, (ReleaseSpec(name, blocks),))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Learn from a release."""
        learned = (
            self._learn_counts(answer)
            if question.round == 0
            else self._learn_residuals(state, question, answer)
        )
        return {**state, **learned, "round": np.array(question.round + 1)}

    def model(self, state: State) -> DefaultModel:
        """The model after any round: one direction, the same for all items, is the user's own
        mean."""
        m = self.facts.num_items
        if "bias" not in state:
            return DefaultModel(
                np.zeros((m, 1)), np.zeros(m), np.zeros(m), 0.0, 1.0, self.facts.value_range
            )
        phi = np.full((m, 1), math.sqrt(float(state["own"])))
        bias, variance, counts, (low, high) = (
            *(_floats(state, name) for name in ("bias", "variance", "counts")),
            self.facts.value_range,
        )
        model = DefaultModel(
            phi, bias, variance, float(state["mean"]), float(state["noise"]), (low, high)
        )
        std = (
            math.sqrt(model.noise + float(np.average(variance, weights=counts))) * (high - low) / 4
        )
        return replace(
            model, ranker=LikedRanker.of(model, counts, std=std, value_range=(low, high))
        )

    def _omega(self, state: State, release: str) -> Float64s:
        c = _floats(state, "counts") + 0.1 * float(state["counts_std"])
        return tail_weights(
            c, noise_std=self.plan.drawn_multiplier(release), exponent=self.settings.weight_exponent
        )

    def _learn_counts(self, answer: Release) -> Arrays:
        """Counts by empirical Bayes, in units where a user weighs 1 / sqrt(n_u) on each of its
        items; the mean over users."""
        unit = math.sqrt(1 - MEAN)
        m = self.facts.num_items
        n = self.facts.num_users
        std = answer.noise_std["counts"]
        c = (
            denoise_counts(answer.values["counts"][:, 0] / unit, std=std / unit, features=None)
            + 0.02
        )
        mean = float(np.clip(2 * answer.values["mean"][0, 0] / (math.sqrt(MEAN) * n), -2, 2))
        numbers = {
            "mean": mean,
            "counts_std": std / unit,
            "noise": USUAL[0, 1],
            "own": USUAL[0, 2],
            "mus": 0.0,
        }
        zeros: Arrays = {
            name: np.zeros(m) for name in ("bias", "variance", "observed", "precision")
        }
        return {
            "counts": c,
            "moments": np.zeros(3),
            **zeros,
            **{name: np.array(number) for name, number in numbers.items()},
        }

    def _learn_residuals(self, state: State, question: Question, answer: Release) -> Arrays:
        """Biases observed in this round and before, shrunk towards those of items as often rated;
        then the two variances."""
        c = _floats(state, "counts")
        std = answer.noise_std["residuals"]
        weight = self._weights(state, question, answer)
        now = 1 / ((std / weight) ** 2 + UNSETTLED * 9.0**-question.round)
        before = _floats(state, "precision")
        # a user's counts add up to the root of its ratings
        ratings = c * float(c.sum()) / self.facts.num_users
        observed = (
            before * _floats(state, "observed") + now * answer.values["residuals"][:, 0] / weight
        ) / (before + now)
        log_count = np.log(c + 0.3 * float(state["counts_std"]))
        log_count = (log_count - log_count.mean()) / max(float(log_count.std()), 1e-9)
        columns = np.column_stack([0.5 * log_count, 0.2 * log_count**2, np.ones(len(c))])
        sampling = float(state["noise"]) / np.maximum(ratings, 0.5)
        found = regress(
            observed, 1 / (before + now) + sampling, columns, sweeps=12, start=USUAL_BIASES
        )
        spread = float(np.average((found.mean - np.average(found.mean, weights=c)) ** 2, weights=c))
        learned: Arrays = {
            "bias": found.mean,
            "variance": found.variance,
            "observed": observed,
            "precision": before + now,
        }
        return {**learned, **self._variances(state, answer, spread)}

    def _weights(self, state: State, question: Question, answer: Release) -> Float64s:
        """(m,) sums of omega over reports' norms: of each item's own column and of what the counts
        predict, by their variances."""
        kappa = self.settings.kappa
        omega = np.asarray(question.public["omega"], np.float64)
        c = _floats(state, "counts")
        seen = answer.values["weights"][:, 0] / kappa
        expected = omega * c
        ratio = max(float(seen @ expected) / float(expected @ expected), 1e-3)
        expected = expected * ratio
        expected_variance = (omega * ratio * float(state["counts_std"])) ** 2 * 0.6 + (
            0.15 * expected
        ) ** 2
        seen_variance = (answer.noise_std["weights"] / kappa) ** 2 + 1e-12
        weight = (expected / expected_variance + seen / seen_variance) / (
            1 / expected_variance + 1 / seen_variance
        )
        return np.maximum(weight, 0.02 * ratio)

    def _variances(self, state: State, answer: Release, spread: float) -> Arrays:
        """Variances of ratings about their expectation, given the `spread` of biases, and of users'
        own means; of all rounds so far."""
        std = answer.noise_std["moments"]
        unit = math.sqrt(MOMENTS / 3) * self.facts.num_users / LARGEST
        weight = 1 / (std**2 + 1e-9)
        mus = float(state["mus"]) + weight
        sums = (
            float(state["mus"]) * _floats(state, "moments")
            + weight * answer.values["moments"][0] / unit
        ) / mus
        several = max(float(sums[0]), 0.1)
        trust = USUAL[1] ** 2 / (USUAL[1] ** 2 + 1 / mus / (unit * several) ** 2)
        _, within, own = USUAL[0] + trust * (sums / several - USUAL[0])
        noise = np.clip(within - spread, 0.3 * within, 4)
        return {
            "moments": sums,
            "mus": np.array(mus),
            "noise": np.array(max(noise, 0.05)),
            "own": np.array(np.clip(own, 0.01, 4)),
        }


def report_residuals(question: Question, mine: Interactions) -> Reports:
    """Blocks "residuals", omega x, "weights", omega kappa, and "moments": of squared norms 1 - q
    together, and q or less.

    x: ratings from which the user took what it knows of its own mean. Moments of its n ratings:
    whether n is 2 or more, and then their variance s^2 and (mean of the user - mean)^2 - s^2 / n,
    which neither n nor s biases.
    """
    omega = np.asarray(question.public["omega"], np.float64)
    kappa = float(question.public["kappa"])
    x = scaled(mine) - float(question.public["mean"])
    n = np.diff(mine.user_ptr)
    size = np.maximum(n, 1)
    several = (n >= 2).astype(np.float64)
    one = np.ones((mine.num_users, 1))
    mean = segments.sums(mine.user_ptr, x) / size
    variance = segments.squares(mine.user_ptr, x - np.repeat(mean, n)) / np.maximum(n - 1, 1)
    moments = np.column_stack([several, several * variance, several * (mean**2 - variance / size)])
    moments = np.clip(moments, -LARGEST, LARGEST) / (math.sqrt(3) * LARGEST)
    w = omega[mine.items]
    x = x - np.repeat(own_means(question.public, mine, x), n)
    norms = np.sqrt(segments.squares(mine.user_ptr, w * np.sqrt(x**2 + kappa**2)) / (1 - MOMENTS))
    w = w / np.repeat(np.maximum(norms, 1e-300), n)
    blocks = [
        RealBlock(w * x, one),
        RealBlock(w * kappa, one),
        RealBlock(np.full(mine.num_users, math.sqrt(MOMENTS)), moments),
    ]
    return bounded(mine.user_ptr, mine.items, blocks, question.releases, scaling="clip")


def own_means(
    public: Mapping[str, npt.NDArray[np.generic]], mine: Interactions, x: Float64s
) -> Float64s:
    """(num_users,) posterior mean of c_u under the current biases; x (n,) ratings less the mean."""
    bias = np.asarray(public["bias"], np.float64)
    variance = np.asarray(public["variance"], np.float64)
    precision = 1 / (float(public["noise"]) + variance[mine.items])
    weighed = segments.sums(mine.user_ptr, precision * (x - bias[mine.items]))
    return np.asarray(
        weighed / (segments.sums(mine.user_ptr, precision) + 1 / float(public["own"])), np.float64
    )


CLIENT_STEPS: Mapping[str, ClientStep] = {
    "bias/counts": default_client.report_counts,
    "bias/residuals": report_residuals,
}


def _floats(state: State, name: str) -> Float64s:
    return np.asarray(state[name], np.float64)


def build(settings: NoSettings, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    chosen = BiasSettings()
    plan = facts.plan(chosen.shares)
    return Prepared(BiasRecipe(plan, chosen, facts), CLIENT_STEPS, plan)


def client_steps(settings: NoSettings, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return CLIENT_STEPS


SPEC = RecipeSpec(
    name="dp-bias",
    build=build,
    client_steps=client_steps,
    evaluates=True,
    kinds=("ratings",),
)
