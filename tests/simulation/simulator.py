"""One script, run to its end: the parties on their machines, an operator who starts again what
ended, and the verdict."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.errors import FedRecError
from fedrec.federation.round_driver import Patience
from fedrec.privacy.guarantee import Guarantee
from fedrec.public_data import PublicData
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, guarantee_of, prepare
from fedrec.settings import Scenario, load
from fedrec.storage import read_json
from fedrec_aggregator.core import Limits
from fedrec_client.store import LocalUsers
from fedrec_server.gathering import Gathering
from fedrec_server.rounds import KeptRound, RoundSettings, run_rounds
from fedrec_server.run_settings import RunSettings
from fedrec_server.runs import Runs, TrainingRun, run_folder
from fedrec_server.schedule import TrainingSchedule
from fedrec_server.trainings import Trainings
from tests.simulation.auditor import DEFECTS, Auditor, Broken
from tests.simulation.machine import Clock, Crash, Fate, Machine, simulated_system
from tests.simulation.network import Host, Network, Watcher
from tests.simulation.parties import (
    AggregatorProcess,
    BroadcastAfar,
    ClientProcess,
    client_way,
    server_way,
)
from tests.simulation.script import AGGREGATOR, ONE, Kind, Operation, Script, Setup
from tests.simulation.three_party_verdict import ThreePartyVerdict
from tests.simulation.verdict import RecordedNoise, Trained, Verdict
from tests.simulation.visitor import Visitor

USERS = 7
ITEMS = 5
DELTA = 1e-5

ENDS = "a run ends in a model once what failed was repaired"

_ROUND_S = 100.0
_GATHERING_S = 30.0


@dataclass(frozen=True)
class Outcome:
    """What came of a script. endings: "model", or the words of the last failure, by run. complete:
    runs that equal the loopback's.

    struck: operations that met a message or a step. restarts: of any party. steps: taken by each
    party, messages by each way.
    """

    script: Script
    endings: dict[str, str]
    complete: frozenset[str]
    released: int
    struck: tuple[Operation, ...]
    restarts: int
    steps: dict[str, int]
    broken: tuple[Broken, ...]
    trace: tuple[str, ...]


def simulate(script: Script) -> Outcome:
    """Run a script; the same script gives the same outcome."""
    memory = Path("/dev/shm")
    with (
        TemporaryDirectory(
            prefix="fedrec-faults-", dir=memory if memory.is_dir() else None
        ) as folder,
        quiet(),
    ):
        return _World(script, Path(folder)).outcome()


@contextmanager
def quiet() -> Iterator[None]:
    """Parties log what they refuse, which here is everyday."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@cache
def population() -> Interactions:
    """Seven users, one to four ratings each."""
    rng = np.random.Generator(np.random.Philox(key=7))
    pairs = [
        (k, int(j))
        for k in range(USERS)
        for j in sorted(rng.choice(ITEMS, size=1 + k % 4, replace=False))
    ]
    users, items = np.array(pairs).T
    values = 1.0 + (users + 2 * items) % 5
    return Interactions.from_columns(
        users, items, values, num_users=USERS, num_items=ITEMS, value_range=(1.0, 5.0)
    )


@cache
def scenario(steps: int, parties: int = 1, checked: bool = False) -> Scenario:
    """The smallest training that has a round of counts and rounds of statistics."""
    sets = [
        "recipe=published",
        "model.dimension=2",
        f"model.steps={steps}",
        "model.encoder=id",
        "privacy.epsilon=5",
    ]
    if parties == 3:
        checks = "checked" if checked else "trusted-sites"
        sets += ["privacy.aggregation=three-party", f"privacy.hostile_clients={checks}"]
    return load(None, sets)


@cache
def _prepared(training: tuple[int, int, bool], num_users: int) -> Prepared:
    chosen = scenario(*training)
    return prepare(chosen, _public().facts(num_users=num_users, seed=chosen.seed))


def _trained(run: str, folder: Path, setup: Setup, min_share: float) -> Trained:
    """A client may lie about how many users it has; the plan is the same then, and the training is
    for that many."""
    notes = folder / "run.json"
    num_users = int(read_json(notes)["num_users"]) if notes.exists() else 0
    prepared = _prepared(setup.training, num_users or USERS)
    return Trained(run, prepared, population(), folder, num_users, min_share)


@cache
def _public() -> PublicData:
    data = population()
    return PublicData(tuple(f"item-{j}" for j in range(ITEMS)), data.kind, data.value_range, None)


