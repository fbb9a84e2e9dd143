"""Flower's messages on the client: what comes in is read with suspicion, what goes out is a
receipt.

    query.join   {"fedrec": {"terms": bytes}}
                 -> {"fedrec": {"answer": bytes}}
    query.ask    {"fedrec": {"header": bytes, "plan": bytes, "quorum": int}, "public": ArrayRecord}
                 -> {"fedrec": {"answer": bytes}}
    query.tell   {"fedrec": {"ask": bytes}, "public": ArrayRecord}
                 -> the same and {"reply": ArrayRecord}

Each message is a RecordDict. Each "fedrec" record has "protocol" too, the sender's version of the
messages (`fedrec.federation.versions`). The bytes are those of `fedrec.federation.wire`, terms by
zlib; a question's arrays are payloads of `fedrec.federation.coding`. Nothing private goes this way:
reports go to the aggregator, and what is told was noised here (`news.messages`). A request that
cannot be read, or a fault of the client, is an answer with a refusal, never an exception: Flower
would send its words on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedrec.errors import BudgetExceededError, PrivacyError, RefusedError, UnreachableError
from fedrec.federation.coding import decoded, inflated
from fedrec.federation.npy import read_npy
from fedrec.federation.protocol import Answer, Invitation, Refusal, Terms
from fedrec.federation.versions import FIELD, PROTOCOL, spoken
from fedrec.federation.wire import pack_answer, read_header, read_invitation, read_terms, refused
from fedrec.news.messages import Ask, Reply, read_ask
from fedrec.operations import logs
from fedrec_client.last_arrays import HeldArrays
from fedrec_client.refusals import FAILED, UNREACHABLE

MESSAGE = "fedrec"
PUBLIC = "public"
JOIN = "join"
ASK = "ask"
TELL = "tell"
ACTIONS = (JOIN, ASK, TELL)
REPLY = "reply"
CODED = "fedrec.coding"
"""Flower's word for how an array is written."""

MAX_PUBLIC_BYTES = 2**30
"""Most bytes of public arrays in one question: that of `answering.Bounds`."""

_CAUSE_CHARACTERS = 500

log = logging.getLogger(__name__)


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


def client_app(
    participant: Answering,
    *,
    max_public_bytes: int = MAX_PUBLIC_BYTES,
    held: HeldArrays | None = None,
) -> ClientApp:
    """The app that answers for this participant; the same in a SuperNode's executor and in a
    simulation's grid.

    held: where the last question's arrays are kept, in memory as long as nothing is said.
    """
    installed = ClientApp()
    kept = held or HeldArrays()

    @installed.query(JOIN)
    def join(message: Message, _context: Context) -> Message:
        return _reply(
            message,
            _answered(
                participant.name,
                lambda: _terms(message.content, max_public_bytes // 4),
                participant.join,
            ),
        )

    @installed.query(ASK)
    def ask(message: Message, _context: Context) -> Message:
        return _reply(
            message,
            _answered(
                participant.name,
                lambda: _invitation(message.content, max_public_bytes, kept),
                participant.answer,
            ),
        )

    @installed.query(TELL)
    def tell(message: Message, _context: Context) -> Message:
        return _told(message, participant, max_public_bytes)

    return installed


app = ClientApp()
"""What a bundle names, because Flower wants a name there. It answers nothing: a client runs
`client_app` around its own participant, in an executor that never opens the bundle
(`fedrec_client.executor`)."""


def _told(message: Message, participant: Answering, max_public_bytes: int) -> Message:
    arrays = dict[str, npt.NDArray[Any]]()

    def tell(ask: Ask) -> Answer:
        reply = participant.tell(ask)
        arrays.update(reply.arrays)
        return reply.answer

    answer = _answered(
        participant.name,
        lambda: read_ask(
            _bytes(message.content, "ask"), _arrays(message.content, max_public_bytes)
        ),
        tell,
    )
    packed = ArrayRecord(
        {name: Array(np.asarray(array, order="C")) for name, array in arrays.items()}
    )
    return Message(RecordDict({MESSAGE: _said(answer), REPLY: packed}), reply_to=message)


def _terms(content: RecordDict, max_bytes: int) -> Terms:
    return read_terms(inflated(_bytes(content, "terms"), max_bytes=max_bytes))


def _invitation(content: RecordDict, max_public_bytes: int, kept: HeldArrays) -> Invitation:
    header = _bytes(content, "header")
    plan = _bytes(content, "plan")
    payloads = {
        name: _payload(name, array) for name, array in _records(content, max_public_bytes).items()
    }
    arrays = decoded(
        read_header(header).arrays(), payloads, kept.arrays(), max_bytes=max_public_bytes
    )
    invitation = read_invitation(header, plan, arrays, quorum=_quorum(content))
    kept.keep(invitation.question.public)
    return invitation


def _quorum(content: RecordDict) -> int:
    """None is said where the aggregator's minimum cohort is all; the reports name what is said, so
    a wrong one is not counted."""
    record = content.get(MESSAGE)
    value = record.get("quorum", 0) if isinstance(record, ConfigRecord) else 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise refused(Refusal.MALFORMED, "the message's quorum is no number of users")
    return value


def _payload(name: str, array: Array) -> bytes:
    if array.stype != CODED:
        raise refused(
            Refusal.MALFORMED, f"array {name[:100]!r} is not written as a question's arrays are"
        )
    return bytes(array.data)


def _bytes(content: RecordDict, key: str) -> bytes:
    """Raises RefusedError where the record has no such bytes, or the server's version of the
    messages is none that works with ours."""
    record = content.get(MESSAGE)
    value = record.get(key) if isinstance(record, ConfigRecord) else None
    spoken(record.get(FIELD) if isinstance(record, ConfigRecord) else None, who="the server")
    if not isinstance(value, bytes):
        raise refused(Refusal.MALFORMED, f"the message has no bytes {MESSAGE}.{key}")
    return value


def _arrays(content: RecordDict, max_public_bytes: int) -> Mapping[str, npt.NDArray[Any]]:
    return {
        name: _array(name, array) for name, array in _records(content, max_public_bytes).items()
    }


def _records(content: RecordDict, max_public_bytes: int) -> Mapping[str, Array]:
    record = content.get(PUBLIC, ArrayRecord())
    if not isinstance(record, ArrayRecord):
        raise refused(Refusal.MALFORMED, f"the message's {PUBLIC!r} are not arrays")
    size = sum(len(array.data) for array in record.values())  # one array may stand under many names
    if size > max_public_bytes:
        raise refused(
            Refusal.TOO_LARGE, f"public arrays have at most {max_public_bytes} bytes, found {size}"
        )
    return dict(record.items())


def _array(name: str, array: Array) -> npt.NDArray[Any]:
    try:
        if array.stype != "numpy.ndarray":
            raise ValueError("not an array of numpy")
        return read_npy(array.data)
    except ValueError:
        raise refused(
            Refusal.MALFORMED,
            f"array {name[:100]!r} is not a numeric .npy file of its announced length",
        ) from None


_Request = TypeVar("_Request")


def _answered(
    client: str, read: Callable[[], _Request], act: Callable[[_Request], Answer]
) -> Answer:
    try:
        request = read()
    except RefusedError as refusal:  # public words: only the message was looked at
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


def _reply(message: Message, answer: Answer) -> Message:
    return Message(RecordDict({MESSAGE: _said(answer)}), reply_to=message)


def _said(answer: Answer) -> ConfigRecord:
    return ConfigRecord({"answer": pack_answer(answer), FIELD: PROTOCOL})
