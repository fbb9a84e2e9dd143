"""Alg. 3: in each round some users compute a gradient on their device, and the server takes one
step of FedAdam.

Users take turns: every pass over them is a fresh random order, cut into rounds of equally many, so
that how often a user answers is public and equal for all: that is what each ledger is charged for.
No amplification by sampling is claimed; the server sees who answers.

FedAdam (Reddi et al. 2021, Alg. 2) on one vector of parameters, as
`flwr.serverapp.strategy.FedAdam` computes it:

    m = b1 m + (1 - b1) D,    v = b2 v + (1 - b2) D^2,    x = x + e_t m / (sqrt v + tau)
    e_t = e sqrt(1 - b2^(t + 1)) / (1 - b1^(t + 1)),  t = 1, 2, ..: Adam's correction of the start,
        one round ahead, as there

D is the clients' mean movement, x_clients - x; for clients that send one gradient it is minus the
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Floats, Int64s
from fedrec.news.checkpoints import Kept, State
from fedrec.randomness import Streams

if TYPE_CHECKING:  # it loads PyTorch
    from fedrec.encoders.news_model import NewsModel


@dataclass(frozen=True)
class FedAdam:
    """What decides only speed: e, b1, b2 and tau; the defaults are Flower's."""

    learning_rate: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3


@dataclass(frozen=True)
class Moments:
    """m and v after `rounds` rounds, of the shape of the parameters."""

    first: Floats
    second: Floats
    rounds: int = 0

    @staticmethod
    def like(parameters: Floats) -> Moments:
        """Before the first round: zeros."""
        return Moments(np.zeros_like(parameters), np.zeros_like(parameters))


def adam_step(
    parameters: Floats, movement: Floats, moments: Moments, rule: FedAdam
) -> tuple[Floats, Moments]:
    """The parameters after one round, in their dtype, and the moments."""
    t = moments.rounds + 1
    b1 = rule.beta_1
    b2 = rule.beta_2
    m = b1 * moments.first + (1 - b1) * movement
    v = b2 * moments.second + (1 - b2) * movement**2
    rate = rule.learning_rate * math.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
    moved = parameters + rate * m / (np.sqrt(v) + rule.tau)
    return moved.astype(parameters.dtype), replace(moments, first=m, second=v, rounds=t)


@dataclass(frozen=True)
class Schedule:
    """Passes over all users, and how many answer in a round; `rule` is the server's step."""

    passes: int
    users_per_round: int
    rule: FedAdam

    def rounds(self, users: int) -> int:
        """How many there are."""
        return self.passes * self.rounds_of_a_pass(users)

    def rounds_of_a_pass(self, users: int) -> int:
        """In which every user answers once."""
        return max(1, round(users / self.users_per_round))  # the nearest number of equal rounds


class LocalUpdate(Protocol):
    """What some users of a round send together."""

    def __call__(
        self, model: NewsModel, users: Int64s, round: int, question: str = ""
    ) -> tuple[Float32s, float]:
        """(P,) mean over these users of what each sends, a gradient; and the mean loss, for people
        only.

        question: its digest, where noise belongs to one question (`device_noise`).
        """
        ...

    def weight(self, users: Int64s) -> int:
        """What the mean of these users counts beside that of others: how many examples or users it
        is over."""
        ...


@dataclass(frozen=True)
class Course:
    """Where training is: parameters (P,) and moments, float64, after `moments.rounds` rounds."""

    parameters: Floats
    moments: Moments

    @staticmethod
    def begin(parameters: Float32s) -> Course:
        """Before the first round."""
        x = parameters.astype(np.float64)
        return Course(x, Moments.like(x))

    @staticmethod
    def of(state: State) -> Course:
        """What `arrays` wrote."""
        return Course(
            state["parameters"],
            Moments(state["first"], state["second"], int(state["round"])),
        )

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Ready for a checkpoint."""
        m = self.moments
        return {
            "round": np.array(m.rounds),
            "parameters": self.parameters,
            "first": m.first,
            "second": m.second,
        }

    def moved(self, gradient: Floats, rule: FedAdam) -> Course:
        """After one step."""
        return Course(*adam_step(self.parameters, -gradient, self.moments, rule))


class Step(Protocol):
    """One round, whoever carries it: these users' gradients, averaged, and the server's step."""

    def __call__(self, course: Course, users: Int64s, rule: FedAdam) -> tuple[Course, float]:
        """The course after it, and the mean loss (not a number where nobody may know it)."""
        ...


@dataclass(frozen=True)
class RoundDone:
    """Rounds done, of how many, the mean loss of the last one, and where training is."""

    round: int
    rounds: int
    loss: float
    course: Course


def cohorts(users: int, schedule: Schedule, *, streams: Streams) -> Iterator[Int64s]:
    """Who answers in each round: every user once a pass."""
    for turn in range(schedule.passes):
        yield from np.array_split(
            streams.numpy("news-cohorts", round=turn).permutation(users),
            schedule.rounds_of_a_pass(users),
        )


def train(
    step: Step,
    parameters: Float32s,
    users: int,
    schedule: Schedule,
    *,
    streams: Streams,
    kept: Kept,
) -> Iterator[RoundDone]:
    """Train from `parameters`, or from the newest state, yielding what is kept at first (loss not a
    number) and after every round."""
    state = kept.latest()
    course = Course.of(state) if state else Course.begin(parameters)
    rounds = schedule.rounds(users)
    yield RoundDone(course.moments.rounds, rounds, float("nan"), course)
    for t, cohort in enumerate(cohorts(users, schedule, streams=streams), start=1):
        if t <= course.moments.rounds:
            continue
        course, loss = step(course, cohort, schedule.rule)
        kept.save(course.arrays(), step=t, last=t == rounds)
        yield RoundDone(t, rounds, loss, course)
