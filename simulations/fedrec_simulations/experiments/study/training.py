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
from dataclasses import asdict, dataclass, replace

import numpy as np

from fedrec.data.dataset import Dataset
from fedrec.data.kinds import KINDS
from fedrec.data.public_sources import PUBLIC_USERS
from fedrec.data.splits import Fold, Split, check_no_leak
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.model import Model
from fedrec.factorization.sampling.posterior import PosteriorSettings, guarantee_for, sample
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.run.data.datasets import load_dataset, load_split, public_facts
from fedrec.run.data.sealed import SealedSplit, load_sealed
from fedrec.run.outcomes import Outcome, baselines, evaluate
from fedrec.settings import Scenario, validated
from fedrec.storage import finite
from fedrec_simulations.experiments.ceiling import als_model
from fedrec_simulations.experiments.in_memory import trained
from fedrec_simulations.experiments.rows import Row, merged
from fedrec_simulations.experiments.study import ratings_settings
from fedrec_simulations.experiments.study.systems import DELTA, HALF_PUBLIC, SYSTEMS, Place, System

K = 20
METRICS = {"ratings": ("rmse", "mae"), "clicks": (f"ndcg@{K}", f"recall@{K}")}
"""What a row measures; the first one decides who is ahead."""


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
        return public_facts(
            self.scenario,
            replace(self.dataset, features=self.dataset.features.only(used)),
            self.sealed,
        )


@dataclass(frozen=True)
class _Finished:
    """A model that may be tested, and what it cost."""

    model: Model
    guarantee: Guarantee
    plan: Plan | None = None


def study_row(place: Place, name: str, epsilon: float, seed: int) -> Row:
    """Metrics, guarantee, accountants, seconds and the model's SHA-256 of one system at one epsilon
    and seed, as JSON's types.

    Raises SettingsError where the system cannot do this, or is not built.
    """
    started = time.perf_counter()
    work = _loaded(place, SYSTEMS[place.kind][name], epsilon, seed)
    sizes = {
        "users": work.sealed.train.num_users,
        "items": work.sealed.train.num_items,
        "train": len(work.sealed.train),
    }
    found = _referred(work) if work.system.label in _SIMPLE else _trained(work)
    kept = {name: found.pop(name) for name in METRICS[place.kind]}
    return dict(finite({**kept, **found, "sizes": sizes, "seconds": time.perf_counter() - started}))


def validation_score(system: System, scenario: Scenario, metric: str) -> float:
    """Of a model that the scenario trains, on validation events: what settings are chosen by.

    The split stays sealed."""
    dataset, sealed = load_sealed(scenario)
    finished = _by_recipe(_Work(system, scenario, dataset, sealed))
    found = evaluate(finished.model, sealed.validation, sealed.train, cutoffs=(K,), ranking=False)
    value = found.metrics()[metric]
    assert value is not None
    return float(value)


def _trained(work: _Work) -> Row:
    started = time.perf_counter()
    finished = _MAKERS.get(work.system.name, _by_recipe)(work)
    seconds = time.perf_counter() - started
    train = work.sealed.train
    opened = work.sealed.open(finished.model.arrays())
    outcome = evaluate(finished.model, opened.split.test, train, cutoffs=(K,), ranking=False)
    costs = {
        "model_sha256": opened.model_sha256,
        "guarantee": asdict(finished.guarantee),
        "accountants": asdict(finished.plan.opinions()) if finished.plan else {},
        "train_seconds": seconds,
    }
    return {**_metrics(outcome, train.kind), **costs, "test": len(opened.split.test.targets)}


def _referred(work: _Work) -> Row:
    """A simple model without privacy."""
    opened = work.sealed.open({}).split
    outcome = baselines(opened.test, opened.train, cutoffs=(K,))[work.system.label]
    costs = {"guarantee": asdict(non_private(DELTA)), "accountants": {}, "train_seconds": 0.0}
    return {**_metrics(outcome, opened.train.kind), **costs, "test": len(opened.test.targets)}


def _metrics(outcome: Outcome, kind: str) -> Row:
    found = outcome.metrics()
    return {name: found[name] for name in METRICS[kind]}


