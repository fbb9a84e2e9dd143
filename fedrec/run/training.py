"""One training at one epsilon, kept in a folder: plan, a checkpoint after every round, one JSON
line a round."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from fedrec.certificates.writing import ReleasedRound
from fedrec.data.interactions import Interactions
from fedrec.data.splits import Fold, Split
from fedrec.errors import SettingsError
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.ratings import rating_metrics
from fedrec.evaluation.toplists import dot_product
from fedrec.factorization.facts import PublicFacts, predict
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.federation.messages import State
from fedrec.federation.releases import Charge, priced
from fedrec.federation.wire import digest_of, unpack_release
from fedrec.privacy.accounting import GaussianEvent, Ledger, Opinions, opinions
from fedrec.recipes import Prepared, prepare
from fedrec.run import statement
from fedrec.run.data.budget import DataBudget
from fedrec.run.job import Carried, Job, Runtime, loopback
from fedrec.run.progress import progress_bar
from fedrec.run.resume_right import charged_ahead
from fedrec.settings import Scenario
from fedrec.settings_tables.data import CompareSettings
from fedrec.settings_tables.training import PrivacySettings
from fedrec.storage import Checkpoints, finite, release_file, write_bytes, write_json

Arrays = Mapping[str, npt.NDArray[np.generic]]
VALIDATED_BY = {"ratings": "RMSE", "clicks": "NDCG@20"}
"""What a model is validated by, by kind of data."""


@dataclass(frozen=True)
class RoundRecord:
    """One round: what was released, bytes per user up and down, seconds, and the model's error on
    validation after it.

    `validation` is the RMSE of ratings or NDCG@20 of clicks, measured outside the protocol, from
    1,000 users at most. `mus` are what the releases cost by the noise that was drawn for them;
    `reported` users are summed in them, and `question` is the digest of what they were asked.
    """

    round: int
    step: str
    releases: tuple[str, ...]
    bytes_up: float
    bytes_down: int
    seconds: float
    validation: float
    mus: tuple[float, ...]
    reported: int
    question: str


@dataclass(frozen=True)
class Trained:
    """A finished training, and the folder that keeps its releases."""

    prepared: Prepared
    state: State
    rounds: tuple[RoundRecord, ...]
    folder: Path

    @property
    def model(self) -> Model:
        """The released model."""
        return self.prepared.recipe.model(self.state)

    @property
    def costs(self) -> tuple[GaussianEvent, ...]:
        """Every release that was made, by the noise that was drawn for it and the norm that reports
        were held to."""
        promised = self.prepared.plan.guarantee
        made = ((name, mu) for r in self.rounds for name, mu in zip(r.releases, r.mus, strict=True))
        return tuple(
            GaussianEvent(name, mu, promised.unit, promised.neighbours) for name, mu in made
        )

    def released(self) -> Iterator[ReleasedRound]:
        """Every release, in order, as `certificates` takes it."""
        for record in self.rounds:
            content = release_file(self.folder, record.round).read_bytes()
            yield ReleasedRound(content, record.reported, record.question)

    def opinions(self) -> Opinions:
        """Epsilon of all that was drawn, at the plan's delta, by three accountants."""
        return opinions(self.costs, self.prepared.plan.guarantee.delta)


