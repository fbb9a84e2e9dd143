"""The one loop that every runtime shares: the server asks, the parties answer, the server learns, a checkpoint is kept.

A recipe is a pure state machine, so a run continues from any checkpoint to the same bytes, and the same recipe runs in
one process, in many, and over Flower: only the `Link` differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedrec.factorization.statistics import ExactSums
from fedrec.federation.messages import Question, Release, Reports
from fedrec.federation.releases import Charge, release
from fedrec.federation.reports import within_radius
from fedrec.privacy.calibration import Plan
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams, SystemStreams
from fedrec.sharing.layout import layout
from fedrec.sharing.shares import upload_bytes

State = Mapping[str, npt.NDArray[np.generic]]
"""Everything the server knows between rounds: named public arrays, ready for a checkpoint. `round` counts answers."""

ClientStep = Callable[[Question, Any], Reports]
"""What runs on a device: a question and the device's own users' data (interactions, or impressions of news) give bounded reports.
A user's report depends on that user alone: on its data, and where a step draws, on its id."""


class Shared(Protocol):
    """Private data of users: interactions, or impressions of news."""

    @property
    def num_users(self) -> int:
        """Users, with or without data."""

    def users_subset(self, users: npt.NDArray[np.integer]) -> Any:
        """The given users' alone."""


class Recipe(Protocol):
    """A federated algorithm on the server's side: public data and releases in, questions and a model out."""

    @property
    def plan(self) -> Plan:
        """What the run promises, divided over its releases."""

    def begin(self) -> State:
        """The state before the first round: public data only."""

    def ask(self, state: State) -> Question | None:
        """The next question, or None when the model is trained."""

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """The state after a release: post-processing only."""


class Link(Protocol):
    """A way to the clients and the aggregator."""

    def answer(self, question: Question) -> Release:
        """Broadcast, collect, sum, noise once. Raises BudgetExceededError where the ledger refuses."""


@dataclass
class Loopback:
    """All users and the aggregator in this process; the same messages as over a network.

    The ledger is charged before noise is drawn, and refuses what the plan does not hold. `bytes_up` counts what all
    devices have sent so far. Where the plan has three aggregators, three noises are added to plain sums, and bytes are those of shares,
    which are not made: the releases are `sharing.in_process.ThreeAggregators`'s.
    """

    interactions: Shared
    steps: Mapping[str, ClientStep]
    plan: Plan
    noise: Streams | SystemStreams
    ledger: Ledger
    users_per_batch: int = 16_384
    bytes_up: int = 0
    charge: Charge | None = None

    def answer(self, question: Question) -> Release:
        """One round over all users, batch by batch, in bounded memory."""
        sums = ExactSums(question.blocks)
        for reports in self.checked(question):
            sums.add(reports)
        answer, self.ledger = release(question, sums.blocks, self.plan, self.ledger, noise=self.noise, charge=self.charge)
        return answer

    def checked(self, question: Question) -> Iterator[Reports]:
        """What leaves the devices, held to its radius and counted."""
        shared = None if self.plan.aggregation == "trusted" else layout(question).length
        for reports in self.reports(question):
            if not within_radius(reports, question.releases).all():
                raise AssertionError(f"client step {question.step!r} made a report larger than its radius")
            self.bytes_up += reports.wire_bytes if shared is None else reports.num_users * upload_bytes(shared)
            yield reports

    def reports(self, question: Question) -> Iterator[Reports]:
        """What leaves the devices, in batches of consecutive users."""
        for start in range(0, self.interactions.num_users, self.users_per_batch):
            users = np.arange(start, min(start + self.users_per_batch, self.interactions.num_users))
            yield self.steps[question.step](question, self.interactions.users_subset(users))


@dataclass(frozen=True)
class RoundDone:
    """Progress: the question just answered, what came back, and the state it led to."""

    question: Question
    answer: Release
    state: State


def told_before(recipe: Recipe, state: State, kept: Callable[[int], State | None]) -> Mapping[str, npt.NDArray[np.generic]]:
    """Public arrays of the question whose answer led to `state`: what devices have when a run goes on.

    kept: the state after so many answers. {} before the first question, and where its state is not kept.
    """
    answers = int(state["round"])
    before = None if answers == 0 else recipe.begin() if answers == 1 else kept(answers - 1)
    question = None if before is None else recipe.ask(before)
    return {} if question is None else question.public


def train(recipe: Recipe, link: Link, state: State) -> Iterator[RoundDone]:
    """Run `recipe` over `link` from `state` to its end, yielding after every round. Keep the last state as the model."""
    while (question := recipe.ask(state)) is not None:
        answer = link.answer(question)
        state = recipe.tell(state, question, answer)
        yield RoundDone(question, answer, state)