class _World:
    """The parties of one script, each on its machine and in its folder."""

    def __init__(self, script: Script, folder: Path) -> None:
        self.script = script
        self.setup = script.setup
        self.folder = folder
        self.fate = Fate(script)
        self.clock = Clock()
        self.topology = script.setup.topology
        self.limit = Guarantee(self.setup.max_epsilon, DELTA)
        limits = Limits(min_cohort=self.setup.min_cohort)
        persons = tuple(f"{name}-person" for name in self.setup.server_names)
        parties = (*self.topology.aggregators, *self.setup.client_names, *self.setup.server_names)
        self.machines = {
            party: Machine(party, self.fate, self.clock) for party in (*parties, *persons)
        }
        self.verdict: Verdict | ThreePartyVerdict
        if self.topology.parties == 3:
            noise = Streams(0)
            self.verdict = ThreePartyVerdict(folder, self.setup)
            watcher: Watcher = self.verdict
        else:
            noise = RecordedNoise(0)
            watcher = Auditor(
                folder, self.clock.of(AGGREGATOR), limits.max_round_s, limits.min_cohort
            )
            self.verdict = Verdict(watcher, noise, self.limit, self.topology)
        self.network = Network(self.fate, self.clock, {}, self.machines, watcher, self._turn)
        self.network.hosts |= {
            name: self._aggregator(name, limits, noise) for name in self.topology.aggregators
        }
        self.network.hosts |= {
            name: self._client(name, *bounds)
            for name, bounds in zip(self.setup.client_names, _shards(self.setup), strict=True)
        }
        self.servers = {
            name: _Server(name, self.network, self.setup, folder / name, self._there)
            for name in self.setup.server_names
        }
        self.clock.passed = self._tick

    def outcome(self) -> Outcome:
        defects = list[Broken]()
        servers = self.servers.values()
        with simulated_system(self._machine_of):
            try:
                self._run()
            except Exception as failure:  # whatever it is: a party must not fail like this
                defects.append(Broken(DEFECTS, f"{type(failure).__name__}: {failure}"))
            finally:
                for each in (*self.network.hosts.values(), *servers):
                    each.stop()
        entries = [(server, entry) for server in servers for entry in server.entries]
        runs = [
            _trained(entry.run, server.folder / "runs" / entry.run, self.setup, server.min_share)
            for server, entry in entries
        ]
        broken = [*defects, *self.verdict.judge(self.setup.client_names, runs)]
        broken += [one for server in servers for one in server.visitor.judge()]
        broken += self._endings_that_should_not_be(defects)
        finished = {entry.run for _, entry in entries if entry.finished_s}
        endings = {run: said for server in servers for run, said in server.endings().items()}
        starts = [each.starts for each in (*self.network.hosts.values(), *servers)]
        return Outcome(
            self.script,
            {run: self._told(said) for run, said in endings.items()},
            frozenset(self.verdict.complete & finished),
            self.verdict.released,
            tuple(self.fate.struck),
            sum(max(0, number - 1) for number in starts),
            dict(self.fate.taken),
            tuple(broken),
            tuple(self._told(line) for line in self.network.trace),
        )

    def _told(self, words: str) -> str:
        """Without the place of this run's folder, which is another every time."""
        return words.replace(f"{self.folder}/", "")

    def _run(self) -> None:
        """Round by round in turns; whoever fails is started again after a repair, as often as
        something can have struck."""
        starts = len(self.script.operations) + 1 + self.setup.trainings
        while going := [
            server
            for server in self.servers.values()
            if not server.done and server.starts < starts + server.crashes
        ]:
            for server in going:
                if server.advance():
                    self._repair()
        self.network.deliver_late(everything=True)

    def _repair(self) -> None:
        # a ledger does not go back to before its last entry: its time must come
        ahead_s = max([0.0, *self.clock.offsets_s.values()])
        self.clock.wait(1.0 + ahead_s)
        for machine in self.machines.values():
            machine.repair()
        for party in self.setup.client_names:
            self.network.end(party)

    def _there(self) -> tuple[int, int]:
        """Clients who have not left for good, and their users."""
        shards = zip(self.setup.client_names, _shards(self.setup), strict=True)
        users = [last - first for name, (first, last) in shards if not self.machines[name].gone]
        return len(users), sum(users)

    def _turn(self, server: str) -> None:
        for other in self.servers.values():
            if other.name != server and not other.done:
                other.advance()

    def _tick(self) -> None:
        for name in self.topology.aggregators:
            host = self.network.hosts[name]
            # of several, one that is down comes back with time: others wait for it, unasked
            process = host.process if self.topology == ONE else host.running()
            if isinstance(process, AggregatorProcess) and name not in self.network.busy:
                self.network.busy.append(name)
                try:
                    process.core.tick()
                except Crash as crash:
                    if crash.party != name:
                        raise
                    self.network.end(name)
                finally:
                    self.network.busy.remove(name)

    def _endings_that_should_not_be(self, defects: Sequence[Broken]) -> Iterator[Broken]:
        # a limit of 5 has room for one training; of two runs at once each may have a part of it
        room = (
            self.setup.trainings if self.setup.max_epsilon > 5 else 1 if self.setup.runs == 1 else 0
        )
        misled = any(
            operation.kind is Kind.DAMAGE and "> client" in operation.where
            for operation in self.fate.struck
        )
        for server in self.servers.values():
            # a client that was misled about a run's terms or question stays with what it was told
            # first, as it must
            # nor can a run end without those who left, where the aggregator wants more than are
            # there
            too_few = self._there()[1] < self.setup.min_cohort
            excused = misled or too_few or self.verdict.may_stop
            if server.finished < room and not excused and not defects:
                yield Broken(ENDS, f"{server.run}: {server.ending}")

    # --- who is there ---

    def _machine_of(self, path: Path) -> Machine:
        return self.machines[path.relative_to(self.folder).parts[0]]

    def _aggregator(self, name: str, limits: Limits, noise: Streams) -> Host:
        machine = self.machines[name]
        return Host(
            machine,
            lambda: AggregatorProcess(
                self.folder / name,
                machine,
                self.network,
                self.topology,
                limit=self.limit,
                limits=limits,
                noise=noise,
            ),
        )

    def _client(self, name: str, first: int, last: int) -> Host:
        data = population().users_subset(np.arange(first, last))
        machine = self.machines[name]
        users = LocalUsers(data, _public().items, tuple(f"user-{k}" for k in range(first, last)))
        way = client_way(name, self.network, self.topology, self.setup.tries)
        return Host(
            machine,
            lambda: ClientProcess(
                self.folder / name,
                machine,
                users,
                way,
                limit=self.limit,
                users_per_batch=self.setup.users_per_batch,
            ),
        )