def _by_recipe(work: _Work) -> _Finished:
    """What `fedrec simulate` does, in memory."""
    done = trained(work.scenario, work.facts(), work.sealed.train)
    return _Finished(done.model, done.prepared.plan.guarantee, done.prepared.plan)


def _sampled(work: _Work) -> _Finished:
    """The sampler of fast DP matrix factorisation with the conversion that the paper prints."""
    epsilon, seed = work.scenario.privacy.epsilon, work.scenario.seed
    settings = replace(_PRINTED, **ratings_settings.model("sampler", epsilon))
    *_, last = sample(work.sealed.train, settings, epsilon=epsilon, streams=Streams(seed))
    return _Finished(
        last.model, guarantee_for(epsilon, DELTA) if math.isfinite(epsilon) else non_private(DELTA)
    )


def _on_the_whole_model(work: _Work) -> _Finished:
    """DP-SGD by a trusted curator; priced by Opacus' accountant, at most what was asked for."""
    # torch and Opacus: of the `bench` extra
    from fedrec_simulations.experiments.dp_sgd import settings_for, train_dpsgd

    privacy, streams = work.scenario.privacy, Streams(work.scenario.seed)
    promise = Guarantee(privacy.epsilon, privacy.delta)
    found = train_dpsgd(work.sealed.train, promise, settings_for(privacy.epsilon), streams=streams)
    return _Finished(found.model, found.guarantee)


def _als(work: _Work) -> _Finished:
    return _Finished(als_model(work.sealed, work.scenario), non_private(DELTA))


def _public_alone(work: _Work) -> _Finished:
    """DP-CMF's start from public people, and nothing after it: no private rating is read."""
    made = prepare(work.scenario, work.facts())
    counts = work.dataset.features.bags[PUBLIC_USERS].counts
    state = {**made.recipe.begin(), "mean": np.array(counts.data.mean(dtype=np.float64))}
    return _Finished(made.recipe.model(state), non_private(DELTA))


_PRINTED = PosteriorSettings(conversion="printed", passes=40, decay=0.1)
_SIMPLE = ("global mean", "item mean", "item + user bias", "popularity")
_MAKERS: Mapping[str, Callable[[_Work], _Finished]] = {
    "sgld": _sampled,
    "dp-sgd": _on_the_whole_model,
    "als": _als,
    "als-half": _als,
    "public-users-alone": _public_alone,
}
"""Who is not trained by a recipe."""


def _loaded(place: Place, system: System, epsilon: float, seed: int) -> _Work:
    scenario = system.scenario(place, epsilon, seed)
    asked = scenario if system.group != "people" else _with_people(place, scenario)
    dataset = load_dataset(asked)
    if not place.given:
        return _Work(system, scenario, dataset, SealedSplit(load_split(asked, dataset)))
    return _Work(system, scenario, dataset, SealedSplit(_all_train(dataset)))


def _with_people(place: Place, scenario: Scenario) -> Scenario:
    """The same data with half of its users made public, whatever the system may use of it."""
    values = "raw" if KINDS[place.kind].rated else "binary"
    people = {
        "recipe": "dp-cmf",
        "collective": {"sides": ["public-users"], "users_values": values, **HALF_PUBLIC},
    }
    content = scenario.model_dump(mode="json", include={"seed", "split", "privacy"})
    return validated(
        merged(
            content,
            {"data": {"path": place.path} if place.path != "planted" else {"preset": "small"}},
            people,
        ),
        source="data",
    )


def _all_train(dataset: Dataset) -> Split:
    """Given test events, and no validation: all of train is trained on.

    Raises SettingsError where no test events come with the data."""
    if dataset.given_test is None:
        raise SettingsError(
            "these clicks come without test events of their own",
            "Give a folder like that of yelp2018.",
        )
    events, test = dataset.interactions, dataset.given_test
    split = Split(
        "given",
        0,
        events,
        Fold(events, test.select(np.zeros(len(test), np.bool_))),
        Fold(events, test),
    )
    check_no_leak(split)
    return split
