"""What goes wrong in one simulated run: a list of operations drawn from a seed, that can be
printed, replayed and shortened.

An operation strikes the n-th message on a way ("client-1 > aggregator") or the n-th step of a
party. A party's steps are the moments before and after everything it makes durable, sends or
handles, so that a crash can happen at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np

from fedrec.randomness import Streams

AGGREGATOR = "aggregator"

T = TypeVar("T")


class Kind(StrEnum):
    """What befalls a message, a process, a disk or a clock.

    In brackets: what `Operation.amount` says."""

    LOSE = "lose"  # a message never arrives
    DEAF = "lose the answer"  # it arrives, its answer does not
    REPEAT = "repeat"  # it arrives twice
    DELAY = "delay"  # its sender gives up, and it arrives later [messages of anybody in between]
    HANG = "hang"  # it is handled after its sender has given up [seconds]
    DAMAGE = "damage"  # its bytes are changed [where and how, 0 to 1]
    GARBLE = "garble the answer"  # its answer's bytes are changed [where and how, 0 to 1]
    REPLAY = "replay"  # the sender also sends what a client sent before [which batch, 0 to 1]
    REFUSE = "refuse"  # a client says no and does nothing [why, 0 to 1]
    TURN = "turn"  # meanwhile the other run goes on by one round
    CRASH = "crash"  # the process ends; what is not durable is lost [messages it then misses]
    FULL = "full disk"  # writes fail from here on [how many]
    DOUBT = "doubtful write"  # the next write is durable, and reported as failed
    JUMP = "jump"  # the party's clock [seconds]
    LEAVE = "leave"  # a client ends, and never comes back


@dataclass(frozen=True, order=True)
class Operation:
    """`where` is a way ("client-1 > aggregator") or a party; `at` counts its messages or steps from
    0."""

    where: str
    at: int
    kind: Kind
    amount: float = 0.0

    def __str__(self) -> str:
        what = "message" if ">" in self.where else "step"
        return f"{self.where}, {what} {self.at}: {self.kind.value}" + (
            f" {self.amount:g}" if self.amount else ""
        )


@dataclass(frozen=True)
class Topology:
    """Aggregators: one that releases, or three."""

    parties: int = 1

    @property
    def aggregators(self) -> tuple[str, ...]:
        """Their names, by place."""
        places = range(self.parties)
        return (AGGREGATOR,) if self.parties == 1 else tuple(f"{AGGREGATOR}-{i}" for i in places)

    def peers(self, name: str) -> dict[int, str]:
        """The other aggregators, by place."""
        return {i: other for i, other in enumerate(self.aggregators) if other != name}


ONE = Topology()
THREE = Topology(3)


def place_of(name: str) -> int:
    """Of the party that an aggregator's process belongs to."""
    return int(f"{name}-0".split("-")[1])


