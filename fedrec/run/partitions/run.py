"""`fedrec simulate` over partitioned data: training, evaluation, baselines and controls, none of
which needs the data in one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console

from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.kinds import KINDS
from fedrec.data.partitions import is_partitioned
from fedrec.data.splits import Fold, Split
from fedrec.errors import DataError, SettingsError
from fedrec.evaluation.als import ALS, ITEM_ITEM, MOST_EVENTS, als_model, item_item
from fedrec.evaluation.controls import SHUFFLED
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.rankers import Model
from fedrec.randomness import Streams
from fedrec.run.data.budget import budget_of
from fedrec.run.input_digests import bind, inputs_of
from fedrec.run.job import RuntimeChoice
from fedrec.run.outcomes import BY_RULE, MOST_SCORES, Outcome, Run, RunSizes, judged_by
from fedrec.run.partitions.evaluation import TestTask, outcomes
from fedrec.run.partitions.methods import (
    CountTask,
    ItemItemMethod,
    ModelMethod,
    PartitionedMethod,
    PopularityMethod,
    Sizes,
    bias_methods,
    over,
)
from fedrec.run.partitions.parts import Engine, InThisProcess, Parts, PartTask
from fedrec.run.progress import progress_bar, stage
from fedrec.run.ratings import FinishedRun
from fedrec.run.run_folder import open_folder
from fedrec.run.training import OnRound, Work, train_each, train_published
from fedrec.run.workload import Setting, write_run
from fedrec.settings import Scenario
from fedrec.settings_tables.data import EvaluationSettings
from fedrec.settings_tables.splitting import SplitSettings
from fedrec.storage import write_json

_VALIDATED = 1_000
"""Users of the first part by whom progress is measured after each round."""


def run(
    scenario: Scenario,
    *,
    name: str,
    choice: RuntimeChoice,
    resume: bool = False,
    quiet: bool = False,
    on_round: OnRound | None = None,
    opened: InThisProcess | None = None,
) -> dict[str, Any]:
    """What `simulate.run` does, over parts. opened: an engine over parts of its own,
    in the place of `choice`'s over those of data.path.

    Raises SettingsError where the data is not partitioned or the scenario needs it whole."""
    console = Console(stderr=True, quiet=quiet)
    started = time.perf_counter()
    if opened is None and not (scenario.data.path and is_partitioned(scenario.data.path)):
        what = scenario.data.path or "planted data"
        raise SettingsError(
            f"--runtime {choice.runtime} needs data in partitions, and {what} is not",
            "Run fedrec data partition, and give its folder as data.path.",
        )
    if scenario.privacy.shares == "real":
        raise SettingsError(
            f"privacy.shares has no effect with --runtime {choice.runtime}",
            "Leave one of the two out.",
        )
    parts = opened.source if opened else Parts(scenario)
    parts.require_usable()
    with (
        open_folder(scenario, name, choice, resume=resume) as folder,
        closing(opened or _engine(choice, parts)) as engine,
    ):
        work = _Passes(engine, console)
        sizes: Sizes = work.reduce("counting", CountTask())
        _require_events(sizes, scenario.split)
        dataset = parts.public()
        first = _some_users(parts, sizes, console)
        first = replace(first, not_covered=(*dataset.provenance.not_covered, *first.not_covered))
        described = {"kind": scenario.split.kind, "seed": scenario.split.seed}
        bind(folder, inputs_of(dataset) | {"parts": parts.data.parts})
        write_json(
            folder / "data.json",
            {
                "provenance": dataset.provenance.describe(),
                "split": {
                    **described,
                    "events": {
                        "train": sizes.train,
                        "validation": sizes.validation,
                        "test": sizes.test,
                    },
                },
                "parts": [vars(part) for part in parts.data.parts],
            },
        )
        return _trained(
            scenario,
            choice,
            folder,
            dataset,
            first,
            sizes,
            work,
            started=started,
            quiet=quiet,
            on_round=on_round,
        )


def _trained(
    scenario: Scenario, choice: RuntimeChoice, folder: Any, dataset: Dataset, some: Split,
    sizes: Sizes, work: _Passes, *,
    started: float, quiet: bool, on_round: OnRound | None,
) -> dict[str, Any]:  # fmt: skip
    """Train at every epsilon, evaluate everything in one pass, and write the run."""
    events = dataset.interactions
    features = dataset.features if dataset.features.bags else None
    facts = PublicFacts(
        sizes.users,
        events.num_items,
        events.kind,
        events.value_range,
        features,
        Streams(scenario.seed),
    )
    budget = budget_of(scenario.privacy, dataset.provenance.files)
    given = Work(
        facts, replace(some, train=events, validation=Fold(events, events)), folder, work.console,
        over(work.engine, lambda done, of: None),
        budget, on_round, _validation(work, sizes, facts.kind),
    )  # fmt: skip
    trained = train_each(scenario, given)
    theirs = train_published(scenario, given)
    rivals, models, limits = _rivals(scenario, some, sizes, dataset, work)
    own = {f"epsilon {e:g}": t.model for e, t in trained.items()} | {
        f"published {e:g}": t.model for e, t in theirs.items()
    }
    found = _tested(
        scenario.evaluation, {**rivals, **_of_models(own)}, sizes, events.kind, some, work
    )
    shown = {name: found[name] for name in rivals}
    k = max(scenario.evaluation.cutoffs)

    def judged(name: str, more: Mapping[str, Outcome]) -> Outcome:
        beside = {**shown, **more, SHUFFLED: found[f"{SHUFFLED}, {name}"]}
        return judged_by(found[name], beside, k=k)

    published = {e: (t, judged(f"published {e:g}", {})) for e, t in theirs.items()}
    outcome = {
        e: judged(f"epsilon {e:g}", {BY_RULE: published[e][1]} if e in published else {})
        for e in trained
    }
    kept = {
        name: rival
        for name, rival in shown.items()
        if scenario.compare.baselines or name in {ALS, ITEM_ITEM}
    }
    whole = RunSizes(
        sizes.users, sizes.train, sizes.test, sizes.able, sizes.counts, work.engine.parts
    )
    done = Run(
        scenario,
        choice,
        folder,
        dataset,
        some,
        trained,
        outcome,
        kept,
        models,
        published,
        budget,
        limits,
        whole,
    )
    setting = Setting(scenario, choice, folder, work.console, budget)
    return write_run(FinishedRun(done, facts), setting, started=started, quiet=quiet)


class _Passes:
    """An engine, with a line of progress and the time left for each pass over all parts."""

    def __init__(self, engine: Engine, console: Console) -> None:
        self.engine = engine
        self.console = console

    def reduce(self, words: str, task: PartTask, *, only: int | None = None) -> Any:
        with self.counted(words) as told:
            return self.engine.reduce(task, told, only=only)

    @contextmanager
    def counted(self, words: str) -> Iterator[Callable[[int, int], None]]:
        with progress_bar(self.console) as progress:
            task = progress.add_task(words, total=self.engine.parts)
            yield lambda done, of: progress.update(
                task, completed=done, total=of, description=f"{words}, part {done}/{of}"
            )


def _engine(choice: RuntimeChoice, parts: Parts) -> Engine:
    if choice.runtime == "ray":
        from fedrec.run.partitions.on_ray import OnRay

        return OnRay.start(parts, choice.address, ship=choice.ship)
    return InThisProcess(parts)


def _require_events(sizes: Sizes, split: SplitSettings) -> None:
    empty = [name for name in ("train", "validation", "test") if not getattr(sizes, name)]
    needed = [name for name in empty if name != "validation" or not split.own_test]
    if needed:
        raise DataError(
            (
                f"{sizes.train + sizes.validation + sizes.test} events leave no "
                f"{' and no '.join(needed)} in a {split.kind} split"
            ),
            "Use more data, or another split or seed.",
        )


def _validation(work: _Passes, sizes: Sizes, kind: str) -> Callable[[Model], float]:
    """The error of a model on validation, for users of the first part."""

    def validate(model: Model) -> float:
        one: Mapping[str, PartitionedMethod] = {"model": ModelMethod(model)}
        rated, listed = (one, {}) if KINDS[kind].rated else ({}, one)
        task = TestTask(
            rated, listed, sizes.counts, (20,), 1.0, validation=True, most_users=_VALIDATED
        )
        found = outcomes(task, work.engine.reduce(task, lambda done, of: None, only=0))["model"]
        if found.ratings is not None:
            return found.ratings.rmse
        return found.ranking.at[20].ndcg if found.ranking else float("nan")

    return validate


def _of_models(models: Mapping[str, Model]) -> dict[str, PartitionedMethod]:
    """Each beside its control with users exchanged."""
    methods: dict[str, PartitionedMethod] = {
        name: ModelMethod(model) for name, model in models.items()
    }
    return methods | {
        f"{SHUFFLED}, {name}": ModelMethod(model, exchanged=True) for name, model in models.items()
    }


def _tested(
    chosen: EvaluationSettings,
    methods: Mapping[str, PartitionedMethod],
    sizes: Sizes,
    kind: str,
    some: Split,
    work: _Passes,
) -> dict[str, Outcome]:
    """One pass over all test events for all methods.

    Held-out users' ratings are not predicted by others', as in one process."""
    ranking = KINDS[kind].ranked(chosen.ranking)
    biases = {
        name
        for name, method in methods.items()
        if not isinstance(method, ModelMethod | PopularityMethod | ItemItemMethod)
    }
    rated = {
        name: m
        for name, m in methods.items()
        if KINDS[kind].rated and not isinstance(m, PopularityMethod | ItemItemMethod)
    }
    if some.test.users is not None:
        rated = {name: m for name, m in rated.items() if not name.startswith(SHUFFLED)}
    listed = {name: m for name, m in methods.items() if ranking and name not in biases}
    most = MOST_SCORES[kind] // max(len(sizes.counts), 1)
    task = TestTask(
        rated,
        listed,
        sizes.counts,
        chosen.cutoffs,
        min(1.0, most / max(sizes.able, 1)),
    )
    return outcomes(task, work.reduce("evaluating", task))


def _rivals(
    scenario: Scenario, some: Split, sizes: Sizes, dataset: Dataset, work: _Passes
) -> tuple[dict[str, PartitionedMethod], dict[str, Model], dict[str, str]]:
    """Everything without privacy; what learns from more than sums learns from some users, which its
    limits say."""
    methods = dict[str, PartitionedMethod]()
    models = dict[str, Model]()
    limits = dict[str, str]()
    ranking = KINDS[some.train.kind].ranked(scenario.evaluation.ranking)
    if some.train.rated:
        with work.counted("baselines") as told:
            methods |= dict(
                bias_methods(work.engine, sizes, dataset.interactions.value_range, told)
            )
    if ranking:
        methods["popularity"] = PopularityMethod(sizes.counts)
    if not scenario.compare.als:
        return methods, models, limits
    fewer = (
        f"learned from {some.train.num_users:,} users" if some.train.num_users < sizes.users else ""
    )
    if ranking:
        with stage(work.console, "item-item without privacy"):
            similar = item_item(some.train, some.validation)
        methods[ITEM_ITEM] = ItemItemMethod(similar)
        limits |= (
            {ITEM_ITEM: words}
            if (words := ", ".join(filter(None, (similar.limits, fewer))))
            else {}
        )
    with stage(work.console, "ALS without privacy"):
        models[ALS] = als_model(some.train, some.validation, seed=scenario.seed, ranking=ranking)
    methods[ALS] = ModelMethod(models[ALS])
    limits |= {ALS: fewer} if fewer else {}
    return methods, models, limits


def _some_users(parts: Parts, sizes: Sizes, console: Console) -> Split:
    """The users of the first parts, about as many as have `MOST_EVENTS` events together: parts are
    random samples of users."""
    with stage(console, "reading users for references"):
        read = list[Split]()
        events = 0
        for index in range(len(parts.data.parts)):
            read.append(
                replace(parts, cache_bytes=0, _kept={}).read(index).split
                if index
                else parts.read(index).split
            )
            events += len(read[-1].train)
            if events >= MOST_EVENTS:
                break
        if len(read) == 1:
            return read[0]
        folds = (
            Fold(
                _joined([getattr(s, name).history for s in read]),
                _joined([getattr(s, name).targets for s in read]),
                _users(read, name),
            )
            for name in ("validation", "test")
        )
        validation, test = folds
        return replace(
            read[0],
            train=_joined([s.train for s in read]),
            validation=validation,
            test=test,
            train_users=None,
        )


def _users(read: Sequence[Split], name: str) -> Any:
    """Held-out users have numbers of their own: any, as long as each is another."""
    if getattr(read[0], name).users is None:
        return None
    return np.arange(sum(getattr(split, name).history.num_users for split in read), dtype=np.int32)


def _joined(parts: Sequence[Interactions]) -> Interactions:
    first = parts[0]
    lengths = np.concatenate([[0], *(np.diff(part.user_ptr) for part in parts)])
    return replace(
        first,
        user_ptr=np.cumsum(lengths).astype(np.int64),
        items=np.concatenate([part.items for part in parts]),
        values=np.concatenate([part.values for part in parts]),
        times=None,
        user_words=np.concatenate([np.asarray(part.user_words) for part in parts]),
    )
