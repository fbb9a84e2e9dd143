"""Messages between simulated parties, and what befalls them on the way.

A call is a message and its answer, as over gRPC: who hears nothing has waited, and does not know
whether it arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fedrec.errors import FedRecError, RefusedError, UnreachableError
from fedrec.federation.protocol import Answer, LedgerGrowth, Opening, RoundStatus
from fedrec.federation.wire import pack_answer
from tests.simulation.machine import Clock, Crash, Fate, Machine
from tests.simulation.script import Kind, Operation

WAIT_S = 5.0
"""How long a caller waits for an answer that does not come."""

_TRAVEL_S = 0.01
_OF_OTHERS = 0.7
"""How many of the batches that are sent again are the last of another client."""

_OF_QUORUMS = 0.25
"""How many of the damages to openings and questions are to their quorum."""

_REASONS = ("busy", "failed", "budget", "wrong-plan")


@dataclass(frozen=True)
class Message:
    """A call by name. `altered`: not what its sender sent, or sent under a false name."""

    sender: str
    receiver: str
    name: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    altered: bool = False

    @property
    def way(self) -> str:
        """From whom to whom."""
        return f"{self.sender} > {self.receiver}"


class Process(Protocol):
    """A party while it runs."""

    def handle(self, message: Message) -> Any:
        """Its answer. Raises FedRecError for the caller."""

    def close(self) -> None:
        """Let go of files, as the end of a process does."""


@dataclass
class Host:
    """A machine, and the process on it while there is one.

    `failure`: why it did not start the last time."""

    machine: Machine
    begin: Callable[[], Process]
    process: Process | None = None
    failure: FedRecError | None = None
    starts: int = 0

    def running(self) -> Process | None:
        """The process, started again where it ended and is not down any more."""
        if self.machine.gone:
            self.stop()
        elif self.process is None and self.machine.missed > 0:
            self.machine.missed -= 1
        elif self.process is None:
            self._start()
        return self.process

    def stop(self) -> None:
        """End the process: what it had in memory is gone."""
        if self.process is not None:
            self.process.close()
            self.process = None

    def _start(self) -> None:
        try:
            self.process = self.begin()
            self.failure = None
            self.starts += 1
        except Crash:
            self.process = None
        except FedRecError as failure:
            self.failure = failure


class Watcher(Protocol):
    """Who sees everything that goes over the network."""

    def sent(self, message: Message) -> None:
        """It is about to leave its sender."""

    def arrived(self, message: Message) -> None:
        """Its receiver is about to read it, damaged or not."""

    def failed(self, message: Message, failure: Exception) -> None:
        """Its receiver fell over it, with something else than words."""

    def handled(self, message: Message, answer: Any) -> None:
        """Its receiver has done what it does; `answer` may be the exception that the caller
        gets."""

    def stopped(self, party: str) -> None:
        """A party lost its memory."""


@dataclass
class Network:
    """Carries calls to hosts.

    `turn(server)` lets the other run go on; `trace` tells what happened, line by line."""

    fate: Fate
    clock: Clock
    hosts: dict[str, Host]
    machines: dict[str, Machine]
    watcher: Watcher
    turn: Callable[[str], None] = lambda server: None
    trace: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)  # whoever handles a message now
    _carried: int = 0
    _late: list[tuple[int, Message]] = field(default_factory=list)
    _batches: list[Message] = field(default_factory=list)

    def call(self, message: Message) -> Any:
        """The answer. Raises UnreachableError where none comes, and what the receiver raises."""
        self.machines[message.sender].step()
        self._carried += 1
        self.clock.now_s += _TRAVEL_S
        self.deliver_late()
        self.watcher.sent(message)
        answer = self._carry(
            message, {operation.kind: operation for operation in self.fate.next(message.way)}
        )
        self.machines[message.sender].step()
        return answer

    def deliver_late(self, *, everything: bool = False) -> None:
        """Deliver what was delayed and is due now; nobody waits for its answer."""
        due = [
            one
            for one in self._late
            if everything or (one[0] <= self._carried and one[1].receiver not in self.busy)
        ]
        for one in due:
            if one in self._late:
                self._late.remove(one)
                self._unheard(one[1], "late")

    def end(self, party: str) -> None:
        """A party's process ends."""
        self.hosts[party].stop()
        self.watcher.stopped(party)
        self._say(f"{party} ends")

    def _carry(self, message: Message, struck: dict[Kind, Operation]) -> Any:
        if Kind.TURN in struck:
            self.turn(message.sender)
        if Kind.REPLAY in struck and self._batches:
            self._replay(message.sender, struck[Kind.REPLAY].amount)
        if message.name == "report":
            self._batches.append(message)
        if Kind.LOSE in struck:
            self._nothing_heard(message, "lost")
        if Kind.DELAY in struck:
            self._late.append((self._carried + int(struck[Kind.DELAY].amount), message))
            self._nothing_heard(message, "delayed")
        if Kind.REFUSE in struck:
            reason = _REASONS[int(struck[Kind.REFUSE].amount * len(_REASONS))]
            return pack_answer(
                Answer(message.receiver, 0, refusal=reason, cause="as the script wants")
            )
        if Kind.DAMAGE in struck:
            message = damaged(message, struck[Kind.DAMAGE].amount)
        if Kind.REPEAT in struck:
            self._unheard(message, "the first time")
        if Kind.HANG in struck:
            self.clock.wait(struck[Kind.HANG].amount)
        answer = self._deliver(message)
        if Kind.DEAF in struck or Kind.HANG in struck:
            self._nothing_heard(message, "its answer is lost")
        return changed(answer, struck[Kind.GARBLE].amount) if Kind.GARBLE in struck else answer

    def _replay(self, sender: str, which: float) -> None:
        """Under the sender's name, the last batch of another, or one of its own or of others
        before."""
        others = [one for one in self._batches if one.sender != sender]
        old = (
            others[-1]
            if others and which < _OF_OTHERS
            else self._batches[int(which * len(self._batches))]
        )
        self._unheard(replace(old, sender=sender, altered=sender != old.sender), "replayed")

    def _unheard(self, message: Message, note: str) -> None:
        with suppress(FedRecError):  # its sender has long given up
            self._deliver(message, note)

    def _nothing_heard(self, message: Message, why: str) -> None:
        self._say(f"{message.way}: {message.name}: {why}")
        self.clock.wait(WAIT_S)
        raise _silence(message.receiver)

    def _deliver(self, message: Message, note: str = "") -> Any:
        host = self.hosts[message.receiver]
        process = host.running()
        if process is None:
            self._nothing_heard(message, "nobody is there")
            raise AssertionError("unheard")
        self.busy.append(message.receiver)
        try:
            host.machine.step()
            answer = self._handled(process, message)
            host.machine.step()
        except Crash as crash:
            if crash.party != message.receiver:
                raise
            self.end(message.receiver)
            raise _silence(message.receiver) from None
        finally:
            self.busy.remove(message.receiver)
        self._say(f"{message.way}: {message.name}{f' ({note})' if note else ''}: {_told(answer)}")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _handled(self, process: Process, message: Message) -> Any:
        answer: Any
        self.watcher.arrived(message)
        try:
            answer = process.handle(message)
        except FedRecError as failure:
            answer = failure
        except Exception as failure:
            # noted here: a caller that takes any failure as "no" would hide it
            self.watcher.failed(message, failure)
            raise
        self.watcher.handled(message, answer)
        return answer

    def _say(self, what: str) -> None:
        self.trace.append(f"{self.clock.now_s - 1_700_000_000.0:8.2f} s  {what}")


