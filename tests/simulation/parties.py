"""The real parties on simulated machines: aggregators' cores, participants, and their ways to each
other.

A crash drops the objects and keeps the folders. Between the parties goes what goes over gRPC and
Flower: terms, questions and answers as bytes, refusals by code, and every other failure of a party
as words.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrec.errors import (
    BudgetExceededError,
    FedRecError,
    PrivacyError,
    ProtocolError,
    RefusedError,
    UnreachableError,
)
from fedrec.federation.protocol import Answer, Invitation, Phase, Refusal, RoundStatus, Terms
from fedrec.federation.wire import (
    pack_answer,
    pack_invitation,
    pack_terms,
    read_answer,
    read_invitation,
    read_terms,
)
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec.storage import Arrays
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.store import LocalUsers
from fedrec_client.three_way import ThreeWay
from tests.simulation.machine import Database, Machine
from tests.simulation.network import Message, Network
from tests.simulation.script import ONE, Topology, place_of, role_of

_PAUSE_S = 1.0
_NAMES = (b"one", b"two", b"three")

# --- aggregators ---


class SimulatedLedger(ReleaseLedger):
    """An aggregator's ledger on a machine whose disk may fail."""

    def __init__(self, folder: Path, *, limit: Guarantee | None, machine: Machine) -> None:
        self._machine = machine
        super().__init__(folder, limit=limit, clock=machine.clock.of(machine.party))

    def _prepare(self) -> None:
        self._db: Any = Database(self._db, self._machine)
        super()._prepare()


class AggregatorProcess:
    """A core as its service calls it."""

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        network: Network,
        topology: Topology,
        *,
        limit: Guarantee,
        limits: Limits,
        noise: Streams,
    ) -> None:
        name = machine.party
        self.machine = machine
        self.of_three = topology.parties == 3
        # three wait by a clock that does not jump, as deployed ones do; one alone bears either
        own: dict[str, Any] = {"clock": machine.clock.of(name if topology == ONE else "")}
        if self.of_three:
            peers = {i: Afar(name, peer, network) for i, peer in topology.peers(name).items()}
            own |= {"place": place_of(name), "peers": peers, "names": _NAMES}
            own["sleep"] = machine.clock.beat
        self.ledger = SimulatedLedger(folder, limit=limit, machine=machine)
        core: Any = ThreePartyAggregator if self.of_three else Aggregator
        self.core: Any = core(self.ledger, limits, noise=noise, **own)

    def handle(self, message: Message) -> Any:
        """Raises RefusedError with its code, and ProtocolError for every other failure, as over
        gRPC."""
        try:
            return self._answer(message)
        except RefusedError:
            raise
        except BudgetExceededError as failure:
            raise RefusedError(Refusal.BUDGET.value, failure.cause, failure.remedy) from None
        except FedRecError as failure:
            raise ProtocolError(failure.cause, failure.remedy) from None

    def _answer(self, message: Message) -> Any:
        endpoint = self.core
        named = dict(message.named)
        role = role_of(message.sender)
        if role == "client":
            open_endpoint = endpoint.share_endpoint if self.of_three else endpoint.client_endpoint
            endpoint = open_endpoint(message.sender)
        elif role == "aggregator" and message.name in {"key", "explicit"}:
            named["caller"] = place_of(message.sender)
        answer = getattr(endpoint, message.name)(*message.arguments, **named)
        if message.name == "standing":
            return replace(answer, held=None), answer.held is not None
        return answer

    def close(self) -> None:
        """The folder is free for the next process."""
        self.ledger.close()


# --- clients ---


class ClientProcess:
    """A participant as its process calls it."""

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        users: LocalUsers,
        way: Any,
        *,
        limit: Guarantee,
        users_per_batch: int,
    ) -> None:
        path = folder / "ledger.sqlite"
        if not path.exists():
            give_secret(path, machine.party)
        self.ledger = ClientLedger(path, limit=limit, clock=machine.clock.of(machine.party))
        self.ledger._db = Database(self.ledger._db, machine)  # type: ignore[assignment]
        self.participant = Participant(
            machine.party, users, self.ledger, way, folder, users_per_batch=users_per_batch
        )

    def handle(self, message: Message) -> bytes:
        """The answer's bytes; a message that cannot be read is answered with a refusal."""
        name = self.participant.name
        try:
            if message.name == "join":
                return pack_answer(self.participant.join(read_terms(*message.arguments)))
            *question, quorum = message.arguments
            return pack_answer(self.participant.answer(read_invitation(*question, quorum=quorum)))
        except RefusedError as failure:
            return pack_answer(Answer(name, 0, refusal=failure.code, cause=failure.cause[:500]))
        except PrivacyError as failure:
            return pack_answer(
                Answer(name, 0, refusal=Refusal.WRONG_PLAN, cause=failure.cause[:500])
            )

    def close(self) -> None:
        """The folder is free for the next process."""
        self.ledger.close()


