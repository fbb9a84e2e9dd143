"""Three aggregators under faults: the real ones over ledgers on simulated disks, real clients and
the server's real rounds, in one process.

From a seed: messages and answers that are lost on every way, aggregators that end at any moment and
miss calls, full disks, clients and the server started again, clients that stay silent for a while.
A moment is before and after every durable write and every answer. Then all is repaired, and the
training goes on to its end; where clients are checked, in every third run, it may stop.
`three_party_verdict` says what must hold. `at_each_moment` ends one aggregator at one moment of a
checked training instead, at each in turn.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from fedrec.errors import FedRecError, ProtocolError, RefusedError, UnreachableError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.hostile_clients import ATTEMPTS
from fedrec.federation.messages import Question, Release
from fedrec.federation.protocol import Answer, Invitation, Refusal, Terms
from fedrec.federation.round_driver import AggregatedLink, Patience
from fedrec.federation.rounds import State
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, client_recipe, prepare
from fedrec.run.job import shards
from fedrec.settings import Scenario, load
from fedrec.sharing.protocol import Standing
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.limits import Limits
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_client.leaves_of_three import LeavesOfThree
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.store import LocalUsers
from fedrec_client.three_way import ThreeWay
from fedrec_simulations.faults.chances import Chances, OneKill, ServerEndsError, Tally
from fedrec_simulations.faults.machine import Clock, Crash, Database, Fate, Machine, simulated_disks
from fedrec_simulations.faults.script import Script, Setup
from fedrec_simulations.faults.simulator import population, quiet
from fedrec_simulations.faults.three_party_verdict import PLACES, Record

CLIENTS, RUN = 3, "run"
PROMISE = Guarantee(5.0, 1e-5)
NAMES = (b"one", b"two", b"three")
_TRIES = 400
"""Of the whole training, each from the last round on; a run that needs more does not end."""

T = TypeVar("T")


@dataclass
class Way:
    """To an aggregator: an endpoint of the server, of a client, of a peer, or of a leaf's root.

    Calls and answers may be lost, and the callee may end."""

    world: World
    place: int
    caller: int = -1
    sender: str = ""
    of_root: bool = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *asked, **named: self.world.call(self, name, asked, named)


class World:
    """One run in `folder`; chances: of faults, by the seed where none are given. processes: of
    aggregators, whose first three release."""

    processes, called = PLACES, "three aggregators"

    def __init__(self, seed: int, folder: Path, chances: Chances | None = None) -> None:
        self.checked = seed % 3 == 0
        self.folder, self.clock, rng = folder, Clock(), Streams(seed).numpy("three-faults")
        self.chances = Chances(rng) if chances is None else chances
        self.share, self.min_share = int(rng.integers(1, 3)), float(rng.choice([0.5, 1.0]))
        self.machines = [
            Machine(f"aggregator-{place}", self.chances, self.clock)
            for place in range(self.processes)
        ]
        self.cores: list[ThreePartyAggregator | None] = [None] * self.processes
        self.ledgers: list[ReleaseLedger | None] = [None] * self.processes
        kind, scale = population().kind, population().value_range
        self.prepared = prepared(self.checked)
        self.terms = Terms(RUN, client_recipe(scenario(self.checked)), kind, scale, ITEMS)
        self.record = Record(folder, self.prepared, self.min_share)
        self.clients = list[Participant]()
        self.stack = ExitStack()

    def run(self) -> None:
        """To the end, then the checks."""
        with self.stack, simulated_disks(self._machine_of):
            try:
                for place in reversed(range(self.processes)):
                    self.start(place)
                self.clients = [self._client(number) for number in range(CLIENTS)]
                self._train()
                self._judge()
            finally:
                for place in range(self.processes):
                    self.stop(place)

    # --- processes ---

    def start(self, place: int) -> None:
        """An aggregator goes on from its folder."""
        limit = PROMISE if place < PLACES else None
        ledger = ReleaseLedger(self.folder / f"aggregator-{place}", limit=limit)
        ledger._db = Database(ledger._db, self.machines[place])
        self.ledgers[place], self.cores[place] = ledger, self.core(place, ledger)

    def core(self, place: int, ledger: ReleaseLedger) -> ThreePartyAggregator:
        """The process over its ledger."""
        peers: dict[int, Any] = {i: Way(self, i, caller=place) for i in range(PLACES) if i != place}
        return ThreePartyAggregator(
            ledger,
            Limits(min_cohort=2),
            noise=Streams(0),
            place=place,
            names=NAMES,
            peers=peers,
            clock=self.clock.of("any"),
            sleep=self.sleep,
        )

    def stop(self, place: int) -> None:
        """What is not durable is gone."""
        ledger, self.cores[place], self.ledgers[place] = self.ledgers[place], None, None
        if ledger is not None:
            with suppress(sqlite3.Error):
                ledger.close()

    def call(self, way: Way, name: str, asked: Sequence[Any], named: dict[str, Any]) -> Any:
        """One message and its answer."""
        if (
            way.caller < 0
            and not way.sender
            and not way.of_root
            and self.chances.happens("server restart", self.chances.end)
        ):
            raise ServerEndsError
        if self.chances.happens("lost", self.chances.loss):
            raise _gone()
        machine = self.machines[way.place]
        if self.cores[way.place] is None:
            if machine.missed > 0:
                machine.missed -= 1
                raise _gone()
            self.start(way.place)
        answer = self._within(way.place, lambda: self._answered(way, name, asked, named))
        if name == "release":
            self.record.left(way.place, asked[1], answer)
        if self.chances.happens("lost answer", self.chances.loss):
            raise _gone()
        return answer

    def sleep(self, seconds: float) -> None:
        """Time passes; every aggregator looks at its rounds."""
        self.clock.now_s += max(seconds, 0.5)
        for place in range(self.processes):
            if self.cores[place] is None and self.machines[place].missed <= 0:
                self.start(place)
            if (core := self.cores[place]) is not None:
                with suppress(UnreachableError):
                    self._within(place, core.tick)

    def _within(self, place: int, what: Callable[[], T]) -> T:
        try:
            return what()
        except Crash as crash:
            if crash.party != self.machines[place].party:
                raise
            self.stop(place)
            raise _gone() from None

    def _answered(self, way: Way, name: str, asked: Sequence[Any], named: dict[str, Any]) -> Any:
        """Before and after it, the process may end."""
        party = self.machines[way.place].party
        if self.chances.ends(party):
            raise Crash(party)
        answer = self._answer(way, name, asked, named)
        if self.chances.ends(party):
            raise Crash(party)
        return answer

    def _answer(self, way: Way, name: str, asked: Sequence[Any], named: dict[str, Any]) -> Any:
        core = self.cores[way.place]
        assert core is not None
        if way.caller >= 0:
            if name == "standing":
                said: Standing = core.standing(*asked)
                return replace(said, held=None), said.held is not None
            return getattr(core, name)(
                *asked, **({"caller": way.caller} if name in {"key", "explicit"} else {})
            )
        of: Any = core.share_endpoint(way.sender) if way.sender else core
        return getattr(of, name)(*asked, **named)

    def _client(self, number: int) -> Participant:
        shard = shards(population(), CLIENTS)[number]
        ledger = self.stack.enter_context(
            closing(ClientLedger(self.folder / shard.name / "ledger.sqlite", limit=PROMISE))
        )
        users, way = LocalUsers(shard.events, ITEMS, shard.user_ids), self.way(shard.name)
        return Participant(
            shard.name, users, ledger, way, self.folder / shard.name, users_per_batch=self.share
        )

    def way(self, sender: str) -> ThreeWay | LeavesOfThree:
        """Of a client to all that it shares with."""
        endpoints: list[Any] = [Way(self, place, sender=sender) for place in range(PLACES)]
        return ThreeWay(
            endpoints, NAMES, patience_s=0.5, sleep=self.sleep, clock=self.clock.of("any")
        )

    def _machine_of(self, path: Path) -> Machine:
        place = next((i for i in range(self.processes) if f"aggregator-{i}" in path.parts), None)
        return (
            self.machines[place]
            if place is not None
            else Machine("others", Fate(Script(Setup(), ())), self.clock)
        )

    # --- the clients and the server's rounds ---

    def join(self, terms: Terms) -> Sequence[Answer]:
        """As a broadcast's."""
        return [client.join(terms) for client in self.clients]

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        """As a broadcast's; a client may be silent, or started again."""
        answers = list[Answer]()
        for number, client in enumerate(self.clients):
            if self.chances.happens("silent", self.chances.silent):
                continue
            if self.chances.happens("client restart", self.chances.end):
                client.ledger.close()
                self.clients[number] = client = self._client(number)
            answers.append(answer := client.answer(invitation))
            if self.checked and answer.refusal == Refusal.BUDGET:
                self.record.refused.setdefault(invitation.question.round, set()).add(client.name)
        return answers

    def _train(self) -> None:
        recipe, tries, head = self.prepared.recipe, 0, ""
        state: State = recipe.begin()
        while (question := recipe.ask(state)) is not None:
            tries += 1
            if tries > _TRIES:
                self.record.broken.append(f"the training does not end: round {question.round}")
                return
            if tries > _TRIES // 2 or (question.round and tries > 40):
                self.chances.repaired = True
            self.record.asked[question.round] = question
            try:
                answer, head = self._round(question, head)
            except (FedRecError, ServerEndsError) as failure:  # an operator starts it again
                short = isinstance(failure, RefusedError) and failure.code == Refusal.TOO_FEW
                if short and self.chances.repaired and question.round in self.record.refused:
                    self.record.stopped = question.round  # an operator begins another run
                    return
                self.sleep(1.0)
                continue
            state = recipe.tell(state, question, answer)

    def _round(self, question: Question, head: str) -> tuple[Release, str]:
        joined = self.join(self.terms)
        if any(answer.refusal for answer in joined):
            raise _gone()
        patience = Patience(
            20.0,
            attempts=4,
            pause_s=0.1,
            short_attempts=3,
            min_share=self.min_share,
            sleep=self.sleep,
            clock=self.clock.of("any"),
        )
        ways: list[Any] = [Way(self, place) for place in range(PLACES)]
        link = AggregatedLink(
            self.terms,
            self.prepared.plan,
            ThreeEndpoints(ways, self.clock.of("any")),
            self,
            patience,
            head,
        )
        link.num_users = population().num_users
        return link.answer(question), link.ledger_head

    def _judge(self) -> None:
        self.chances.repaired = True
        for place in range(self.processes):
            if self.cores[place] is None:
                self.start(place)
        self.record.judge_rounds()
        for place, ledger in enumerate(self.ledgers[:PLACES]):
            assert ledger is not None
            self.record.judge_charges(place, ledger.spends().charges)