def _shards(setup: Setup) -> list[tuple[int, int]]:
    return list(pairwise((0, 4, USERS) if setup.clients == 2 else (0, 2, 5, USERS)))


class _Server:
    """The server's rounds, and the operator who starts them again: with a smaller `min_share` where
    a client has left for good."""

    def __init__(
        self,
        name: str,
        network: Network,
        setup: Setup,
        folder: Path,
        there: Callable[[], tuple[int, int]],
    ) -> None:
        self.name = name
        self.run = name.replace("server", "run")
        self.folder = folder
        self.ending = ""
        self.starts = 0
        self.crashes = 0
        self.min_share = setup.min_share
        self.visitor = Visitor(folder, folder.parent / f"{name}-person")
        self._there = there
        self._network = network
        self._setup = setup
        self._rounds: Iterator[KeptRound] | None = None
        self._at_work = False

    @property
    def done(self) -> bool:
        return self.ending == "model"

    @property
    def entries(self) -> tuple[TrainingRun, ...]:
        return Runs(self.folder).entries

    @property
    def finished(self) -> int:
        return sum(1 for entry in self.entries if entry.finished_s)

    def endings(self) -> dict[str, str]:
        """Of every training that was to be: "model", or the words of the last failure."""
        last = self.ending
        begun = [entry.run for entry in self.entries]
        to_be = (
            self.run,
            *(f"{self.run}-{number}" for number in range(2, self._setup.trainings + 1)),
        )
        runs = [*begun, *to_be[len(begun) :]]
        return {run: "model" if number < self.finished else last for number, run in enumerate(runs)}

    def advance(self) -> bool:
        """One more round, or the end; True where it failed with words and something may need
        repair."""
        if self._at_work:
            return False
        self._at_work = True
        machine = self._network.machines[self.name]
        try:
            if self._rounds is None:
                self._rounds = self._begin()
                self.starts = self.starts + 1
            machine.step()
            if next(self._rounds, None) is None:
                self.stop()
                if self.finished == self._setup.trainings:
                    self.ending = "model"
        except Crash as crash:
            if crash.party != self.name:
                raise
            self.crashes += 1
            self.stop()
        except (FedRecError, OSError) as failure:
            self.ending = str(failure)
            self.stop()
            return True
        finally:
            self._at_work = False
            self.visitor.look()
        return False

    def stop(self) -> None:
        self._rounds = None

    def _begin(self) -> Iterator[KeptRound]:
        sleep = self._network.clock.wait

        def clock() -> float:
            return self._network.clock.now_s

        clients, users = self._there()
        if clients < self._setup.clients and "too few to release" in self.ending:
            self.min_share = min(
                self.min_share,
                users / int(read_json(run_folder(self.folder) / "run.json")["num_users"]),
            )
        runs = Runs(self.folder)
        endpoint = server_way(self.name, self._network, self._setup.topology, self._setup.tries)
        last = runs.last
        # the first training is asked for by a start, each further one by --again; after the last, a
        # start finds nothing to do
        again = last is not None and not last.open and self.finished < self._setup.trainings
        schedule = TrainingSchedule(self.folder, again=again, clock=clock, monotonic=clock)
        trainings = Trainings(
            runs,
            schedule,
            guarantee_of(scenario(*self._setup.training).privacy),
            endpoint.budget,
            name=self.run,
            clock=clock,
        )
        for entry in trainings.each(sleep):
            yield from run_rounds(
                scenario(*self._setup.training),
                _public(),
                endpoint,
                BroadcastAfar(self.name, self._network, self._setup.client_names),
                trainings.folder,
                RunSettings(
                    Gathering(
                        expected_users=users,
                        min_clients=clients,
                        timeout_s=_GATHERING_S,
                        sleep=sleep,
                        clock=clock,
                    ),
                    Patience(round_s=_ROUND_S, min_share=self.min_share, sleep=sleep, clock=clock),
                    self._setup.absent_s,
                    entry.run,
                ),
                RoundSettings(planned=trainings.planned),
            )
