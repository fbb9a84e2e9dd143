"""What is too large, too slow, too often or too many is turned away by itself, and everybody else
is answered meanwhile."""

import asyncio
import socket
import ssl
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from fedrec.errors import RefusedError, SettingsError
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.connections import Connections
from fedrec.transport.serving_api import serving_pb2 as pb
from fedrec_server.serving.batcher import Batcher
from fedrec_server.serving.http_api import HttpApi
from fedrec_server.serving.refusals import RETRY_AFTER_S, Code, Peers, busy
from fedrec_server.serving.settings import EXAMPLE, LimitsTable, load, overridden, validated
from tests.ports import until_closed
from tests.serving_server.conftest import planted
from tests.waiting import HANG_S, until, with_more_time

NUMBERS = [1.0, 0.0, -1.0, 0.5, 0.0, 2.0]


def line(running: Any) -> socket.socket:
    host, port = running.told.http.removeprefix("http://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=HANG_S)


def head(length: int | str) -> bytes:
    return f"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode()


def test_a_large_body_is_refused_before_it_is_read(start: Any) -> None:
    running = start(limits={"body_bytes": 2_048})
    for length in (2_049, 10**12, 10**18):
        with line(running) as one:
            one.sendall(head(length))  # and not a byte more
            assert b" 413 " in (answer := until_closed(one))
            assert b'"too-large"' in answer
    with line(running) as one:
        one.sendall(
            b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            + b"400\r\n"
            + b" " * 1_024
            + b"\r\n"
        )
        one.sendall(b"500\r\n" + b" " * 1_280 + b"\r\n")
        assert b" 413 " in until_closed(one)
    with pytest.raises(grpc.RpcError) as failure:
        running.recommend(running.told.newest, [1.0] * 600)
    assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert running.recommend(running.told.newest, NUMBERS)


def test_slow_callers_are_cut_and_told(start: Any) -> None:
    def attempt(request_s: float) -> None:
        running = start(limits={"request_s": request_s})
        with line(running) as body, line(running) as half, line(running) as silent:
            body.sendall(head(100) + b"{")
            half.sendall(b"POST /v1/recommend HTTP/1.1\r\nhost:")
            assert b'"too-slow"' in until_closed(body)
            assert until_closed(half).startswith(b"HTTP/1.1 408")
            assert until_closed(silent).startswith(b"HTTP/1.1 408")

    with_more_time(attempt, 0.3, 3.0, 30.0)


def test_a_call_whose_message_does_not_come_is_ended(start: Any) -> None:
    def attempt(request_s: float) -> None:
        running = start(limits={"request_s": request_s})
        said = threading.Event()

        def never() -> Any:
            said.wait(HANG_S)
            yield pb.RecommendRequest().SerializeToString()

        with pytest.raises(grpc.RpcError) as failure:
            running.channel.stream_unary("/fedrec.serving.v1.Recommender/Recommend")(
                never(), timeout=HANG_S
            )
        said.set()
        assert dict(failure.value.trailing_metadata())["fedrec-code"] == "too-slow"
        assert 'fedrec_requests_refused_total{reason="too-slow"} 1.0' in running.metrics()
        assert running.recommend(running.told.newest, NUMBERS)

    with_more_time(attempt, 0.3, 3.0, 30.0)


def test_a_head_without_end_is_cut(start: Any) -> None:
    running = start(limits={"head_bytes": 1_024})
    with line(running) as one:
        one.sendall(b"GET /health/live HTTP/1.1\r\n")
        with suppress(OSError):
            for number in range(40):
                one.sendall(f"x-{number}: {'y' * 40}\r\n".encode())
        assert until_closed(one).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("pieces", [1, 3, 200])
def test_a_head_over_the_limit_is_refused_however_it_arrives(start: Any, pieces: int) -> None:
    """Whole heads too: one that comes in a single read is complete before anybody could count
    it."""
    running = start(limits={"head_bytes": 1_024})
    begin = b"GET /health/live HTTP/1.1\r\nhost: x\r\n"
    end = b"\r\n\r\n"
    for size, status in ((1_024, 200), (1_025, 431), (100_000, 431)):
        content = begin + b"x: " + b"y" * (size - len(begin) - len(end) - 3) + end
        assert len(content) == size
        with line(running) as one:
            with suppress(OSError):
                for part in range(pieces):
                    one.sendall(
                        content[len(content) * part // pieces : len(content) * (part + 1) // pieces]
                    )
            with suppress(ConnectionResetError):  # an answer may be lost with what was not read
                assert one.recv(12) == f"HTTP/1.1 {status}".encode()
                continue
            assert status == 431


def test_heads_after_the_first_of_a_connection_are_bounded_too(start: Any) -> None:
    running = start(limits={"head_bytes": 1_024})
    short, long = (
        b"GET /health/live HTTP/1.1\r\nhost: x\r\nx: " + b"y" * n + b"\r\n\r\n"
        for n in (10, 100_000)
    )
    with line(running) as one:
        one.sendall(short)
        assert one.recv(12) == b"HTTP/1.1 200"
        # no more than is read, or the answer would be lost with the connection
        one.sendall(long[:1_200])
        assert b"HTTP/1.1 431" in until_closed(one)


def test_a_request_that_is_answered_before_its_body_came_holds_no_connection(start: Any) -> None:
    with line(start()) as one:
        one.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nx")
        assert until_closed(one).startswith(b"HTTP/1.1 200")


def test_a_connection_between_two_requests_is_idle_and_not_slow(start: Any) -> None:
    """Ten requests, each of most of a head's bound, with pauses longer than one request may take to
    arrive."""
    content = b"GET /health/live HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 900 + b"\r\n\r\n"

    def attempt(request_s: float) -> None:
        running = start(limits={"head_bytes": 1_024, "request_s": request_s, "idle_s": HANG_S})
        with line(running) as one:
            for number in range(10):
                one.sendall(content)
                answer = b""
                while not answer.endswith(b'"live"}'):
                    answer += (part := one.recv(4_096))
                    assert part, answer
                time.sleep(2 * request_s if number == 5 else 0.0)

    with_more_time(attempt, 0.2, 2.0, 20.0)


def test_stalled_connections_of_one_peer_leave_room_for_others() -> None:
    peers = Connections(3)
    assert [peers.connect("192.0.2.1") for _ in range(5)] == [True] * 3 + [False] * 2
    assert peers.connect("192.0.2.2")
    for _ in range(3):
        peers.disconnect("192.0.2.1")
    assert peers.connect("192.0.2.1")
    assert all(peers.connect("127.0.0.1") for _ in range(10))  # it may be a proxy for everybody


def test_too_many_connections_of_a_peer_are_turned_away_and_the_first_ones_work(start: Any) -> None:
    running = start(limits={"connections_per_peer": 4, "loopback": True})
    lines = [line(running) for _ in range(6)]
    try:
        assert [one.recv(12) for one in lines[4:]] == [b"HTTP/1.1 429"] * 2
        lines[0].sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert lines[0].recv(12) == b"HTTP/1.1 200"
    finally:
        for one in lines:
            one.close()


SILENT = {
    "silent": b"",
    "half a head": b"GET /health/live HTTP/1.1\r\nhost:",
    "no body": head(100) + b"{",
    "idle": b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("sent", SILENT.values(), ids=SILENT)
def test_connections_without_a_whole_request_keep_no_good_caller_out(
    sent: bytes, start: Any
) -> None:
    running = start(limits={"connections": 8, "idle_s": HANG_S, "request_s": HANG_S})
    held = list[socket.socket]()
    with ExitStack() as stack:
        for _ in range(9):
            for _ in range(8):
                held.append(stack.enter_context(line(running)))
                held[-1].sendall(sent)
            with line(running) as good:
                good.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
                assert good.recv(12) == b"HTTP/1.1 200"


def test_a_whole_request_keeps_its_connection_whoever_comes(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, let_go = asyncio.Semaphore(0), threading.Event()
    honest = HttpApi.__call__

    async def slow(api: Any, scope: Any, receive: Any, send: Any) -> None:
        arrived.release()
        while not let_go.is_set():
            await asyncio.sleep(0.01)
        await honest(api, scope, receive, send)

    running = start(limits={"connections": 4})
    monkeypatch.setattr(HttpApi, "__call__", slow)
    lines = [line(running) for _ in range(4)]
    try:
        for one in lines:
            one.sendall(SILENT["idle"])
        until(lambda: arrived._value == 4)
        with line(running) as late:
            assert late.recv(12) == b"HTTP/1.1 503"
        let_go.set()
        assert [one.recv(12) for one in lines] == [b"HTTP/1.1 200"] * 4
    finally:
        let_go.set()
        for one in lines:
            one.close()


def test_garbage_is_a_bad_request(start: Any) -> None:
    running = start()
    for content in (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 2_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        with line(running) as one:
            one.sendall(content)
            assert b" 400 " in until_closed(one).split(b"\r\n")[0]


def test_one_peer_is_held_to_its_share_at_both_doors(start: Any) -> None:
    # a burst of one request
    running = start(limits={"loopback": True, "per_second_per_peer": 0.001})
    assert running.http.get("/health/live").status_code == 200
    response = running.post({"version": running.told.newest, "coefficients": NUMBERS, "k": 1})
    assert (response.status_code, response.json()["code"]) == (429, "busy")
    assert response.headers["retry-after"] == "1"
    with pytest.raises(grpc.RpcError) as failure:
        running.recommend(running.told.newest, NUMBERS)
    assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    told = dict(failure.value.trailing_metadata())
    assert (told["fedrec-code"], told["grpc-retry-pushback-ms"]) == ("busy", "1000")


def test_a_query_that_finds_no_place_keeps_its_connection_and_is_told_when_to_come_back(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that is turned away does not have to shake hands again."""
    running = start()
    query = {"version": running.told.newest, "coefficients": NUMBERS, "k": 1}

    def full(*_: Any) -> None:
        raise busy("too many queries are waiting")

    with monkeypatch.context() as patch:
        patch.setattr(Batcher, "answer", full)
        turned_away = running.post(query)
    assert turned_away.status_code == 429
    assert turned_away.headers["retry-after"] == "1"
    assert "connection" not in turned_away.headers
    assert running.post(query).status_code == 200


def test_a_peers_bucket_fills_again_and_peers_do_not_share_it() -> None:
    now_s = [0.0]
    peers = Peers(LimitsTable(per_second_per_peer=2.0, per_peer=2), clock=lambda: now_s[0])
    for _ in range(4):
        with peers.enter("192.0.2.1"):
            pass
    with pytest.raises(RefusedError):
        peers.enter("192.0.2.1")
    with (
        peers.enter("192.0.2.2"),
        peers.enter("192.0.2.2"),
        pytest.raises(RefusedError, match="in progress"),
    ):
        peers.enter("192.0.2.2")
    now_s[0] = 0.5
    with peers.enter("192.0.2.1"):
        pass
    for _ in range(100):
        with peers.enter("127.0.0.1"), peers.enter("::1"):
            pass


def test_downloads_are_bounded_and_give_their_place_back() -> None:
    peers = Peers(LimitsTable(downloads=1))
    for _ in range(2):
        with peers.enter_download(), pytest.raises(RefusedError, match="bundles"):
            peers.enter_download()


def test_tls_shows_a_certificate_and_mutual_tls_asks_for_one(start: Any, tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    write_development_certificates(folder, clients=["one"], days=1)
    pem = {
        name: str(folder / f"{name}.pem")
        for name in ("ca", "server", "server-key", "client-one", "client-one-key")
    }
    ca = Path(pem["ca"]).read_bytes()
    own = (Path(pem["client-one-key"]).read_bytes(), Path(pem["client-one"]).read_bytes())
    path = tmp_path / "serving.safetensors"
    version = planted(path)
    for mutual in (False, True):
        tls = {"certificate": pem["server"], "key": pem["server-key"]} | (
            {"client_ca": pem["ca"]} if mutual else {}
        )
        running = start([path], tls=tls)
        assert running.told.http.startswith("https://")
        request = pb.RecommendRequest(
            version=int(version, 16), coefficients=NUMBERS, k=3
        ).SerializeToString()
        for shown in (own, (None, None)):
            context = ssl.create_default_context(cafile=pem["ca"])
            if shown is own:
                context.load_cert_chain(pem["client-one"], pem["client-one-key"])
            welcome = shown is own or not mutual
            with grpc.secure_channel(
                running.told.grpc, grpc.ssl_channel_credentials(ca, *shown)
            ) as channel:
                call = channel.unary_unary("/fedrec.serving.v1.Recommender/Recommend")
                assert _worked(partial(call, request, timeout=HANG_S)) == welcome
            with httpx2.Client(verify=context) as http:
                assert _worked(partial(http.get, f"{running.told.http}/health/live")) == welcome


def _worked(attempt: Any) -> bool:
    try:
        attempt()
    except (grpc.RpcError, httpx2.HTTPError):
        return False
    return True


def test_settings_refuse_what_is_not_safe_or_not_there(tmp_path: Path) -> None:
    for wrong in (
        {"grpc": "0.0.0.0:1"},
        {"grpc": "", "http": ""},
        {"http": "nowhere"},
        {"limits": {"most_item": 3}},
        {"tls": {"certificate": "a"}},
    ):
        with pytest.raises(SettingsError):
            validated(wrong)
    assert validated({"grpc": "0.0.0.0:1", "plain": True}).plain
    file = tmp_path / "serving.toml"
    file.write_text(EXAMPLE)
    settings = load(file)
    assert settings.tls is not None
    assert settings.tls.key == str(tmp_path / "serving-key.pem")
    assert overridden(settings, grpc=None, http="127.0.0.1:1").http == "127.0.0.1:1"
    assert overridden(settings, grpc=None, http="127.0.0.1:1").limits == settings.limits


def test_an_address_that_is_taken_is_a_settings_error(start: Any, tmp_path: Path) -> None:
    running = start()
    for door, address in (
        ("grpc", running.told.grpc),
        ("http", running.told.http.removeprefix("http://")),
        ("metrics", running.told.metrics),
    ):
        with pytest.raises(SettingsError, match=r"[Aa]ddress"):
            start([tmp_path / "serving.safetensors"], **{door: address})


def test_who_comes_back_at_once_is_read_later_and_costs_nobody_else_anything(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query is refused before it is read, and its connection rests."""
    running = start()
    query = {"version": running.told.newest, "coefficients": NUMBERS, "k": 1}
    address = f"{running.told.http}/v1/recommend"
    unreadable = head(1) + b"{"
    refused = list[None]()

    def full(_: Batcher) -> None:
        refused.append(None)
        raise busy("too many queries are waiting")

    monkeypatch.setitem(RETRY_AFTER_S, Code.BUSY, 10**6)
    with line(running) as impatient:
        with monkeypatch.context() as patch:
            patch.setattr(Batcher, "require_place", full)
            impatient.sendall(unreadable)
            assert b" 429 " in impatient.recv(65_536)
            impatient.sendall(unreadable)
            for _ in range(5):
                assert httpx2.post(address, json=query, timeout=HANG_S).status_code == 429
            with pytest.raises(grpc.RpcError) as failure:
                running.raw("Recommend", b"unreadable")
            assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert httpx2.post(address, json=query, timeout=HANG_S).status_code == 200
        assert len(refused) == 7
    monkeypatch.setitem(RETRY_AFTER_S, Code.BUSY, 0.01)
    with line(running) as patient:
        with monkeypatch.context() as patch:
            patch.setattr(Batcher, "require_place", full)
            patient.sendall(unreadable)
            assert b" 429 " in patient.recv(65_536)
        patient.sendall(unreadable)
        assert b" 400 " in patient.recv(65_536)
