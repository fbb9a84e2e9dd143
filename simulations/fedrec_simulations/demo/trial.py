"""What a trial deployment trains, twice, and what one process makes of the same data without any fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.released import save
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import Prepared, prepare
from fedrec.settings import Scenario
from fedrec_simulations import recommend as asking
from fedrec_simulations.datasets import public_facts
from fedrec_simulations.demo.parties import Deployment
from fedrec_simulations.demo.people import People, invented, write_history
from fedrec_simulations.party_files import PartyFiles, ratings
from fedrec_simulations.runtimes import Carried, Job, Shard, loopback
from fedrec_simulations.supervision import Company

SITES, TRAININGS = 2, 2
K = 8
"""How many items the person asks for."""


@dataclass(frozen=True)
class RepeatedJob(Job):
    """A job that the same parties train `TRAININGS` times: their limit is for all of it."""

    @property
    def limit(self) -> Guarantee:
        """Of all trainings together."""
        once = super().limit
        if not once.private:
            return once
        together = epsilon_of(TRAININGS**0.5 * mu_for(once.epsilon, once.delta), once.delta)
        return replace(once, epsilon=together * (1 + 1e-9))


@dataclass(frozen=True)
class Trial:
    """A scenario, its people, and the folder where everything lies."""

    scenario: Scenario
    folder: Path

    @cached_property
    def people(self) -> People:
        """Who lives at the sites."""
        return invented(self.scenario)

    @cached_property
    def facts(self) -> PublicFacts:
        """What everybody knows: the same at both trainings."""
        return public_facts(self.scenario, self.people.dataset, self.people.split)

    @cached_property
    def prepared(self) -> Prepared:
        """Recipe and plan of one training."""
        return prepare(self.scenario, self.facts)

    @cached_property
    def rounds(self) -> int:
        """Of one training: releases that are asked for together make one."""
        return sum(1 for _ in self._alone(0))

    def files(self, training: int) -> PartyFiles[Shard]:
        """Settings and data of all parties at a training, counted from 0."""
        job = self._job(training)
        return PartyFiles(job, ratings(job, self.people.dataset.catalogue, SITES))

    def deployment(self, company: Company) -> Deployment:
        """The parties, not started yet."""
        return Deployment(self.files(0), company)

    def history(self, training: int) -> Path:
        """The file that the person asks with then."""
        path = self.folder / "person" / "history.csv"
        write_history(path, self.people.history(training))
        return path

    def device(self, there: Deployment, url: str) -> asking.Device:
        """The person's: epsilon 5 an answer, 20 in all."""
        money = (5.0, 20.0, 1e-5, None, float("inf"))
        return asking.Device(url, self.folder / "person" / "state", *money, there.trust, 60.0)

    def same_bytes(self, there: Deployment, training: int) -> bool:
        """Whether the model of a training is the one that this process makes of the same data, byte for byte."""
        apart = there.folder(training) / "model" / "model.safetensors"
        state = self.prepared.recipe.begin()
        for carried in self._alone(training):
            state = carried.state
        folder = self.folder / "alone" / f"{training + 1}"
        save(folder, self.prepared.recipe.model(state), about={})
        return apart.read_bytes() == (folder / "model.safetensors").read_bytes()

    def _alone(self, training: int) -> Iterator[Carried]:
        """The rounds of a training in this process."""
        job = replace(self._job(training), folder=self.folder / "alone")
        yield from loopback(job, self.prepared.recipe.begin(), [])

    def _job(self, training: int) -> RepeatedJob:
        return RepeatedJob(self.scenario, self.facts, self.people.events(training), self.prepared, self.folder)
