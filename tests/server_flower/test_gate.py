"""The proxy in front of a real small HTTP server that would answer anything."""

import gc
import http.client
import socket
import ssl
import threading
from asyncio import sslproto
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node

from fedrec.errors import SettingsError
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import pins, write_development_certificates
from fedrec_server.fleet_listener import FleetListener
from fedrec_server.fleet_proxy import FLEET_ROUTES, Certificate, FleetLimits
from fedrec_server.held_pulls import WAIT_HEADER
from fedrec_server.nodes import MOST_NODES, Nodes
from tests.waiting import HANG_S, until

LOOPBACK = Address("127.0.0.1", 0)
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"
OBJECT = "/v1/fleet/push-object"


@dataclass
class SuperLinkStandIn:
    """Answers every request with what it was sent, and remembers paths and headers.

    While `hold` is clear it does not answer."""

    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    reply: bytes | None = None
    status: int = 200

    def __post_init__(self) -> None:
        stand_in = self
        self.hold.set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __getattr__(self, name: str) -> object:
                """Any method that the server looks for answers like POST."""
                if name.startswith("do_"):
                    return self.do_POST
                raise AttributeError(name)

            def do_POST(self) -> None:
                stand_in.paths.append(self.path)
                stand_in.headers.append(
                    {name.lower(): value for name, value in self.headers.items()}
                )
                body = stand_in.reply or self._body()
                stand_in.hold.wait(HANG_S)
                self.send_response(stand_in.status)
                self.send_header("content-length", str(len(body)))
                self.send_header("x-from", "upstream")
                self.end_headers()
                self.wfile.write(body)

            def _body(self) -> bytes:
                if self.headers.get("transfer-encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length", 0)))
                parts = list[bytes]()
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def log_message(self, *_arguments: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def upstream() -> Iterator[SuperLinkStandIn]:
    stand_in = SuperLinkStandIn()
    yield stand_in
    stand_in.hold.set()
    stand_in.server.shutdown()
    stand_in.server.server_close()


def here(proxy: FleetListener) -> tuple[str, int]:
    return proxy.address.host, proxy.address.port


def raw(proxy: FleetListener, request: bytes) -> bytes:
    """The first line of the answer to these very bytes."""
    with socket.create_connection(here(proxy), timeout=HANG_S) as line:
        line.sendall(request)
        return line.makefile("rb").readline()


def post(target: str, *more: str) -> bytes:
    return "\r\n".join(
        [f"POST {target} HTTP/1.1", "host: proxy", "content-length: 0", *more, "", ""]
    ).encode()


def test_every_fleet_route_of_the_pinned_flower_passes_and_no_other_route_of_it(
    upstream: SuperLinkStandIn,
) -> None:
    from flwr.superlink.main import create_app

    routes = set(create_app().openapi()["paths"])
    assert {route for route in routes if route.startswith("/v1/fleet/")} == {
        route.decode() for route in FLEET_ROUTES
    }
    with (
        FleetListener(LOOPBACK, lambda: upstream.address) as proxy,
        httpx.Client(base_url=f"http://{proxy.address}") as client,
    ):
        statuses = {route: client.post(route).status_code for route in routes}
    assert {route for route, status in statuses.items() if status == 200} == {
        route.decode() for route in FLEET_ROUTES
    }
    assert set(statuses.values()) == {200, 404}
    assert set(upstream.paths) == {route.decode() for route in FLEET_ROUTES}


@pytest.mark.parametrize(
    "target",
    [
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/%2E%2E%2fcontrol%2flist-runs",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/pull-messages/../../control/list-runs",
        "/v1/fleet//pull-messages",
        "//v1/fleet/pull-messages",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/pull-messages%00",
        "/v1/fleet/pull%2dmessages",
        "/V1/FLEET/pull-messages",
        "/v1/fleet/pull-messages?path=/v1/control/list-runs",
        "/v1/fleet/pull-messages;/../x",
        "/v1/fleet/",
        "/v1/fleet",
        "/v1/runtime/acquire-task",
        "/v1/control/start-run",
        "/health",
        "/docs",
        "/openapi.json",
        "/",
        "http://127.0.0.1:1/v1/control/start-run",
        "https://proxy/v1/runtime/acquire-task",
    ],
)
def test_no_spelling_of_another_route_gets_through(upstream: SuperLinkStandIn, target: str) -> None:
    with FleetListener(LOOPBACK, lambda: upstream.address) as proxy:
        assert raw(proxy, post(target)).split()[1] in {b"404", b"400"}
    assert upstream.paths == []


@pytest.mark.parametrize(
    "target",
    [
        "*",
        "v1/fleet/pull-messages",
        "\\v1\\fleet\\pull-messages",
        "http://evil.example/v1/fleet/pull-messages",
    ],
)
def test_odd_targets_reach_nothing_but_the_fleet_route_itself(
    upstream: SuperLinkStandIn, target: str
) -> None:
    with FleetListener(LOOPBACK, lambda: upstream.address) as proxy:
        raw(proxy, post(target))
    assert set(upstream.paths) <= {PULL}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "CONNECT", "PATCH"])