def run(*, runs: int, seed: int, kind: type[World] = World) -> str:
    """Many runs; a summary in words. Raises ProtocolError where a rule does not hold."""
    tally, started = Tally(), time.perf_counter()
    for number in range(seed, seed + runs):
        _count(tally, number, _lived(number, kind=kind))
    struck = ", ".join(f"{what} {count}" for what, count in sorted(tally.struck.items()))
    lines = [
        (
            f"{tally.runs} runs with {kind.called} (seeds {seed} to {seed + runs - 1}), "
            f"{time.perf_counter() - started:.0f} s"
        ),
        struck,
    ]
    if tally.stopped:
        seeds = ", ".join(map(str, tally.stopped))
        lines.append(
            f"{len(tally.stopped)} stopped at a round in which clients had shared {ATTEMPTS} "
            f"times, nothing of which left (seeds {seeds})"
        )
    return "\n".join([*lines, _released(tally)])


def at_each_moment(*, every: int = 1, first: int = 1, kind: type[World] = World) -> str:
    """One aggregator ends at one moment of a checked training, at each in turn; a summary in words.
    Raises ProtocolError where a rule does not hold, or where such a training stops. every, first:
    moments `first`, `first + every`, ... alone, as a sample."""
    tally, started, moments = Tally(), time.perf_counter(), dict[str, int]()
    for place in range(kind.processes):
        party = f"aggregator-{place}"
        _lived(0, undisturbed := OneKill(party, 0), kind=kind)
        moments[party] = undisturbed.moments
        for at in range(first, undisturbed.moments + 1, every):
            _count(
                tally, 0, _lived(0, OneKill(party, at), kind=kind), f"{party} ended at moment {at}"
            )
    if tally.stopped:
        raise ProtocolError(
            f"one crash stopped {len(tally.stopped)} trainings", "A training must go on after it."
        )
    had = ", ".join(f"{party} {count}" for party, count in moments.items())
    head = (
        f"{tally.runs} checked trainings, {tally.struck['kill']} ends of one aggregator, "
        f"{time.perf_counter() - started:.0f} s"
    )
    return "\n".join([head, f"moments of an undisturbed training: {had}", _released(tally)])


