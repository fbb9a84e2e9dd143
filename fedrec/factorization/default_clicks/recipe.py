"""The default recipe for clicks: private counts, a private taste Gram, then private item steps
around an exact local solve.

A user's vector u solves Hu, Koren and Volinsky (2008, eq. 4) on the device, item vectors V being
public. Rounds:

    counts   how often each item is clicked, every user weighing 1 in all
    tastes   the Gram z z' of the most clicked items: item-item weights among them (`item_item`),
             and the first V
    step/t   the sum over users of omega_j h for each clicked item j, h = u / |u|, and the Gramian
             of all h; or the Gram of tastes again

Scores are those of the item-item weights and of u, blended (`click_model`): the weights tell the
most clicked items apart better than few numbers can, the vectors reach the others. Where what was
released before says that steps would add less, every further release goes to the Gram, and the
model is that of `dp_item_item`, or to counts, and it is that of `dp_popularity` (`settings`).

Guarantee (user, add/remove): every release has sensitivity 1 (`client`); what the server
makes of releases is post-processing, and the composition of the plan's releases is exact. Against
the published recipe: no A_j is released (one Gramian serves all items, popular ones being damped
instead); only the direction of u is sent, every user's whole report having norm exactly 1; sums are
shrunk by a prior fitted to the noised sums themselves; V starts from what users click together, not
at random. Public item features say which directions of the Gram to look at first, and carry its
weights to items outside of it (`item_item`); public people answer every question too, and their
reports are added exactly, after the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks import client as clicks_client
from fedrec.factorization.default_clicks.asked import asked_of
from fedrec.factorization.default_clicks.gram_pairs import RANK, denoised_diagonal, shared
from fedrec.factorization.default_clicks.item_item import ItemItem, ease_of_all
from fedrec.factorization.default_clicks.model import (
    ClickModel,
    ItemItemModel,
    PublicPriorModel,
    blend_weight,
)
from fedrec.factorization.default_clicks.recency import (
    DECAYS,
    chosen_decay,
    decayed,
    report_recency,
)
from fedrec.factorization.default_clicks.settings import (
    Clicked,
    ClickSettings,
    again_by_counts,
    again_by_gram,
    tells_nothing,
)
from fedrec.factorization.default_clicks.spectrum import denoised
from fedrec.factorization.default_clicks.worth import blends, chosen_blend, report_worth
from fedrec.factorization.empirical_bayes import denoise_counts, expected_counts
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.coding import rounded_numbers, rounded_rows
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, State
from fedrec.federation.reports import ExactSums, block
from fedrec.numerics import compiled
from fedrec.numerics.segments import unpack
from fedrec.privacy.calibration import Plan

Arrays = dict[str, npt.NDArray[np.generic]]

GRAMIAN = 0.02
"""Of the squared norm of a step's report, the Gramian's part: d^2 numbers summed over all users
need little."""
CONTENT_DIRECTIONS = 300
"""Leading directions of public features, as `default_settings` has for ratings."""
LEAST_COUNT = 0.2
"""The smallest weighted count an item is credited with."""
FLOOR = 1.0
CROWDED = 150.0
"""Of the mean eigenvalue 1 / d: directions of the Gramian below FLOOR, or CROWDED d / m, plus the
edge of its noise, are not amplified.

