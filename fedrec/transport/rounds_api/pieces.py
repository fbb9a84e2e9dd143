"""Messages of rounds in pieces, as both ends of a connection cut and join them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from fedrec.federation.protocol import Refusal, refused
from fedrec.federation.round_messages import RoundMessage
from fedrec.transport.aggregator_api.methods import FRAME_BYTES
from fedrec.transport.rounds_api import rounds_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Rounds"].full_name


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
