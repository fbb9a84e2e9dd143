"""Everything that reaches the server of real processes, recorded in front of it: before the first
release nothing depends on a user.

Between aggregator and server stands a gRPC relay, between SuperNodes and proxy an HTTP one; both end
TLS with the party's own keys. Two runs differ in one user's ratings. What they heard must be the
same but for random names, times, and what follows from these.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, recorddict_pb2, run_pb2
from flwr.proto.fab_pb2 import GetFabRequest
from google.protobuf.message import Message

from fedrec.data.interactions import Interactions
from fedrec.federation.protocol import Answer
from fedrec.federation.wire import read_answer
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec_server.runs import run_folder
from fedrec_simulations.runtimes.deployment_files import PartyFiles
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes

RANDOM_OR_TIME = {
    *(
        "node_id",
        "src_node_id",
        "dst_node_id",
        "public_key",
        "run_id",
        "session_id",
        "src_task_id",
        "dst_task_id",
    ),
    *(
        "message_id",
        "message_ids",
        "reply_to_message_id",
        "object_id",
        "object_ids",
        "message_object_id",
        "hash_str",
        "fab_hash",
    ),
    *("created_at", "delivered_at", "ttl", "remaining_s", "clientapp_runtime_list"),
    *("release_sha256", "ledger_head", "head", "entries_sha256"),
}
"""Fields of messages that differ between any two runs, and hashes: of the release, and of ledger
entries, which hold times."""

OF_ONE_REQUEST = {"content-length", "host", "flwr-public-key", "flwr-signature", "flwr-timestamp"}
"""Headers whose values differ in the same way; that they are there is compared."""

REQUESTS: dict[str, type[Message]] = {
    "register-node": fleet_pb2.RegisterNodeFleetRequest,
    "activate-node": fleet_pb2.ActivateNodeRequest,
    "deactivate-node": fleet_pb2.DeactivateNodeRequest,
    "unregister-node": fleet_pb2.UnregisterNodeFleetRequest,
    "send-node-heartbeat": heartbeat_pb2.SendNodeHeartbeatRequest,
    "pull-messages": fleet_pb2.PullMessagesRequest,
    "push-messages": fleet_pb2.PushMessagesRequest,
    "get-run": run_pb2.GetRunRequest,
    "get-fab": GetFabRequest,
    "push-object": message_pb2.PushObjectRequest,
    "pull-object": message_pb2.PullObjectRequest,
    "confirm-message-received": message_pb2.ConfirmMessageReceivedRequest,
}
REPLIES: dict[str, type[Message]] = {
    "Enrolled": pb.EnrolledReply,
    "GetGrowth": pb.GetGrowthReply,
    "OpenRun": pb.OpenRunReply,
    "OpenRound": pb.RoundStatus,
    "GetRound": pb.RoundStatus,
    "CloseRound": pb.RoundStatus,
}
_CLOSED_OR_ASKED = re.compile("^(CloseRound|GetRound)")


def test_before_the_first_release_nothing_that_reaches_the_server_depends_on_a_users_ratings(
    play: Any, stage: Callable[..., Any]
) -> None:
    one, other = (
        _heard(stage, data) for data in (play.job.data, _another_opinion(play.job.data, user=7))
    )
    assert one.release != other.release
    for heard in (one, other):
        assert heard.answers() == {
            (shard.name, shard.events.num_users) for shard in heard.files.shards
        }
        assert heard.enrolled()[-1] == play.job.data.num_users
    assert one.form() ^ other.form() == set()


def test_the_comparison_sees_one_bit_in_any_kind_of_message() -> None:
    status, answer = pb.RoundStatus(phase="open", reported=3), recorddict_pb2.ConfigRecord()
    for message, changed in (
        (status, pb.RoundStatus(phase="open", reported=4)),
        (answer, recorddict_pb2.ConfigRecord(items=[{"key": "x"}])),
    ):
        assert _masked(message) != _masked(changed)
    contents = [f"ConfigRecord  4\0abc{last}".encode() for last in "de"]
    assert _object(contents[0]) != _object(contents[1])
    assert _masked(pb.RoundStatus(remaining_s=1.0)) == _masked(pb.RoundStatus(remaining_s=2.0))


def test_the_comparison_hears_as_much_whoever_draws_the_noise_first() -> None:
    def call(where: str, **status: Any) -> list[tuple[str, Any]]:
        return [(f"{where} begins", ()), (where, pb.RoundStatus(**status)), (f"{where} ends", "OK")]

    def form(*calls: list[tuple[str, Any]]) -> set[str]:
        return Heard(
            None, Inbound([message for each in calls for message in each]).until_release(), b""
        ).form()  # type: ignore[arg-type]

    drawn, later = (
        call("GetRound", phase="released", reported=3),
        call("CloseRound", phase="released", reported=3),
    )
    drawing = call("CloseRound", phase="releasing", reported=3)
    assert form(later) == form(drawing, drawn)
    for more in (
        call("GetRound", phase="open", reported=2),
        [("GetRound begins", ("key", "value"))],
        [("GetRound fails", "why")],
    ):
        assert form(drawing, more, drawn) != form(later)


def _another_opinion(data: Interactions, *, user: int) -> Interactions:
    """The same with one user's ratings turned round, and every second one left out."""
    values, mine = data.values.copy(), slice(data.user_ptr[user], data.user_ptr[user + 1])
    values[mine] = sum(data.value_range) - values[mine]
    changed = replace(data, values=values).select(
        ~((data.users == user) & (np.arange(len(data)) % 2 == 0))
    )
    assert 0 < len(changed) < len(data)
    return changed


