"""The server from afar, as a client takes part in its rounds: one connection, on which messages
come and answers go.

A connection that ends is opened again, as long as the client runs; the server then repeats the
message that it has no answer to. Nothing passes before the server's certificate says "server" and
has the pinned key (`transport.channel`).

Messages of rounds in pieces, as both ends of a connection cut and join them.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fedrec.errors import FedRecError, RefusedError, UnreachableError
from fedrec.federation.protocol import Refusal, refused
from fedrec.federation.round_messages import KEY, PROTOCOL, RoundMessage
from fedrec.operations import logs
from fedrec.transport.aggregator_api.methods import FRAME_BYTES
from fedrec.transport.aggregator_client import meaning
from fedrec.transport.channel import Access, open_channel
from fedrec.transport.rounds_api import rounds_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Rounds"].full_name
_MOST_BYTES = 2**30 + 2**24
"""Of one message: the arrays of a question, and what stands beside them."""
log = logging.getLogger(__name__)


def packed(message: RoundMessage) -> bytes:
    """A message as bytes."""
    words = {name: value for name, value in message.said.items() if isinstance(value, bytes)}
    numbers = {name: value for name, value in message.said.items() if isinstance(value, int)}
    return pb.Message(
        kind=message.kind, said=words, numbers=numbers, arrays=message.arrays
    ).SerializeToString(deterministic=True)


def unpacked(content: bytes) -> RoundMessage:
    """The message of `packed`. Raises RefusedError (`MALFORMED`)."""
    try:
        message = pb.Message.FromString(content)
    except DecodeError:
        raise refused(Refusal.MALFORMED, "its message cannot be unpacked") from None
    return RoundMessage({**message.said, **message.numbers}, dict(message.arrays), message.kind)


def pieces(name: str, content: bytes) -> Iterator[pb.Piece]:
    """The pieces of a message of this id."""
    yield pb.Piece(id=name, total_bytes=len(content), data=content[:FRAME_BYTES])
    for start in range(FRAME_BYTES, len(content), FRAME_BYTES):
        yield pb.Piece(data=content[start : start + FRAME_BYTES])


@dataclass
class Assembly:
    """A message of at most so many bytes while its pieces come. content: what is there of it."""

    most: int
    name: str = ""
    total: int = 0
    content: bytearray = field(default_factory=bytearray)

    def begin(self, piece: pb.Piece) -> None:
        """The first piece. Raises RefusedError (`TOO_LARGE`) before more is read."""
        if piece.total_bytes > self.most:
            cause = f"a message has at most {self.most} bytes, found {piece.total_bytes}"
            raise refused(Refusal.TOO_LARGE, cause)
        self.name = piece.id
        self.total = piece.total_bytes
        self.add(piece)

    def add(self, piece: pb.Piece) -> None:
        """The next piece. Raises RefusedError (`MALFORMED`) where it is one too many, or not the
        last one and not full: many small ones would take more time than their bytes."""
        self.content += piece.data
        if len(self.content) > self.total or not (self.whole or len(piece.data) == FRAME_BYTES):
            raise refused(Refusal.MALFORMED, "a message is not as long as it announced")

    @property
    def whole(self) -> bool:
        """Whether all of it is there."""
        return len(self.content) == self.total


@dataclass
class RoundsConnection:
    """A client's place in the rounds of the server at `access`, whose `party` is "server".

    first_pause_s, longest_pause_s: between attempts to connect, each twice as long. connected:
    whether a connection stands.
    """

    access: Access
    max_bytes: int = _MOST_BYTES
    first_pause_s: float = 0.2
    longest_pause_s: float = 5.0
    connected: bool = field(default=False, init=False)
    _last_cause: str = field(default="", init=False)
    _call: Any = field(default=None, init=False)

    def run(self, answer: Callable[[RoundMessage], RoundMessage], stop: threading.Event) -> None:
        """Answer messages until `stop` is set. Raises what `answer` raises."""
        threading.Thread(target=self._end_at, args=(stop,), name="stopping", daemon=True).start()
        pause_s = self.first_pause_s
        while not stop.is_set():
            try:
                with open_channel(self.access) as channel:
                    self._take(channel, answer, stop)
                pause_s = self.first_pause_s  # the server ended it: it wants a new connection
            except (FedRecError, grpc.RpcError) as failure:
                pause_s = self.first_pause_s if self.connected else pause_s
                self._say(failure)
            self.connected = False
            stop.wait(pause_s)
            pause_s = min(2 * pause_s, self.longest_pause_s)

    def _take(
        self,
        channel: grpc.Channel,
        answer: Callable[[RoundMessage], RoundMessage],
        stop: threading.Event,
    ) -> None:
        replies = queue.SimpleQueue[pb.Piece | None]()
        calling = channel.stream_stream(
            f"/{SERVICE}/Take", pb.Piece.SerializeToString, pb.Piece.FromString
        )
        self._call = call = calling(iter(replies.get, None), metadata=_metadata(self.access))
        if stop.is_set():
            call.cancel()
        try:
            call.initial_metadata()  # sent as soon as the server has let us in
            self.connected = bool(call.is_active())
            for name, content in self._messages(call):
                self._last_cause = ""
                for piece in pieces(name, packed(answer(unpacked(content)))):
                    replies.put(piece)
        finally:
            replies.put(None)
            call.cancel()

    def _messages(self, call: Iterator[pb.Piece]) -> Iterator[tuple[str, bytes]]:
        for first in call:
            message = Assembly(self.max_bytes)
            message.begin(first)
            while not message.whole:
                message.add(next(call))
            yield message.name, bytes(message.content)

    def _end_at(self, stop: threading.Event) -> None:
        stop.wait()
        if self._call is not None:
            self._call.cancel()

    def _say(self, failure: Any) -> None:
        """Once for each cause: a client tries again every few seconds."""
        said = (
            failure
            if isinstance(failure, FedRecError)
            else meaning(failure, self.access.address, self.access.party)
        )
        if said.cause != self._last_cause:
            self._last_cause = said.cause
            away = isinstance(said, UnreachableError)
            far = isinstance(said, RefusedError) and said.code == Refusal.WRONG_PROTOCOL
            logs.say(
                log,
                "another-version" if far else "server-away" if away else "server-not-trusted",
                level=logging.WARNING,
                address=self.access.address,
                cause=said.cause,
                remedy=said.remedy,
            )


def _metadata(access: Access) -> tuple[tuple[str, str], ...]:
    return (*access.metadata("client"), (KEY, str(PROTOCOL)))


def greet(access: Access, *, timeout_s: float) -> float:
    """The server's clock, seconds since 1970, if it takes this client.

    Raises as `open_channel`, and RefusedError where it does not."""
    with open_channel(access, timeout_s=timeout_s) as channel:
        calling = channel.unary_unary(
            f"/{SERVICE}/Greet", pb.GreetRequest.SerializeToString, pb.GreetReply.FromString
        )
        try:
            reply = calling(pb.GreetRequest(), timeout=timeout_s, metadata=_metadata(access))
        except grpc.RpcError as error:
            raise meaning(error, access.address, access.party) from None
    return float(reply.time_s)
