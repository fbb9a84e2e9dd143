"""Messages of rounds over Flower's `Grid`, by its public interfaces: `query.join`, `query.ask`,
`query.tell`.

Each message is a RecordDict of a ConfigRecord "fedrec" of what is said, and an ArrayRecord "public"
of the arrays (`fedrec.federation.round_messages`). Flower's own waiting loop is not used: it polls
every 3 s and ends with whoever was there first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedrec.federation.protocol import Answer
from fedrec.federation.round_messages import RoundMessage
from fedrec.operations import logs
from fedrec_server.broadcast import Received, malformed
from fedrec_server.cohorts import UNREACHABLE

SAID = "fedrec"
ARRAYS = "public"
CODED = "fedrec.coding"
"""Flower's word for how an array is written."""

SENT_AT_ONCE = 40
ASKED_AT_ONCE = 200
"""Messages of one call to the SuperLink, which must answer within 30 s: it writes a message in up
to a tenth of a second on a busy machine, and looks replies up in one query."""

_WORDS = {
    2: "it could not read the message",
    3: "the message was lost on the way",
    4: "its answer was lost on the way",
    5: "its SuperNode is gone",
    8: "it ended while it answered",
}
"""Flower's codes of errors, which no public interface names."""

log = logging.getLogger(__name__)


def record_of(message: RoundMessage) -> RecordDict:
    """A message as Flower carries it."""
    arrays = {
        name: Array("uint8", (len(data),), CODED, data) for name, data in message.arrays.items()
    }
    return RecordDict({SAID: ConfigRecord(dict(message.said)), ARRAYS: ArrayRecord(arrays)})


@dataclass
class GridPost:
    """A grid as a `broadcast.Post`. Nodes are believed who they say they are."""

    grid: Grid
    again_s: float = 60.0
    owned: bool = False

    def nodes(self) -> list[str]:
        """See `Post`."""
        return [str(node) for node in self.grid.get_node_ids()]

    def owner(self, node: str) -> str:
        """See `Post`."""
        return ""

    def send(self, nodes: Sequence[str], message: RoundMessage, ttl_s: float) -> list[str]:
        """See `Post`: a SuperLink that is too busy does not take them all."""
        content = record_of(message)
        kind = f"query.{message.kind}"
        names = list[str]()
        for start in range(0, len(nodes), SENT_AT_ONCE):
            some = nodes[start : start + SENT_AT_ONCE]
            out = [Message(content, int(node), kind, ttl=ttl_s) for node in some]
            try:
                names += self.grid.push_messages(out)
            except httpx.HTTPError:  # the SuperLink stays away
                raise
            except Exception as failure:  # its session was too slow, or was begun again
                logs.say_failure(log, "messages-not-taken", failure)
                break
        return names

    def replies(self, names: Collection[str]) -> Iterator[tuple[str, Received]]:
        """See `Post`.

        A grid that fails over one reply is asked for the others one by one."""
        asked = list(names)
        for start in range(0, len(asked), ASKED_AT_ONCE):
            some = asked[start : start + ASKED_AT_ONCE]
            try:
                replies = list(self.grid.pull_messages(some))
            except httpx.HTTPError:
                raise
            except Exception as failure:
                # whatever a node's bytes do to Flower's unpacking is that node's failure
                if len(some) > 1:
                    yield from (found for name in some for found in self.replies([name]))
                    continue
                logs.say_failure(log, "reply-unreadable", failure)
                yield some[0], malformed("its reply cannot be unpacked")
                continue
            for reply in replies:
                yield reply.metadata.reply_to_message_id, _received(reply)


def _received(reply: Message) -> Received:
    if reply.has_error():
        words = _WORDS.get(reply.error.code, f"Flower's error {reply.error.code}")
        return Answer("", 0, refusal=UNREACHABLE, cause=words)
    words_of = reply.content.get(SAID)
    arrays = reply.content.get(ARRAYS, ArrayRecord())
    if not isinstance(words_of, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        return malformed("its reply holds no answer")
    return RoundMessage(dict(words_of), {name: bytes(array.data) for name, array in arrays.items()})
