"""Two trainings by the same invented people at two sites, and what one process makes of the same
data without any fault. Some of the ratings arrive only after the first training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.splits import Split
from fedrec.factorization.facts import Earlier, PublicFacts, public_facts
from fedrec.factorization.released import save
from fedrec.federation.messages import State
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import Job, loopback
from fedrec.settings import Scenario
from fedrec_simulations.runtimes.deployment_files import PartyFiles
from fedrec_simulations.runtimes.ratings import RatingsParties

SITES = 2
TRAININGS = 2
EARLIER = 0.8
"""Share of the training events that are there at the first training."""


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
        # the inverse of mu_for is found to a relative error of about 1e-12
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
    def dataset(self) -> Dataset:
        """Who is invented, and what they rated."""
        return load_dataset(self.scenario)

    @cached_property
    def split(self) -> Split:
        """What of it is trained on; test events never reach a site."""
        return load_split(self.scenario, self.dataset)

    @cached_property
    def facts(self) -> PublicFacts:
        """What everybody knows before the first training."""
        return public_facts(self.scenario.seed, self.dataset, self.split)

    def events(self, training: int) -> Interactions:
        """What the sites hold at a training."""
        train = self.split.train
        if training > 0:
            return train
        drawn = train.draws(Streams(self.scenario.seed).key("demo/earlier"))
        return train.select(drawn < np.uint64(EARLIER * 2**64))

    def alone(self, training: int) -> Alone:
        """What this process makes of a training's data, from the model that it made before where
        the recipe goes on from one."""
        if training not in self._alone:
            earlier = None
            if training > 0:
                items = self.dataset.catalogue.item_ids
                before = self.alone(training - 1).state
                earlier = Earlier.of(before, self.facts.num_users, items=items, now=items)
            prepared = prepare(self.scenario, replace(self.facts, earlier=earlier))
            steps = list(loopback(self._job(training, prepared)))
            self._alone[training] = Alone(prepared, steps[-1].state, len(steps))
        return self._alone[training]

    def files(self, training: int) -> PartyFiles:
        """Settings and data of all parties at a training."""
        job = self._job(training, prepare(self.scenario, self.facts))
        return PartyFiles(job, RatingsParties(job, self.dataset.catalogue, SITES).holdings)

    def same_bytes(self, trained: Path, training: int) -> bool:
        """Whether a training's folder holds the model that this process makes of the same data,
        byte for byte."""
        mine = self.folder / "alone" / f"{training + 1}"
        alone = self.alone(training)
        save(mine, alone.prepared.recipe.model(alone.state), about={})
        name = "model.safetensors"
        return (trained / "model" / name).read_bytes() == (mine / name).read_bytes()

    def _job(self, training: int, prepared: Prepared) -> RepeatedJob:
        return RepeatedJob(self.scenario, self.facts, self.events(training), prepared, self.folder)