def _heard(stage: Callable[..., Any], data: Interactions) -> Heard:
    """A run until the server has its first release, and what it had heard until it was told of
    it."""
    with ExitStack() as stack:
        run = stage(data=data, files=lambda *what, **more: TappedFiles(*what, **more, stack=stack))
        run.start()
        first = run.until(lambda: _first_release(run.files.state("server")), "release of round 0")
        run.company.stop()
        return Heard(run.files, run.files.inbound.until_release(), first.read_bytes())


def _first_release(state: Path) -> Path | None:
    """Once it is there. The folder of the run is known only when the server has begun it."""
    path = run_folder(state) / "releases" / "round-000.safetensors"
    return path if path.exists() else None


@dataclass(frozen=True)
class Heard:
    """What the server heard before its first release: (where, content) of every message, in
    order."""

    files: PartyFiles
    messages: list[tuple[str, Any]]
    release: bytes

    def form(self) -> set[str]:
        """Each message once, without what differs between any two runs: how often somebody polled
        is time, so is who joined first.

        So is whether the noise is still being drawn, by the aggregator itself, when the server
        closes the round: then it asks once more, and the calls that close and ask hear together
        what the one that closes hears alone otherwise.
        """
        heard = [
            (where, content)
            for where, content in self.messages
            if where != "Enrolled" and not _is_releasing(content)
        ]
        return {
            f"{_CLOSED_OR_ASKED.sub('round', where)} {_form(where, content)}"
            for where, content in heard
        }

    def answers(self) -> set[tuple[str, int]]:
        """Clients and their counted users, as they told the server."""
        said = [_answer(content) for where, content in self.messages if where == "push-object"]
        return {(answer.client, answer.accepted) for answer in said if answer and answer.accepted}

    def enrolled(self) -> list[int]:
        """How many users there were, each time the server asked."""
        return [content.users for where, content in self.messages if where == "Enrolled"]


def _is_releasing(content: Any) -> bool:
    """Whether it says that the noise is being drawn just now."""
    return isinstance(content, pb.RoundStatus) and content.phase == "releasing"


def _form(where: str, content: Any) -> str:
    if not isinstance(content, Message):
        return repr(content)
    if isinstance(content, message_pb2.PushObjectRequest):
        return f"{_masked(content, but={'object_content'})} {_object(content.object_content)}"
    return _masked(content)