def test_only_posts_get_through(upstream: SuperLinkStandIn, method: str) -> None:
    with FleetListener(LOOPBACK, lambda: upstream.address) as proxy:
        assert raw(proxy, post(PULL).replace(b"POST", method.encode())).split()[1] == b"404"
    assert upstream.paths == []


def test_bodies_and_headers_pass_both_ways_unchanged_without_those_of_one_connection(
    upstream: SuperLinkStandIn,
) -> None:
    body = bytes(range(256)) * 20_000
    with FleetListener(LOOPBACK, lambda: upstream.address) as proxy:
        more = {
            "flwr-signature": "abc",
            "connection": "keep-alive, x-mine",
            "x-mine": "1",
            "te": "trailers",
            "upgrade": "h2c",
        }
        answer = httpx.post(f"http://{proxy.address}{PULL}", content=body, headers=more)
        chunked = httpx.post(
            f"http://{proxy.address}{OBJECT}",
            content=(body[i : i + 70_000] for i in range(0, len(body), 70_000)),
        )
    assert answer.content == chunked.content == body
    assert answer.headers["x-from"] == "upstream"
    seen = upstream.headers[0]
    assert seen["flwr-signature"] == "abc"
    assert not {"x-mine", "te", "upgrade"} & seen.keys()
    assert seen["host"] == upstream.address


def test_a_body_over_the_limit_is_refused_announced_or_not(upstream: SuperLinkStandIn) -> None:
    with FleetListener(
        LOOPBACK, lambda: upstream.address, limits=FleetLimits(max_body_bytes=1_000)
    ) as proxy:
        url = f"http://{proxy.address}{PULL}"
        assert httpx.post(url, content=b"x" * 1_000).status_code == 200
        assert httpx.post(url, content=b"x" * 1_001).status_code == 413
        parts = (b"x" * 100 for _ in range(11))
        assert httpx.post(f"http://{proxy.address}{OBJECT}", content=parts).status_code == 413
        assert raw(
            proxy,
            post(PULL).replace(b"content-length: 0", b"content-length: 99999999999999999999999"),
        ).split()[1] in {
            b"413",
            b"400",
        }


def test_an_answer_over_the_limit_does_not_come_back(upstream: SuperLinkStandIn) -> None:
    upstream.reply = b"x" * 2_000
    with FleetListener(
        LOOPBACK, lambda: upstream.address, limits=FleetLimits(max_body_bytes=1_000)
    ) as proxy:
        assert httpx.post(f"http://{proxy.address}{PULL}").status_code == 502


