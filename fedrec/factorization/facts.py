"""Public facts, which everybody knows before a run: sizes, features, and what an earlier training
released.

The model of an earlier training is a start of the next one: public, so it costs nothing more.
What was released before is an observation of every item beside the new one: an item's bias and
deviations with their variance, and how often it was rated. It enters the default recipe where what
public people taught does (`public_people`), so that the new training spends nothing on what it
knows, and half as much on counts.

Guarantee: post-processing. A person who took part in both is protected by the composition of both,
as without it.

A released model: public item vectors, and how a device finds its own vector from its own
history.

Everything here is public or local. A prediction is a dot product. What predicts ratings well does
not list well: a model may carry another one, its `ranker`, whose dot products order lists
(`ranker_of`). Metrics of ranking, bundles and lists use that; predictions never do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedrec.arrays import Float64s, Floats
from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.kinds import KINDS, Kind
from fedrec.factorization.rankers import Model, predictor, ranker_of
from fedrec.federation.messages import State
from fedrec.randomness import Streams

_KEPT = ("mean", "phi", "public_phi", "rest", "bias", "variance", "variances")
_BY_ITEM = (*_KEPT[1:], "observed", "observed_variance", "counts")


def list_vectors(model: Model, history: Interactions, U: Floats | None) -> Floats:
    """The users of `history` as the model's ranker lists for them. U: as the model predicts for
    them, where that is known: a ranker whose `from_tastes(U, history)` starts there, or that is the
    model itself, does not solve them again."""
    ranker = ranker_of(model)
    if U is not None and ranker is model:
        return U
    start: Callable[[Floats, Interactions], Floats] | None = getattr(ranker, "from_tastes", None)
    return ranker.user_vectors(history) if U is None or start is None else start(U, history)


def predict(model: Model, history: Interactions, targets: Interactions) -> Float64s:
    """Predicted values of the events of `targets` (same users as `history`), in its order."""
    return predictor(model, history)(targets.users, targets.items)


@dataclass(frozen=True)
class Earlier:
    """The last state of an earlier training, rows in the order of the new catalogue, and how many
    users it had."""

    state: State
    num_users: int

    @staticmethod
    def of(
        state: State, num_users: int, *, items: Sequence[str], now: Sequence[str]
    ) -> Earlier | None:
        """items, now: ids of both catalogues.

        None where the state is no start: of another recipe, or an item of `now` is new to it."""
        place = {item: j for j, item in enumerate(items)}
        if any(name not in state for name in (*_BY_ITEM, "mean")) or any(
            item not in place for item in now
        ):
            return None
        rows = np.array([place[item] for item in now], np.int64)
        arrays = [np.asarray(state[name], np.float64) for name in ("observed", "observed_variance")]
        observed, variance = beside_known(state, *arrays)  # what it had begun with itself, too
        found = {**state, "observed": observed, "observed_variance": variance}
        return Earlier(
            {"mean": state["mean"], **{name: found[name][rows] for name in _BY_ITEM}}, num_users
        )

    def start(self, *, num_users: int, weight: float) -> State:
        """Before the first question of `default.DefaultRecipe`. weight: of what was observed,
        relative to its precision."""
        state = self.state
        counts = np.asarray(state["counts"], np.float64) * (num_users / self.num_users)
        precision = weight / np.asarray(state["observed_variance"], np.float64)
        known = {
            "people_observed": state["observed"],
            "people_precision": precision,
            "people_counts": counts,
        }
        return {name: state[name] for name in _KEPT} | known


def beside_known(state: State, observed: Float64s, variance: Float64s) -> tuple[Float64s, Float64s]:
    """Mean and variance of two independent observations of (b_j, deviations): this training's, and
    what was known before it."""
    if "people_observed" not in state:
        return observed, variance
    k = observed.shape[1]
    # of a direction that was not learned, nothing
    theirs = np.zeros_like(observed)
    precision = np.zeros_like(variance)
    known = min(k, state["people_observed"].shape[1])
    theirs[:, :known] = np.asarray(state["people_observed"], np.float64)[:, :known]
    precision[:, :known] = np.asarray(state["people_precision"], np.float64)[:, :known]
    total = 1 / variance + precision
    return (observed / variance + theirs * precision) / total, 1 / total


@dataclass(frozen=True)
class PublicFacts:
    """What everybody knows before the run: sizes, the value scale, features, the run's seed, and
    what an earlier training released.

    Args:
        num_users: How many take part.
        num_items: Of the catalogue.
        kind: "ratings" or "clicks".
        value_range: Lowest and highest value.
        features: What is public of items, if anything.
        streams: Of the run's public seed.
        earlier: What an earlier training on other events released.
        timed: Whether events have times, and lists are of what follows all of them.
        serving: A released model of the same items, which people compare the new one with.
        period: First and last time of the events, between which a stream counts weeks.
    """

    num_users: int
    num_items: int
    kind: Kind
    value_range: tuple[float, float]
    features: PublicFeatures | None
    streams: Streams
    earlier: Earlier | None = None
    timed: bool = False
    serving: Model | None = None
    period: tuple[int, int] | None = None

    @property
    def rated(self) -> bool:
        """Whether the data that is learned from is rated, as `Interactions.rated` says."""
        return KINDS[self.kind].rated


class Known(Protocol):
    """A split, whose test events may be sealed."""

    @property
    def follows(self) -> bool:
        """Whether lists are of what follows the history in time."""

    @property
    def train(self) -> Interactions:
        """Events to learn from."""


def public_facts(seed: int, dataset: Dataset, split: Known) -> PublicFacts:
    """What everybody knows before training: the sizes of the training set among it.

    seed: of what is public and drawn."""
    train = split.train
    features = dataset.features if dataset.features.bags else None
    return PublicFacts(
        train.num_users,
        train.num_items,
        train.kind,
        train.value_range,
        features,
        Streams(seed),
        timed=train.times is not None and split.follows,
    )
