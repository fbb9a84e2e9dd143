"""One row of a study: train to the end, then open the test events, once.

Ratings, and likes made of them: random 80/10/10 by seed; user vectors come from train events. Given
clicks: all of the train events train, and are the history that lists leave out; nothing is held out
for validation. In
the group "people" half of the users are public, and in nobody's test.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedrec.data.interactions import Dataset
from fedrec.data.kinds import KINDS
from fedrec.data.public_sources import PUBLIC_USERS
from fedrec.errors import SettingsError
from fedrec.evaluation.als import als_model
from fedrec.factorization.facts import PublicFacts, public_facts
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.run.outcomes import baselines
from fedrec.settings import Scenario, validated
from fedrec.storage import finite
from fedrec_research.fast_dpmf.recipe import PosteriorSettings, guarantee_for, sample
from fedrec_research.runner import Fitted, fitted, load_whole, on_test, on_validation
from fedrec_research.sealed import SealedSplit, load_sealed
from fedrec_research.study import ratings_settings
from fedrec_research.study.systems import DELTA, HALF_PUBLIC, SYSTEMS, Place, System
from fedrec_research.trials import Row, merged

K = 20
METRICS = {"ratings": ("rmse", "mae"), "clicks": (f"ndcg@{K}", f"recall@{K}")}
"""What a row measures; the first one decides who is ahead."""
_PRINTED = PosteriorSettings(conversion="printed", passes=40, decay=0.0, forgets=0.05)
_SIMPLE = ("global mean", "item mean", "item + user bias", "popularity")


@dataclass(frozen=True)
class _Work:
    """A system at its scenario, its data, and the split with test under a seal."""

    system: System
    scenario: Scenario
    dataset: Dataset
    sealed: SealedSplit

    def facts(self) -> PublicFacts:
        """Public people only for those who use them."""
        people = bool(self.scenario.collective.chosen())
        used = [
            name
            for name in self.dataset.features.bags
            if self.scenario.data.features and (people or name != PUBLIC_USERS)
        ]
        known = replace(self.dataset, features=self.dataset.features.only(used))
        return public_facts(self.scenario.seed, known, self.sealed)


def study_row(place: Place, name: str, epsilon: float, seed: int) -> Row:
    """Metrics, guarantee, accountants, seconds and the model's SHA-256 of one system at one epsilon
    and seed, as JSON's types.

    Raises SettingsError where the system cannot do this, or is not built.
    """
    started = time.perf_counter()
    work = _loaded(place, SYSTEMS[place.kind][name], epsilon, seed)
    train = work.sealed.train
    sizes = {"users": train.num_users, "items": train.num_items, "train": len(train)}
    if work.system.label in _SIMPLE:
        split = work.sealed.open({}).split
        simple = baselines(split.test, split.train, cutoffs=(K,))[work.system.label]
        row: Row = simple.metrics() | {"seconds": 0.0}
        row |= Fitted(None, non_private(DELTA)).exact_costs  # type: ignore[arg-type]
    else:
        found = _MAKERS.get(name, _by_recipe)(work)
        row, _, split = on_test(found, work.sealed, cutoffs=(K,))
        row |= found.exact_costs
    kept = (*METRICS[place.kind], "guarantee", "accountants", "model_sha256")
    told = {key: row[key] for key in kept if key in row}
    told |= {"train_seconds": row["seconds"], "test": len(split.test.targets), "sizes": sizes}
    return dict(finite({**told, "seconds": time.perf_counter() - started}))


def validation_score(system: System, scenario: Scenario, metric: str) -> float:
    """Return the score, on validation events, of a model that the scenario trains: what settings
    are chosen by.

    The split stays sealed."""
    work = _Work(system, scenario, *load_sealed(scenario))
    return on_validation(_by_recipe(work).model, work.sealed, metric)


def _by_recipe(work: _Work) -> Fitted:
    """What `fedrec simulate` does, in memory."""
    return fitted(work.scenario, work.facts(), work.sealed.train)


def _timed(make: Callable[[_Work], Fitted]) -> Callable[[_Work], Fitted]:
    def timed(work: _Work) -> Fitted:
        started = time.perf_counter()
        found = make(work)
        return replace(found, seconds=time.perf_counter() - started)

    return timed


def _sampled(work: _Work) -> Fitted:
    """The sampler of fast DP matrix factorisation with the conversion that the paper prints."""
    epsilon = work.scenario.privacy.epsilon
    seed = work.scenario.seed
    settings = replace(_PRINTED, **ratings_settings.model("sampler", epsilon))
    *_, last = sample(work.sealed.train, settings, epsilon=epsilon, streams=Streams(seed))
    finite_one = math.isfinite(epsilon)
    return Fitted(last.model, guarantee_for(epsilon, DELTA) if finite_one else non_private(DELTA))


def _on_the_whole_model(work: _Work) -> Fitted:
    """DP-SGD by a trusted curator; priced by Opacus' accountant, at most what was asked for."""
    from fedrec_research.dp_sgd.sampled import settings_for, train_dpsgd  # torch and Opacus

    privacy = work.scenario.privacy
    streams = Streams(work.scenario.seed)
    promise = Guarantee(privacy.epsilon, privacy.delta)
    found = train_dpsgd(work.sealed.train, promise, settings_for(privacy.epsilon), streams=streams)
    return Fitted(found.model, found.guarantee)


def _als(work: _Work) -> Fitted:
    sealed = work.sealed
    model = als_model(sealed.train, sealed.validation, seed=work.scenario.seed)
    return Fitted(model, non_private(DELTA))


def _public_alone(work: _Work) -> Fitted:
    """DP-CMF's start from public people, and nothing after it: no private rating is read."""
    made = prepare(work.scenario, work.facts())
    mean = work.dataset.features.bags[PUBLIC_USERS].counts.data.mean(dtype=np.float64)
    state = {**made.recipe.begin(), "mean": np.array(mean)}
    return Fitted(made.recipe.model(state), non_private(DELTA))


_MAKERS: Mapping[str, Callable[[_Work], Fitted]] = {
    "sgld": _timed(_sampled),
    "dp-sgd": _timed(_on_the_whole_model),
    "als": _timed(_als),
    "als-half": _timed(_als),
    "public-users-alone": _timed(_public_alone),
}
"""Who is not trained by a recipe."""


def _loaded(place: Place, system: System, epsilon: float, seed: int) -> _Work:
    """Load the system's data and split; of given clicks all train events train. Raises
    SettingsError where no test events come with them."""
    scenario = system.scenario(place, epsilon, seed)
    asked = scenario if system.group != "people" else _with_people(place, scenario)
    dataset, sealed = (load_whole if place.given else load_sealed)(asked)
    if place.given and dataset.given_test is None:
        raise SettingsError(
            "these clicks come without test events of their own",
            "Give a folder like that of yelp2018.",
        )
    return _Work(system, scenario, dataset, sealed)


def _with_people(place: Place, scenario: Scenario) -> Scenario:
    """Return a scenario of the same data with half of its users made public, whatever the system
    may use of it."""
    values = "raw" if KINDS[place.kind].rated else "binary"
    people = {
        "recipe": "dp-cmf",
        "collective": {"sides": ["public-users"], "users_values": values, **HALF_PUBLIC},
    }
    content = scenario.model_dump(mode="json", include={"seed", "split", "privacy"})
    return validated(
        merged(
            content,
            {"data": place.source},
            people,
        ),
        source="data",
    )
