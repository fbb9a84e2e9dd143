"""Alg. 3: in each round some users compute a gradient on their device, and the server takes one step of FedAdam.

Users take turns: every pass over them is a fresh random order, cut into rounds of equally many, so that how often a user answers is
public and equal for all: that is what each ledger is charged for. No amplification by sampling is claimed; the server sees who answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.encoders.news_model import NewsModel
from fedrec.privaterec import fedadam
from fedrec.streams import Streams

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Schedule:
    """Passes over all users, and how many answer in a round; `rule` is the server's step."""

    passes: int
    users_per_round: int
    rule: fedadam.FedAdam

    def rounds(self, users: int) -> int:
        """How many there are."""
        return self.passes * max(1, round(users / self.users_per_round))


class LocalUpdate(Protocol):
    """What the users of a round send together."""

    def __call__(self, model: NewsModel, users: Int64s, round: int) -> tuple[Float32s, float]:
        """(P,) mean over these users of what each sends, a gradient; and the mean loss, for people only."""
        ...


@dataclass(frozen=True)
class RoundDone:
    """Progress: rounds done, of how many, and the mean loss of the last one."""

    round: int
    rounds: int
    loss: float


def cohorts(users: int, schedule: Schedule, *, streams: Streams) -> Iterator[Int64s]:
    """Who answers in each round: every user once a pass."""
    a_pass = max(1, round(users / schedule.users_per_round))
    for turn in range(schedule.passes):
        yield from np.array_split(streams.numpy("news-cohorts", round=turn).permutation(users), a_pass)


def train(model: NewsModel, data: Impressions, update: LocalUpdate, schedule: Schedule, *, streams: Streams) -> Iterator[RoundDone]:
    """Train `model` in place, yielding after every round."""
    parameters = model.parameters_vector()
    moments: fedadam.Moments = fedadam.Moments.like(parameters)
    for t, users in enumerate(cohorts(data.num_users, schedule, streams=streams), start=1):
        gradient, loss = update(model, users, t)
        moved, moments = fedadam.step(parameters, -gradient, moments, schedule.rule)
        parameters = np.asarray(moved, np.float32)
        model.load_vector(parameters)
        yield RoundDone(t, schedule.rounds(data.num_users), loss)
