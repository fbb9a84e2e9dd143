"""Three parties in one process, each on its folder: the real aggregator, real participants, and a
server that may crash anywhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.planted import PlantedShape, planted
from fedrec.federation.messages import train
from fedrec.federation.protocol import Answer, Invitation, Terms
from fedrec.federation.round_driver import Patience
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.public_data import PublicData
from fedrec.randomness import Noise, Streams
from fedrec.recipes import guarantee_of, prepare
from fedrec.settings import Scenario, load
from fedrec.storage import Checkpoints
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.store import LocalUsers
from fedrec_server.gathering import Gathering
from fedrec_server.rounds import KeptRound, RoundSettings, run_rounds
from fedrec_server.run_settings import RunSettings
from fedrec_server.runs import Runs
from fedrec_server.schedule import TrainingSchedule
from fedrec_server.trainings import Trainings

BOUNDARIES = (0, 13, 27, 40)
OF_ROUNDS = {each.name for each in fields(RoundSettings)}
SMALL = ["recipe=published", "model.dimension=3", "model.steps=2", "model.encoder=id"]
RECIPES = {
    "default": list[str](),
    "published": [*SMALL, "model.encoder=features"],
    "published, id only": SMALL,
    "published, one step": [*SMALL, "model.steps=1"],
    "stream": ["recipe=dp-item-item", "privacy.horizon=4"],
    "evaluated": ["recipe=dp-bias", "privacy.evaluation_share=0.1"],
}


def settings_of(**options: Any) -> tuple[RunSettings, RoundSettings]:
    """Of a run, and of its rounds."""
    own = {name: value for name, value in options.items() if name in OF_ROUNDS}
    run = {name: value for name, value in options.items() if name not in OF_ROUNDS}
    return RunSettings(**run), RoundSettings(**own)


@dataclass
class Time:
    """Seconds that pass only when somebody sleeps."""

    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Site:
    """A client, of which `absent` counts the calls it misses, and which refuses everything where it
    has a `refusal`."""

    participant: Participant
    terms_folder: Path
    absent: int = 0
    refusal: str = ""

    def join(self, terms: Terms) -> Answer:
        return self._refused() if self.refusal else self.participant.join(terms)

    def answer(self, invitation: Invitation) -> Answer:
        return self._refused() if self.refusal else self.participant.answer(invitation)

    def lose_its_notes(self) -> None:
        """It comes back with its ledger, and knows nothing of the run."""
        shutil.rmtree(self.terms_folder)
        self.participant._known = None

    def _refused(self) -> Answer:
        return Answer(
            self.participant.name,
            self.participant.users.num_users,
            refusal=self.refusal,
            cause="as the test wants",
        )


@dataclass
class Sites:
    """A broadcast that calls the sites one after the other; an absent one gives no answer."""

    sites: list[Site]

    def join(self, terms: Terms) -> Sequence[Answer]:
        return [site.join(terms) for site in self._there()]

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        return [site.answer(invitation) for site in self._there()]

    def ask_some(self, invitation: Invitation, clients: Collection[str]) -> Sequence[Answer]:
        return [
            site.answer(invitation) for site in self._there() if site.participant.name in clients
        ]

    def _there(self) -> Iterator[Site]:
        for site in self.sites:
            if site.absent:
                site.absent -= 1
            else:
                yield site


@dataclass
class World:
    """The parties of one run in `folder`, and the loopback that everything is compared with."""

    folder: Path
    scenario: Scenario
    dataset: Dataset
    min_cohort: int = 1
    client_limit: float = 5.0
    aggregator_limit: float | None = None
    warm: bool = True
    noise: Noise | None = None
    min_share: float = 0.8
    time: Time = field(default_factory=Time)

    def __post_init__(self) -> None:
        events = self.dataset.interactions
        self.public = PublicData(
            self.dataset.catalogue.item_ids, events.kind, events.value_range, self.dataset.features
        )
        self.start_aggregator()
        self.sites = [
            self._site(f"site-{n}", start, end)
            for n, (start, end) in enumerate(pairwise(BOUNDARIES))
        ]
        self.clients = Sites(self.sites)

    def _site(self, name: str, start: int, end: int) -> Site:
        ids = self.dataset.catalogue
        folder = self.folder / name
        users = LocalUsers(
            self.dataset.interactions.users_subset(np.arange(start, end)),
            ids.item_ids,
            ids.user_ids[start:end],
        )
        ledger = ClientLedger(
            folder / "ledger.sqlite", limit=Guarantee(self.client_limit, 1e-5), clock=self.time
        )
        return Site(
            Participant(name, users, ledger, EndpointOf(self, name), folder), folder / "terms"
        )

    def start_aggregator(self) -> None:
        """A new process on the old folder, the old one having lost its memory."""
        if hasattr(self, "endpoint"):
            self.endpoint.ledger.close()
        limit = None if self.aggregator_limit is None else Guarantee(self.aggregator_limit, 1e-5)
        ledger = ReleaseLedger(self.folder / "aggregator", limit=limit, clock=self.time)
        self.endpoint = Aggregator(
            ledger,
            Limits(min_cohort=self.min_cohort),
            noise=self.noise or Streams(self.scenario.seed),
            clock=self.time,
        )

    def close(self) -> None:
        self.endpoint.ledger.close()
        for site in self.sites:
            site.participant.ledger.close()

    def run(
        self,
        *,
        endpoint: Any = None,
        clients: Any = None,
        scenario: Scenario | None = None,
        **options: Any,
    ) -> list[KeptRound]:
        """The server's run from start, or from where it stopped, to its end."""
        gathering = Gathering(
            expected_users=BOUNDARIES[-1],
            min_clients=3,
            timeout_s=60,
            sleep=self.time.sleep,
            clock=self.time,
        )
        patience = Patience(
            round_s=100,
            sleep=self.time.sleep,
            clock=self.time,
            min_share=options.pop("min_share", 0.8),
        )
        arguments = {"gathering": gathering, "patience": patience, "absent_s": 30.0, **options}
        rounds = run_rounds(
            scenario or self.scenario,
            self.public,
            endpoint or self.endpoint,
            clients or self.clients,
            self.folder / "server",
            *settings_of(**arguments),
        )
        return list(rounds)

    def trainings(self, *, again: bool = False, every_s: float = 0.0, **options: Any) -> Trainings:
        """Of the state folder, as a server's process has them."""
        state = self.folder / "server"
        runs = Runs(state)
        schedule = TrainingSchedule(state, every_s, again, clock=self.time, monotonic=self.time)
        runs.adopt()
        return Trainings(
            runs,
            schedule,
            guarantee_of(self.scenario.privacy),
            self.endpoint.budget,
            clock=self.time,
            **options,
        )

    def trained_in(self, trainings: Trainings) -> None:
        """The rounds of the training in progress."""
        gathering = Gathering(
            expected_users=1, min_clients=1, timeout_s=60, sleep=self.time.sleep, clock=self.time
        )
        patience = Patience(round_s=100, sleep=self.time.sleep, min_share=self.min_share)
        options = {
            "gathering": gathering,
            "patience": patience,
            "run": trainings.entry.asks,
            "week": trainings.entry.week,
            "planned": trainings.planned,
        }
        options["earlier"] = trainings.earlier(self.public.items) if self.warm else None
        options["serving"] = trainings.compared(self.public.items)
        trainings.runs.resume_stream()
        list(
            run_rounds(
                self.scenario,
                self.public,
                self.endpoint,
                self.clients,
                trainings.folder,
                *settings_of(**options),
            )
        )

    def train(self, *, trainings: Trainings | None = None, **options: Any) -> Trainings:
        """What `fedrec server` does once its parties are there, until it ends."""
        trainings = trainings or self.trainings(**options)
        for _ in trainings.each(self.time.sleep):
            self.trained_in(trainings)
        return trainings

    @property
    def plan(self) -> Plan:
        return prepare(
            self.scenario, self.public.facts(num_users=BOUNDARIES[-1], seed=self.scenario.seed)
        ).plan

    def loopback(self) -> list[dict[str, bytes]]:
        """Every state of the same training in one process, as bytes."""
        events = self.dataset.interactions
        prepared = prepare(
            self.scenario, self.public.facts(num_users=events.num_users, seed=self.scenario.seed)
        )
        link = Loopback(
            events,
            prepared.steps,
            prepared.plan,
            Streams(self.scenario.seed),
            Ledger(prepared.plan.guarantee),
        )
        return [
            as_bytes(done.state) for done in train(prepared.recipe, link, prepared.recipe.begin())
        ]

    def states(self) -> list[dict[str, bytes]]:
        """Every state that the server kept."""
        return [
            as_bytes(state) for state in Checkpoints(self.folder / "server" / "checkpoints").all()
        ]

    @property
    def model(self) -> bytes:
        return (self.folder / "server" / "model" / "model.safetensors").read_bytes()

    @property
    def charges(self) -> list[str]:
        """Names of the releases that the aggregator was charged for."""
        return [charge.release for charge in self.endpoint.ledger.spends().charges]


