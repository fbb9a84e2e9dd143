"""Job of a runtime: one training with its private data, every round of it that was carried, the
runtime that needs no other process, and the shards of clients elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from fedrec.data.interactions import Catalogue, Interactions
from fedrec.errors import PrivacyError, SettingsError, require
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.coding import coded
from fedrec.federation.messages import Link, State, told_before, train
from fedrec.federation.protocol import Invitation
from fedrec.federation.releases import Charge
from fedrec.federation.wire import invitation_bytes, pack_release
from fedrec.in_process import Curator, Loopback, ThreeAggregators
from fedrec.privacy.accounting import Ledger, compose, epsilon_of
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Noise, SecretStreams, noise_from
from fedrec.recipes import Prepared
from fedrec.settings import Scenario
from fedrec.storage import PRIVATE, Checkpoints, write_bytes

Step = TypeVar("Step")
GROUP = "fedrec.runtimes"
"""Entry points of runtimes that play real parties."""


class AnyJob(Protocol):
    """What all parties of a training agree on, of whatever it learns from."""

    @property
    def scenario(self) -> Scenario:
        """What is trained."""

    @property
    def folder(self) -> Path:
        """Where everything lies."""

    @property
    def run(self) -> str:
        """The run's id."""

    @property
    def noise(self) -> Noise:
        """Where the aggregator's noise comes from."""

    @property
    def limit(self) -> Guarantee:
        """What every party of a rehearsal allows."""


@dataclass(frozen=True)
class Job:
    """One training on ratings or clicks: its scenario and what follows from it, the private data of
    all users, and a folder for what the runtime keeps.

    charge: told of every release before its noise is drawn, by the loopback; of the others'
    releases all together before the first. state: to go on from, None to begin. released: names of
    what was released before it.
    """

    scenario: Scenario
    facts: PublicFacts
    data: Interactions
    prepared: Prepared
    folder: Path
    charge: Charge | None = None
    state: State | None = None
    released: Sequence[str] = ()

    @property
    def noise(self) -> Noise:
        """Where the aggregator's noise comes from; of a stream, from a secret of the folder.

        Raises PrivacyError where a stream's secret is lost."""
        privacy = self.scenario.privacy
        if privacy.horizon and privacy.noise == "system":
            return SecretStreams(stream_secret(self.folder, begun=bool(self.released)))
        return noise_from(privacy.noise, self.scenario.seed)

    @property
    def run(self) -> str:
        """The run's id."""
        return self.scenario.run_id()

    @property
    def limit(self) -> Guarantee:
        """What every party of a rehearsal allows."""
        return limit_of(self.prepared.plan)

    @property
    def begun(self) -> State:
        """The state to go on from."""
        return self.prepared.recipe.begin() if self.state is None else self.state

    @property
    def ledger(self) -> Ledger:
        """Ledger of an aggregator that has made the releases so far."""
        ledger = Ledger(self.limit)
        for name in self.released:
            ledger = ledger.add(self.prepared.plan.event(name))
        return ledger