@pytest.mark.parametrize(
    "limits",
    [
        FleetLimits(max_requests=2),
        FleetLimits(max_requests_per_peer=2),
        FleetLimits(max_body_bytes=10, max_bytes=40),
    ],
)
def test_a_peer_that_asks_for_too_much_at_once_is_turned_away_until_there_is_room(
    upstream: SuperLinkStandIn, limits: FleetLimits
) -> None:
    upstream.hold.clear()
    with FleetListener(LOOPBACK, lambda: upstream.address, limits=limits) as proxy:
        held = [
            http.client.HTTPConnection(proxy.address.host, proxy.address.port, timeout=HANG_S)
            for _ in range(2)
        ]
        for connection in held:
            connection.request("POST", PULL, b"0123456789")
        until(lambda: len(upstream.paths) == 2, "both requests are held")
        url = f"http://{proxy.address}{PULL}"
        assert httpx.post(url, content=b"0123456789").status_code == 503
        upstream.hold.set()
        assert [connection.getresponse().read() for connection in held] == [b"0123456789"] * 2
        until(
            lambda: httpx.post(url, content=b"0123456789", timeout=HANG_S).status_code != 503,
            "there is room again",
        )
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    "head",
    [
        post(OBJECT).replace(b"content-length: 0", b"transfer-encoding: chunked"),
        post(OBJECT, "transfer-encoding: chunked"),
        post(OBJECT).replace(b"content-length: 0", b"content-length: 100"),
    ],
    ids=["no length", "a length and chunks", "a length"],
)
def test_bytes_that_one_peer_announces_leave_room_for_others(
    upstream: SuperLinkStandIn, head: bytes
) -> None:
    limits = FleetLimits(max_body_bytes=100, max_bytes=400)
    with (
        FleetListener(LOOPBACK, lambda: upstream.address, limits=limits) as proxy,
        ExitStack() as s,
    ):
        for _ in range(2):
            line = s.enter_context(socket.create_connection(here(proxy), timeout=HANG_S))
            line.sendall(head + (b"1\r\nx\r\n" if b"chunked" in head else b"x"))
        until(lambda: len(upstream.paths) == 2, "both requests are in progress")
        assert (
            raw(proxy, post(PULL).replace(b"length: 0", b"length: 1") + b"x").split()[1] == b"503"
        )
        other = s.enter_context(
            socket.create_connection(here(proxy), timeout=HANG_S, source_address=("127.0.0.2", 0))
        )
        other.sendall(post(PULL).replace(b"length: 0", b"length: 99") + b"x" * 99)
        assert other.makefile("rb").readline().split()[1] == b"200"


def test_a_length_is_needed_where_no_long_body_comes(upstream: SuperLinkStandIn) -> None:
    with FleetListener(LOOPBACK, lambda: upstream.address) as proxy:
        for route in sorted(FLEET_ROUTES - {OBJECT.encode(), PUSH.encode()}):
            head = post(route.decode())
            for wrong in (b"transfer-encoding: chunked", b"x: y"):
                asked = head.replace(b"content-length: 0", wrong)
                assert raw(proxy, asked).split()[1] == b"411", (route, wrong)
    assert upstream.paths == []


def test_a_request_that_stalls_in_its_middle_is_ended_and_frees_its_place(
    upstream: SuperLinkStandIn,
) -> None:
    with FleetListener(
        LOOPBACK, lambda: upstream.address, limits=FleetLimits(max_requests=1, chunk_s=0.2)
    ) as proxy:
        with socket.create_connection(here(proxy), timeout=HANG_S) as line:
            line.sendall(post(PULL).replace(b"content-length: 0", b"content-length: 10") + b"123")
            assert line.makefile("rb").readline().split()[1] == b"408"
        until(
            lambda: httpx.post(f"http://{proxy.address}{PULL}", timeout=HANG_S).status_code != 503,
            "its place is free",
        )


