"""Replies of nodes, read with suspicion: what a node sends costs that node its answer, never the
others theirs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedrec.errors import RefusedError
from fedrec.federation.npy import read_npy
from fedrec.federation.protocol import Answer, Refusal
from fedrec.federation.versions import FIELD, spoken
from fedrec.federation.wire import read_answer
from fedrec_server.stragglers import UNREACHABLE

MESSAGE = "fedrec"
REPLY = "reply"
"""Records of a message and of its reply: what is said, and the arrays that a client tells."""

_ANSWER_BYTES = 2**16
_WORDS = {
    2: "it could not read the message",
    3: "the message was lost on the way",
    4: "its answer was lost on the way",
    5: "its SuperNode is gone",
    8: "it ended while it answered",
}
"""Flower's codes of errors, which no public interface names."""


def answer_of(reply: Message | None) -> Answer:
    """What a node said, or a refusal in its place; `client` is empty where it did not say who it
    is. None stands for a reply that cannot be unpacked."""
    if reply is None:
        return _malformed("its reply cannot be unpacked")
    if reply.has_error():
        words = _WORDS.get(reply.error.code, f"Flower's error {reply.error.code}")
        return Answer("", 0, refusal=UNREACHABLE, cause=words)
    record = reply.content.get(MESSAGE) if reply.has_content() else None
    value = record.get("answer") if isinstance(record, ConfigRecord) else None
    if not isinstance(value, bytes) or len(value) > _ANSWER_BYTES:
        return _malformed(f"its reply holds no answer of at most {_ANSWER_BYTES} bytes")
    try:
        answer = read_answer(value)
    except RefusedError as failure:
        return _malformed(failure.cause)
    try:
        spoken(
            record.get(FIELD) if isinstance(record, ConfigRecord) else None,
            who=f"client {answer.client}",
        )
    except RefusedError as failure:
        return Answer(
            answer.client, 0, refusal=failure.code, cause=f"{failure.cause}. {failure.remedy}"
        )
    return answer


def arrays_of(reply: Message) -> Mapping[str, npt.NDArray[Any]]:
    """What a client told, as far as it can be read; what is missing is found out by who needs
    it."""
    record = reply.content.get(REPLY)
    found = dict[str, npt.NDArray[Any]]()
    for name, array in record.items() if isinstance(record, ArrayRecord) else ():
        with suppress(ValueError):
            found[name] = read_npy(array.data)
    return found


def _malformed(cause: str) -> Answer:
    return Answer("", 0, refusal=Refusal.MALFORMED.value, cause=cause)