def give_secret(path: Path, party: str) -> None:
    """A secret made of the party's name: the same script then gives the same pseudonyms."""
    path.parent.mkdir(parents=True)
    database = sqlite3.connect(path)
    with database:
        database.execute("CREATE TABLE secret (value BLOB NOT NULL)")
        database.execute("INSERT INTO secret VALUES (?)", (Streams(0).key(f"secret of {party}"),))
    database.close()


# --- over the network ---


@dataclass(frozen=True)
class Afar:
    """Another party's endpoint, over the network: what it is asked becomes a message, sent again where
    the other is silent or busy."""

    name: str
    other: str
    network: Network
    tries: int = 1

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments, **named: self._call(
            Message(self.name, self.other, name, arguments, named)
        )

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        """As the protocol's."""
        until_s = self.network.clock.now_s + wait_s
        while True:
            status: RoundStatus = self._call(Message(self.name, self.other, "status", (run, round)))
            if status.phase in {Phase.RELEASED, Phase.SHORT} or self.network.clock.now_s >= until_s:
                return status
            self.network.clock.wait(_PAUSE_S)

    def _call(self, message: Message) -> Any:
        for left in reversed(range(self.tries)):
            try:
                return self.network.call(message)
            except (UnreachableError, RefusedError) as failure:
                lost = isinstance(failure, UnreachableError) or failure.code == Refusal.BUSY
                if not (left and lost):
                    raise
                self.network.clock.wait(_PAUSE_S)
        raise AssertionError("at least one try")


class EndpointOfThree(ThreeEndpoints):
    """As a server has it."""

    def budget(self) -> Any:
        """Of the one that leaves least."""
        budgets = [endpoint.budget() for endpoint in self.endpoints]  # type: ignore[attr-defined]
        return min(budgets, key=lambda budget: budget.left_epsilon)


def server_way(name: str, network: Network, topology: Topology, tries: int) -> Any:
    """To all that release."""
    endpoints: list[Any] = [Afar(name, one, network, tries) for one in topology.aggregators]
    return (
        endpoints[0]
        if len(endpoints) == 1
        else EndpointOfThree(endpoints, lambda: network.clock.now_s)
    )


def client_way(name: str, network: Network, topology: Topology, tries: int) -> Any:
    """To all that take its reports."""
    endpoints: list[Any] = [Afar(name, one, network, tries) for one in topology.aggregators]
    clock = network.clock
    times: dict[str, Any] = {
        "patience_s": 0.5,
        "sleep": clock.beat,
        "clock": lambda: clock.now_s,
    }
    return endpoints[0] if len(endpoints) == 1 else ThreeWay(endpoints, _NAMES, **times)


@dataclass(frozen=True)
class BroadcastAfar:
    """A server's way to the clients, over the network: a client that is silent is `unreachable`."""

    name: str
    network: Network
    clients: tuple[str, ...]

    def join(self, terms: Terms) -> Sequence[Answer]:
        """As the protocol's."""
        return [self._told(client, "join", pack_terms(terms)) for client in self.clients]

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        """As the protocol's."""
        header, plan = pack_invitation(invitation)
        arrays: Arrays = dict(invitation.question.public)
        return [
            self._told(client, "ask", header, plan, arrays, invitation.quorum)
            for client in self.clients
        ]

    def _told(self, client: str, name: str, *arguments: Any) -> Answer:
        try:
            return read_answer(self.network.call(Message(self.name, client, name, arguments)))
        except UnreachableError as failure:
            return Answer(client, 0, refusal="unreachable", cause=failure.cause)
        except RefusedError as failure:
            return Answer(client, 0, refusal=Refusal.MALFORMED, cause=failure.cause)
