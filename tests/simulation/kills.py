"""`python -m tests.simulation --kill N`, `--stop N`, `--starve N` and `--cut N`: faults of real
processes at random moments, and what must hold of what the parties leave.

One deployment after the other trains twice, serves and is asked, while its processes are killed:
aggregator, server, sites, their workers, Flower's own processes, serving, and a person's `fedrec
recommend`. Each of the four parts of its life has its kills. Half of those in a training come after
another round was released since the last: otherwise nearly all would meet processes that have only
just begun. Who is killed and how long after that follows from the seed; what the processes are
doing then is as random as the machine. With the others nobody is killed, at as random moments:
`--stop` sends SIGTERM; `--starve` lets a process open no further file or connection for a while;
with `--cut` all connections go through relays that delay and hold back what they carry (`links`),
and one party after the other is cut off for a while. Checked on what each deployment leaves:

- every round counted everybody;
- the aggregator charged each release once, and every site the same releases;
- each model is, byte for byte, the one that a single process trains without any fault, with seeded
  noise;
- the person's ledger was charged once for each history that was asked with, and the second answer
  is of the newest model;
- no log holds a key, a ledger's secret, a person's pseudonym or a title that the person rated;
- nobody ended with a defect (exit code 70), and who was stopped by SIGTERM ended as one that was.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedrec.cli.supervisor import Supervisor
from fedrec.errors import FedRecError, ProtocolError
from fedrec.randomness import Streams
from fedrec.settings import load
from fedrec_client.serving_ledger import read_answers
from fedrec_simulations.demo.trial import TRAININGS, Trial
from fedrec_simulations.runtimes.deployment_files import PartyFiles
from tests.descriptors import first_free
from tests.hidden import hidden_words, logs_with
from tests.simulation import evidence
from tests.simulation.deployed import SERVING, Deployed, history, rated_by_the_person
from tests.simulation.links import Links, RelayedFiles, Weather

SCENARIO = (
    "data.preset=small",
    "privacy.noise=seeded",
    "recipe=published",
    "model.steps=5",
    "privacy.epsilon=3.5",
)
OF_THREE = ("privacy.aggregation=three-party", "privacy.hostile_clients=checked")
"""Besides, where three aggregate."""
PERSON = "person"
KILLS = {"training": 8, "asking": 2}
"""In each training, and while a person asks each of the two models."""
_PAUSE_S = 2.0
"""Mean time between two kills, or from a release to a kill."""
_AFTER_A_RELEASE = 0.5
"""Share of kills that wait for another round."""
_CUT_S = 8.0
"""Mean time that a party is cut off; some are longer than what gRPC waits for a sign of life."""
_RESETS = 0.5
"""Share of cuts that end every connection; in the others nobody is told."""
_DEFECT = 70
_STOPPED = {0, 130, 128 + signal.SIGTERM, -signal.SIGTERM}
"""Ends of who was told to: the last where it was told before it could listen to it."""
_NO_DESCRIPTOR = os.strerror(errno.EMFILE)
_AT_ONCE = 0.3
"""Share of kills that do not wait until whoever was killed before is there again."""


@dataclass
class Tally:
    """What came of the deployments so far. killed: by process, whatever the fault; seen: what shows
    that faults were felt; gave_up: who ended with words and was started again all the same."""

    deployments: int = 0
    rounds: int = 0
    attempts: int = 0
    restarts: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    gave_up: Counter[str] = field(default_factory=Counter)

    @property
    def kills(self) -> int:
        """In all."""
        return self.killed.total()


class Assault(Supervisor):
    """Parties that are killed while anybody waits, and started again whatever they said.

    `armed`: whether a kill may come."""

    def __init__(self, seed: int, kills: int, tally: Tally) -> None:
        super().__init__(most_starts=sys.maxsize)
        self._rng = Streams(seed).numpy("kills")
        self._left = kills
        self._tally = tally
        self._due_s = 0.0
        self._last = ("", 0)
        self._released = -1
        self._part = 0
        self.there = dict[str, Callable[[], int]]()
        self.released: Callable[[], int] = int
        self.defects = list[str]()

    @contextmanager
    def striking(self, part: str) -> Iterator[None]:
        """Kills come in the body, as many as that part of a deployment's life has."""
        self._part, self._due_s = min(KILLS[part], self._left), time.monotonic() + self._pause()
        self._last = ("", 0)
        self._released = -1
        try:
            yield
        finally:
            self._part = 0

    def gives_up(self, name: str, status: int) -> bool:
        """Never: it is counted, and an operator starts it again."""
        if status > 0 and name != PERSON:  # which cannot reach a server that was killed
            self._tally.gave_up[f"{name} ({status})"] += 1
        if status == _DEFECT:
            self.defects.append(f"{name} ended with a defect; its log has it")
        return False

    def rest(self) -> None:
        """Where a kill may come."""
        super().rest()
        now = time.monotonic()
        if not self._part or now < self._due_s:
            return
        if self._released >= 0 and self.released() <= self._released:
            self._due_s = now + self._pause()
            return
        name, old = self._last
        if name and self._rng.random() > _AT_ONCE and self.there[name]() in {0, old}:
            self._due_s = now + 0.2
            return
        self._strike()

    def _strike(self) -> None:
        running = {name: pid for name, process in self.there.items() if (pid := process())}
        name = str(self._rng.choice(sorted(running)))
        if self._struck(name, running[name]):
            self._tally.killed[name] += 1
            self._left = self._left - 1
            self._part = self._part - 1
        self._due_s = time.monotonic() + self._pause()
        self._last = (name, running[name])
        self._released = self.released() if self._rng.random() < _AFTER_A_RELEASE else -1

    def _struck(self, name: str, pid: int) -> bool:
        """Kill a process; False where it has ended by itself."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def _pause(self) -> float:
        return float(self._rng.exponential(_PAUSE_S))


class Stops(Assault):
    """Parties that are told to end, and must end as those that were."""

    def __init__(self, seed: int, kills: int, tally: Tally) -> None:
        super().__init__(seed, kills, tally)
        self._told = set[str]()

    def gives_up(self, name: str, status: int) -> bool:
        """Never; who was told ends with one of the codes of `_STOPPED`."""
        told = name in self._told
        self._told.discard(name)
        if told and status not in _STOPPED:
            self.defects.append(f"{name} was told to end, and ended with {status}")
        return super().gives_up(name, 0 if told else status)

    def _struck(self, name: str, pid: int) -> bool:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            self._told.add(name)
            return True
        return False


class Starvation(Assault):
    """Parties that may open nothing for a while, and go on by themselves."""

    def _struck(self, name: str, pid: int) -> bool:
        """Nobody is looked after meanwhile: who ends is started again after it."""
        try:
            _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free(pid), most))
        except OSError:
            return False
        time.sleep(self._rng.exponential(_CUT_S))
        for each in (pid, *_descendants(pid)):  # those that it has started since have its limit
            with suppress(OSError):
                resource.prlimit(each, resource.RLIMIT_NOFILE, (most, most))
        return True


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from _descendants(child)


class Severance(Assault):
    """Parties that are cut off for a while, and go on by themselves."""

    def __init__(self, seed: int, kills: int, tally: Tally, links: Links) -> None:
        super().__init__(seed, kills, tally)
        self._links = links

    def _struck(self, name: str, pid: int) -> bool:
        """Cut a party off. Nobody is looked after meanwhile: a party goes on by itself."""
        self._links.cut(name, reset=self._rng.random() < _RESETS)
        time.sleep(self._rng.exponential(_CUT_S))
        self._links.mend(name)
        return True


@dataclass(frozen=True)
class RelayedTrial(Trial):
    """A trial whose parties find each other through relays."""

    links: Links = field(kw_only=True)

    def files(self, training: int) -> PartyFiles:
        plain = super().files(training)
        return RelayedFiles(plain.job, plain.holdings, links=self.links)


FAULTS = {
    "kill": ("times kill -9", "killed"),
    "stop": ("times SIGTERM", "told to end"),
    "starve": ("times without a free descriptor", "starved"),
    "cut": ("times a party was cut off", "cut off"),
}
"""What is done so many times, and to whom."""


def run(
    *,
    faults: int,
    kind: str = "kill",
    seed: int,
    three_party: bool = False,
    tell: Callable[[str], None] = lambda words: None,
) -> str:
    """Deployeds until there were so many faults of a kind, one of `FAULTS` or "cut"; a summary in
    words. `tell` hears of each deployment. three_party: three aggregators, which check clients.

    Raises ProtocolError where something does not hold; that deployment's folder stays.
    """
    tally = Tally()
    started = time.perf_counter()
    sets = SCENARIO + (OF_THREE if three_party else ())
    while tally.kills < faults:
        number = seed + tally.deployments
        folder = Path(tempfile.mkdtemp(prefix="fedrec-kills-"))
        left = faults - tally.kills
        if kind == "cut":
            broken = _cut_off(folder, sets, number, left, tally)
        else:
            made = {"kill": Assault, "stop": Stops, "starve": Starvation}[kind]
            broken = _deployment(Trial(load(None, sets), folder), made(number, left, tally), tally)
        if broken:
            raise ProtocolError(
                f"seed {number}, after {tally.kills} faults: {'; '.join(broken)}",
                f"Its folders and logs are in {folder}.",
            )
        shutil.rmtree(folder)
        tell(
            f"{tally.kills} of {faults} faults, {tally.deployments} deployments, "
            f"{time.perf_counter() - started:.0f} s"
        )
    return _summary(tally, seed, time.perf_counter() - started, kind)


def _cut_off(folder: Path, sets: tuple[str, ...], seed: int, kills: int, tally: Tally) -> list[str]:
    with closing(Links(seed, Weather())) as links:
        trial = RelayedTrial(load(None, sets), folder, links=links)
        found = _deployment(trial, Severance(seed, kills, tally, links), tally, links)
        tally.seen += links.seen
    return found


def _deployment(
    trial: Trial, company: Assault, tally: Tally, links: Links | None = None
) -> list[str]:
    """What does not hold of one deployment, in words; it counts in `tally`."""
    there = Deployed(trial.files(0), company)
    try:
        _lived_through(trial, there, company, links)
    except FedRecError as failure:
        return [f"{failure.cause} ({failure.remedy})"]
    finally:
        company.stop()
        tally.restarts += company.restarts
        tally.deployments += 1
    return [*company.defects, *_judged(trial, there, tally)]


def _lived_through(trial: Trial, there: Deployed, company: Assault, links: Links | None) -> None:
    there.start()
    names = [*there.parties]
    names += [] if links else [f"{shard.name}/worker" for shard in there.files.shards]
    training = {name: lambda name=name: there.pid(name) for name in names}
    company.there = dict(training)
    company.released = lambda: sum(len(there.lines(number)) for number in range(len(there.runs)))
    with company.striking("training"):
        _train(there)
    url = there.serve()
    if links:
        url = f"grpcs://{links.way(PERSON, SERVING, url.removeprefix('grpcs://'))}"
    asking = {
        SERVING: lambda: there.pid(SERVING),
        PERSON: lambda: 0 if company.has_finished(PERSON) else company.pid(PERSON),
    }
    ask(trial, there, url, 0, company, asking)
    company.there = {**training, SERVING: asking[SERVING]}
    with company.striking("training"):
        there.train_again(trial.files(1))
        _train(there)
    there.wait_until_served(there.runs[-1].version)
    ask(trial, there, url, 1, company, asking)


def _train(there: Deployed) -> None:
    for _ in there.rounds():
        pass


def ask(
    trial: Trial,
    there: Deployed,
    url: str,
    training: int,
    company: Assault,
    asking: dict[str, Callable[[], int]],
) -> None:
    """`fedrec recommend` as a process, as often as it takes until one ends well, while it and
    serving are killed."""
    state = trial.folder / PERSON / "state"
    trust = there.trust
    verb = [
        "recommend",
        "--history",
        str(history(trial, training)),
        "--server",
        url,
        "--state",
        str(state),
        "-k",
        "8",
        "--via",
        "server",
        "--json",
    ]
    known = ["--ca", trust.ca, "--pin", trust.pin, "--timeout", "60"]
    company.start(PERSON, [*verb, *known], log=trial.folder / "person.out", ends=True)
    company.there = asking
    with company.striking("asking"):
        company.wait_for(
            lambda: company.has_finished(PERSON) or None, what="answer", timeout_s=900.0
        )


def _judged(trial: Trial, there: Deployed, tally: Tally) -> Iterator[str]:
    """What does not hold; the parties have ended."""
    logs = [path.read_text(errors="replace") for path in trial.folder.rglob("*.log")]
    tally.seen += Counter({_NO_DESCRIPTOR: sum(log.count(_NO_DESCRIPTOR) for log in logs)})
    if len(there.runs) != TRAININGS:
        yield f"{len(there.runs)} trainings were made, {TRAININGS} were asked for"
    for number, entry in enumerate(there.runs):
        kept = evidence.training(there, number)
        tally.rounds = tally.rounds + kept.rounds
        tally.attempts = tally.attempts + kept.attempts
        yield from kept.faults
        if kept.rounds != trial.alone(number).rounds:
            yield (
                f"{entry.run} has {kept.rounds} rounds, a single process "
                f"{trial.alone(number).rounds}"
            )
        if not trial.same_bytes(there.folder(number), number):
            yield f"the model of {entry.run} is not the one that a single process trains"
    if len({str(spent) for spent in there.spent().values()}) != 1:
        yield "the ledgers of the sites are not the aggregator's"
    answers = read_answers(trial.folder / PERSON / "state" / "ledger.sqlite")
    if [answer.version for answer in answers] != [entry.version for entry in there.runs]:
        yield (
            f"answers were paid for of models {[answer.version for answer in answers]}, trained "
            f"were {[e.version for e in there.runs]}"
        )
    for path, begins in logs_with(there.files.root, secrets(trial)).items():
        yield f"{path} holds what is secret: {begins}"


def secrets(trial: Trial) -> set[str]:
    """What no party's log may hold; the person is told the answer alone."""
    names = trial.dataset.catalogue
    rated = {item for item, _ in rated_by_the_person(trial, TRAININGS - 1)}
    assert names.titles
    titles = {names.titles[names.item_ids.index(item)] for item in rated}
    return hidden_words(trial.folder) | titles


def _summary(tally: Tally, seed: int, took_s: float, kind: str) -> str:
    killed = ", ".join(f"{name} {count}" for name, count in tally.killed.most_common())
    gave_up = ", ".join(f"{name} {count}" for name, count in tally.gave_up.most_common())
    seeds = f"seeds {seed} to {seed + tally.deployments - 1}"
    trainings = TRAININGS * tally.deployments
    how = FAULTS[kind]
    seen = ", ".join(f"{what} {count}" for what, count in tally.seen.most_common())
    lines = [
        f"{tally.kills} {how[0]} in {tally.deployments} deployments ({seeds}), {took_s:.0f} s",
        f"{how[1]}: {killed}; {tally.restarts} restarts",
        *([f"reads and connections at relays: {seen}; {Weather()}"] if kind == "cut" else []),
        *([f"in logs: {seen}"] if kind == "starve" else []),
        *([f"ended with words, and went on when started again: {gave_up}"] if gave_up else []),
        (
            f"{tally.rounds} rounds of {trainings} trainings, in {tally.attempts} attempts: "
            "everybody was counted in each, each release was"
        ),
        (
            "charged once by everybody, each model is a single process's byte for byte, and each "
            "answer was paid for once"
        ),
    ]
    return "\n".join(lines)
