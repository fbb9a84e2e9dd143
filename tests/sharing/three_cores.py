"""Three aggregators over ledgers on disk, clients with ledgers and a server in one process;
aggregators may be stopped and started."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from fedrec.data.interactions import Interactions
from fedrec.data.planted import PlantedShape, planted
from fedrec.errors import UnreachableError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import Question, train
from fedrec.federation.protocol import Answer, Invitation, Opening, Phase, RoundStatus, Terms
from fedrec.federation.round_driver import AggregatedLink, Patience
from fedrec.federation.wire import pack_release, question_digest, question_header
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, client_recipe, prepare
from fedrec.run.job import shards
from fedrec.settings import load
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

SEED = 7
RUN = "three"
USERS = 24
PROMISE = Guarantee(5.0, 1e-5)
ITEMS = tuple(f"item-{j}" for j in range(20))
NAMES = (b"a", b"b", b"c")


class DownError(UnreachableError):
    """Nobody is there."""

    def __init__(self) -> None:
        super().__init__("nobody is there", "Start it.")


@dataclass(frozen=True)
class Line:
    """A way to an aggregator, which may be down: an endpoint of the server, of a client, or of a
    peer."""

    cores: Cores
    place: int
    caller: int = -1

    @property
    def core(self) -> ThreePartyAggregator:
        found = self.cores.running[self.place]
        if found is None:
            raise DownError
        return found

    def enrolled(self) -> int:
        return self.core.enrolled()

    def open_run(self, run: str, plan: Plan) -> None:
        self.core.open_run(run, plan)

    def open_round(self, opening: Opening) -> RoundStatus:
        return self.core.open_round(opening)

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        return self.core.status(run, round, wait_s=wait_s)

    def close(self, run: str, round: int) -> RoundStatus:
        return self.core.close(run, round)

    def release(self, run: str, round: int) -> bytes:
        return self.core.release(run, round)

    def standing(self, run: str, round: int) -> tuple[Standing, bool]:
        said = self.core.standing(run, round)
        return replace(said, held=None), said.held is not None

    def held(self, run: str, round: int, attempt: int) -> bytes:
        return self.core.held(run, round, attempt)

    def key(self, run: str, round: int, attempt: int) -> bytes:
        return self.core.key(run, round, attempt, caller=self.caller)

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        return self.core.openings(run, round, attempt)

    def explicit(self, run: str, round: int, attempt: int, first: int, last: int) -> bytes:
        return self.core.explicit(run, round, attempt, first, last, caller=self.caller)


class Cores:
    """`time_s` passes when somebody waits, and every aggregator ticks then."""

    def __init__(
        self,
        folder: Path,
        *,
        ledger: type[ReleaseLedger] = ReleaseLedger,
        limits: Limits | None = None,
    ) -> None:
        self.folder = folder
        self.kind = ledger
        self.limits = limits or Limits(min_cohort=5)
        self.time_s = 0.0
        self.running: list[ThreePartyAggregator | None] = [None] * 3
        self.ledgers: list[ReleaseLedger] = []
        for place in range(3):
            self.start(place)

    def start(self, place: int) -> None:
        ledger = self.kind(self.folder / f"aggregator-{place}", limit=PROMISE)
        self.ledgers[place : place + 1] = [ledger]
        peers = {i: Line(self, i, caller=place) for i in range(3) if i != place}
        self.running[place] = ThreePartyAggregator(
            ledger,
            self.limits,
            noise=Streams(SEED),
            place=place,
            names=NAMES,
            peers=peers,
            clock=self.clock,
            sleep=self.sleep,
        )

    def stop(self, place: int) -> None:
        """As kill -9 does: what is not on disk is gone."""
        self.running[place] = None
        self.ledgers[place].close()

    def restart(self, place: int) -> None:
        self.stop(place)
        self.start(place)

    def clock(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += max(seconds, 0.01)
        for core in self.running:
            if core is not None:
                core.tick()

    def way(self, client: str) -> ThreeWay | LeavesOfThree:
        """To all three, of the client of that name."""
        endpoints = [ClientEndpoint(Line(self, place), client) for place in range(3)]
        return ThreeWay(endpoints, NAMES, patience_s=2.0, sleep=self.sleep, clock=self.clock)

    def close(self) -> None:
        for ledger in self.ledgers:
            ledger.close()


@dataclass
class ClientEndpoint:
    """A client's endpoint at an aggregator that may have been started anew since."""

    line: Line
    name: str

    def __getattr__(self, call: str):  # type: ignore[no-untyped-def]
        if call == "attempt":
            return self.line.core.attempt
        return getattr(self.line.core.client_endpoint(self.name), call)


