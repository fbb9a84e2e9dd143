"""Requests over Flower, by its public interfaces (`fedrec_server.flower` says how a message is
written)."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedrec.federation.protocol import Refusal
from fedrec.federation.round_messages import RoundMessage
from fedrec_client.requests import Requests, refusing

SAID = "fedrec"
ARRAYS = "public"
CODED = "fedrec.coding"
"""Flower's word for how an array is written."""


def answered(requests: Requests, message: Message) -> Message:
    """Its reply."""
    content = message.content
    words = content.get(SAID)
    arrays = content.get(ARRAYS, ArrayRecord())
    if not isinstance(words, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        cause = f"the message's {SAID!r} and {ARRAYS!r} are not words and arrays"
        reply = refusing(requests.participant.name, Refusal.MALFORMED, cause)
    else:
        kind = message.metadata.message_type.removeprefix("query.")
        data = {name: bytes(array.data) for name, array in arrays.items()}
        reply = requests.answer(RoundMessage(dict(words), data, kind))
    packed = {
        name: Array("uint8", (len(data),), CODED, data) for name, data in reply.arrays.items()
    }
    return Message(
        RecordDict({SAID: ConfigRecord(dict(reply.said)), ARRAYS: ArrayRecord(packed)}),
        reply_to=message,
    )