def _lived(seed: int, chances: Chances | None = None, *, kind: type[World] = World) -> World:
    memory = Path("/dev/shm")
    with (
        TemporaryDirectory(
            prefix="fedrec-faults-", dir=memory if memory.is_dir() else None
        ) as folder,
        quiet(),
    ):
        world = kind(seed, Path(folder), chances)
        world.run()
    return world


def _count(tally: Tally, seed: int, world: World, where: str = "") -> None:
    tally.runs, tally.released = (
        tally.runs + 1,
        tally.released + len(world.record.asked) - (world.record.stopped >= 0),
    )
    tally.struck.update(world.chances.counts)
    if world.record.stopped >= 0:
        tally.stopped.append(seed)
    if world.record.broken:
        words = f"seed {seed}{', ' * bool(where)}{where}: {'; '.join(world.record.broken)}"
        raise ProtocolError(words, "fedrec faults --three-party --runs 1 --seed says it again.")


def _released(tally: Tally) -> str:
    return (
        f"{tally.released} rounds: each released once, as the exact sum of its users and three "
        "noises, and charged once by each"
    )


ITEMS = tuple(f"item-{j}" for j in range(5))


@cache
def scenario(checked: bool = False) -> Scenario:
    """A round of counts and one of statistics, over three aggregators, which check clients or
    not."""
    sets = [
        "recipe=published",
        "model.dimension=2",
        "model.steps=1",
        "model.encoder=id",
        "privacy.epsilon=5",
    ]
    hostile = "checked" if checked else "trusted-sites"
    return load(
        None, [*sets, "privacy.aggregation=three-party", f"privacy.hostile_clients={hostile}"]
    )


@cache
def prepared(checked: bool = False) -> Prepared:
    """For everybody."""
    data = population()
    return prepare(
        scenario(checked),
        PublicFacts(data.num_users, data.num_items, data.kind, data.value_range, None, Streams(0)),
    )


def _gone() -> UnreachableError:
    return UnreachableError("lost", "Ask again.")
