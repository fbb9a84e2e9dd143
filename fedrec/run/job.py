"""Job of a runtime: one training with its private data, every round of it that was carried, and the
shards of its clients."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.releases import Charge
from fedrec.federation.rounds import State
from fedrec.privacy.accounting import compose, epsilon_of
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams
from fedrec.recipes import Prepared
from fedrec.settings import Scenario


@dataclass(frozen=True)
class Job:
    """One training: its scenario and what follows from it, the private data of all users, and a
    folder for what the runtime keeps.

    charge: told of every release before its noise is drawn, by the loopback; of the others'
    releases all together before the first.
    """

    scenario: Scenario
    facts: PublicFacts
    data: Interactions
    prepared: Prepared
    folder: Path
    charge: Charge | None = None

    @property
    def noise(self) -> Streams | SystemStreams:
        """Where the aggregator's noise comes from."""
        return (
            Streams(self.scenario.seed)
            if self.scenario.privacy.noise == "seeded"
            else SystemStreams()
        )

    @property
    def run(self) -> str:
        """The run's id."""
        return run_id(self.scenario)

    @property
    def limit(self) -> Guarantee:
        """What every party of a rehearsal allows."""
        return limit_of(self.prepared.plan)


def limit_of(plan: Plan) -> Guarantee:
    """Exactly one run of this plan, at what it truly costs where it only reproduces a paper."""
    promised = plan.guarantee
    if promised.established:
        return Guarantee(promised.epsilon, promised.delta, promised.unit)
    spent = epsilon_of(
        compose([plan.event(release.name) for release in plan.releases]), promised.delta
    )
    return Guarantee(max(promised.epsilon, spent * (1 + 1e-6)), promised.delta, promised.unit)


@dataclass(frozen=True)
class Carried:
    """One round: what was asked and released, bytes that left all devices together, bytes each got,
    seconds, and the state it led to.

    noise_std: by block, as the release states what was drawn.
    """

    round: int
    step: str
    releases: tuple[str, ...]
    bytes_up: int
    bytes_down: int
    seconds: float
    state: State
    noise_std: Mapping[str, float]


def run_id(scenario: Scenario) -> str:
    """The same scenario is the same run."""
    return f"{scenario.recipe}-{scenario.digest()[:16]}"


Runtime = Callable[[Job, State, Sequence[str]], Generator[Carried, None, None]]
"""From a job, the state to go on from and the names of what was released before it, every further
round. Closing it ends all parties."""


@dataclass(frozen=True)
class Shard:
    """What one client holds: consecutive users, the first of which has the number `first_user`
    among all."""

    name: str
    first_user: int
    events: Interactions

    @property
    def user_ids(self) -> tuple[str, ...]:
        """Users are named by their number among all: a split may have left out some that the data
        names."""
        return tuple(str(self.first_user + k) for k in range(self.events.num_users))


def shards(data: Interactions, clients: int) -> list[Shard]:
    """All users, divided as evenly as possible.

    Raises SettingsError where a client would have none."""
    if clients > data.num_users:
        raise SettingsError(
            f"{clients} clients cannot share {data.num_users} users", "Give fewer --clients."
        )
    parts = np.array_split(np.arange(data.num_users), clients)
    return [
        Shard(f"client-{number}", int(part[0]), data.users_subset(part))
        for number, part in enumerate(parts, start=1)
    ]
