"""Synthetic clients, a thousand in one process: each a connection and a certificate of its own, and
no data.

They wait at the server's service of rounds as a client does. Every message is answered by a client
of one user who joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import grpc

from fedrec.federation.protocol import Answer
from fedrec.federation.round_messages import KEY, PROTOCOL
from fedrec.transport.rounds_api import rounds_pb2 as pb
from fedrec.transport.rounds_client import SERVICE, Assembly, packed, pieces
from fedrec_client.requests import answering

_ARRIVING = 16
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.keepalive_time_ms", 20_000))
_MOST_BYTES = 2**30


def live(address: str, keys: Path, names: Iterable[str]) -> None:
    """All of them in this process, until it is ended."""

    async def all_of_them() -> None:
        arriving = asyncio.Semaphore(_ARRIVING)
        await asyncio.gather(*(_live(address, keys, name, arriving) for name in names))

    asyncio.run(all_of_them())


async def _live(address: str, keys: Path, name: str, arriving: asyncio.Semaphore) -> None:
    """One client; whoever loses the server comes back."""
    files = [keys / "ca.pem", keys / f"client-{name}-key.pem", keys / f"client-{name}.pem"]
    credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
    answer = packed(answering(Answer(name, 1, accepted=1)))
    while True:
        async with grpc.aio.secure_channel(address, credentials, _OPTIONS) as channel:
            call = channel.stream_stream(
                f"/{SERVICE}/Take", pb.Piece.SerializeToString, pb.Piece.FromString
            )(metadata=((KEY, str(PROTOCOL)),))
            try:
                async with arriving:
                    await call.initial_metadata()
                while (first := await call.read()) is not grpc.aio.EOF:
                    message = Assembly(_MOST_BYTES)
                    message.begin(first)
                    while not message.whole:
                        message.add(await call.read())
                    for piece in pieces(message.name, answer):
                        await call.write(piece)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(1.0)