The second counts in catalogues of fewer than 150 items a direction. With the first alone, MovieLens
1M as clicks (30 items a direction, split seed 1) had validation NDCG@20 .167 without noise and .185
at epsilon 20, against .212 and .197 with a floor of 4.
"""
CLIENT_STEPS: Mapping[str, ClientStep] = {
    "clicks/counts": clicks_client.report_counts,
    "clicks/tastes": clicks_client.report_tastes,
    "clicks/step": clicks_client.report_steps,
    "clicks/worth": report_worth,
    "clicks/recency": report_recency,
}


@dataclass(frozen=True)
class ClickRecipe:
    """The server: post-processing of releases, and of the clicks of public people where there are
    any."""

    plan: Plan
    settings: ClickSettings
    facts: PublicFacts
    people: Interactions | None = None
    content: Float64s | None = None
    """(m, f) leading directions of public features, largest first."""
    public: tuple[Float32s, ...] = ()
    """(m, f) P of each public source, as `model` has them."""

    def begin(self) -> State:
        """Nothing is known."""
        return {"round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """The next round of the module's list."""
        t = int(state["round"])
        exact = "gram" in state and not state["gram_std"]
        if t >= self.settings.rounds or exact:  # the same Gram again would say the same
            return self._ask_of_lists(state)
        if t == 0 or "faint" in state:
            counts = block("counts", "linear", rows=self.facts.num_items, width=1)
            release = ReleaseSpec(list(self.settings.shares)[t], (counts,))
            return Question(t, "clicks/counts", self._judges, (release,))
        if t == 1 or "gram" in state:
            return Question(
                t, "clicks/tastes", self._ask_tastes(state), (self._tastes_release(state, t),)
            )
        return self._ask_step(state, t)

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Learn from a release, as if people had been among those who reported."""
        if self.people is not None:
            answer = with_people(question, answer, self.people)
        learn = {
            "clicks/counts": self._learn_counts,
            "clicks/tastes": self._learn_tastes,
            "clicks/step": self._learn_step,
            "clicks/worth": self._learn_worth,
            "clicks/recency": self._learn_recency,
        }
        return {
            **state,
            **learn[question.step](state, answer),
            "round": np.array(question.round + 1),
        }

    def model(self, state: State) -> ClickModel | ItemItemModel | PublicPriorModel:
        """The model after any round: popularity as soon as there are counts."""
        private = self.private_model(state)
        blend = self._chosen(state)
        found = PublicPriorModel(private, self.public, blend) if blend[0] < 1 else private
        return decayed(found, float(state["decay"])) if "decay" in state else found

    def private_model(self, state: State) -> ClickModel | ItemItemModel:
        """The model without public sides."""
        m = self.facts.num_items
        if "faint" in state:
            state = {"counts": state["counts"]}
        # V has seen nothing but the Gram of the weights: it is that Gram in fewer numbers
        V = state.get("V", np.zeros((m, 1), np.float32))
        counts = state.get("counts", np.zeros(m))
        chosen = self.settings
        similar = item_item_of(state)
        if "gram" in state and similar is not None:
            return ItemItemModel(similar, _floats(state, "counts"))
        blend = 0.0 if similar is None else self._blend(state, similar)
        return ClickModel(
            np.asarray(V, np.float32),
            np.asarray(counts, np.float64),
            chosen.ridge,
            chosen.confidence,
            similar,
            blend,
        )

    def _blend(self, state: State, similar: ItemItem) -> float:
        part = self._clicked(state).part(np.asarray(state["head"], np.int64))
        return blend_weight(part=part, rank=similar.right.shape[1], width=self.settings.width)

    # --- public sides ---

    @property
    def _judges(self) -> Arrays:
        """Who leaves a click out, of every question; nothing where nobody does."""
        return {"judges": np.array(self.settings.judges)} if self.settings.judges else {}

    def _chosen(self, state: State) -> Float64s:
        """The blend of the private model and public sides; the first alone as long as none was
        chosen."""
        return _floats(state, "blend") if "blend" in state else np.eye(1 + len(self.public))[0]

    def _ask_of_lists(self, state: State) -> Question | None:
        """What is asked of the lists of what was learned: how much public sides count, then how
        clicks age."""
        if self.settings.worth and "blend" not in state:
            return self._ask_worth(state)
        if self.settings.recency and "decay" not in state and "left" in state:
            return self._ask_recency(state)
        return None

    def _ask_recency(self, state: State) -> Question:
        blend = self._chosen(state)
        sides = self.public if blend[0] < 1 else ()
        model = PublicPriorModel(self.private_model(state), sides, blend[: 1 + len(sides)])
        release = ReleaseSpec("recency", (block("recency", "linear", rows=1, width=len(DECAYS)),))
        told = {"weights": model.weights, "judges_of_time": np.array(self.settings.judges_of_time)}
        return Question(int(state["round"]), "clicks/recency", asked_of(model) | told, (release,))

    def _learn_recency(self, state: State, answer: Release) -> Arrays:
        judges = self.settings.judges_of_time * self._users
        std = answer.noise_std["recency"]
        decay = chosen_decay(answer.values["recency"][0], noise_std=std, judges=judges)
        return {"decay": np.array(decay)}

    def _ask_worth(self, state: State) -> Question:
        tried = blends(len(self.public))
        model = PublicPriorModel(self.private_model(state), self.public, tried[0])
        release = ReleaseSpec("worth", (block("worth", "linear", rows=1, width=len(tried)),))
        public = {**asked_of(model), **self._judges}
        return Question(int(state["round"]), "clicks/worth", public, (release,))

    def _learn_worth(self, state: State, answer: Release) -> Arrays:
        tried = blends(len(self.public))
        judges = self.settings.judges * self._users
        worth = answer.values["worth"][0]
        std = answer.noise_std["worth"]
        return {"blend": chosen_blend(worth, tried, noise_std=std, judges=judges)}

    # --- counts ---

    def _learn_counts(self, state: State, answer: Release) -> Arrays:
        """b by empirical Bayes, in units where a user weighs 1 / sqrt(n_u) on each of its items."""
        counted = answer.values["counts"][:, 0]
        std = answer.noise_std["counts"]
        if "counted" in state:
            counted, std = averaged(
                _floats(state, "counted"), float(state["counted_std"]), counted, std
            )
        found = denoise_counts(counted, std=std, features=None)
        counts = np.maximum(found, LEAST_COUNT)
        known: Arrays = {"counts": counts, "counted": counted, "counted_std": np.array(std)}
        if "faint" in state:
            return known
        clicked = Clicked(counts, self._users)
        alone = self.people is None or not std
        if alone and tells_nothing(Clicked(found, self._users), reached=self.settings.reached):
            return known | {"faint": np.array(1)}
        steps, gram = (clicked.told(K, width=self.settings.width) for K in self.settings.heads)
        # without noise what an item is credited with at least is no click
        seen = clicked if std else Clicked(found, self._users)
        if not again_by_counts(seen, gram, exact=not std):
            return known | {"head": steps}
        # beside noise public people teach vectors all the same
        return known | {"head": gram} | ({"again": np.array(1)} if alone else {})

    # --- taste Gram ---

    def _tastes_release(self, state: State, t: int) -> ReleaseSpec:
        """All of the square, not its triangle: its symmetric part then has isometric noise."""
        K = len(state["head"])
        return ReleaseSpec(
            "tastes" if t == 1 else f"step/{t - 2}", (block("tastes", "linear", rows=K, width=K),)
        )

    def _ask_tastes(self, state: State) -> Arrays:
        return {
            "omega": rounded_numbers(_floats(state, "counts") ** -self.settings.gram_exponent),
            "items": state["head"],
            **self._judges,
        }

    def _learn_tastes(self, state: State, answer: Release) -> Arrays:
        """Item-item weights; for V the leading eigenvectors, by how far they stand above the edge
        of the noise's spectrum; 0 outside."""
        d = self.settings.width
        std = answer.noise_std["tastes"]
        head = np.asarray(state["head"], np.int64)
        # std off the diagonal: std / sqrt(2)
        gram = (answer.values["tastes"] + answer.values["tastes"].T) / 2
        if "gram" in state:
            gram, std = averaged(_floats(state, "gram"), float(state["gram_std"]), gram, std)
            # eigenvectors are what costs, and the last Gram holds them all
            if int(state["round"]) + 1 < self.settings.rounds:
                return {"gram": gram, "gram_std": np.array(std)}
        spectrum = denoised(gram, noise_std=std, rank=max(d, RANK))
        clicked = _floats(state, "counts")[head]
        expected = clicked ** (1 - 2 * self.settings.gram_exponent)
        diagonal = denoised_diagonal(np.diag(gram), noise_std=std, expected=expected)
        popular = popular_by_both(
            _floats(state, "counted")[head],
            diagonal,
            std=float(state["counted_std"]),
            exponent=1 - 2 * self.settings.gram_exponent,
        )
        above = spectrum.shrunk[:d] / np.maximum(np.abs(spectrum.values[:d]), 1e-12)
        V = np.zeros((self.facts.num_items, d))
        V[head] = spectrum.vectors[:, :d] * np.sqrt(np.maximum(above, 0.05))
        exact = not std or self.people is not None  # what public people show is above any noise
        again = (
            "gram" in state
            or "again" in state
            or (not exact and again_by_gram(gram, popular, noise_std=std))
        )
        pairs = shared(
            gram,
            diagonal,
            popular,
            noise_std=std,
            clicks=self._clicked(state).held(head),
            users=self._users,
            content=None if self.content is None else self.content[head],
        )
        similar = ease_of_all(
            pairs,
            diagonal,
            popular,
            head=head,
            counts=_floats(state, "counts"),
            exponent=1 - 2 * self.settings.gram_exponent,
            content=self.content if again else None,
        )
        found: Arrays = {
            "V": _normalised(V),
            "weighed": similar.head,
            "left": similar.left,
            "right": similar.right,
            "spread": np.array(similar.spread),
        }
        return found | ({"gram": gram, "gram_std": np.array(std)} if again else {})

    def _clicked(self, state: State) -> Clicked:
        return Clicked(_floats(state, "counts"), self._users)

    @property
    def _users(self) -> int:
        """All who report, public people among them."""
        return self.facts.num_users + (0 if self.people is None else self.people.num_users)

    # --- steps ---

    def _ask_step(self, state: State, t: int) -> Question:
        d = self.settings.width
        m = self.facts.num_items
        name = f"step/{t - 2}"
        numbers = {
            "ridge": self.settings.ridge,
            "confidence": self.settings.confidence,
            "gramian_energy": GRAMIAN,
        }
        public = {"V": state["V"], "omega": self._omega(state)} | {
            key: np.array(number) for key, number in numbers.items()
        }
        public |= self._judges
        blocks = (
            block("gramian", "outer", rows=1, width=d),
            block("directions", "linear", rows=m, width=d),
        )
        return Question(t, "clicks/step", public, (ReleaseSpec(name, blocks),))

    def _omega(self, state: State) -> Float64s:
        return np.asarray(
            rounded_numbers(_floats(state, "counts") ** -self.settings.step_exponent), np.float64
        )

    def _learn_step(self, state: State, answer: Release) -> Arrays:
        """v_j = b_j G^-1 q_j / (1 + damping b_j (1 + coherence q_j' G^-1 q_j) / mean b).

        q_j: the shrunk mean of h over the clicks of j; G: the mean of h h' over users. Hu's matrix
        of item j is U'U + alpha A_j; without a release of A_j we take b_j (G + coherence q_j q_j'):
        users of every kind, and more of the kind that clicks j. Sherman and Morrison's formula then
        gives the above. The floor matters where users are few: an eigenvalue that noise made small
        would blow up what is mostly noise (on MovieLens 1M as clicks, 6,040 users, the steps lost
        all the Gram had found without it). `memory` of the V before is kept: an alternation forgets
        it, but its noise is another one.
        """
        d = self.settings.width
        b = _floats(state, "counts")
        part = math.sqrt(GRAMIAN)
        whole = math.sqrt(1 - GRAMIAN)
        std = answer.noise_std["directions"] / whole
        weights = b * self._omega(state)
        q = shrunk_directions(answer.values["directions"] / whole, std=std, weights=weights)
        n = self._users
        values, E = np.linalg.eigh(unpack(answer.values["gramian"][0] / part, d) / n)
        edge = answer.noise_std["gramian"] / part * math.sqrt(2 * d) / n
        floor = max(FLOOR / d, CROWDED / self.facts.num_items)
        solved = q @ (E / np.maximum(values, edge + floor)) @ E.T
        coherence = 1 + self.settings.coherence * np.sum(q * solved, axis=1)
        found = (b / (1 + self.settings.damping * b / b.mean() * coherence))[:, None] * solved
        return {
            "V": _normalised(
                found + self.settings.memory * _in_units_of(found, _floats(state, "V"))
            )
        }


