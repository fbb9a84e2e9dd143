"""A real SuperLink behind the proxy, real SuperNodes over TLS, and the executor: what a network
reaches, and what a kill costs."""

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedrec.errors import RunError, SettingsError
from fedrec.federation.protocol import Answer, Broadcast, Terms
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import write_development_certificates
from fedrec_server.executor import AppRunner
from fedrec_server.fleet_listener import FleetListener
from fedrec_server.fleet_proxy import Certificate
from fedrec_server.flower import bundle, server_app
from fedrec_server.superlink import SuperLink
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes

TERMS = Terms("run", "{}", "ratings", (1.0, 5.0), ("a", "b", "c"))


@dataclass
class Stack:
    """What a server starts."""

    superlink: SuperLink
    proxy: FleetListener
    keys: Path

    @property
    def ca(self) -> Path:
        return self.keys / "ca.pem"

    def executor(self, **more: Any) -> AppRunner:
        return AppRunner(self.superlink.address, self.superlink.secret, **more)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    keys = tmp_path / "keys"
    write_development_certificates(keys, clients=["library", "hospital"])
    certificate = Certificate(keys / "server.pem", keys / "server-key.pem", keys / "ca.pem")
    with (
        SuperLink(tmp_path / "flower", tmp_path / "flower" / "superlink.sqlite") as superlink,
        FleetListener(Address("127.0.0.1", 0), lambda: superlink.address, certificate) as proxy,
    ):
        yield Stack(superlink, proxy, keys)


def test_rounds_pass_the_gate_and_go_on_when_the_superlink_is_killed_while_control_stays_inside(
    stack: Stack, clients: Any, until: Callable[..., None]
) -> None:
    for name in ("library", "hospital"):
        clients.start(name, proxy=str(stack.proxy.address), keys=stack.keys)
    stack.superlink.wait_until_up()
    heard = list[list[Answer]]()

    def serve(broadcast: Broadcast) -> None:
        until(lambda: len(broadcast.join(TERMS)) == 2, "both clients answer")
        heard.append(list(broadcast.join(TERMS)))
        os.kill(stack.superlink.pid, signal.SIGKILL)
        heard.append(list(broadcast.join(TERMS)))

    stack.executor().run(
        server_app(serve, timeout_s=HANG_S, owner=stack.proxy.owner), bundle("0" * 64)
    )
    for answers in heard:
        assert sorted(answer.client for answer in answers) == ["hospital", "library"]
        assert not any(answer.refusal for answer in answers)
    assert stack.superlink.starts == 2
    _control_is_closed(stack)


def _control_is_closed(stack: Stack) -> None:
    context = ssl.create_default_context(cafile=str(stack.ca))
    context.load_cert_chain(
        stack.keys / "client-library.pem", stack.keys / "client-library-key.pem"
    )
    kind = {"content-type": "application/protobuf"}
    inside = httpx.Client(base_url=f"http://{stack.superlink.address}")
    outside = httpx.Client(base_url=f"https://{stack.proxy.address}", verify=context)
    with inside, outside:
        assert inside.post("/v1/control/list-runs", headers=kind).status_code == 200
        # not even from inside without the secret
        assert inside.post("/v1/runtime/acquire-task", headers=kind).status_code == 401
        for route in (
            "/v1/control/list-runs",
            "/v1/control/start-run",
            "/v1/runtime/acquire-task",
            "/v1/runtime/get-nodes",
            "/health",
            "/docs",
        ):
            assert outside.post(route, headers=kind).status_code == 404
        # the SuperLink itself answers
        assert outside.post("/v1/fleet/send-node-heartbeat", headers=kind).status_code == 401


def test_a_stock_supernode_cannot_join_and_a_sites_key_cannot_take_another_sites_name(
    stack: Stack, clients: Any, until: Callable[..., None]
) -> None:
    """A stranger with ca.pem is no node at all; the library, which says it is the hospital, is
    heard as the library, and refused."""
    proxy = str(stack.proxy.address)
    stack.superlink.wait_until_up()
    clients.stock(proxy=proxy, ca=stack.ca)
    clients.start("library", proxy=proxy, keys=stack.keys, says="hospital")
    until(
        lambda: (
            "certificate required" in clients.log("stock").lower()
            or "retry" in clients.log("stock").lower()
        ),
        "a node turned away",
    )
    heard = list[list[Answer]]()

    def serve(broadcast: Broadcast) -> None:
        until(lambda: broadcast.join(TERMS), "the library's answer")
        heard.append(list(broadcast.join(TERMS)))
        nodes = list(broadcast.grid.get_node_ids())  # type: ignore[attr-defined]
        # the stranger is not among them
        assert [stack.proxy.owner(node) for node in nodes] == ["library"]
        clients.start("hospital", proxy=proxy, keys=stack.keys)
        until(
            lambda: "hospital" in {answer.client for answer in broadcast.join(TERMS)},
            "the real hospital",
        )
        heard.append(list(broadcast.join(TERMS)))

    stack.executor().run(
        server_app(serve, timeout_s=HANG_S, owner=stack.proxy.owner), bundle("0" * 64)
    )
    assert [(answer.client, answer.refusal) for answer in heard[0]] == [("library", "forbidden")]
    assert {(answer.client, answer.refusal) for answer in heard[1]} == {
        ("library", "forbidden"),
        ("hospital", ""),
    }


def test_the_next_run_begins_at_once_and_an_error_of_the_app_keeps_its_type(stack: Stack) -> None:
    stack.superlink.wait_until_up()

    def fails(_broadcast: Broadcast) -> None:
        raise RunError("cause", "remedy")

    with pytest.raises(RunError, match="cause"):
        stack.executor().run(server_app(fails, timeout_s=1.0), bundle("0" * 64))
    served = list[Broadcast]()
    stack.executor().run(server_app(served.append, timeout_s=1.0), bundle("0" * 64))
    assert len(served) == 1
    with pytest.raises(RunError, match="secret"):
        AppRunner(stack.superlink.address, b"another").run(
            server_app(served.append, timeout_s=1.0), bundle("0" * 64)
        )


HOLDER = """
import sys, time
from pathlib import Path
from fedrec_server.superlink import SuperLink
with SuperLink(Path(sys.argv[1]), Path(sys.argv[1]) / "superlink.sqlite") as superlink:
    while not superlink.pid:
        time.sleep(0.01)
    print(superlink.pid, flush=True)
    time.sleep(600)
"""


def test_kill_of_the_server_leaves_no_superlink_behind(
    tmp_path: Path, until: Callable[..., None]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        pid = int(holder.stdout.readline())
        assert _is_running(pid)
        holder.kill()
    until(lambda: not _is_running(pid), "the end of the SuperLink")


def test_a_superlink_that_never_starts_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "flower").mkdir()
    (tmp_path / "state").write_text("in the way of the database's folder")
    with (
        pytest.raises(SettingsError, match="cannot be kept"),
        SuperLink(tmp_path / "flower", tmp_path / "state" / "superlink.sqlite"),
    ):
        pass
    (tmp_path / "database").mkdir()  # a folder where the file should be
    with (
        SuperLink(tmp_path / "flower", tmp_path / "database", first_pause_s=0.01) as superlink,
        pytest.raises(RunError, match="does not start"),
    ):
        superlink.wait_until_up()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
