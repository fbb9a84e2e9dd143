"""The one loop that every runtime shares: the server asks, the parties answer, the server learns, a
checkpoint is kept.

A recipe is a pure state machine, so a run continues from any checkpoint to the same bytes, and the
same recipe runs in one process, in many, and over Flower: only the `Link` differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedrec.federation.messages import Question, Release, Reports
from fedrec.privacy.calibration import Plan

State = Mapping[str, npt.NDArray[np.generic]]
"""Everything the server knows between rounds: named public arrays, ready for a checkpoint.

`round` counts answers."""

ClientStep = Callable[[Question, Any], Reports]
"""What runs on a device: a question and the device's own users' data (interactions, or impressions
of news) give bounded reports. A user's report depends on that user alone: on its data, and where a
step draws, on its id."""


Curated = Callable[[Any, Any], Mapping[str, npt.NDArray[np.float64]]]
"""What a trusted curator computes of everybody's data with a source of noise: the values of a
question's blocks."""


class Shared(Protocol):
    """Private data of users: interactions, or impressions of news."""

    @property
    def num_users(self) -> int:
        """Users, with or without data."""

    def users_subset(self, users: npt.NDArray[np.integer]) -> Any:
        """The given users' alone."""


class Recipe(Protocol):
    """A federated algorithm on the server's side: public data and releases in, questions and a
    model out."""

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
        """Broadcast, collect, sum, noise once.

        Raises BudgetExceededError where the ledger refuses."""


@dataclass(frozen=True)
class RoundDone:
    """Progress: the question just answered, what came back, and the state it led to."""

    question: Question
    answer: Release
    state: State


def told_before(
    recipe: Recipe, state: State, kept: Callable[[int], State | None]
) -> Mapping[str, npt.NDArray[np.generic]]:
    """Public arrays of the question whose answer led to `state`: what devices have when a run goes
    on.

    kept: the state after so many answers. {} before the first question, and where its state is not
    kept.
    """
    answers = int(state["round"])
    before = None if answers == 0 else recipe.begin() if answers == 1 else kept(answers - 1)
    question = None if before is None else recipe.ask(before)
    return {} if question is None else question.public


def train(recipe: Recipe, link: Link, state: State) -> Iterator[RoundDone]:
    """Run `recipe` over `link` from `state` to its end, yielding after every round.

    Keep the last state as the model."""
    while (question := recipe.ask(state)) is not None:
        answer = link.answer(question)
        state = recipe.tell(state, question, answer)
        yield RoundDone(question, answer, state)