def item_item_of(state: State) -> ItemItem | None:
    """What the taste Gram has said of its items; None before."""
    return ItemItem.of_arrays({**state, "head": state["weighed"]}) if "left" in state else None


def popular_by_both(
    counted: Float64s, diagonal: Float64s, *, std: float, exponent: float
) -> Float64s:
    """(K,) how popular items are, in units of a Gram's diagonal (K,) > 0, by that and by their
    counts (K,), as released with noise of this std: each has noise of its own.

    A click weighs count^((exponent - 1) / 2) in the Gram.
    """
    told = diagonal ** (1 / exponent)
    told *= max(float(counted.sum()), 1e-9) / float(told.sum())
    found = expected_counts(counted, std=std, expected=told, features=None)
    popular = np.maximum(found, LEAST_COUNT) ** exponent
    return np.asarray(popular * (diagonal.sum() / popular.sum()), np.float64)


def averaged(
    one: Float64s, one_std: float, other: Float64s, other_std: float
) -> tuple[Float64s, float]:
    """The mean of two releases of the same sum, weighed by how little noise each has, and its std;
    the mean of both without noise."""
    kept = 0.5 if one_std == other_std == 0 else other_std**2 / (one_std**2 + other_std**2)
    return kept * one + (1 - kept) * other, math.hypot(kept * one_std, (1 - kept) * other_std)