def _masked(message: Message, *, but: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    """All fields that are set, but for random names and times."""
    parts = list[str]()
    for descriptor, value in message.ListFields():
        if descriptor.name in RANDOM_OR_TIME | but:
            continue
        if descriptor.type != descriptor.TYPE_MESSAGE:
            said = repr(
                sorted(value.items())
                if hasattr(value, "items")
                else list(value)
                if descriptor.is_repeated
                else value
            )
        elif descriptor.is_repeated:
            said = repr(
                sorted(map(str, value.items()))
                if hasattr(value, "items")
                else [_masked(each) for each in value]
            )
        else:
            said = _masked(value)
        parts.append(f"{descriptor.name}={said}")
    return f"{type(message).__name__}({', '.join(parts)})"


def _object(content: bytes) -> str:
    """One of Flower's objects ("kind children length", a zero byte, a body).

    Children are named by hashes, which depend on times."""
    head, _, body = content.partition(b"\0")
    kind = head.split()[0].decode()
    if kind == "Message":
        message = message_pb2.Message()
        message.ParseFromString(body)
        return f"{kind} {_masked(message)}"
    return f"{kind} {re.sub(rb'[0-9a-f]{64}', b'HASH', body)!r}"


def _answer(content: Any) -> Answer | None:
    head, _, body = content.object_content.partition(b"\0")
    if not head.startswith(b"ConfigRecord"):
        return None
    record = recorddict_pb2.ConfigRecord()
    record.ParseFromString(body)
    return next(
        (read_answer(item.value.bytes) for item in record.items if item.key == "answer"), None
    )


# --- in front of the server ---


@dataclass
class Inbound:
    """What passed on its way to the server, from any relay."""

    messages: list[tuple[str, Any]] = field(default_factory=list)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def add(self, where: str, content: Any) -> None:
        with self.mutex:
            self.messages.append((where, content))

    def until_release(self) -> list[tuple[str, Any]]:
        """The first word of a release, all before it, and the end of its call."""
        last = next(
            n
            for n, (_, said) in enumerate(self.messages)
            if isinstance(said, pb.RoundStatus) and said.phase == "released"
        )
        end = next(
            message
            for message in self.messages[last:]
            if message[0] == f"{self.messages[last][0]} ends"
        )
        return [*self.messages[: last + 1], end]


@dataclass(frozen=True)
class TappedFiles(PartyFiles):
    """Files that lead the server to the aggregator, and the clients to the server's proxy, by way of
    relays."""

    stack: ExitStack = field(kw_only=True)

    @cached_property
    def inbound(self) -> Inbound:
        return Inbound()

    @cached_property
    def relays(self) -> dict[str, str]:
        return {}

    def write_server(self, *, listen: str, aggregator: str) -> None:
        if aggregator not in self.relays:
            self.relays[aggregator] = self.stack.enter_context(
                grpc_relay(aggregator, self.root / "certificates", self.inbound)
            )
        super().write_server(listen=listen, aggregator=self.relays[aggregator])

    def write_client(self, shard: Any, *, proxy: str, aggregator: str) -> None:
        # the proxy knows each client by its certificate
        if (way := f"{shard.name} to {proxy}") not in self.relays:
            relay = http_relay(proxy, self.root / "certificates", self.inbound, client=shard.name)
            self.relays[way] = self.stack.enter_context(relay)
        super().write_client(shard, proxy=self.relays[way], aggregator=aggregator)


@contextmanager
def grpc_relay(upstream: str, keys: Path, inbound: Inbound) -> Iterator[str]:
    """Calls of the server, passed on to the aggregator as they are; replies and their metadata are
    kept. Yields its address."""
    ca, shown, own = (
        (keys / name).read_bytes() for name in ("ca.pem", "aggregator.pem", "server.pem")
    )
    shown_key, own_key = (
        (keys / name).read_bytes() for name in ("aggregator-key.pem", "server-key.pem")
    )

    def handle(method: str) -> Callable[[Any, Any], Iterator[bytes]]:
        name = method.rpartition("/")[2]

        def passed(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            call = channel.stream_stream(method)(
                requests,
                metadata=_own(context.invocation_metadata()),
                timeout=context.time_remaining(),
            )
            try:
                inbound.add(f"{name} begins", _own(call.initial_metadata()))
                for reply in call:
                    inbound.add(name, REPLIES[name].FromString(reply) if name in REPLIES else reply)
                    yield reply
            except grpc.RpcError:
                inbound.add(f"{name} fails", call.details())
            inbound.add(f"{name} ends", (call.code(), _own(call.trailing_metadata())))
            context.set_trailing_metadata(call.trailing_metadata() or ())
            context.set_code(call.code())
            context.set_details(call.details() or "")

        return passed

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(handle(details.method))

    server = grpc.server(futures.ThreadPoolExecutor(16), handlers=[Handler()])
    port = server.add_secure_port(
        "127.0.0.1:0",
        grpc.ssl_server_credentials([(shown_key, shown)], ca, require_client_auth=True),
    )
    with grpc.secure_channel(upstream, grpc.ssl_channel_credentials(ca, own_key, own)) as channel:
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def _own(metadata: Any) -> tuple[tuple[str, Any], ...]:
    """Metadata that is not the library's."""
    return tuple(
        (key, value)
        for key, value in metadata or ()
        if key != "user-agent" and not key.startswith("grpc-")
    )


@contextmanager
def http_relay(upstream: str, keys: Path, inbound: Inbound, *, client: str) -> Iterator[str]:
    """Connections of one client's SuperNode, passed on to the proxy byte for byte; requests are
    kept. Yields its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        relay = HttpRelay(upstream, keys, inbound, client)
        port = asyncio.run_coroutine_threadsafe(relay.open(), loop).result(HANG_S)
        yield f"127.0.0.1:{port}"
        asyncio.run_coroutine_threadsafe(relay.close(), loop).result(HANG_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@dataclass
class HttpRelay:
    """TLS ends here on both sides; one task a direction and connection."""

    upstream: str
    keys: Path
    inbound: Inbound
    client: str
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def open(self) -> int:
        shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        shown.load_cert_chain(self.keys / "server.pem", self.keys / "server-key.pem")
        self.server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=shown)
        return int(self.server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self.server.close()
        for task in tuple(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _connected(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self.tasks.add(task)
        host, _, port = self.upstream.rpartition(":")
        trusted, requests = (
            ssl.create_default_context(cafile=self.keys / "ca.pem"),
            Requests(self.inbound),
        )
        trusted.load_cert_chain(
            self.keys / f"client-{self.client}.pem", self.keys / f"client-{self.client}-key.pem"
        )
        forth = None
        try:
            far, forth = await asyncio.open_connection(host, int(port), ssl=trusted)
            await asyncio.gather(
                _pump(near, forth, requests.feed), _pump(far, back, lambda _: None)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(task)
            for writer in (back, forth):
                if writer:
                    writer.transport.abort()


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, look: Callable[[bytes], None]
) -> None:
    while part := await source.read(65_536):
        look(part)
        sink.write(part)
        await sink.drain()
    raise ConnectionResetError  # one side hung up: so does the other


@dataclass
class Requests:
    """The requests of one connection, as they become whole."""

    inbound: Inbound
    pending: bytes = b""

    def feed(self, part: bytes) -> None:
        self.pending += part
        while (end := self.pending.find(b"\r\n\r\n")) >= 0:
            start, *lines = self.pending[:end].decode("ascii").split("\r\n")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines)
            }
            whole = end + 4 + int(headers["content-length"])
            if len(self.pending) < whole:
                return
            self._keep(start, headers, self.pending[end + 4 : whole])
            self.pending = self.pending[whole:]

    def _keep(self, start: str, headers: dict[str, str], body: bytes) -> None:
        route = start.split()[1].removeprefix("/v1/fleet/")
        same = {
            name: value for name, value in sorted(headers.items()) if name not in OF_ONE_REQUEST
        }
        self.inbound.add(
            f"{start}, headers", json.dumps({"names": sorted(headers), "values": same})
        )
        self.inbound.add(route, REQUESTS[route].FromString(body))