def damaged(message: Message, amount: float) -> Message:
    """The message with one of its byte strings or arrays changed; one without any arrives as it
    is."""
    places = [
        n
        for n, argument in enumerate(message.arguments)
        if isinstance(argument, bytes | Opening | dict)
    ]
    if message.name == "ask" and amount < _OF_QUORUMS:
        return replace(
            message,
            arguments=(
                *message.arguments[:-1],
                message.arguments[-1] ^ (1 << int(amount * 997) % 6),
            ),
            altered=True,
        )
    if not places:
        return message
    place = places[int(amount * 997) % len(places)]
    arguments = list(message.arguments)
    match arguments[place]:
        case Opening() as opening if amount < _OF_QUORUMS:
            arguments[place] = replace(
                opening, quorum=opening.quorum ^ (1 << int(amount * 997) % 6)
            )
        case Opening() as opening:
            arguments[place] = replace(opening, header=changed(opening.header, amount))
        case dict() as arrays:
            arguments[place] = _changed_array(arrays, amount)
        case content:
            arguments[place] = changed(content, amount)
    return replace(message, arguments=tuple(arguments), altered=True)


def changed(content: Any, amount: float) -> Any:
    """Bytes with one bit flipped anywhere or in their first 44, cut, prolonged, or replaced;
    anything else as it is."""
    if not isinstance(content, bytes) or not content:
        return content
    how, where = divmod(amount * 6, 1.0)
    place = int(where * len(content))
    match int(how):
        case 0:
            return _flipped(content, place, int(where * 7_919) % 8)
        case 1 | 2:
            return _flipped(content, int(where * min(44, len(content))), int(where * 7_919) % 8)
        case 3:
            return content[:place]
        case 4:
            return content + content[place:] + b"\x00"
        case _:
            return np.random.Generator(np.random.Philox(key=place)).bytes(len(content))


def _flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


def _changed_array(arrays: dict[str, Any], amount: float) -> dict[str, Any]:
    if not arrays:
        return arrays
    name = sorted(arrays)[int(amount * 101) % len(arrays)]
    array = np.array(arrays[name])
    flat = array.reshape(-1).view(np.uint8)
    flat[int(amount * len(flat)) % len(flat)] ^= 1
    return {**arrays, name: array}


def _silence(receiver: str) -> UnreachableError:
    return UnreachableError(f"{receiver} does not answer", "Start it, and go on.")


def _told(answer: Any) -> str:
    if isinstance(answer, RefusedError):
        return f"refused, {answer.code}"
    if isinstance(answer, FedRecError):
        return f"failed, {answer.cause}"
    if isinstance(answer, RoundStatus):
        return (
            f"{answer.phase}, attempt {answer.attempt}, {answer.reported} of {answer.enrolled} "
            "users"
        )
    # its hashes are of releases, whose noise is another every time
    if isinstance(answer, LedgerGrowth):
        return f"{len(answer.entries_sha256)} entries to {answer.head.number}"
    if isinstance(answer, bytes):
        return (
            answer.decode(errors="replace") if answer.startswith(b"{") else f"{len(answer)} bytes"
        )
    return str(answer)