@dataclass(frozen=True)
class Setup:
    """The parties of a run, and how patient they are.

    steps: of the model, one round each after the first. absent_s: how long a round waits for a
    silent client. tries: how often a call to the aggregator is made. max_epsilon: what clients and
    aggregator allow, over all runs; a run takes 5. min_share: of a run's users, who must report in
    every round; whoever operates the servers lowers it where a client has left for good. trainings:
    of each server, one after the other; each is a run. checked: three aggregators check clients.
    """

    clients: int = 3
    users_per_batch: int = 2
    steps: int = 1
    min_cohort: int = 1
    absent_s: float = 30.0
    tries: int = 3
    runs: int = 1
    max_epsilon: float = 8.0
    min_share: float = 0.8
    trainings: int = 1
    topology: Topology = ONE
    checked: bool = False

    @property
    def training(self) -> tuple[int, int, bool]:
        """What is trained: steps, by how many parties, and whether these check clients."""
        return self.steps, self.topology.parties, self.checked

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of the clients."""
        return tuple(f"client-{n}" for n in range(self.clients))

    @property
    def server_names(self) -> tuple[str, ...]:
        """Names of the servers, one for each run."""
        return tuple(f"server-{n}" for n in range(self.runs))


@dataclass(frozen=True)
class Script:
    """One run: replayed, it gives the same trace."""

    setup: Setup
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return "\n".join([str(self.setup), *(f"  {operation}" for operation in self.operations)])


def script(seed: int, topology: Topology = ONE) -> Script:
    """The script of a seed.

    Of one aggregator: one operation to fourteen, and in one of six a client that leaves."""
    if topology != ONE:
        return _script_of_several(seed, topology)
    rng = Streams(seed).numpy("fault-script")
    quorum = Streams(seed).numpy("fault-script-quorum")
    setup = replace(_setup(rng), min_share=float(quorum.choice([0.0, 0.5, 0.8, 0.8, 0.8, 1.0])))
    if setup.runs == 1:
        trainings = Streams(seed).numpy("fault-script-trainings").choice([1, 1, 2])
        setup = replace(setup, trainings=int(trainings))
    count = int(rng.choice([1, 2, 2, 3, 4, 6, 8, 10, 14]))
    operations = [_operation(rng, setup) for _ in range(count)]
    if quorum.random() < 1 / 6:
        client = _one(quorum, setup.client_names)
        at = quorum.integers(STEPS[ONE]["client"])
        operations.append(Operation(client, int(at), Kind.LEAVE))
    return Script(setup, tuple(sorted(operations)))


def _script_of_several(seed: int, topology: Topology) -> Script:
    rng = Streams(seed).numpy(f"fault-script-{topology}")
    setup = Setup(
        users_per_batch=int(rng.integers(1, 3)),
        min_cohort=2,
        tries=int(rng.choice([1, 3])),
        min_share=float(rng.choice([0.5, 1.0])),
        topology=topology,
        checked=seed % 3 == 0,
    )
    count = int(rng.choice([2, 4, 8, 16, 32, 64, 128]))
    reach = int(rng.choice([1, 1, 3]))
    return Script(setup, tuple(sorted(_operation(rng, setup, reach) for _ in range(count))))


def shortened(failing: Script, fails: Callable[[Script], bool]) -> Script:
    """A script of as few operations as are needed to fail: none of them can be left out."""
    size = len(failing.operations)
    while size:
        for start in range(0, len(failing.operations), size):
            fewer = replace(
                failing, operations=failing.operations[:start] + failing.operations[start + size :]
            )
            if fails(fewer):
                failing = fewer
                break
        else:
            size = min(size, len(failing.operations) + 1) // 2
    return failing


def _setup(rng: np.random.Generator) -> Setup:
    return Setup(
        clients=int(rng.choice([2, 2, 3])),
        users_per_batch=int(rng.choice([2, 100])),
        steps=int(rng.choice([1, 1, 1, 2])),
        min_cohort=int(rng.choice([1, 1, 4, 7])),
        absent_s=float(rng.choice([0.0, 30.0, 30.0])),
        tries=int(rng.choice([1, 3])),
        runs=int(rng.choice([1, 1, 1, 1, 2])),
        max_epsilon=float(rng.choice([5.0, 8.0])),
    )


_LOST = (Kind.LOSE, Kind.DEAF, Kind.REPEAT, Kind.DELAY)
_MESSAGE_KINDS = {
    ("server", "aggregator"): (*_LOST, Kind.HANG, Kind.DAMAGE, Kind.TURN, Kind.TURN),
    ("server", "client"): (*_LOST, Kind.HANG, Kind.DAMAGE, Kind.GARBLE, Kind.REFUSE),
    ("client", "aggregator"): (
        *(*_LOST, Kind.HANG),
        *(Kind.DAMAGE, Kind.DAMAGE, Kind.REPLAY, Kind.REPLAY),
    ),
}
"""Of one aggregator; more of them lose messages alone."""
_PARTY_KINDS = (Kind.CRASH, Kind.CRASH, Kind.CRASH, Kind.FULL, Kind.DOUBT, Kind.JUMP)
MESSAGES = {
    ONE: {("server", "aggregator"): 12, ("server", "client"): 4, ("client", "aggregator"): 11},
    THREE: {
        ("server", "aggregator"): 28,
        ("server", "client"): 4,
        ("client", "aggregator"): 13,
        ("aggregator", "aggregator"): 42,
    },
}
STEPS = {
    ONE: {"server": 95, "aggregator": 98, "client": 50},
    THREE: {"server": 213, "aggregator": 470, "client": 115},
}
"""About as many as there are in a training without faults (a test counts them)."""


def _operation(rng: np.random.Generator, setup: Setup, reach: int = 1) -> Operation:
    """reach: how many times as many steps may be struck as there are without faults."""
    topology = setup.topology
    reach = reach * setup.trainings
    if rng.random() < 0.5:
        aggregators = topology.aggregators * 2
        party = str(rng.choice([*aggregators, *setup.server_names, *setup.client_names]))
        kind = _one(rng, _PARTY_KINDS)
        at = int(rng.integers(reach * STEPS[topology][role_of(party)]))
        return Operation(party, at, kind, _amount(rng, kind))
    sender, receiver = _one(rng, tuple(MESSAGES[topology]))
    kinds = _MESSAGE_KINDS[sender, receiver] if topology == ONE else _LOST
    kind = _one(rng, kinds)
    of_role = {
        "server": setup.server_names,
        "client": setup.client_names,
        "aggregator": topology.aggregators,
    }
    one = _one(rng, of_role[sender])
    others = tuple(topology.peers(one).values()) if sender == receiver else of_role[receiver]
    way = f"{one} > {_one(rng, others)}"
    at = int(rng.integers(reach * MESSAGES[topology][sender, receiver]))
    return Operation(way, at, kind, _amount(rng, kind))


def _one(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def role_of(party: str) -> str:
    """Server, client or aggregator."""
    return party.split("-")[0]


def _amount(rng: np.random.Generator, kind: Kind) -> float:
    match kind:
        case Kind.DELAY:
            return float(rng.integers(1, 30))
        case Kind.HANG:
            return float(rng.choice([5.0, 40.0, 200.0]))
        case Kind.DAMAGE | Kind.GARBLE | Kind.REPLAY | Kind.REFUSE:
            return round(float(rng.random()), 4)
        case Kind.CRASH:
            return float(rng.integers(0, 8))
        case Kind.FULL:
            return float(rng.integers(1, 6))
        case Kind.JUMP:
            return float(rng.choice([-200_000.0, -3_600.0, -5.0, 5.0, 60.0, 500.0, 200_000.0]))
        case _:
            return 0.0
