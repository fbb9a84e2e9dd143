"""Answers of a client to the server's messages (`fedrec.federation.round_messages`): what comes in
is read with suspicion, what goes out is a receipt.

Nothing private goes this way: reports go to the aggregator, and what is told was noised here
(`news.messages`). A request that cannot be read, or a fault of the client, is an answer with a
refusal, never an exception.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy.typing as npt

from fedrec.errors import BudgetExceededError, PrivacyError, RefusedError, UnreachableError
from fedrec.federation import round_messages
from fedrec.federation.coding import decoded, inflated
from fedrec.federation.protocol import Answer, Invitation, Refusal, Terms
from fedrec.federation.round_messages import FIELD, RoundMessage, npy_files, read_npy, said, spoken
from fedrec.federation.wire import pack_answer, read_header, read_invitation, read_terms, refused
from fedrec.news.messages import Ask, Reply, read_ask
from fedrec.operations import logs
from fedrec_client.held_arrays import HeldArrays
from fedrec_client.refusals import FAILED, UNREACHABLE

MAX_PUBLIC_BYTES = 2**30
"""Most bytes of public arrays in one question: that of `answering.AnswerBounds`."""

_CAUSE_CHARACTERS = 500  # what the server's log and page show of it

log = logging.getLogger(__name__)
_Request = TypeVar("_Request")


class Answering(Protocol):
    """Who answers: `fedrec_client.participant.Participant`,
    `fedrec_client.news.NewsParticipant`."""

    @property
    def name(self) -> str:
        """This client's name."""

    def join(self, terms: Terms) -> Answer:
        """Keep the terms and enrol this client's users."""

    def answer(self, invitation: Invitation) -> Answer:
        """Report for this client's users, or refuse."""

    def tell(self, ask: Ask) -> Reply:
        """Tell the server what was noised here, or refuse."""


@dataclass
class Requests:
    """Messages to this participant. held: where the last question's arrays are kept, in memory as
    long as nothing is said."""

    participant: Answering
    max_public_bytes: int = MAX_PUBLIC_BYTES
    held: HeldArrays = field(default_factory=HeldArrays)

    def answer(self, message: RoundMessage) -> RoundMessage:
        """The participant's answer, or a refusal."""
        who = self.participant
        match message.kind:
            case round_messages.JOIN:
                return answering(_answered(who.name, lambda: self._terms(message), who.join))
            case round_messages.ASK:
                return answering(_answered(who.name, lambda: self._invitation(message), who.answer))
            case round_messages.TELL:
                return self._told(message)
        return refusing(who.name, Refusal.MALFORMED, "the message is of no kind that is known here")

    def _told(self, message: RoundMessage) -> RoundMessage:
        told = dict[str, npt.NDArray[Any]]()

        def tell(ask: Ask) -> Answer:
            reply = self.participant.tell(ask)
            told.update(reply.arrays)
            return reply.answer

        def read() -> Ask:
            arrays = {name: _array(name, data) for name, data in self._arrays(message).items()}
            return read_ask(_bytes(message, "ask"), arrays)

        return answering(_answered(self.participant.name, read, tell), npy_files(told))

    def _terms(self, message: RoundMessage) -> Terms:
        most = self.max_public_bytes // 4
        return read_terms(inflated(_bytes(message, "terms"), max_bytes=most))

    def _invitation(self, message: RoundMessage) -> Invitation:
        header = _bytes(message, "header")
        plan = _bytes(message, "plan")
        payloads = self._arrays(message)
        arrays = decoded(
            read_header(header).arrays(),
            payloads,
            self.held.arrays(),
            max_bytes=self.max_public_bytes,
        )
        invitation = read_invitation(header, plan, arrays, quorum=_quorum(message))
        self.held.keep(invitation.question.public)
        return invitation

    def _arrays(self, message: RoundMessage) -> Mapping[str, bytes]:
        size = sum(map(len, message.arrays.values()))
        if size > self.max_public_bytes:
            cause = f"public arrays have at most {self.max_public_bytes} bytes, found {size}"
            raise refused(Refusal.TOO_LARGE, cause)
        return message.arrays


def answering(answer: Answer, arrays: Mapping[str, bytes] | None = None) -> RoundMessage:
    """A client's answer as a message."""
    return RoundMessage(said(answer=pack_answer(answer)), arrays or {})


def refusing(client: str, code: str, cause: str) -> RoundMessage:
    """A refusal as an answer."""
    return answering(_refusal(client, code, cause))


def _quorum(message: RoundMessage) -> int:
    """None is said where the aggregator's minimum cohort is all; the reports name what is said, so
    a wrong one is not counted."""
    value = message.said.get("quorum", 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise refused(Refusal.MALFORMED, "the message's quorum is no number of users")
    return value


def _bytes(message: RoundMessage, key: str) -> bytes:
    """Raises RefusedError where the message has no such bytes, or the server's version of the
    messages is none that works with ours."""
    spoken(message.said.get(FIELD), who="the server")
    value = message.bytes_of(key)
    if value is None:
        raise refused(Refusal.MALFORMED, f"the message has no bytes {key}")
    return value


def _array(name: str, content: bytes) -> npt.NDArray[Any]:
    try:
        return read_npy(content)
    except ValueError:
        raise refused(
            Refusal.MALFORMED,
            f"array {name[:100]!r} is not a numeric .npy file of its announced length",
        ) from None


def _answered(
    client: str, read: Callable[[], _Request], act: Callable[[_Request], Answer]
) -> Answer:
    try:
        request = read()
    except RefusedError as refusal:  # public words: only the message was looked at
        if refusal.code == Refusal.WRONG_PROTOCOL:
            logs.say_failure(log, "another-version", refusal)
        return _refusal(client, refusal.code, refusal.cause)
    except PrivacyError as failure:
        return _refusal(client, Refusal.WRONG_PLAN, failure.cause)
    except Exception as failure:
        logs.say_failure(log, "request-unreadable", failure)
        return _refusal(client, Refusal.MALFORMED, "the message cannot be read")
    try:
        return act(request)
    except Exception as failure:
        # The words of an error may quote the data, so neither the server nor the log gets them.
        logs.say_failure(log, "answer-failed", failure, quoted=False)
        return _refusal(
            client, _code(failure), "the client could not answer; its own log says where"
        )


def _refusal(client: str, code: str, cause: str) -> Answer:
    return Answer(client, users=0, refusal=str(code), cause=cause[:_CAUSE_CHARACTERS])


def _code(failure: Exception) -> str:
    if isinstance(failure, RefusedError):
        return failure.code
    if isinstance(failure, BudgetExceededError):
        return Refusal.BUDGET
    return UNREACHABLE if isinstance(failure, UnreachableError) else FAILED
