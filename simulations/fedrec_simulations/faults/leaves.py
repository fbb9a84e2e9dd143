"""A root and two leaves under faults: the real ones over ledgers on simulated disks, real clients
and the server's real rounds, in one process.

From a seed: messages and answers that are lost on every way, reports that come twice, leaves and a
root that end at any durable write or answer and miss calls, full disks, a server and clients that
are started again, and leaves whose sums are not what they were asked for, or cannot be. Then all is
repaired, and the training goes on to its end. The quorum is everybody, so that every release is
known beforehand. Checked:

- every release is the loopback's, byte for byte: nobody is missing or counted twice, and no lie got
  in; asked again, it is the same;
- the root charged every release once, and no leaf charged or released anything;
- the training ends once everything is repaired.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from fedrec.errors import FedRecError, ProtocolError, UnreachableError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.leaves import PartialSums, even_ranges, read_partial
from fedrec.federation.messages import Question, Release
from fedrec.federation.protocol import Answer, Invitation, Terms
from fedrec.federation.round_driver import AggregatedLink, Patience
from fedrec.federation.rounds import train
from fedrec.federation.wire import pack_release
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, client_recipe, prepare
from fedrec.run.job import shards
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.leaf import LeafAggregator
from fedrec_aggregator.leaf_visits import ListedLeaf
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.limits import Limits
from fedrec_aggregator.root import RootAggregator
from fedrec_client.leaves import LeafEndpoints
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.store import LocalUsers
from fedrec_simulations.faults.chances import Chances, ServerEndsError, Tally
from fedrec_simulations.faults.machine import Clock, Crash, Database, Fate, Machine, simulated_disks
from fedrec_simulations.faults.parties import give_secret
from fedrec_simulations.faults.script import Script, Setup
from fedrec_simulations.faults.simulator import population, quiet, scenario
from fedrec_simulations.faults.three_trees import InOrder

CLIENTS, RUN, ROOT, SEED = 3, "run", 2, 5
NAMES, RANGES = ("leaf-1", "leaf-2", "root"), even_ranges(2)
_TRIES = 400

T = TypeVar("T")

LIES: dict[str, Callable[[PartialSums], PartialSums]] = {
    "too large": lambda sums: replace(sums, blocks=tuple(10**9 * b + 10**9 for b in sums.blocks)),
    "another epoch": lambda sums: replace(sums, epoch="0" * 32),
    "another attempt": lambda sums: replace(sums, attempt=sums.attempt + 1),
    "fewer than said": lambda sums: replace(sums, reported=max(0, sums.reported - 1)),
    "more than enrolled": lambda sums: replace(sums, reported=sums.reported + 10),
}
"""What a leaf may send in place of its sums. Lies that no root can see are not among them."""


@dataclass
class Way:
    """To the root or a leaf: an endpoint of the server, of a client, or of the root."""

    world: World
    place: int
    sender: str = ""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *asked, **named: self.world.call(self, name, asked, named)


class World:
    """One run in `folder`."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder, self.clock = seed, folder, Clock()
        rng = Streams(seed).numpy("leaf-faults")
        self.chances, self.share = Chances(rng), int(rng.integers(1, 3))
        self.lie = float(rng.choice([0.0, 0.1, 0.3]))
        self.machines = [Machine(name, self.chances, self.clock) for name in NAMES]
        self.cores: list[Aggregator | None] = [None] * len(NAMES)
        self.outputs, self.broken = dict[int, set[bytes]](), list[str]()
        data = population()
        self.terms = Terms(RUN, client_recipe(scenario(1)), data.kind, data.value_range, ITEMS)
        self.clients, self.stack = list[Participant](), ExitStack()

    def run(self) -> None:
        """To the end, then the checks."""
        with self.stack, simulated_disks(self._machine_of):
            try:
                for place in range(len(NAMES)):
                    self._running(place)
                self.clients = [self._client(number) for number in range(CLIENTS)]
                self._train()
                self._judge()
            finally:
                for place in range(len(NAMES)):
                    self.stop(place)

    # --- processes ---

    def _running(self, place: int) -> Aggregator:
        """It goes on from its folder."""
        if (core := self.cores[place]) is not None:
            return core
        limit = None if place < ROOT else prepared().plan.guarantee
        ledger, clock = ReleaseLedger(self.folder / NAMES[place], limit=limit), self.clock.of("any")
        ledger._db = Database(ledger._db, self.machines[place])
        limits = Limits(min_cohort=2)
        if place < ROOT:
            self.cores[place] = made = LeafAggregator(
                ledger, limits, name=NAMES[place], range=RANGES[place], clock=clock
            )
            return made
        leaves = [
            ListedLeaf(NAMES[i], Way(self, i, sender=NAMES[ROOT]), RANGES[i], max_users=100)
            for i in range(ROOT)
        ]
        self.cores[place] = root = RootAggregator(
            ledger, limits, noise=Streams(SEED), leaves=leaves, patience_s=5.0, clock=clock
        )
        root.shut()
        root._visits._threads = InOrder()  # type: ignore[assignment]
        return root

    def stop(self, place: int) -> None:
        """What is not durable is gone."""
        core, self.cores[place] = self.cores[place], None
        if core is not None:
            with suppress(sqlite3.Error):
                core.ledger.close()

    def call(self, way: Way, name: str, asked: Sequence[Any], named: dict[str, Any]) -> Any:
        """One message and its answer."""
        chances, machine = self.chances, self.machines[way.place]
        if way.place == ROOT and chances.happens("server restart", chances.end):
            raise ServerEndsError
        if chances.happens("lost", chances.loss):
            raise _gone()
        if self.cores[way.place] is None and machine.missed > 0:
            machine.missed -= 1
            raise _gone()
        answer = self._within(way.place, lambda: self._answered(way, name, asked, named))
        if name == "release":
            self.outputs.setdefault(asked[1], set()).add(answer)
        if chances.happens("lost answer", chances.loss):
            raise _gone()
        return answer

    def sleep(self, seconds: float) -> None:
        """Time passes; every aggregator looks at its rounds."""
        self.clock.now_s += max(seconds, 0.5)
        for place, machine in enumerate(self.machines):
            machine.missed = max(0, machine.missed - 1)  # a leaf waits for its root, unasked
            if self.cores[place] is not None or not machine.missed:
                with suppress(FedRecError):
                    self._within(place, self._running(place).tick)

    def _within(self, place: int, what: Callable[[], T]) -> T:
        try:
            return what()
        except Crash as crash:
            if crash.party != NAMES[place]:
                raise
            self.stop(place)
            raise _gone() from None

    def _answered(self, way: Way, name: str, asked: Sequence[Any], named: dict[str, Any]) -> Any:
        """Before and after it, the process may end."""
        party, chances = NAMES[way.place], self.chances
        if chances.ends(party):
            raise Crash(party)
        core: Any = self._running(way.place)
        endpoint = core.client_endpoint(way.sender) if way.sender.startswith("client") else core
        answer = getattr(endpoint, name)(*asked, **named)
        if name == "report" and chances.happens("report twice", 0.1):
            endpoint.report(*asked, **named)
        if name == "freeze" and chances.happens("lie", self.lie):
            lie = LIES[str(chances.rng.choice(sorted(LIES)))]
            blocks = core.collections()[0].question.blocks
            answer = lie(read_partial(answer, blocks)).packed()
        if chances.ends(party):
            raise Crash(party)
        return answer

    def _client(self, number: int) -> Participant:
        shard = shards(population(), CLIENTS)[number]
        path = self.folder / shard.name / "ledger.sqlite"
        if not path.exists():
            give_secret(path, f"{shard.name}, seed {self.seed}")  # pseudonyms are the seed's
        ledger = self.stack.enter_context(
            closing(ClientLedger(path, limit=prepared().plan.guarantee))
        )
        endpoints: list[Any] = [Way(self, i, sender=f"client-{number}") for i in range(ROOT)]
        users = LocalUsers(shard.events, ITEMS, shard.user_ids)
        return Participant(
            shard.name,
            users,
            ledger,
            LeafEndpoints(endpoints, RANGES),
            self.folder / shard.name,
            users_per_batch=self.share,
        )

    def _machine_of(self, path: Path) -> Machine:
        place = next((i for i, name in enumerate(NAMES) if name in path.parts), None)
        others = Machine("others", Fate(Script(Setup(), ())), self.clock)
        return others if place is None else self.machines[place]

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
            answers.append(client.answer(invitation))
        return answers

    def _train(self) -> None:
        recipe, tries, head = prepared().recipe, 0, ""
        state = recipe.begin()
        while (question := recipe.ask(state)) is not None:
            tries += 1
            self.chances.repaired |= tries > _TRIES // 2 or bool(question.round and tries > 40)
            if tries > _TRIES:
                self.broken.append(f"the training does not end: round {question.round}")
                return
            try:
                answer, head = self._round(question, head)
            except (FedRecError, ServerEndsError):  # an operator starts it again
                self.sleep(1.0)
                continue
            state = recipe.tell(state, question, answer)

    def _round(self, question: Question, head: str) -> tuple[Release, str]:
        if any(answer.refusal for answer in self.join(self.terms)):
            raise _gone()
        patience = Patience(
            20.0,
            attempts=4,
            pause_s=0.1,
            min_share=1.0,
            sleep=self.sleep,
            clock=self.clock.of("any"),
        )
        endpoint: Any = Way(self, ROOT, sender="server")
        link = AggregatedLink(self.terms, prepared().plan, endpoint, self, patience, head)
        link.num_users = population().num_users
        return link.answer(question), link.ledger_head

    # --- what must hold ---

    def _judge(self) -> None:
        self.chances.repaired = True
        expected, planned = loopback()
        for round, content in enumerate(expected):
            if self.outputs.get(round, set()) != {content}:
                self.broken.append(f"the release of round {round} is not the loopback's")
        charged = [
            Counter(charge.release for charge in self._running(place).ledger.spends().charges)
            for place in range(len(NAMES))
        ]
        if charged != [Counter(), Counter(), planned]:
            self.broken.append(f"leaves and root charged {charged}")