def test_a_request_waits_for_a_superlink_that_is_being_started(upstream: SuperLinkStandIn) -> None:
    address = list[str]()
    with FleetListener(LOOPBACK, lambda: address[0] if address else "") as proxy:
        threading.Timer(0.3, lambda: address.append(upstream.address)).start()
        assert (
            httpx.post(f"http://{proxy.address}{PULL}", content=b"body", timeout=HANG_S).content
            == b"body"
        )


def test_without_a_superlink_the_answer_is_503() -> None:
    with FleetListener(LOOPBACK, lambda: "", limits=FleetLimits(away_s=0.1)) as proxy:
        assert httpx.post(f"http://{proxy.address}{PULL}").status_code == 503


@dataclass(frozen=True)
class Site:
    """Certificates of a proxy and of clients, and requests with them."""

    folder: Path

    def certificate(self, keys: dict[str, str] | None = None) -> Certificate:
        return Certificate(
            self.folder / "server.pem",
            self.folder / "server-key.pem",
            self.folder / "ca.pem",
            keys or {},
        )

    def post(
        self,
        proxy: FleetListener,
        party: str,
        route: str = PULL,
        content: bytes = b"",
        *,
        wait_s: int = 0,
    ) -> int:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if party:
            context.load_cert_chain(self.folder / f"{party}.pem", self.folder / f"{party}-key.pem")
        headers = {WAIT_HEADER.decode(): str(wait_s)}
        return httpx.post(
            f"https://{proxy.address}{route}", content=content, headers=headers, verify=context
        ).status_code


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    write_development_certificates(folder, clients=["hospital", "library"])
    return Site(folder)


def pull(node: int) -> bytes:
    return PullMessagesRequest(node=Node(node_id=node)).SerializeToString()


def push(node: int, *sources: int) -> bytes:
    messages = [Message(metadata=Metadata(src_node_id=source)) for source in sources]
    return PushMessagesRequest(node=Node(node_id=node), messages_list=messages).SerializeToString()


def test_who_shows_no_clients_certificate_does_not_pass(
    upstream: SuperLinkStandIn, site: Site, tmp_path: Path
) -> None:
    write_development_certificates(tmp_path, clients=["hospital"])  # of another authority
    with FleetListener(LOOPBACK, lambda: upstream.address, site.certificate()) as proxy:
        assert site.post(proxy, "client-hospital", content=pull(1)) == 200
        before = len(upstream.paths)
        assert site.post(proxy, "server", content=pull(2)) == 403
        context = ssl.create_default_context(cafile=str(site.folder / "ca.pem"))
        for strange in (None, tmp_path / "client-hospital.pem"):
            if strange:
                context.load_cert_chain(strange, tmp_path / "client-hospital-key.pem")
            with pytest.raises(httpx.HTTPError):
                httpx.post(f"https://{proxy.address}{PULL}", content=pull(3), verify=context)
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"http://{proxy.address}{PULL}", content=pull(4))
    assert len(upstream.paths) == before


def test_a_client_whose_key_is_not_the_pinned_one_does_not_pass(
    upstream: SuperLinkStandIn, site: Site
) -> None:
    known = {
        "hospital": pins((site.folder / "client-hospital.pem").read_bytes()).public_key,
        "library": "0" * 64,
    }
    with FleetListener(LOOPBACK, lambda: upstream.address, site.certificate(known)) as proxy:
        assert site.post(proxy, "client-hospital", content=pull(1)) == 200
        assert site.post(proxy, "client-library", content=pull(2)) == 403
    with FleetListener(
        LOOPBACK, lambda: upstream.address, site.certificate({"hospital": known["hospital"]})
    ) as proxy:
        assert site.post(proxy, "client-library", content=pull(2)) == 403