@dataclass
class Federation:
    """`data` is everybody's, for the loopback that they are compared with."""

    cores: Cores
    data: Interactions
    prepared: Prepared
    terms: Terms
    participants: Sequence[Participant]

    @property
    def first(self) -> Question:
        found = self.prepared.recipe.ask(self.prepared.recipe.begin())
        assert found is not None
        return found

    def join(self, terms: Terms) -> Sequence[Answer]:
        return [participant.join(terms) for participant in self.participants]

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        return [participant.answer(invitation) for participant in self.participants]

    def endpoint(self) -> ThreeEndpoints:
        return ThreeEndpoints([Line(self.cores, place) for place in range(3)], self.cores.clock)

    def opened(self, **opening: int) -> ThreeEndpoints:
        """All three, where the first question is open."""
        endpoint = self.endpoint()
        endpoint.open_run(RUN, self.prepared.plan)
        assert endpoint.open_round(self.opening(self.first, **opening)).phase is Phase.OPEN
        return endpoint

    def released_as_alone(self) -> None:
        """The first question's release, of everybody, is the loopback's."""
        release = self.link(min_share=1.0).answer(self.first)
        assert pack_release(release) == pack_release(self.loopback.answer(self.first))

    def link(self, **patience: float) -> AggregatedLink:
        waits = Patience(sleep=self.cores.sleep, clock=self.cores.clock, **patience)  # type: ignore[arg-type]
        link = AggregatedLink(self.terms, self.prepared.plan, self.endpoint(), self, waits)
        link.num_users = self.data.num_users
        return link

    @property
    def loopback(self) -> Loopback:
        return Loopback(
            self.data, self.prepared.steps, self.prepared.plan, Streams(SEED), Ledger(PROMISE)
        )

    def opening(self, question: Question, *, attempt: int = 0, quorum: int = 0) -> Opening:
        header = question_header(question, run=RUN, plan=self.prepared.plan.digest())
        return Opening(
            RUN,
            question.round,
            header,
            question_digest(header),
            600.0,
            quorum=quorum,
            attempt=attempt,
        )


def federation(cores: Cores, stack: ExitStack, *sets: str, clients: int = 3) -> Federation:
    data = planted(
        PlantedShape(users=USERS, items=len(ITEMS), events=130, least_events=3), seed=SEED
    ).interactions
    words = [f"seed={SEED}", "privacy.aggregation=three-party", *sets]
    scenario = load(None, words)
    facts = PublicFacts(
        data.num_users, data.num_items, data.kind, data.value_range, None, Streams(SEED)
    )
    prepared = prepare(scenario, facts)
    terms = Terms(RUN, client_recipe(scenario), data.kind, data.value_range, ITEMS)
    participants = []
    for shard in shards(data, clients):
        own = cores.folder / shard.name
        ledger = stack.enter_context(closing(ClientLedger(own / "ledger.sqlite", limit=PROMISE)))
        users = LocalUsers(shard.events, ITEMS, shard.user_ids)
        way = cores.way(shard.name)
        participants.append(Participant(shard.name, users, ledger, way, own, users_per_batch=3))
    return Federation(cores, data, prepared, terms, participants)


def releases_are_the_loopbacks(there: Federation) -> None:
    """A whole training, round by round, and what each of the three charged for it."""
    recipe = there.prepared.recipe
    ours = list(train(recipe, there.link(), recipe.begin()))
    theirs = list(train(recipe, there.loopback, recipe.begin()))
    assert len(ours) == len(theirs) >= 2
    for one, other in zip(ours, theirs, strict=True):
        assert pack_release(one.answer) == pack_release(other.answer)
    charged = [
        sorted((c.round, c.release) for c in ledger.spends().charges)
        for ledger in there.cores.ledgers
    ]
    assert charged[0] == charged[1] == charged[2]
    assert len(charged[0]) == len(there.prepared.plan.releases)
