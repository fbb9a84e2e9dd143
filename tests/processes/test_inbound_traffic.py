"""Everything that reaches the server of real processes, recorded in front of it: before the first
release nothing depends on a user.

Between aggregator and server stands a gRPC relay, and one between each client and the server; they
end TLS with the party's own keys. Two runs differ in one user's ratings. What they heard must be the
same but for random names, times, and what follows from these.
"""

from __future__ import annotations

import re
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
from google.protobuf.message import Message

from fedrec.data.interactions import Interactions
from fedrec.federation.protocol import Answer
from fedrec.federation.wire import read_answer
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.rounds_api import rounds_pb2
from fedrec.transport.rounds_client import packed, pieces
from fedrec_client.requests import answering
from fedrec_server.runs import run_folder
from fedrec_simulations.runtimes.deployment_files import PartyFiles

pytestmark = pytest.mark.processes

RANDOM_OR_TIME = {
    *("id", "remaining_s"),
    *("release_sha256", "ledger_head", "head", "entries_sha256"),
}
"""Fields of messages that differ between any two runs, and hashes: of the release, and of ledger
entries, which hold times."""

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
    status = pb.RoundStatus(phase="open", reported=3)
    answer = Answer("a", 1, accepted=1)
    for message, changed in (
        (status, pb.RoundStatus(phase="open", reported=4)),
        (_piece(answer), _piece(replace(answer, accepted=2))),
    ):
        assert _form("", message) != _form("", changed)
    assert _masked(pb.RoundStatus(remaining_s=1.0)) == _masked(pb.RoundStatus(remaining_s=2.0))


def test_the_comparison_hears_as_much_whoever_draws_the_noise_first() -> None:
    def call(where: str, **status: Any) -> list[tuple[str, Any]]:
        return [(f"{where} begins", ()), (where, pb.RoundStatus(**status)), (f"{where} ends", "OK")]

    def form(*calls: list[tuple[str, Any]]) -> set[str]:
        return Heard(
            None, Inbound([message for each in calls for message in each]).until_release(), b""
        ).form()  # type: ignore[arg-type]

    drawn = call("GetRound", phase="released", reported=3)
    later = call("CloseRound", phase="released", reported=3)
    drawing = call("CloseRound", phase="releasing", reported=3)
    assert form(later) == form(drawing, drawn)
    for more in (
        call("GetRound", phase="open", reported=2),
        [("GetRound begins", ("key", "value"))],
        [("GetRound fails", "why")],
    ):
        assert form(drawing, more, drawn) != form(later)


def _piece(answer: Answer) -> Message:
    return next(pieces("1", packed(answering(answer))))


def _another_opinion(data: Interactions, *, user: int) -> Interactions:
    """The same with one user's ratings turned round, and every second one left out."""
    values = data.values.copy()
    mine = slice(data.user_ptr[user], data.user_ptr[user + 1])
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
        said = [_answer(content) for where, content in self.messages if where == "Take"]
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
    if isinstance(content, rounds_pb2.Piece):
        inner = rounds_pb2.Message.FromString(content.data)  # an answer is one piece
        return f"{_masked(content, but={'data'})} {_masked(inner)}"
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


def _answer(content: rounds_pb2.Piece) -> Answer:
    return read_answer(rounds_pb2.Message.FromString(content.data).said["answer"])


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
    """Files that lead the server to the aggregator, and the clients to the server, by way of
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

    def write_client(self, shard: Any, *, server: str, aggregator: str) -> None:
        # the server knows each client by its certificate
        if (way := f"{shard.name} to {server}") not in self.relays:
            relay = client_relay(
                server, self.root / "certificates", self.inbound, client=shard.name
            )
            self.relays[way] = self.stack.enter_context(relay)
        super().write_client(shard, server=self.relays[way], aggregator=aggregator)


@contextmanager
def grpc_relay(upstream: str, keys: Path, inbound: Inbound) -> Iterator[str]:
    """Calls of the server, passed on to the aggregator as they are; replies and their metadata are
    kept. Yields its address."""

    def passed(
        method: str, requests: Iterator[bytes], context: Any, channel: Any
    ) -> Iterator[bytes]:
        name = method.rpartition("/")[2]
        call = channel.stream_stream(method)(
            requests,
            metadata=_own(context.invocation_metadata()),
            timeout=context.time_remaining(),
        )
        try:
            begins = _own(call.initial_metadata())
            inbound.add(f"{name} begins", begins)
            context.send_initial_metadata(begins)
            for reply in call:
                inbound.add(name, REPLIES[name].FromString(reply) if name in REPLIES else reply)
                yield reply
        except grpc.RpcError:
            inbound.add(f"{name} fails", call.details())
        inbound.add(f"{name} ends", (call.code(), _own(call.trailing_metadata())))
        context.set_trailing_metadata(call.trailing_metadata() or ())
        context.set_code(call.code())
        context.set_details(call.details() or "")

    with relayed(upstream, keys, "aggregator", "server", passed) as address:
        yield address


@contextmanager
def client_relay(upstream: str, keys: Path, inbound: Inbound, *, client: str) -> Iterator[str]:
    """The connection of one client, passed on to the server as it is; what the client sends is
    kept. Yields its address."""

    def passed(
        method: str, requests: Iterator[bytes], context: Any, channel: Any
    ) -> Iterator[bytes]:
        name = method.rpartition("/")[2]
        inbound.add(f"{name} begins", _own(context.invocation_metadata()))

        def sent() -> Iterator[bytes]:
            for request in requests:
                inbound.add(name, rounds_pb2.Piece.FromString(request))
                yield request

        call = channel.stream_stream(method)(sent(), metadata=_own(context.invocation_metadata()))
        try:
            context.send_initial_metadata(_own(call.initial_metadata()))
            yield from call
        except grpc.RpcError:
            context.abort(call.code(), call.details())

    with relayed(upstream, keys, "server", f"client-{client}", passed) as address:
        yield address


@contextmanager
def relayed(
    upstream: str, keys: Path, called: str, calling: str, passed: Callable[..., Iterator[bytes]]
) -> Iterator[str]:
    """A relay that shows the certificate of who is called, and calls with the caller's."""
    ca, shown, shown_key, own, own_key = (
        (keys / f"{name}.pem").read_bytes()
        for name in ("ca", called, f"{called}-key", calling, f"{calling}-key")
    )

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: passed(details.method, requests, context, channel)
            )

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
