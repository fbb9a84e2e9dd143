"""The default recipe: private content and private deviations around an exact local user model.

    x_uj = mean + b_j + phi_j' w_u + e,   w_u ~ N(0, I),   e ~ N(0, noise + variance_j)

phi_j starts as public content (leading directions of the item features) with the private item bias
and log count as two more columns, whitened by the private counts; its first d coordinates then get
a private deviation per item. Rounds:

    counts   how often each item is rated, every user weighing 1 in all, and the mean
    biases   residuals and weights per item, in one report of norm 1; not where public people taught
             them (`public_people`)
    pairs    the Gram of what the most rated items are rated together with: it orders lists
             (`item_item`, `liked`)
    tastes   only without features and without public people: the Gram z z' of the most rated items
             gives the first directions
    step/t   a noisy Newton step on (b_j, first d of phi_j): cross-fitted residual times [alpha,
             w_u], no per-item matrices, and how long the step may be (`scales`), and how
             wide users' vectors are spread (`scales`)

Guarantee (user, add/remove): every release has sensitivity 1 (`client`); what the server
makes of releases is post-processing, and the composition of the plan's releases is exact. Against
the published recipe: no A_j is released, so that d + 1 numbers an item carry all signal; biases
come before tastes; every user's whole report has norm exactly 1; updates are shrunk by priors
fitted to the noised sums themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.factorization.default_clicks.gram_pairs import denoised_diagonal, shared
from fedrec.factorization.default_clicks.item_item import ItemItem, ease_of_all, head_size
from fedrec.factorization.default_clicks.spectrum import stands_out
from fedrec.factorization.default_ratings import client as default_client
from fedrec.factorization.default_ratings.directions import directions, directions_told
from fedrec.factorization.default_ratings.item_posterior import bias_features, remembered, shrunk
from fedrec.factorization.default_ratings.liked_ranker import LikedRanker
from fedrec.factorization.default_ratings.model import DefaultModel
from fedrec.factorization.default_ratings.public_directions import together, told_shares
from fedrec.factorization.default_ratings.scales import MOST, StepScales, rescaled, widths
from fedrec.factorization.default_ratings.settings import BLEND, DefaultSettings
from fedrec.factorization.default_ratings.taste_directions import most_rated, taste_directions
from fedrec.factorization.empirical_bayes import (
    USUAL_BIASES,
    denoise_counts,
    expected_counts,
    tail_weights,
)
from fedrec.factorization.facts import PublicFacts, beside_known
from fedrec.federation.coding import rounded_numbers, rounded_rows
from fedrec.federation.messages import BlockSpec, ClientStep, Question, Release, ReleaseSpec, State
from fedrec.federation.reports import block
from fedrec.privacy.calibration import Plan

Arrays = dict[str, npt.NDArray[np.generic]]

_SIZES = ((0.27, 0.15), (0.55, 0.22), (1.0, 0.26), (1.82, 0.22), (3.67, 0.15))
"""Sizes of users over the typical one, and how many users have them."""
FOLDS = 8
"""Of items, in a step's reports: a user's vectors.

An eighth less to know a taste by costs about .001 of RMSE at first and none later."""
EARLIER = 0.5
"""Of what an earlier training observed, relative to its precision: people change, and their ratings
are partly the same again.