def stream_secret(folder: Path, *, begun: bool) -> bytes:
    """What all noise of a stream is derived from, made where it has not begun, beside its digest.

    Raises PrivacyError where a stream that has begun has another secret, or none: earlier noise
    could not be derived again, and noise of its own for each week costs more than was promised."""
    kept, digest = folder / "noise-secret", folder / "noise-secret.sha256"
    if not begun and not kept.exists():
        secret = os.urandom(32)
        write_bytes(digest, sha256(secret).hexdigest().encode())
        write_bytes(kept, secret, mode=PRIVATE)
    secret = kept.read_bytes() if kept.exists() else b""
    if not digest.exists() or sha256(secret).hexdigest() != digest.read_text():
        raise PrivacyError(
            f"the secret of this stream's noise is lost ({kept}): the stream has ended",
            "Bring back noise-secret as it was, or begin another stream, which costs its own "
            "epsilon.",
        )
    return secret


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

    released: `wire.pack_release` of what was released. reported: users whose sum it is.
    """

    round: int
    step: str
    releases: tuple[str, ...]
    bytes_up: int
    bytes_down: int
    seconds: float
    state: State
    released: bytes
    reported: int


J = TypeVar("J", bound=AnyJob)
Runtime = Callable[[J], Generator[Step, None, None]]
"""Carries a job from where it stands, and yields every further step: of ratings and clicks
`Carried` rounds, of news its progress and last the trained model. Closing it ends all parties."""


class Counted(Link, Protocol):
    """A way to all devices, or to who has their data, that counts the bytes they have sent."""

    @property
    def bytes_up(self) -> int:
        """Bytes of all devices together, so far."""


def rounds_of(
    job: Job, devices: Counted, link: Link | None = None
) -> Generator[Carried, None, None]:
    """Every further round of a job over `link`, or else `devices`; bytes are what the same messages
    take on the wire."""
    recipe = job.prepared.recipe
    plan = job.prepared.plan
    state = job.begun
    started = time.perf_counter()
    sent = 0
    told = told_before(recipe, state, Checkpoints(job.folder / "checkpoints").at)
    for done in train(recipe, link or devices, state):
        question = done.question
        down = invitation_bytes(Invitation(job.run, plan, question, coded(question.public, told)))
        seconds = time.perf_counter() - started
        up = devices.bytes_up - sent
        yield Carried(
            question.round,
            question.step,
            tuple(release.name for release in question.releases if release.charged),
            up,
            down,
            seconds,
            done.state,
            pack_release(done.answer),
            job.facts.num_users,
        )
        started = time.perf_counter()
        sent = devices.bytes_up
        told = question.public


def loopback(job: Job) -> Generator[Carried, None, None]:
    """The runtime `loopback`: everybody in this process, in one loop; or a curator with everybody's
    data."""
    prepared = job.prepared
    if prepared.curated is not None:
        yield from rounds_of(
            job,
            Curator(
                job.data, prepared.curated, prepared.plan, job.noise, job.ledger, charge=job.charge
            ),
        )
        return
    devices = Loopback(
        job.data, prepared.steps, prepared.plan, job.noise, job.ledger, charge=job.charge
    )
    real = job.scenario.privacy.shares == "real"
    yield from rounds_of(job, devices, ThreeAggregators(devices) if real else None)


Name = Literal["loopback", "parties", "flower", "processes", "partitions", "ray"]


@dataclass(frozen=True)
class RuntimeChoice:
    """What `fedrec simulate` was asked for: a runtime, how many clients share the users, and
    Ray's address.

    In loopback, and over partitions, every user is a client. address: of a Ray cluster, "" to start
    Ray on this machine. ship: whether its nodes are sent this package. Raises SettingsError where
    there is less than one client, and where Ray is asked for and is not installed or has nothing to
    do.

    A runtime takes a job and yields every step that is left of it. `loopback` plays all parts in
    one loop, and needs no process. Runtimes that play real parties are offered by an installed
    package:

        [project.entry-points."fedrec.runtimes"]
        parties = "fedrec_simulations.runtimes.in_process:parties"

    `parties` runs aggregator, server and clients with ledgers in this process; `processes` starts
    each as a process of its own. `flower` is what `flwr run` plays, over the grid that it is given.
    Each carries jobs of ratings, clicks and news alike. `partitions` and `ray` take partitioned
    data instead (`fedrec.run.partitions`): in this process part by part, or on a Ray cluster.
    """

    runtime: Name = "loopback"
    clients: int = 2
    address: str = ""
    ship: bool = False

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise SettingsError(
                f"clients must be at least 1, found {self.clients}",
                "Give --clients a positive number.",
            )
        if self.runtime == "ray":
            require("cluster", "--runtime ray")
        elif self.runtime not in {"loopback", "partitions"}:
            # before anything is read, or an older run's folder replaced
            require("deploy", f"--runtime {self.runtime}")
        for flag, said in (("--address", self.address), ("--ship-package", self.ship)):
            if said and self.runtime != "ray":
                raise SettingsError(
                    f"{flag} has no effect with --runtime {self.runtime}",
                    f"Add --runtime ray, or leave {flag} out.",
                )

    @property
    def partitioned(self) -> bool:
        """Whether it trains over partitions, which no process holds together."""
        return self.runtime in {"partitions", "ray"}

    @property
    def described(self) -> dict[str, Any]:
        """Return the choice as an object for a run's record."""
        plain = {"runtime": self.runtime, "clients": self.clients}
        return plain | (
            {"address": self.address, "ship": self.ship} if self.runtime == "ray" else {}
        )

    @property
    def suffix(self) -> str:
        """What tells its run folder from that of another choice."""
        if self.partitioned:
            return f"-{self.runtime}"
        return "" if self.runtime == "loopback" else f"-{self.runtime}-{self.clients}"

    def carrier(
        self, catalogue: Catalogue | None, alone: Callable[[Any], Any] = loopback
    ) -> Runtime[Any, Any]:
        """The runtime itself. catalogue: of ratings or clicks; jobs of news bring their own. alone:
        what everybody in this process is.

        Raises ValueError where it takes partitions: `partitions.run.run` carries those, and
        SettingsError where no installed package offers it."""
        if self.partitioned:
            raise ValueError(f"runtime {self.runtime!r} takes partitions")
        if self.runtime == "loopback":
            return alone
        for point in entry_points(group=GROUP, name=self.runtime):
            runtime: Runtime[Any, Any] = point.load()(catalogue, clients=self.clients)
            return runtime
        raise SettingsError(
            f"no installed package offers the runtime {self.runtime!r}",
            f"Install one with an entry point of that name in the group {GROUP!r}.",
        )


LOOPBACK = RuntimeChoice()
"""Everybody in one process, as long as nothing else is asked for."""
