"""The real parties on simulated machines: the aggregator's core, participants, and the server's
rounds.

A crash drops the objects and keeps the folders. Between the parties goes what goes over gRPC and
Flower: terms, questions and answers as bytes, refusals by code, and every other failure of a party
as words.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
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
from fedrec.federation.protocol import (
    Answer,
    Budget,
    Invitation,
    LedgerGrowth,
    LedgerHead,
    Opening,
    Phase,
    Receipt,
    Refusal,
    RoundStatus,
    Terms,
)
from fedrec.federation.wire import (
    pack_answer,
    pack_invitation,
    pack_terms,
    read_answer,
    read_invitation,
    read_terms,
)
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.storage import Arrays
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.store import LocalUsers
from fedrec_simulations.faults.machine import Database, Machine
from fedrec_simulations.faults.network import Message, Network
from fedrec_simulations.faults.script import AGGREGATOR

_PAUSE_S = 1.0


# --- the aggregator ---


class SimulatedLedger(ReleaseLedger):
    """The aggregator's ledger on a machine whose disk may fail."""

    def __init__(self, folder: Path, *, limit: Guarantee | None, machine: Machine) -> None:
        self._machine = machine
        super().__init__(folder, limit=limit, clock=machine.clock.of(machine.party))

    def _prepare(self) -> None:
        self._db: Any = Database(self._db, self._machine)
        super()._prepare()


class AggregatorProcess:
    """The core as its service calls it."""

    def __init__(
        self, folder: Path, machine: Machine, *, limit: Guarantee, limits: Limits, noise: Streams
    ) -> None:
        self.ledger = SimulatedLedger(folder, limit=limit, machine=machine)
        self.core = Aggregator(
            self.ledger, limits, noise=noise, clock=machine.clock.of(machine.party)
        )

    def handle(self, message: Message) -> Any:
        """Raises RefusedError with its code, and ProtocolError for every other failure, as over
        gRPC."""
        endpoint: Any = (
            self.core
            if message.sender.startswith("server")
            else self.core.client_endpoint(message.sender)
        )
        try:
            return getattr(endpoint, message.name)(*message.arguments)
        except RefusedError:
            raise
        except BudgetExceededError as failure:
            raise RefusedError(Refusal.BUDGET.value, failure.cause, failure.remedy) from None
        except FedRecError as failure:
            raise ProtocolError(failure.cause, failure.remedy) from None

    def close(self) -> None:
        """The folder is free for the next process."""
        self.ledger.close()


# --- clients ---


class ClientProcess:
    """A participant as its SuperNode calls it."""

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        network: Network,
        users: LocalUsers,
        *,
        limit: Guarantee,
        users_per_batch: int,
        tries: int,
    ) -> None:
        path = folder / "ledger.sqlite"
        if not path.exists():
            give_secret(path, machine.party)
        self.ledger = ClientLedger(path, limit=limit, clock=machine.clock.of(machine.party))
        self.ledger._db = Database(self.ledger._db, machine)
        endpoint = ReportEndpointAfar(machine.party, network, tries)
        self.participant = Participant(
            machine.party, users, self.ledger, endpoint, folder, users_per_batch=users_per_batch
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
class ReportEndpointAfar:
    """A client's endpoint, over the network."""

    name: str
    network: Network
    tries: int

    def enroll(self, tokens: Sequence[bytes]) -> int:
        """As the protocol's."""
        return int(self._call("enroll", tuple(tokens)))

    def growth(self, since: LedgerHead, charged: int) -> LedgerGrowth:
        """As the protocol's."""
        growth: LedgerGrowth = self._call("growth", since, charged)
        return growth

    def report(self, run: str, round: int, batch: bytes) -> Receipt:
        """As the protocol's."""
        receipt: Receipt = self._call("report", run, round, batch)
        return receipt

    def _call(self, name: str, *arguments: Any) -> Any:
        return _patiently(self.network, Message(self.name, AGGREGATOR, name, arguments), self.tries)


@dataclass(frozen=True)
class ReleaseEndpointAfar:
    """A server's endpoint, over the network."""

    name: str
    network: Network
    tries: int

    def enrolled(self) -> int:
        """As the protocol's."""
        return int(self._call("enrolled"))

    def open_run(self, run: str, plan: Plan) -> None:
        """As the protocol's."""
        self._call("open_run", run, plan)

    def open_round(self, opening: Opening) -> RoundStatus:
        """As the protocol's."""
        status: RoundStatus = self._call("open_round", opening)
        return status

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        """As the protocol's."""
        until_s = self.network.clock.now_s + wait_s
        while True:
            status: RoundStatus = self._call("status", run, round)
            if status.phase in {Phase.RELEASED, Phase.SHORT} or self.network.clock.now_s >= until_s:
                return status
            self.network.clock.wait(_PAUSE_S)

    def budget(self) -> Budget:
        """As the protocol's."""
        budget: Budget = self._call("budget")
        return budget

    def close(self, run: str, round: int) -> RoundStatus:
        """As the protocol's."""
        status: RoundStatus = self._call("close", run, round)
        return status

    def release(self, run: str, round: int) -> bytes:
        """As the protocol's."""
        content: bytes = self._call("release", run, round)
        return content

    def _call(self, name: str, *arguments: Any) -> Any:
        return _patiently(self.network, Message(self.name, AGGREGATOR, name, arguments), self.tries)


def _patiently(network: Network, message: Message, tries: int) -> Any:
    """The answer, after some tries where the aggregator is silent or busy."""
    for left in reversed(range(tries)):
        try:
            return network.call(message)
        except (UnreachableError, RefusedError) as failure:
            lost = isinstance(failure, UnreachableError) or failure.code == Refusal.BUSY
            if not (left and lost):
                raise
            network.clock.wait(_PAUSE_S)
    raise AssertionError("at least one try")


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