Validation RMSE of a second training on the same ratings, cold and warm: MovieLens 1M .888 and .880
at epsilon 1, .862 and .856 at 5 (one draw of noise each); planted demo .844 and .832 at 1 (two);
300 planted users, where a draw moves it by .01: .798 and .803 at 1, .787 and .790 at 5 (six and
five, one split), .865 and .858, .850 and .844 (two, another). Weights of .2 to 1 differ by .003 at
most. NDCG@20 of lists changes by less than draws of noise do: .152 and .151, .200 and .198 on
MovieLens 1M.
"""
NOISE_STD = 0.25
SLOPE_STD = 0.5
"""How far the noise's variance may be from `DefaultSettings.noise`, and the slope of what tastes
add from 1, before any release."""
CLIENT_STEPS: Mapping[str, ClientStep] = {
    "default/counts": default_client.report_counts,
    "default/biases": default_client.report_biases,
    "default/pairs": default_client.report_pairs,
    "default/tastes": default_client.report_tastes,
    "default/step": default_client.report_steps,
}


@dataclass(frozen=True)
class DefaultRecipe:
    """The server: post-processing of releases only."""

    plan: Plan
    settings: DefaultSettings
    facts: PublicFacts
    content: Float64s | None
    """(m, f) directions of what is public, as long as no biases are known."""
    start: Callable[[], State] = dict
    """What public people have taught, `recipes.default.learned`."""
    sides: tuple[Float64s, ...] = ()
    """(m, f_q) public sides that make `content`, where there are several."""

    def begin(self) -> State:
        """Nothing is known but public content and what `start` says."""
        return {**self.start(), "round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """The next round of the module's list."""
        t = int(state["round"])
        if t >= len(self._rounds):
            return None
        name = self._rounds[t]
        kind = name.split("/")[0]
        ask, _ = self._round(kind)
        return Question(t, f"default/{kind}", ask(state), (self._spec(name, kind, state),))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Learn from a release."""
        t = int(state["round"])
        kind = self._rounds[t].split("/")[0]
        state = {
            **state,
            **{
                name: question.public[name]
                for name in ("phi", "bias", *default_client.UNITS)
                if name in question.public
            },
        }  # as devices had them
        _, learn = self._round(kind)
        return {**state, **learn(state, answer), "round": np.array(t + 1)}

    def _round(
        self, kind: str
    ) -> tuple[Callable[[State], Arrays], Callable[[State, Release], Arrays]]:
        """What is asked in a round of this kind, and what is learnt from the answer."""
        rounds: dict[str, tuple[Callable[[State], Arrays], Callable[[State, Release], Arrays]]] = {
            "counts": (self._ask_counts, self._learn_counts),
            "biases": (self._ask_biases, self._learn_biases),
            "pairs": (self._ask_pairs, self._learn_pairs),
            "tastes": (self._ask_tastes, self._learn_tastes),
            "step": (self._ask_step, self._learn_step),
        }
        return rounds[kind]

    def model(self, state: State) -> DefaultModel:
        """The model after any round; before the first biases it knows the mean at most."""
        m = self.facts.num_items
        if "phi" not in state:
            nothing = np.zeros((m, 1))
            mean = float(state.get("mean", 0.0))
            model = DefaultModel(
                nothing, np.zeros(m), np.zeros(m), mean, self._noise(state), self.facts.value_range
            )
        else:
            phi = np.column_stack([_floats(state, "phi"), _floats(state, "rest")])
            bias = _floats(state, "bias")
            variance = _floats(state, "variance")
            model = DefaultModel(
                phi,
                bias,
                variance,
                float(state["mean"]),
                self._noise(state),
                self.facts.value_range,
            )
        return replace(model, ranker=self._ranker(model, state)) if "counts" in state else model

    def _ranker(self, model: DefaultModel, state: State) -> LikedRanker:
        """The ranker of what the releases say so far."""
        counts, (low, high) = _floats(state, "counts"), self.facts.value_range
        std = (
            math.sqrt(model.noise + float(counts @ model.variance) / float(counts.sum()))
            * (high - low)
            / 4
        )
        ranker = LikedRanker.of(model, counts, std=std, value_range=self.facts.value_range)
        return (
            replace(ranker, similar=ItemItem.of_arrays(state), blend=BLEND)
            if "left" in state
            else ranker
        )

    @property
    def _rounds(self) -> tuple[str, ...]:
        return tuple(self.settings.shares)

    def _spec(self, name: str, kind: str, state: State) -> ReleaseSpec:
        m = self.facts.num_items
        blocks: tuple[BlockSpec, ...]
        match kind:
            case "counts":
                blocks = (
                    block("counts", "linear", rows=m, width=1),
                    block("mean", "linear", rows=1, width=1),
                )
            case "biases":
                blocks = (
                    block("residuals", "linear", rows=m, width=1),
                    block("weights", "linear", rows=m, width=1),
                )
            case "pairs":
                blocks = (block("pairs", "linear", rows=self._head, width=self._head),)
            case "tastes":
                blocks = (
                    block("tastes", "outer", rows=1, width=min(self.settings.taste_items, m)),
                )
            case _:
                d = self._width(state)
                scales = block(name.replace("step", "scales"), "linear", rows=1, width=d + 6)
                blocks = (block(name, "linear", rows=m, width=d + 1, folds=FOLDS), scales)
        return ReleaseSpec(name, blocks, isometric=self.settings.isometric)

    # --- counts and mean ---

    def _ask_counts(self, state: State) -> Arrays:
        return {"mean_energy": np.array(self.settings.mean_energy)}

    def _learn_counts(self, state: State, answer: Release) -> Arrays:
        """Counts by empirical Bayes, in units where a user weighs 1 / sqrt(n_u) on each of its
        items."""
        energy = self.settings.mean_energy
        unit = math.sqrt(1 - energy)
        std = answer.noise_std["counts"] / math.sqrt(1 - energy)
        noisy = answer.values["counts"][:, 0] / unit
        content = None if self.content is None else self.content[:, :60]
        if "people_counts" in state:
            c = (
                expected_counts(
                    noisy, std=std, expected=_floats(state, "people_counts"), features=content
                )
                + 0.02
            )
        else:
            c = denoise_counts(noisy, std=std, features=content) + 0.02
        log_count = np.log(c + 0.3 * std)
        mean = 2 * answer.values["mean"][0, 0] / (math.sqrt(energy) * self.facts.num_users)
        log_count = (log_count - log_count.mean()) / max(float(log_count.std()), 1e-9)
        return {
            "mean": np.array(np.clip(mean, -2, 2)),
            "counts": c,
            "counts_std": np.array(std),
            "log_count": log_count,
        }

    # --- item biases ---

    def _ask_biases(self, state: State) -> Arrays:
        return {
            "mean": state["mean"],
            "omega": self._omega(state, "biases"),
            "kappa": np.array(self.settings.kappa),
        }

    def _omega(self, state: State, release: str) -> Float64s:
        c = _floats(state, "counts") + 0.1 * float(state["counts_std"])
        weights = tail_weights(
            c, noise_std=self.plan.drawn_multiplier(release), exponent=self.settings.weight_exponent
        )
        return np.asarray(rounded_numbers(weights), np.float64)

    def _learn_biases(self, state: State, answer: Release) -> Arrays:
        """An item's total weight from its own column and from what the counts predict; then its
        bias, shrunk towards its features."""
        std = answer.noise_std["weights"]
        kappa = self.settings.kappa
        c = _floats(state, "counts")
        omega = self._omega(state, "biases")
        seen = answer.values["weights"][:, 0] / kappa
        expected = omega * c
        ratio = max(float(seen @ expected) / float(expected @ expected), 1e-3)
        expected = expected * ratio
        expected_variance = (omega * ratio * float(state["counts_std"])) ** 2 * 0.6 + (
            0.15 * expected
        ) ** 2
        seen_variance = (std / kappa) ** 2 + 1e-12
        weight = (expected / expected_variance + seen / seen_variance) / (
            1 / expected_variance + 1 / seen_variance
        )
        weight = np.maximum(weight, 0.02 * ratio)
        observed = answer.values["residuals"][:, 0] / weight
        variance = (std / weight) ** 2 + 0.06 / weight
        log_count = _floats(state, "log_count")
        if len(self.sides) > 1:
            plain = bias_features(log_count, None)
            state = {**state, "shares": told_shares(observed, variance, plain, self.sides)}
        found = self.settings.read(
            observed,
            variance,
            bias_features(log_count, self._content(state)),
            sweeps=12,
            start=USUAL_BIASES,
        )
        learned: Arrays = {
            "bias": found.mean,
            "variance": found.variance,
            "bias_observed": observed,
            "bias_variance": (std / weight) ** 2 + 1e-9,
        }
        if self._known_by_heart:
            learned["fitted"] = np.array([np.sum(found.follows)])
        if "shares" in state:
            learned["shares"] = state["shares"]
        return {**learned, **self._directions(state, found.mean, None)}

    def _directions(self, state: State, bias: Float64s, tastes: Float64s | None) -> Arrays:
        """The learned part of phi and the rest."""
        phi = directions(
            bias,
            _floats(state, "log_count"),
            _floats(state, "counts"),
            content=self._content(state),
            energy=self.settings.content,
            tastes=tastes,
        )
        learned = phi[:, : self.settings.learned]
        return {
            "phi": learned,
            "public_phi": learned,
            "rest": phi[:, self.settings.learned : self.settings.served],
        }

    def _content(self, state: State) -> Float64s | None:
        """Directions of what is public, sides weighing as much as biases say that they tell."""
        if "shares" not in state or self.content is None:
            return self.content
        width = self.content.shape[1]
        return together(self.sides, dimension=width, shares=_floats(state, "shares"))

    # --- which items are rated together ---

    @property
    def _head(self) -> int:
        std = self.plan.drawn_multiplier("pairs")
        return head_size(users=self.facts.num_users, items=self.facts.num_items, noise_std=std)

    def _ask_pairs(self, state: State) -> Arrays:
        c = _floats(state, "counts")
        return {"omega": np.ones(len(c)), "items": most_rated(c, self._head)}

    def _learn_pairs(self, state: State, answer: Release) -> Arrays:
        """EASE of the denoised Gram: whoever rates one item rates which others."""
        head = np.asarray(self._ask_pairs(state)["items"], np.int64)
        std = answer.noise_std["pairs"]
        gram = (answer.values["pairs"] + answer.values["pairs"].T) / 2
        counts = _floats(state, "counts")
        rated = counts[head]
        if not stands_out(gram, noise_std=std):
            return {}  # nothing stands out of the noise: counts and predictions order lists
        diagonal = denoised_diagonal(np.diag(gram), noise_std=std, expected=rated)
        content = self._content(state)
        pairs = shared(
            gram,
            diagonal,
            diagonal,
            noise_std=std,
            clicks=self._ratings_per_user(counts) * float(rated.sum() / counts.sum()),
            users=self.facts.num_users,
            content=None if content is None else content[head],
            content_if_hidden=True,
        )
        similar = ease_of_all(
            pairs,
            diagonal,
            diagonal,
            head=head,
            counts=counts,
            exponent=1.0,
            content=content,
        )
        return similar.arrays()

    # --- taste Gram, where there are no features ---

    def _ask_tastes(self, state: State) -> Arrays:
        c = _floats(state, "counts")
        popular = most_rated(c, self.settings.taste_items)
        omega = (c + float(state["counts_std"])) ** -0.35
        return {**self._current(state), "omega": omega, "items": popular}

    def _learn_tastes(self, state: State, answer: Release) -> Arrays:
        """The first directions, of the Gram."""
        asked = self._ask_tastes(state)
        items, weights = (np.asarray(asked[name]) for name in ("items", "omega"))
        tastes, fitted = taste_directions(
            answer.values["tastes"][0],
            _floats(state, "counts"),
            omega=weights[items],
            std=answer.noise_std["tastes"],
            width=self.settings.width,
            energy=self.settings.taste_variance,
            users=self.facts.num_users,
        )
        found = self._directions(state, _floats(state, "bias"), tastes)
        return found | ({"first_fitted": np.array(fitted)} if self._known_by_heart else {})

    # --- steps ---

    def _current(self, state: State) -> Arrays:
        """What a device needs of the current model, rounded."""
        arrays = {
            "phi": _floats(state, "phi"),
            "bias": _floats(state, "bias"),
            "variance": _floats(state, "variance") + self._noise(state),
        }
        phi = rounded_rows(arrays.pop("phi"))
        return (
            {"phi": phi}
            | {name: rounded_numbers(array) for name, array in arrays.items()}
            | {"mean": state["mean"]}
        )

    def _ask_step(self, state: State) -> Arrays:
        name = self._rounds[int(state["round"])]
        numbers = {
            "alpha": self.settings.alpha,
            "width": self._width(state),
            "scales_energy": self.settings.scales_energy,
            "most_ratings": MOST * self._ratings_per_user(_floats(state, "counts")),
            **self._expected_scales(state).units,
        }
        public = {key: np.array(number) for key, number in numbers.items()}
        return {**self._current(state), **public, "omega": self._omega(state, name)}

    def _width(self, state: State) -> int:
        told = directions_told(self._ratings(_floats(state, "counts")))
        return min(self.settings.width, int(state["phi"].shape[1]), told)

    def _noise(self, state: State) -> float:
        return float(state.get("noise", self.settings.noise))

    def _expected_scales(self, state: State) -> StepScales:
        """Before the step's release: what the model and earlier releases expect."""
        known = self._known(state)
        stds = float(state.get("noise_std", NOISE_STD)), float(state.get("slope_std", SLOPE_STD))
        sizes = _SIZES
        alpha = self.settings.alpha
        added = self._added(state, known)
        return StepScales.expected(
            self._noise(state),
            known[: self._width(state)],
            added,
            stds=stds,
            alpha=alpha,
            users=self.facts.num_users,
            sizes=sizes,
        )

    def _added(self, state: State, known: Float64s) -> float:
        """Mean square of what tastes add to a prediction from the user's own mean, as the model
        expects it."""
        c = _floats(state, "counts")
        return max(float(known[1:] @ (c / c.sum() @ _floats(state, "phi")[:, 1:] ** 2)), 1e-4)

    def _learn_step(self, state: State, answer: Release) -> Arrays:
        """A Newton step on (b_j, first d of phi_j), averaged with earlier ones, each coordinate
        shrunk towards its start.

        A step takes users' vectors as given, but they move with phi: where all items change a
        direction by one factor, a user's w changes by that factor to the power 2 S - 1, S the share
        of the direction's variance that its ratings leave open. Predictions change twice as fast as
        a step expects where S = 1: it goes 1 / (2 S) of the way there.
        """
        name = self._rounds[int(state["round"])]
        d = self._width(state)
        alpha = self.settings.alpha
        phi = _floats(state, "phi")
        start = _floats(state, "public_phi")
        c = _floats(state, "counts")
        omega = self._omega(state, name)
        std = answer.noise_std[name]
        block = name.replace("step", "scales")
        energy = self.settings.scales_energy
        expected = self._expected_scales(state)
        scales = expected.after(
            answer,
            block,
            units=default_client.units_of(state, d),
            energy=energy,
            fitted=self._fitted(state),
        )
        total = omega * c * scales.ratio
        g = answer.values[name]
        hessian = total[:, None] * np.concatenate([[alpha], scales.known]) * self.settings.damping
        ratings = np.maximum(self._ratings(c), 0.5)[:, None]
        sampling = scales.residual / ratings / np.concatenate([[1.0], scales.known])
        observed = (
            np.column_stack([_floats(state, "bias"), phi[:, :d] - start[:, :d]]) + g / hessian
        )
        fresh = self.settings.fresh
        observed, precision = remembered(
            state,
            observed,
            1 / ((std / hessian) ** 2 + fresh * sampling),
            memory=self.settings.memory,
        )
        variance = 1 / precision + (1 - fresh) * sampling
        slopes = np.maximum(2 * (1 - scales.known), 1.0)
        kept: Arrays = {"observed": observed, "precision": precision, "observed_variance": variance}
        kept |= {
            name: np.array(getattr(scales, name)) for name in ("noise", "noise_std", "slope_std")
        }
        all_observed, open_part = beside_known(state, observed, variance)
        kept |= shrunk(
            state,
            all_observed,
            open_part,
            own=open_part / variance,
            slopes=slopes,
            content=self._content(state),
            read=self.settings.read,
        )
        if not self._known_by_heart:
            del kept["fitted"]
        return kept | rescaled({**state, **kept}, widths(expected, scales, self._known(state)))

    @property
    def _known_by_heart(self) -> bool:
        """Whether scales are corrected for what was fitted (`scales`): without features, whose
        directions the correction would shrink too, and without noise, which hides single
        ratings."""
        return self.content is None and not self.plan.guarantee.private

    def _fitted(self, state: State) -> tuple[float, float]:
        """Effective parameters fitted to ratings so far, a rating: of biases, of tastes; none
        where scales are not corrected.

        A step fits deviations from the first directions: what they do not replace of these, stays
        fitted."""
        biases, *deviations = _floats(state, "fitted") if "fitted" in state else (0.0,)
        every = self.facts.num_items * max(len(deviations), 1)
        first = float(state.get("first_fitted", 0.0))
        tastes = sum(deviations) + max(1 - sum(deviations) / every, 0.0) * first
        ratings = self._ratings_per_user(_floats(state, "counts")) * self.facts.num_users
        return float(biases) / ratings, float(tastes) / ratings

    def _ratings_per_user(self, c: Float64s) -> float:
        """sum over users of sqrt(n_u) is what the counts add up to."""
        return (float(c.sum()) / self.facts.num_users) ** 2

    def _ratings(self, c: Float64s) -> Float64s:
        """(m,) how many ratings items have that weigh c (m,) in all."""
        return c * math.sqrt(self._ratings_per_user(c))

    def _known(self, state: State) -> Float64s:
        """(D,) variance of w's coordinates that devices know: 1 less the diagonal of the average of
        (I + n/noise E[phi phi'])^-1 over the sizes n of ratings' users."""
        phi = _floats(state, "phi")
        c = _floats(state, "counts")
        gram = (phi * (c / c.sum())[:, None]).T @ phi
        n = self._ratings_per_user(c)
        # reports of norm 1: ratings count 1 / sqrt(n)
        weights = [(size, share * math.sqrt(size)) for size, share in _SIZES]
        total = sum(weight for _, weight in weights)
        terms = [
            w / total * np.linalg.inv(np.eye(len(gram)) + gram * n * size / self._noise(state))
            for size, w in weights
        ]
        return np.asarray(np.maximum(1 - np.diag(np.sum(terms, axis=0)), 1e-6))


def _floats(state: State, name: str) -> Float64s:
    return np.asarray(state[name], np.float64)
