"""Flower's grid over HTTP, where no reply takes another with it: not one that cannot be unpacked,
nor one that is still on its way.

Flower's own `pull_messages` takes all replies of a call off the SuperLink, then waits up to minutes
for each one's parts in turn, and raises over the first that it cannot read: the others are lost. It
also believes what a reply says inside about the message it answers; what stands beside the reply,
the SuperLink has checked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import httpx
from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.message_pb2 import Metadata as StoredMetadata
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import HttpGrid

from fedrec.operations import logs
from fedrec_server.flower import UNREADABLE

LOST = (httpx.HTTPError, RunNotRunningException)
"""What a grid raises when the SuperLink stays away, or has given the run up."""

_KEPT_S = 900.0
"""A reply whose parts do not come: Flower gives it up after three minutes, and whoever asked may
have stopped asking."""

log = logging.getLogger(__name__)


@dataclass
class _Arriving:
    """A reply that was taken off the SuperLink. parts: those of its objects that are here. since_s:
    on the monotonic clock."""

    metadata: StoredMetadata
    names: Sequence[str]
    since_s: float
    parts: dict[str, bytes] = field(default_factory=dict)


class EachReplyGrid(HttpGrid):
    """Pulls many replies in one call, each on its own account.

    For one thread. address, root_certificates, token: as Flower's."""

    def __init__(
        self,
        address: str,
        insecure: bool,
        root_certificates: bytes | None,
        *,
        token: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(address, insecure, root_certificates, token=token)
        self._arriving = dict[str, _Arriving]()
        self._clock = clock

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are whole, an error of code `UNREADABLE` for each that cannot be
        unpacked. Raises one of `LOST`."""
        asked = list(message_ids)
        now_s = self._clock()
        self._arriving = {
            name: one for name, one in self._arriving.items() if now_s - one.since_s < _KEPT_S
        }
        pulled = self._runtime_client.PullMessages(
            PullAppMessagesRequest(message_ids=[n for n in asked if n not in self._arriving])
        )
        for stored, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            names = [each.object_id for each in iterate_object_tree(tree)]
            self._arriving[stored.metadata.reply_to_message_id] = _Arriving(
                stored.metadata, names, now_s
            )
        replies = {
            name: self._whole(self._arriving[name]) for name in asked if name in self._arriving
        }
        self._arriving = {
            name: one for name, one in self._arriving.items() if replies.get(name) is None
        }
        return [reply for reply in replies.values() if reply is not None]

    def _whole(self, reply: _Arriving) -> Message | None:
        """None while a part is missing."""
        about = reply.metadata
        try:
            for name in reply.names:
                if name in reply.parts:
                    continue
                part = self._runtime_client.PullObject(
                    PullObjectRequest(node=self.node, run_id=about.run_id, object_id=name)
                )
                if not part.object_found:  # the node did not send it in time
                    return make_message(
                        metadata=_metadata(about),
                        error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "a part of it is missing"),
                    )
                if not part.object_available:
                    return None
                reply.parts[name] = part.object_content
            received = ConfirmMessageReceivedRequest(
                node=self.node, run_id=about.run_id, message_object_id=about.message_id
            )
            self._runtime_client.ConfirmMessageReceived(received)
            message = inflate_object_from_contents(about.message_id, reply.parts)
            if not isinstance(message, Message):
                raise TypeError(f"a reply is no message but a {type(message).__name__}")
        except LOST:
            raise
        except Exception as failure:  # whatever a node's bytes do to Flower's unpacking
            logs.say_failure(log, "reply-unreadable", failure, node=str(about.src_node_id))
            return make_message(
                metadata=_metadata(about), error=Error(UNREADABLE, "it cannot be unpacked")
            )
        message.metadata.__dict__.update(vars(_metadata(about)))
        return message


def _metadata(stored: StoredMetadata) -> Metadata:
    """What the SuperLink knows of a reply, whatever the reply says of itself."""
    return Metadata(
        run_id=stored.run_id,
        message_id=stored.message_id,
        src_node_id=stored.src_node_id,
        dst_node_id=stored.dst_node_id,
        reply_to_message_id=stored.reply_to_message_id,
        group_id=stored.group_id,
        created_at=stored.created_at,
        ttl=stored.ttl,
        message_type=stored.message_type,
    )