def test_a_node_is_the_client_whose_certificate_it_came_with_and_no_others(
    upstream: SuperLinkStandIn, site: Site
) -> None:
    with FleetListener(LOOPBACK, lambda: upstream.address, site.certificate()) as proxy:
        assert proxy.owner(7) == ""
        assert site.post(proxy, "client-hospital", content=pull(7)) == 200
        assert proxy.owner(7) == "hospital"
        assert site.post(proxy, "client-library", content=pull(7)) == 403
        assert site.post(proxy, "client-library", PUSH, push(7, 7)) == 403
        assert proxy.owner(7) == "hospital"
        assert site.post(proxy, "client-library", content=pull(8)) == 200
        assert site.post(proxy, "client-library", PUSH, push(8, 8)) == 200
        assert (proxy.owner(7), proxy.owner(8)) == ("hospital", "library")


def test_a_client_pushes_no_message_from_another_node_than_its_own(
    upstream: SuperLinkStandIn, site: Site
) -> None:
    with FleetListener(LOOPBACK, lambda: upstream.address, site.certificate()) as proxy:
        site.post(proxy, "client-hospital", content=pull(7))
        site.post(proxy, "client-library", content=pull(8))
        for sources in ((7,), (8, 7), (9,)):
            assert site.post(proxy, "client-library", PUSH, push(8, *sources)) == 403
        assert site.post(proxy, "client-library", PUSH, b"no protobuf \xff\xff") == 403


def test_a_request_that_the_superlink_refuses_makes_no_node_a_clients(
    upstream: SuperLinkStandIn, site: Site
) -> None:
    upstream.status = 401  # the node's key was not its
    with FleetListener(LOOPBACK, lambda: upstream.address, site.certificate()) as proxy:
        assert site.post(proxy, "client-library", content=pull(7)) == 401
        assert proxy.owner(7) == ""


# --- requests that wait for a message ---


@pytest.fixture
def holding(upstream: SuperLinkStandIn, site: Site) -> Iterator[FleetListener]:
    """Node 7 asked once, and there was nothing."""
    with FleetListener(LOOPBACK, lambda: upstream.address, site.certificate(), holds=True) as proxy:
        assert site.post(proxy, "client-hospital", content=pull(7)) == 200
        yield proxy


def line_of(site: Site, proxy: FleetListener, request: bytes) -> ssl.SSLSocket:
    """A connection of the hospital's on which this was asked."""
    context = ssl.create_default_context(cafile=str(site.folder / "ca.pem"))
    context.load_cert_chain(
        site.folder / "client-hospital.pem", site.folder / "client-hospital-key.pem"
    )
    line = context.wrap_socket(
        socket.create_connection((proxy.address.host, proxy.address.port), timeout=HANG_S),
        server_hostname="127.0.0.1",
    )
    line.sendall(
        post(PULL).replace(b"content-length: 0", f"content-length: {len(request)}".encode())
        + request
    )
    return line


def test_a_request_for_messages_waits_until_there_may_be_one(
    upstream: SuperLinkStandIn, site: Site, holding: FleetListener
) -> None:
    with line_of(site, holding, pull(7)) as line:
        until(lambda: holding.held == 1, "the request is held")
        assert len(upstream.paths) == 1
        holding.wake([8])
        # another node's first look does not wait
        assert site.post(holding, "client-hospital", content=pull(9)) == 200
        assert (holding.held, len(upstream.paths)) == (1, 2)
        holding.wake([7])
        assert line.makefile("rb").readline().split()[1] == b"200"
    assert len(upstream.paths) == 3


def _answered(line: ssl.SSLSocket) -> bool:
    with suppress(ssl.SSLWantReadError):
        return bool(line.recv(1))
    return False


def test_a_first_look_that_finds_nothing_is_not_answered_before_there_may_be_a_message(
    upstream: SuperLinkStandIn, site: Site, holding: FleetListener
) -> None:
    # a SuperNode would sleep for three seconds over an empty answer
    with line_of(site, holding, pull(9)) as line:
        line.setblocking(False)
        until(lambda: holding.held == 1 or _answered(line), "the request is held or answered")
        line.settimeout(HANG_S)
        assert (holding.held, len(upstream.paths)) == (1, 2)
        assert holding.owner(9) == "hospital"  # whose it is must be known to send it a message
        upstream.reply = b"a message" * 10
        holding.wake([9])
        assert line.makefile("rb").read(17).split()[1] == b"200"
    assert len(upstream.paths) == 3