class Training:
    """A training that can stop after any round and go on from its folder to the same bytes,
    whichever runtime carries it."""

    def __init__(
        self,
        scenario: Scenario,
        facts: PublicFacts,
        data: Interactions,
        validation: Fold,
        folder: Path,
        *,
        runtime: Runtime[Job, Carried] = loopback,
        charge: Charge | None = None,
        budget: Path | None = None,
        validate: Callable[[Model], float] | None = None,
    ) -> None:
        """budget: the file that `charge` writes; without it every start is charged.

        validate: of a model, where `data` and `validation` are not in memory; such a runtime
        charges each release itself."""
        self.prepared = prepare(scenario, facts)
        self._job = Job(scenario, facts, data, self.prepared, folder, charge)
        self._runtime = runtime
        self._validation = validation
        self._folder = folder
        self._measured = validate
        self._budget = budget
        self._checkpoints = Checkpoints(folder / "checkpoints")
        self._records = folder / "rounds.jsonl"
        self._rated: tuple[Arrays, float] | None = None

    def run(self) -> Generator[RoundRecord, None, None]:
        """Train to the end, yielding after every round; `result` is there afterwards.

        Raises BudgetExceededError where what was drawn costs more than the plan promises.
        """
        plan = self.prepared.plan
        write_json(self._folder / "plan.json", plan.content() | statement.three_party(plan))
        state = self._checkpoints.latest() or self.prepared.recipe.begin()
        records = self._known(int(state["round"]))
        released = [name for record in records for name in record.releases]
        self._spent = Ledger(self._job.limit)
        job = replace(self._job, state=state, released=released)
        with self._charged_ahead(), closing(self._runtime(job)) as rounds:
            for carried in rounds:
                record = self._record(carried, state)
                state = carried.state
                records.append(record)
                write_bytes(release_file(self._folder, record.round), carried.released)
                self._keep(state, records)
                yield record
        self.result = Trained(self.prepared, state, tuple(records), self._folder)

    def unreleased(self) -> list[GaussianEvent]:
        """Every release of the plan that no kept round has made."""
        kept = Checkpoints(self._folder / "checkpoints").latest()
        made = {
            name
            for record in self._known(0 if kept is None else int(kept["round"]))
            for name in record.releases
        }
        return [
            self.prepared.plan.event(release.name)
            for release in self.prepared.plan.releases
            if release.name not in made
        ]

    @property
    def charges_each(self) -> bool:
        """Whether each release is charged right before its noise is drawn; by parties of their own
        all together before the first."""
        return self._runtime is loopback or self._measured is not None

    def _charged_ahead(self) -> AbstractContextManager[None]:
        """All that is left, for parties whose aggregator draws each release once as long as it has
        its folder."""
        charge = self._job.charge
        left = self.unreleased()
        if charge is None or self.charges_each or not left:
            return nullcontext()
        if self._budget is None:
            charge(left)
            return nullcontext()
        parties = 3 if self._job.scenario.privacy.aggregation == "three-party" else 1
        resumable = len([*self._folder.glob("aggregator*/ledger.sqlite")]) == parties
        return charged_ahead(self._budget, self._folder, lambda: charge(left), resumable=resumable)

    def _record(self, done: Carried, before: State) -> RoundRecord:
        question = self.prepared.recipe.ask(before)
        plan = self.prepared.plan
        assert question is not None
        drawn = unpack_release(done.released, question.releases).noise_std
        events = priced(question, drawn, plan)
        for event in events:
            self._spent = self._spent.add(event)
        mus = tuple(event.mu for event in events)
        up = done.bytes_up / max(self._job.facts.num_users, 1)
        return RoundRecord(
            done.round,
            done.step,
            done.releases,
            up,
            done.bytes_down,
            done.seconds,
            self._validate(done.state),
            mus,
            done.reported,
            digest_of(question, run=self._job.run, plan=plan),
        )

    def _keep(self, state: State, records: list[RoundRecord]) -> None:
        """Records first: a crash in between leaves one line too many, which resuming drops."""
        lines = "".join(json.dumps(finite(asdict(record))) + "\n" for record in records)
        write_bytes(self._records, lines.encode())
        self._checkpoints.save(state, round=int(state["round"]))

    def _known(self, rounds: int) -> list[RoundRecord]:
        if not self._records.exists():
            return []
        rows = [json.loads(line) for line in self._records.read_text().splitlines()]
        return [_record_of(row) for row in rows][:rounds]

    def _validate(self, state: State) -> float:
        fold = self._validation
        model = self.prepared.recipe.model(state)
        if self._measured is not None:
            return self._measured(model)
        some = np.arange(min(fold.targets.num_users, 1_000))
        history = fold.history.users_subset(some)
        targets = fold.targets.users_subset(some)
        if targets.rated:
            arrays = model.arrays()
            # a round of lists alone changes no prediction
            if self._rated is None or not same_arrays(arrays, self._rated[0]):
                found = rating_metrics(predict(model, history, targets), targets)
                self._rated = arrays, found.rmse
            return self._rated[1]
        counts = np.bincount(self._job.data.items, minlength=self._job.data.num_items)
        ranker = ranker_of(model)
        scores = dot_product(
            np.asarray(ranker.user_vectors(history), np.float32),
            np.asarray(ranker.item_vectors, np.float32),
        )
        return (
            evaluate_ranking(
                scores, history=history, targets=targets, train_counts=counts, cutoffs=(20,)
            )
            .at[20]
            .ndcg
        )


