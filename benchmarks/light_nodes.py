"""Synthetic SuperNodes, a thousand in one process: each a connection, a key, a certificate of its
own, and no data.

They speak Flower's Fleet API as a SuperNode does, signed, and wait at the proxy as long as it holds
them. Every message is answered by a client of one user who joined. One connection carries all
requests of a node, its heartbeats between two looks for messages.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    RegisterNodeFleetRequest,
    RegisterNodeFleetResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supercore.task_identity import TaskIdentity
from google.protobuf.message import Message as Proto

from fedrec.federation.protocol import Answer
from fedrec.federation.wire import pack_answer
from fedrec_server.held_pulls import WAIT_HEADER

P = TypeVar("P", bound=Proto)

HEARTBEAT_S = 600.0
"""A node may be silent for this long; Flower's own say 30 s, and allow half an hour."""

_WAIT_S = 240
_ARRIVING = 8


@dataclass
class LightNode:
    """One node."""

    name: str
    host: str
    port: int
    tls: ssl.SSLContext
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    _keys: Any = None
    _version: Any = field(
        default_factory=lambda: RuntimeVersionMetadata.from_local_component(
            "SuperNode"
        ).append_to_grpc_metadata(())
    )

    async def live(self, arriving: asyncio.Semaphore) -> None:
        """Until it is cancelled.

        A connection that ends is made again. arriving: who registers at the same time."""
        node = 0
        beat_s = 0.0
        try:
            while True:
                try:
                    if not node:
                        async with arriving:
                            node = await self._activated()
                        beat_s = time.monotonic()
                    if time.monotonic() - beat_s > HEARTBEAT_S / 2:
                        request = SendNodeHeartbeatRequest(
                            node=Node(node_id=node), heartbeat_interval=HEARTBEAT_S
                        )
                        await self._call("send-node-heartbeat", request, SendNodeHeartbeatResponse)
                        beat_s = time.monotonic()
                    # not all in the same second
                    wait_s = random.randint(_WAIT_S * 3 // 4, _WAIT_S)
                    asked = PullMessagesRequest(node=Node(node_id=node))
                    pulled = await self._call(
                        "pull-messages", asked, PullMessagesResponse, wait_s=wait_s
                    )
                    for stored in pulled.messages_list:
                        await self._answer(node, message_from_proto(stored))
                except (OSError, asyncio.IncompleteReadError, ValueError):
                    self._hang_up()
                    await asyncio.sleep(random.uniform(0.5, 3.0))
        finally:
            self._hang_up()

    async def _activated(self) -> int:
        self._keys = generate_key_pairs()  # a key registers once
        public = public_key_to_bytes(self._keys[1])
        await self._call(
            "register-node", RegisterNodeFleetRequest(public_key=public), RegisterNodeFleetResponse
        )
        request = ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_S)
        return int((await self._call("activate-node", request, ActivateNodeResponse)).node_id)

    async def _answer(self, node: int, message: Message) -> None:
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = message.metadata.run_id
        TaskIdentity.node_id = node
        said = pack_answer(Answer(self.name, 1, accepted=1))
        reply = Message(RecordDict({"fedrec": ConfigRecord({"answer": said})}), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        own = Node(node_id=node)
        run = message.metadata.run_id
        received = ConfirmMessageReceivedRequest(
            node=own, run_id=run, message_object_id=message.metadata.message_id
        )
        await self._call("confirm-message-received", received, ConfirmMessageReceivedResponse)
        stored = message_to_proto(remove_content_from_message(reply))
        tree = get_object_tree(reply)
        push = PushMessagesRequest(
            node=own,
            messages_list=[stored],
            message_object_trees=[tree],
            clientapp_runtime_list=[0.0],
        )
        wanted = await self._call("push-messages", push, PushMessagesResponse)
        for name, part in get_all_nested_objects(reply).items():
            if name in wanted.objects_to_push:
                content = PushObjectRequest(
                    node=own,
                    run_id=run,
                    object_id=name,
                    object_content=part.deflate(),
                    session_id=wanted.session_id,
                )
                await self._call("push-object", content, PushObjectResponse)

    async def _call(self, route: str, request: Proto, reply: type[P], *, wait_s: int = 0) -> P:
        """Raises OSError, IncompleteReadError, or ValueError where the answer is none."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                self.host, self.port, ssl=self.tls, limit=2**16
            )
        reader, writer = self._streams
        body = request.SerializeToString(deterministic=True)
        writer.write(self._head(route, len(body), wait_s) + body)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split()[1])
        length = next(
            int(line.split(":")[1])
            for line in head.split("\r\n")
            if line.startswith("content-length:")
        )
        content = await reader.readexactly(length)
        if status != 200:
            raise ValueError(f"{route}: {status} {content[:200]!r}")
        if "connection: close" in head:
            self._hang_up()
        return reply.FromString(content)

    def _head(self, route: str, size: int, wait_s: int) -> bytes:
        stamp = now().isoformat()
        fields = {
            "host": f"{self.host}:{self.port}",
            "content-type": "application/protobuf",
            "accept": "application/protobuf",
            "content-length": str(size),
            WAIT_HEADER.decode(): str(wait_s),
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(self._keys[1])).decode(),
            TIMESTAMP_HEADER: stamp,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(
                sign_message(self._keys[0], stamp.encode())
            ).decode(),
            **dict(self._version),
        }
        lines = [
            f"POST /v1/fleet/{route} HTTP/1.1",
            *(f"{name}: {value}" for name, value in fields.items()),
            "",
            "",
        ]
        return "\r\n".join(lines).encode()

    def _hang_up(self) -> None:
        if self._streams:
            self._streams[1].close()
            self._streams = None


def live(address: str, keys: Path, names: Iterable[str]) -> None:
    """All of them in this process, until it is ended."""
    host, _, port = address.rpartition(":")
    nodes = [LightNode(name, host, int(port), _tls(keys, name)) for name in names]

    async def all_of_them() -> None:
        arriving = asyncio.Semaphore(_ARRIVING)
        await asyncio.gather(*(node.live(arriving) for node in nodes))

    asyncio.run(all_of_them())


def _tls(keys: Path, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    context.load_cert_chain(keys / f"client-{name}.pem", keys / f"client-{name}-key.pem")
    return context