def test_a_waiting_node_holds_no_large_read_buffer(
    upstream: SuperLinkStandIn, site: Site, holding: FleetListener
) -> None:
    with line_of(site, holding, pull(7)):
        until(lambda: holding.held == 1, "the request is held")
        buffers = [
            vars(held)["_ssl_buffer"]
            for held in gc.get_objects()
            if type(held) is sslproto.SSLProtocol
        ]  # isinstance asks proxies of other modules
        assert buffers
        assert max(map(len, buffers)) <= 2**15


def test_a_message_that_was_sent_before_the_node_asks_is_not_waited_for(
    upstream: SuperLinkStandIn, site: Site, holding: FleetListener
) -> None:
    upstream.reply = b"a message" * 10
    holding.wake([7])
    # held, it would end by the caller's own limit
    assert site.post(holding, "client-hospital", content=pull(7), wait_s=200) == 200
    assert len(upstream.paths) == 2
    # there may be another
    assert [
        site.post(holding, "client-hospital", content=pull(7), wait_s=200) for _ in range(3)
    ] == [200] * 3


def test_nothing_is_fetched_for_who_has_hung_up(
    upstream: SuperLinkStandIn, site: Site, holding: FleetListener
) -> None:
    with line_of(site, holding, pull(7)):
        until(lambda: holding.held == 1, "the request is held")
    until(lambda: holding.held == 0, "its end is seen")
    holding.wake([7])
    assert site.post(holding, "client-hospital", content=pull(8)) == 200
    assert len(upstream.paths) == 2


def test_a_node_is_held_no_longer_than_it_asks(
    upstream: SuperLinkStandIn, site: Site, holding: FleetListener
) -> None:
    assert site.post(holding, "client-hospital", content=pull(7), wait_s=0) == 200
    assert len(upstream.paths) == 2
    assert site.post(holding, "client-hospital", content=pull(7), wait_s=1) == 200
    assert len(upstream.paths) == 3


def test_held_requests_take_no_place_of_others_and_end_when_the_gate_closes(
    upstream: SuperLinkStandIn, site: Site
) -> None:
    limits = FleetLimits(max_requests=1)
    with (
        FleetListener(
            LOOPBACK, lambda: upstream.address, site.certificate(), limits=limits, holds=True
        ) as proxy,
        ExitStack() as lines,
    ):
        held = list[ssl.SSLSocket]()
        for node in range(1, MOST_NODES + 1):
            held.append(lines.enter_context(line_of(site, proxy, pull(node))))
            until(lambda: proxy.held == len(held), "it is held")
        # past its room a client is not held
        assert site.post(proxy, "client-hospital", content=pull(1), wait_s=60) == 200
        proxy.hold_nobody()
        assert {line.makefile("rb").readline().split()[1] for line in held} == {b"503"}


def test_of_many_nodes_of_one_client_only_the_latest_are_known() -> None:
    nodes = Nodes()
    for node in range(1, 41):
        nodes.seen(node, "library")
    nodes.seen(99, "hospital")
    assert [node for node in range(41) if nodes.owner(node)] == list(range(41 - MOST_NODES, 41))
    assert nodes.owner(99) == "hospital"


def test_what_it_cannot_listen_on_or_show_is_said_plainly(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match="has no TLS"),
        FleetListener(Address("0.0.0.0", 0), lambda: ""),
    ):
        pass
    with (
        pytest.raises(SettingsError, match="certificate"),
        FleetListener(LOOPBACK, lambda: "", Certificate(*[tmp_path / "no"] * 3)),
    ):
        pass
    with (
        FleetListener(LOOPBACK, lambda: "") as proxy,
        pytest.raises(SettingsError, match="cannot listen"),
        FleetListener(proxy.address, lambda: ""),
    ):
        pass