def same_arrays(left: Arrays, right: Arrays) -> bool:
    """Whether both have the same names with the same numbers."""
    return left.keys() == right.keys() and all(
        np.array_equal(array, right[name]) for name, array in left.items()
    )


def _record_of(row: dict[str, Any]) -> RoundRecord:
    """What `finite` wrote: numbers that are not finite are strings."""
    return RoundRecord(
        **{
            **row,
            "releases": tuple(row["releases"]),
            "validation": float(row["validation"]),
            "mus": tuple(map(float, row["mus"])),
        }
    )


OnRound = Callable[[RoundRecord], None]


def epsilons_of(privacy: PrivacySettings, compare: CompareSettings) -> list[float]:
    """At which a run trains, the scenario's own first."""
    return list(dict.fromkeys([privacy.epsilon, *compare.epsilons]))


@dataclass(frozen=True)
class Work:
    """What every training of a run is given."""

    facts: PublicFacts
    split: Split
    folder: Path
    console: Console
    runtime: Runtime[Job, Carried]
    budget: DataBudget | None
    on_round: OnRound | None = None
    validate: Callable[[Model], float] | None = None


def train_each(scenario: Scenario, work: Work) -> dict[float, Trained]:
    """A training at every epsilon that the scenario names. Raises SettingsError before the first
    where it compares clicks with the papers' recipe."""
    if scenario.compare.published and not work.facts.rated:
        raise SettingsError(
            "compare.published is for ratings, but this data holds clicks", "Leave it out."
        )
    epsilons = epsilons_of(scenario.privacy, scenario.compare)
    return {e: train_one(scenario.with_epsilon(e), work, work.folder) for e in epsilons}


def train_published(scenario: Scenario, work: Work) -> dict[float, Trained]:
    """The papers' recipe at the same epsilons, where the scenario asks for it."""
    if not scenario.compare.published:
        return {}
    theirs = scenario.as_published(features=work.facts.features is not None)
    epsilons = epsilons_of(scenario.privacy, scenario.compare)
    folder = work.folder / "published"
    return {e: train_one(theirs.with_epsilon(e), work, folder) for e in epsilons}


def train_one(scenario: Scenario, work: Work, folder: Path) -> Trained:
    """One training, kept in a folder of its own under `folder`, charged to the data's budget before
    its noise is drawn."""
    kept = folder / f"epsilon-{scenario.privacy.epsilon:g}"
    split = work.split
    budget = work.budget
    name = f"{work.folder.name}/{kept.relative_to(work.folder)}"
    noise = scenario.privacy.noise
    charge = None if budget is None or noise == "seeded" else partial(budget.charge, name, noise)
    training = Training(
        scenario,
        work.facts,
        split.train,
        split.validation,
        kept,
        runtime=work.runtime,
        charge=charge,
        budget=None if budget is None else budget.path,
        validate=work.validate,
    )
    plan = training.prepared.plan
    metric = VALIDATED_BY[split.train.kind]
    if budget is not None and charge is not None:
        # what is charged all together is refused by that charge, or was paid before a stop
        if training.charges_each:
            budget.require_room(training.unreleased())
    elif budget is not None:
        budget.charge(name, noise, training.unreleased())
    promise = statement.promise_in_short(plan.guarantee)
    with progress_bar(work.console) as progress:
        task = progress.add_task(promise, total=len(plan.releases))
        released = 0
        for record in training.run():
            released += len(record.releases)
            words = f"{promise}, release {released}/{len(plan.releases)}"
            measured = (
                f": validation {metric} {record.validation:.3f}"
                if math.isfinite(record.validation)
                else ""
            )
            progress.update(task, completed=released, description=words + measured)
            if work.on_round is not None:
                work.on_round(record)
    return training.result
