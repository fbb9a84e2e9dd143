"""Relays between real parties: connections whose bytes come late, and that are cut.

Whoever calls another calls a relay on loopback instead, one for each pair. A relay does what netem
would, which many kernels lack: it delays each read, holds some of them back as if a packet were
sent again, keeps their order, and carries nothing to or from a party that is cut off. A cut is
silent, so that nobody is told and bytes go on when it is mended, or it resets every connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fedrec.operations.addresses import Address
from fedrec.randomness import Streams
from fedrec_simulations.runtimes.deployment_files import PartyFiles
from tests.waiting import HANG_S

T = TypeVar("T")

_READ_BYTES = 2**16
_ON_THE_WAY = 64
"""Reads between two ends; past them the sender waits, as with a full window."""


@dataclass(frozen=True)
class Weather:
    """What a link does to each read: late by half of `round_trip_s`, and a share of `stalls` by an
    exponential time of mean `stall_s` more."""

    round_trip_s: float = 0.2
    stalls: float = 0.05
    stall_s: float = 1.0


@dataclass(eq=False)
class _Link:
    """The relay from a caller to a callee. clear: bytes go. resets: whoever connects is reset."""

    ends: tuple[str, str]
    target: Address
    rng: np.random.Generator
    clear: asyncio.Event
    port: int = 0
    resets: bool = False
    ways: set[asyncio.StreamWriter] = field(default_factory=set)


class Links:
    """All relays of a deployment, in a thread of their own; any thread may call.

    seen: reads that were carried and held back, connections that were made and reset."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.seen = Counter[str]()
        self._streams = Streams(seed)
        self._weather = weather
        self._links = dict[tuple[str, str], _Link]()
        self._servers = list[asyncio.Server]()
        self._tasks = set[asyncio.Task[Any]]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Drop every connection."""
        self._within(self._ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_S)
        self._loop.close()

    def way(self, caller: str, callee: str, address: str) -> str:
        """Where `caller` finds `callee`, which listens at `address`, a host and a port."""
        return self._within(self._made(caller, callee, Address.of(address)))

    def cut(self, party: str, *, reset: bool) -> None:
        """Nothing goes to a party or comes from it; with `reset` its connections end."""
        self._within(self._cut(party, reset))

    def mend(self, party: str) -> None:
        """Bytes go again, those first that wait."""
        self._within(self._mended(party))

    def _within(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_S)

    async def _ended(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _made(self, caller: str, callee: str, target: Address) -> str:
        if (link := self._links.get((caller, callee))) is None:
            rng = self._streams.numpy(f"link {caller} {callee}")
            link = _Link((caller, callee), target, rng, asyncio.Event())
            link.clear.set()
            self._links[link.ends] = link

            async def connected(read: asyncio.StreamReader, write: asyncio.StreamWriter) -> None:
                with suppress(asyncio.CancelledError):  # all relays are closed
                    await self._connected(link, read, write)

            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            self._servers.append(server)
            link.port = server.sockets[0].getsockname()[1]
        link.target = target
        return f"127.0.0.1:{link.port}"

    async def _cut(self, party: str, reset: bool) -> None:
        for link in self._of(party):
            link.clear.clear()
            link.resets = reset
            for way in link.ways if reset else ():
                _reset(way)
            self.seen["reset"] += len(link.ways) if reset else 0

    async def _mended(self, party: str) -> None:
        for link in self._of(party):
            link.resets = False
            link.clear.set()

    def _of(self, party: str) -> list[_Link]:
        return [link for link in self._links.values() if party in link.ends]

    async def _connected(
        self, link: _Link, read: asyncio.StreamReader, write: asyncio.StreamWriter
    ) -> None:
        """One connection, until either end closes it."""
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        ends = [write]
        try:
            link.ways.add(write)
            if link.resets:
                _reset(write)
            else:
                await link.clear.wait()
                where = link.target
                back, there = await asyncio.open_connection(where.host, where.port)
                ends.append(there)
                self.seen["made"] += 1
                async with asyncio.TaskGroup() as both:
                    self._carry(both, link, read, there)
                    self._carry(both, link, back, write)
        except* OSError:
            pass  # an end is gone, or nobody listens there: so is the other
        finally:
            link.ways.discard(write)
            for end in ends:
                end.transport.abort()
            self._tasks.discard(task)

    def _carry(
        self,
        both: asyncio.TaskGroup,
        link: _Link,
        read: asyncio.StreamReader,
        write: asyncio.StreamWriter,
    ) -> None:
        """One direction, until its end, which is raised as OSError and ends the other, too."""
        on_the_way = asyncio.Queue[tuple[float, bytes]](_ON_THE_WAY)

        async def taken() -> None:
            while data := await read.read(_READ_BYTES):
                await on_the_way.put((self._due(link), data))
            await on_the_way.put((0.0, b""))

        async def delivered() -> None:
            while True:
                due_s, data = await on_the_way.get()
                await asyncio.sleep(max(0.0, due_s - self._loop.time()))
                await link.clear.wait()
                if not data:
                    raise ConnectionResetError
                write.write(data)
                await write.drain()
                self.seen["carried"] += 1

        both.create_task(taken())
        both.create_task(delivered())

    def _due(self, link: _Link) -> float:
        late_s = self._weather.round_trip_s / 2
        if link.rng.random() < self._weather.stalls:
            late_s = late_s + link.rng.exponential(self._weather.stall_s)
            self.seen["stalled"] += 1
        return self._loop.time() + late_s


def _reset(way: asyncio.StreamWriter) -> None:
    """End a connection as a firewall does that has forgotten it, not as one who hangs up."""
    line = way.get_extra_info("socket")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    way.transport.abort()


@dataclass(frozen=True)
class RelayedFiles(PartyFiles):
    """Settings of parties each of which finds the others through relays."""

    links: Links = field(kw_only=True)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        found = {key: self._found(name, key, value) for key, value in content.items()}
        super()._write(name, content if name == "scenario" else found)

    def _found(self, caller: str, key: str, value: Any) -> Any:
        """A setting, with relays in place of those who are called."""
        match key:
            case "server" | "aggregator":
                return self._through(caller, key, value)
            case "aggregators":
                return list(map(partial(self._through, caller), self.aggregators, value))
            case "three_party":
                peers = [
                    self._through(caller, self.aggregators[peer["place"] - 1], peer)
                    for peer in value["peers"]
                ]
                return {**value, "peers": peers}
        return value

    def _through(self, caller: str, callee: str, way: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**way, "address": self.links.way(caller, callee, way["address"])}