def with_people(
    question: Question, answer: Release, people: Interactions, *, users_per_batch: int = 16_384
) -> Release:
    """A release to which the reports of public people are added, without noise.

    No cost: nothing of it is anybody else's."""
    sums = ExactSums(question.blocks)
    for start in range(0, people.num_users, users_per_batch):
        some = people.users_subset(np.arange(start, min(start + users_per_batch, people.num_users)))
        sums.add(CLIENT_STEPS[question.step](question, some))
    added = {
        spec.name: answer.values[spec.name] + total * spec.step
        for spec, total in zip(question.blocks, sums.blocks, strict=True)
    }
    return Release(added, answer.noise_std)


def shrunk_directions(
    sums: Float64s, *, std: float, weights: Float64s, sweeps: int = 12
) -> Float64s:
    """Posterior means (m, d) of q_j in sums_j = weights_j q_j + N(0, std^2 I), q_j ~ N(mean, C);
    mean and C by EM on the sums.

    sums: (m, d). weights: (m,) > 0. Hardly measured items lean on the mean and on the directions in
    which items differ at all.
    """
    (m, d), observed, variance = sums.shape, sums / weights[:, None], (std**2 + 1e-6) / weights**2
    C = 0.03 * np.eye(d)
    centred = np.empty((m, d))
    q = np.empty((m, d))
    for _ in range(sweeps):
        precision = 1 / (np.trace(C) / d + variance)
        mean = precision @ observed / precision.sum()
        values, E = np.linalg.eigh(C)
        values = np.maximum(values, 0)
        np.subtract(observed, mean, out=centred)
        left_open = _shrink(np.matmul(centred, E, out=q), values, variance)
        C = E @ (q.T @ q + np.diag(left_open)) @ E.T / m
    return np.asarray(mean + q @ E.T, np.float64)


@compiled()
def _shrink(q: Float64s, values: Float64s, variance: Float64s) -> Float64s:
    """Posterior means of q (m, d), in place, under priors of variance `values` (d,), with noise of
    variance (m,); and what it leaves open of each direction, summed over items."""
    left_open = np.zeros(len(values))
    for j in range(len(q)):
        for k in range(len(values)):
            kept = values[k] / (values[k] + variance[j])
            q[j, k] *= kept
            left_open[k] += values[k] * (1 - kept)
    return left_open


def _floats(state: State, name: str) -> Float64s:
    return np.asarray(state[name], np.float64)


def _in_units_of(found: Float64s, earlier: Float64s) -> Float64s:
    """`earlier` with the norm of `found` on its rows that are not zero: what another release has
    said of the same items."""
    known = earlier.any(axis=1)
    return np.asarray(
        earlier
        * math.sqrt(float(np.sum(found[known] ** 2)) / max(float(np.sum(earlier**2)), 1e-300)),
        np.float64,
    )


def _normalised(V: Float64s) -> Float32s:
    """|V|^2 = 10 d, as it is broadcast: rounded."""
    return rounded_rows(V * math.sqrt(10 * V.shape[1] / max(float(np.sum(V**2)), 1e-300)))