def run(*, runs: int, seed: int) -> str:
    """Many runs; a summary in words. Raises ProtocolError where a rule does not hold."""
    tally, started, memory = Tally(), time.perf_counter(), Path("/dev/shm")
    kept = memory if memory.is_dir() else None
    for number in range(seed, seed + runs):
        with TemporaryDirectory(prefix="fedrec-faults-", dir=kept) as folder, quiet():
            world = World(number, Path(folder))
            world.run()
        tally.runs, tally.released = tally.runs + 1, tally.released + len(world.outputs)
        tally.struck.update(world.chances.counts)
        if world.broken:
            words = f"seed {number}: {'; '.join(world.broken)}"
            raise ProtocolError(words, "fedrec faults --leaves --runs 1 --seed says it again.")
    struck = ", ".join(f"{what} {count}" for what, count in sorted(tally.struck.items()))
    return "\n".join(
        [
            f"{tally.runs} runs with a root and two leaves (seeds {seed} to {seed + runs - 1}), "
            f"{time.perf_counter() - started:.0f} s",
            struck,
            f"{tally.released} rounds: each the loopback's, byte for byte, and charged once",
        ]
    )


ITEMS = tuple(f"item-{j}" for j in range(5))


@cache
def prepared() -> Prepared:
    """A round of counts and rounds of statistics, for everybody."""
    data = population()
    facts = PublicFacts(
        data.num_users, data.num_items, data.kind, data.value_range, None, Streams(0)
    )
    return prepare(scenario(1), facts)


@cache
def loopback() -> tuple[list[bytes], Counter[str]]:
    """What one process releases in every round, and the names of all."""
    one, plan = prepared(), prepared().plan
    link = Loopback(population(), one.steps, plan, Streams(SEED), Ledger(plan.guarantee))
    rounds = list(train(one.recipe, link, one.recipe.begin()))
    names = Counter(spec.name for done in rounds for spec in done.question.releases)
    return [pack_release(done.answer) for done in rounds], names


def _gone() -> UnreachableError:
    return UnreachableError("lost", "Ask again.")
