"""Three aggregators over ledgers on disk, clients with ledgers and a server in one process;
aggregators may be stopped and started."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from fedrec.errors import UnreachableError
from fedrec.federation.protocol import Opening, Phase, RoundStatus
from fedrec.federation.round_driver import AggregatedLink, Patience
from fedrec.federation.wire import pack_release
from fedrec.privacy.calibration import Plan
from fedrec.randomness import Streams
from fedrec.run.shards import shards
from fedrec.sharing.protocol import Standing
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.opening_checks import Limits
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_client.three_way import ThreeWay
from tests.contracts.conftest import (
    PROMISE,
    SEED,
    Called,
    Prepared,
    events,
    participant,
    prepared_for,
)

RUN = "three"
USERS = 24
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

    def way(self, client: str) -> ThreeWay:
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
class Federation(Called, Prepared):
    """A run over the cores, of participants that are called."""

    cores: Cores

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


def federation(cores: Cores, stack: ExitStack, *sets: str, clients: int = 3) -> Federation:
    data = events()
    made = prepared_for(data, "privacy.aggregation=three-party", *sets, run=RUN)
    participants = [
        participant(shard, cores.folder, cores.way(shard.name), stack)
        for shard in shards(data, clients)
    ]
    return Federation(**vars(made), participants=participants, cores=cores)


def releases_are_the_loopbacks(there: Federation) -> None:
    """A whole training, round by round, and what each of the three charged for it."""
    assert len(there.trained_over(there.link())) >= 2
    charged = [
        sorted((c.round, c.release) for c in ledger.spends().charges)
        for ledger in there.cores.ledgers
    ]
    assert charged[0] == charged[1] == charged[2]
    assert len(charged[0]) == len(there.prepared.plan.releases)