class CrashError(Exception):
    """The server's process ends here."""


@dataclass
class Steps:
    """Counts what the server does to others and to its disk, before and after each, and ends it at
    step number `crash_at`."""

    crash_at: int = -1
    taken: int = 0

    def step(self) -> None:
        self.taken += 1
        if self.taken - 1 == self.crash_at:
            raise CrashError


@dataclass
class Watched:
    """An endpoint or a broadcast: `before` and `after` are told of every call, and `after` what it
    returned."""

    behind: Any
    before: Callable[[], None] = lambda: None
    after: Callable[[str, Any], None] = lambda name, result: None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.before()
            result = getattr(self.behind, name)(*arguments, **options)
            self.after(name, result)
            return result

        return call


@pytest.fixture
def crashing_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a world's server until its step number `crash_at`, or to its end; the number of steps it
    took."""

    def run(world: World, crash_at: int, **options: Any) -> int:
        steps = Steps(crash_at)
        replace_file = os.replace

        def replacing(source: str, target: Path) -> None:
            ours = (world.folder / "server") in Path(target).parents
            if ours:
                steps.step()
            replace_file(source, target)
            if ours:
                steps.step()

        endpoint, clients = (
            Watched(behind, steps.step, lambda name, result: steps.step())
            for behind in (world.endpoint, world.clients)
        )
        with monkeypatch.context() as patch, suppress(CrashError):
            patch.setattr("fedrec.storage.os.replace", replacing)
            world.run(endpoint=endpoint, clients=clients, **options)
        return steps.taken

    return run


@pytest.fixture
def crashing_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[World, Trainings, int], None]:
    """End the server in the rounds of a training, after so many of its checkpoints."""

    def run(world: World, trainings: Trainings, checkpoints: int) -> None:
        left = iter(range(checkpoints))
        save = Checkpoints.save

        def saving(kept: Checkpoints, state: Any, *, round: int) -> None:
            if next(left, None) is None:
                raise CrashError
            save(kept, state, round=round)

        with monkeypatch.context() as patch, suppress(CrashError):
            patch.setattr(Checkpoints, "save", saving)
            world.trained_in(trainings)

    return run


@pytest.fixture
def everything_the_server_hears() -> Callable[[World], list[tuple[str, Any]]]:
    """Run a world's server to its end; what its endpoint and its broadcast returned, in order."""

    def run(world: World) -> list[tuple[str, Any]]:
        heard = list[tuple[str, Any]]()
        endpoint, clients = (
            Watched(behind, after=lambda name, result: heard.append((name, result)))
            for behind in (world.endpoint, world.clients)
        )
        world.run(endpoint=endpoint, clients=clients, run="the-same")
        return heard

    return run


@dataclass
class EndpointOf:
    """The endpoint of a client at whichever aggregator is up."""

    world: World
    name: str

    def __getattr__(self, call: str) -> Any:
        return getattr(self.world.endpoint.client_endpoint(self.name), call)


def as_bytes(state: Any) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in state.items()}


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return planted(PlantedShape(users=BOUNDARIES[-1], items=24, events=280, least_events=4), seed=1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the machine has that: processes end here, not machines, and every
    write is synced."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


@pytest.fixture
def new_world(disk: Path, dataset: Dataset) -> Iterator[Callable[..., World]]:
    """A world for a named recipe; `data` replaces the planted events, `name` keeps two worlds
    apart."""
    made = list[World]()

    def make(
        recipe: str = "published, id only",
        *,
        data: Interactions | None = None,
        name: str = "world",
        **options: Any,
    ) -> World:
        chosen = dataset if data is None else replace(dataset, interactions=data)
        made.append(World(disk / name, load(None, RECIPES[recipe]), chosen, **options))
        return made[-1]

    yield make
    for world in made:
        world.close()
