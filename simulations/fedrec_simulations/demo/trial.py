"""Trainings of a trial deployment, two of them, and what one process makes of the same data without
any fault.

The people are invented, live at two sites, and some of their ratings arrive only after the first
training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fedrec.cli import recommend as asking
from fedrec.cli.supervisor import Supervisor
from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.splits import Fold, Split
from fedrec.factorization.facts import Earlier, Model, PublicFacts, public_facts
from fedrec.factorization.released import save
from fedrec.federation.messages import State
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import Job, loopback
from fedrec.run.outcomes import evaluate
from fedrec.settings import DataScenario, Scenario
from fedrec.storage import write_bytes
from fedrec_simulations.demo.parties import Deployment
from fedrec_simulations.runtimes.deployment_files import PartyFiles
from fedrec_simulations.runtimes.ratings import RatingsParties

EARLIER = 0.8
"""Share of the training events that are there at the first training."""
_ACTIVE = 0.75
"""The person who asks is the first who has more events than this share of all."""


@dataclass(frozen=True)
class People:
    """Everybody, what of their training events is there at the first training (`earlier`), and the
    number of the person who asks."""

    dataset: Dataset
    split: Split
    earlier: Interactions
    person: int

    def events(self, training: int) -> Interactions:
        """What the sites hold at a training, counted from 0."""
        return self.earlier if training == 0 else self.split.train

    def history(self, training: int) -> list[tuple[str, float]]:
        """Item ids and ratings of the person who asks, oldest first, at that time."""
        one = self.events(training).users_subset(np.array([self.person]))
        order = np.arange(len(one)) if one.times is None else np.argsort(one.times, kind="stable")
        return [
            (self.dataset.catalogue.item_ids[int(one.items[row])], float(one.values[row]))
            for row in order
        ]

    def metrics(self, model: Model, training: int) -> dict[str, float]:
        """Return the metrics of a model on the test events, measured outside the protocol and
        without noise."""
        fold = Fold(self.events(training), self.split.test.targets)
        found = evaluate(model, fold, fold.history, cutoffs=(20,), ranking=False).metrics()
        return {
            name: float(value)
            for name, value in found.items()
            if name in ("rmse", "ndcg@20") and value is not None
        }


def invented(scenario: DataScenario) -> People:
    """The people of a scenario. Raises DataError or SettingsError as its data and split do."""
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    train = split.train
    earlier = train.select(
        train.draws(Streams(scenario.seed).key("demo/earlier")) < np.uint64(EARLIER * 2**64)
    )
    counts = np.diff(earlier.user_ptr)
    return People(dataset, split, earlier, int(np.argmax(counts >= np.quantile(counts, _ACTIVE))))


def write_history(path: Path, history: Sequence[tuple[str, float]]) -> None:
    """Write a history as `fedrec recommend --history` reads it."""
    lines = ["item,rating", *(f"{item},{rating:g}" for item, rating in history)]
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode())


SITES = 2
TRAININGS = 2
K = 8
"""How many items the person asks for."""


@dataclass(frozen=True)
class RepeatedJob(Job):
    """A job that the same parties train `TRAININGS` times: their limit is for all of it."""

    @property
    def limit(self) -> Guarantee:
        """Guarantee that limits all trainings together."""
        once = super().limit
        if not once.private:
            return once
        together = epsilon_of(TRAININGS**0.5 * mu_for(once.epsilon, once.delta), once.delta)
        return replace(once, epsilon=together * (1 + 1e-9))


@dataclass(frozen=True)
class Alone:
    """A training in one process, without any fault: its recipe and plan, the last state, and how
    many rounds it took."""

    prepared: Prepared
    state: State
    rounds: int


@dataclass(frozen=True)
class Trial:
    """A scenario, its people, and the folder where everything lies.

    Trainings are counted from 0."""

    scenario: Scenario
    folder: Path
    _alone: dict[int, Alone] = field(default_factory=dict)

    @cached_property
    def people(self) -> People:
        """Who lives at the sites."""
        return invented(self.scenario)

    @cached_property
    def facts(self) -> PublicFacts:
        """What everybody knows before the first training."""
        return public_facts(self.scenario.seed, self.people.dataset, self.people.split)

    def alone(self, training: int) -> Alone:
        """What this process makes of a training's data, from the model that it made before where
        the recipe goes on from one."""
        if training not in self._alone:
            prepared = prepare(self.scenario, replace(self.facts, earlier=self._earlier(training)))
            rounds = 0
            state = prepared.recipe.begin()
            for carried in loopback(self._job(training, prepared)):
                state = carried.state
                rounds = rounds + 1
            self._alone[training] = Alone(prepared, state, rounds)
        return self._alone[training]

    def _earlier(self, training: int) -> Earlier | None:
        if training == 0:
            return None
        items = self.people.dataset.catalogue.item_ids
        return Earlier.of(
            self.alone(training - 1).state, self.facts.num_users, items=items, now=items
        )

    def files(self, training: int) -> PartyFiles:
        """Settings and data of all parties at a training."""
        job = self.job(training)
        return PartyFiles(job, RatingsParties(job, self.people.dataset.catalogue, SITES).holdings)

    def job(self, training: int) -> RepeatedJob:
        """What is promised of a training, and to whom."""
        return self._job(training, prepare(self.scenario, self.facts))

    def deployment(self, company: Supervisor) -> Deployment:
        """The parties, not started yet."""
        return Deployment(self.files(0), company)

    def history(self, training: int) -> Path:
        """The file that the person asks with then."""
        path = self.folder / "person" / "history.csv"
        write_history(path, self.people.history(training))
        return path

    def device(self, there: Deployment, url: str) -> asking.DeviceOptions:
        """The person's: epsilon 5 an answer, 20 in all."""
        money = (5.0, 20.0, 1e-5, None, float("inf"))
        return asking.DeviceOptions(
            url, self.folder / "person" / "state", *money, there.trust, 60.0
        )

    def same_bytes(self, there: Deployment, training: int) -> bool:
        """Whether the model of a training is the one that this process makes of the same data, byte
        for byte."""
        apart = there.folder(training) / "model" / "model.safetensors"
        mine = self.folder / "alone" / f"{training + 1}"
        alone = self.alone(training)
        save(mine, alone.prepared.recipe.model(alone.state), about={})
        return apart.read_bytes() == (mine / "model.safetensors").read_bytes()

    def _job(self, training: int, prepared: Prepared) -> RepeatedJob:
        return RepeatedJob(
            self.scenario, self.facts, self.people.events(training), prepared, self.folder
        )
