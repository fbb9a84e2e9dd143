"""Relays between parties keep every byte in its order, and carry nothing where a party is cut off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import numpy as np
import pytest

from fedrec.operations.certificates import write_development_certificates
from fedrec.transport.channel import Access, open_channel
from tests.simulation.links import Links, Weather
from tests.waiting import HANG_S, until

SLOW = Weather(round_trip_s=0.4, stalls=0.0)
HASTE = Weather(round_trip_s=0.002, stalls=0.2, stall_s=0.005)


@pytest.fixture
def echo() -> Iterator[str]:
    """A party that sends back what it gets."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(line: socket.socket) -> None:
        with line:
            while data := line.recv(2**16):
                line.sendall(data)

    def accept() -> None:
        while True:
            try:
                line, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(line,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(HANG_S)


@pytest.fixture
def links() -> Iterator[Links]:
    with closing(Links(0, HASTE)) as made:
        yield made


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=HANG_S)


def test_every_byte_arrives_in_its_order_through_delays_and_stalls(links: Links, echo: str) -> None:
    way = links.way("client", "server", echo)
    assert links.way("client", "server", echo) == way
    assert links.way("other", "server", echo) != way
    sent = np.random.default_rng(1).bytes(2**22)
    with connected(way) as line:
        threading.Thread(target=line.sendall, args=(sent,), daemon=True).start()
        came = bytearray()
        while len(came) < len(sent):
            came += line.recv(2**20)
    assert bytes(came) == sent
    assert links.seen["stalled"]


def test_a_silent_cut_holds_bytes_back_until_it_is_mended(links: Links, echo: str) -> None:
    way = links.way("client", "server", echo)
    with connected(way) as line:
        line.sendall(b"before")
        assert line.recv(6) == b"before"
        links.cut("server", reset=False)
        line.sendall(b"during")
        line.settimeout(0.2)
        with pytest.raises(TimeoutError):
            line.recv(6)
        links.mend("server")
        line.settimeout(HANG_S)
        assert line.recv(6) == b"during"


def test_a_reset_ends_every_connection_and_lets_nobody_in(links: Links, echo: str) -> None:
    way = links.way("client", "server", echo)
    apart = links.way("other", "elsewhere", echo)
    with connected(way) as line, connected(apart) as untouched:
        line.sendall(b"before")
        assert line.recv(6) == b"before"
        links.cut("client", reset=True)
        with pytest.raises(ConnectionResetError):
            line.recv(6)
        untouched.sendall(b"apart")
        assert untouched.recv(5) == b"apart"
        with pytest.raises(ConnectionResetError), connected(way) as late:  # in either of both
            late.recv(1)
        links.mend("client")
        with connected(way) as again:
            again.sendall(b"after")
            assert again.recv(5) == b"after"


def test_whoever_hangs_up_ends_the_other_end(links: Links) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        way = links.way("client", "server", f"127.0.0.1:{listening.getsockname()[1]}")
        with connected(way) as line:
            there, _ = listening.accept()
            with there:
                there.sendall(b"last words")
            until(lambda: links.seen["made"])
            assert line.recv(10) == b"last words"
            assert not line.recv(1)


def test_a_party_is_reached_whose_handshake_takes_seconds(tmp_path: Path) -> None:
    """Each attempt to connect has the time that a far network needs: TLS alone takes two trips."""
    write_development_certificates(tmp_path, clients=["site"])
    keys = {
        name: ((tmp_path / f"{name}-key.pem").read_bytes(), (tmp_path / f"{name}.pem").read_bytes())
        for name in ("aggregator", "client-site")
    }
    authority = (tmp_path / "ca.pem").read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([keys["aggregator"]], authority, True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    with closing(Links(0, SLOW)) as links:
        access = Access(
            links.way("client", "aggregator", f"127.0.0.1:{port}"),
            ca=str(tmp_path / "ca.pem"),
            certificate=str(tmp_path / "client-site.pem"),
            key=str(tmp_path / "client-site-key.pem"),
        )
        try:
            with open_channel(access, timeout_s=HANG_S) as channel:
                call = channel.unary_unary("/fedrec/Nothing")
                with pytest.raises(grpc.RpcError) as answered:
                    call(b"")
            assert answered.value.code() is grpc.StatusCode.UNIMPLEMENTED
        finally:
            server.stop(None).wait()
