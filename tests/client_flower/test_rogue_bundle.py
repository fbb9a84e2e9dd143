"""A real SuperLink with TLS and node keys, the real client process, and a server that sends a
bundle with code of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedrec.data.interactions import Interactions
from fedrec.federation.coding import deflated
from fedrec.federation.protocol import Answer, Terms
from fedrec.federation.wire import pack_terms, read_answer
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.flower_process import flower_environment
from fedrec.recipes import client_recipe
from fedrec.settings import Scenario
from fedrec_aggregator import main as aggregator_main
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_client.store import write_shard
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.processes

ITEMS = ("a", "b", "c")
EVENTS = Interactions.from_columns(
    np.array([0, 0, 1]),
    np.array([0, 2, 1]),
    np.array([5.0, 1.0, 3.0]),
    num_users=2,
    num_items=3,
    value_range=(1.0, 5.0),
    kind="ratings",
)
BIN = Path(sys.executable).parent
CLIENT = (
    "import sys, pathlib, fedrec_client.main, fedrec_client.settings as s; "
    "fedrec_client.main.run(s.load(pathlib.Path(sys.argv[1])))"
)

ROGUE = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from flwr.clientapp import ClientApp
app = ClientApp()
@app.query("join")
def join(message, context):
    Path({marker!r}).write_text("answered")
    return message
"""

SERVER = """
import time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    terms, folder = bytes.fromhex(context.run_config["terms"]), Path(context.run_config["folder"])
    while not (folder / "enough").exists():
        for node in list(grid.get_node_ids()):
            sent = grid.push_messages([Message(RecordDict({"fedrec": ConfigRecord({"terms": terms})}), node, "query.join")])
            deadline, replies = time.time() + 8, []
            while not replies and time.time() < deadline and not (folder / "enough").exists():
                time.sleep(0.1)
                replies = list(grid.pull_messages(sent))
            with (folder / "answers").open("ab") as file:
                file.writelines(reply.content["fedrec"]["answer"] + b"\\n" for reply in replies if reply.has_content())
        time.sleep(0.1)
"""

BUNDLE = """
[project]
name = "rogue"
version = "1.0.0"
description = "A bundle with code for clients."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
serverapp = "at_server:app"
clientapp = "at_client:app"
[tool.flwr.app.config]
terms = "{terms}"
folder = "{folder}"
"""


@dataclass
class Stack:
    """The server's side, ready to run the rogue bundle."""

    folder: Path
    port: int
    environment: dict[str, str]
    aggregator: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def marker(self) -> Path:
        return self.folder / "marker"

    def answers(self) -> list[Answer]:
        path = self.folder / "answers"
        return (
            [read_answer(line) for line in path.read_bytes().splitlines()] if path.exists() else []
        )

    def flwr(self, *arguments: str) -> bool:
        command = [BIN / "flwr", *arguments, "--format", "json"]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        return done.returncode == 0 and bool(json.loads(done.stdout)["success"])

    def submit(self) -> None:
        bundle = self.folder / "bundle"
        bundle.mkdir()
        terms = deflated(
            pack_terms(Terms("run", client_recipe(Scenario()), "ratings", (1.0, 5.0), ITEMS))
        )
        (bundle / "pyproject.toml").write_text(BUNDLE.format(terms=terms.hex(), folder=self.folder))
        (bundle / "at_server.py").write_text(SERVER)
        (bundle / "at_client.py").write_text(ROGUE.format(marker=str(self.marker)))
        assert self.flwr("run", str(bundle), "test")

    def client(self) -> subprocess.Popen[bytes]:
        shard, settings = self.folder / "site.safetensors", self.folder / "client.toml"
        write_shard(shard, EVENTS, ITEMS, ("first", "second"))
        settings.write_text(f"""
name = "library"
state = "{self.folder / "client"}"
log = "{self.folder / "client.log"}"
metrics = "127.0.0.1:0"
data = {{ path = "{shard}" }}
aggregator = {{ address = "{self.aggregator}", insecure = true }}
[superlink]
address = "127.0.0.1:{self.port}"
root_certificates = "{self.folder / "keys" / "ca.pem"}"
auth_private_key = "{self.folder / "node"}"
""")
        self.started.append(subprocess.Popen([sys.executable, "-c", CLIENT, str(settings)]))
        return self.started[-1]

    def status(self) -> dict[str, object]:
        return dict(json.loads((self.folder / "client" / "client.json").read_text()))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def node_key(path: Path) -> Path:
    """A key pair as `ssh-keygen -t ecdsa` makes it; the path of its public half."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = path.with_suffix(".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return public


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[str]:
    settings = tmp_path / "aggregator.toml"
    settings.write_text(
        f'listen = "127.0.0.1:0"\nstate = "{tmp_path / "aggregator"}"\nlog = '
        f'"{tmp_path / "aggregator.log"}"\n'
        'insecure = true\nany_client = true\nservers = ["server"]\n[privacy]\nmax_epsilon = 5.0\n'
    )
    found, stop = list[str](), threading.Event()
    loaded = load_aggregator(settings)
    thread = threading.Thread(
        target=lambda: aggregator_main.run(
            loaded, ready=lambda address: found.append(str(address)), stop=stop
        )
    )
    thread.start()
    until(lambda: found, "the aggregator listens")
    yield found[0]
    stop.set()
    thread.join()


@pytest.fixture
def stack(tmp_path: Path, aggregator: str) -> Iterator[Stack]:
    write_development_certificates(tmp_path / "keys", clients=["library"])
    keys, port, environment = (
        tmp_path / "keys",
        free_port(),
        flower_environment(tmp_path) | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"},
    )
    stack = Stack(tmp_path, port, environment, aggregator)
    (tmp_path / "flower").mkdir()
    (tmp_path / "flower" / "config.toml").write_text(
        '[superlink]\ndefault = "test"\n[superlink.test]\naddress = '
        f'"127.0.0.1:{port}"\nroot-certificates = "{keys / "ca.pem"}"\n'
    )
    tls = [
        "--ssl-certfile",
        keys / "server.pem",
        "--ssl-keyfile",
        keys / "server-key.pem",
        "--ssl-ca-certfile",
        keys / "ca.pem",
    ]
    command = [
        BIN / "flower-superlink",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *tls,
        "--enable-supernode-auth",
    ]
    with (tmp_path / "superlink.log").open("wb") as log:
        superlink = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    public = node_key(tmp_path / "node")
    until(
        lambda: stack.flwr("supernode", "register", str(public), "test"),
        "the SuperLink takes the node's key",
    )
    yield stack
    (tmp_path / "enough").touch()
    for client in stack.started:
        client.kill()
        client.wait()
    os.killpg(superlink.pid, signal.SIGTERM)  # the SuperLink, and what it started in its session
    try:
        superlink.wait(HANG_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(superlink.pid, signal.SIGKILL)


def test_the_installed_app_answers_a_rogue_bundle_never_runs_and_a_node_that_ends_comes_back(
    stack: Stack,
) -> None:
    stack.submit()
    client = stack.client()
    until(stack.answers, "an answer")
    assert stack.answers()[0] == Answer("library", users=2)

    node = int(str(stack.status()["supernode_pid"]))
    os.kill(node, signal.SIGTERM)
    until(lambda: stack.status()["supernode_pid"] not in {0, node}, "another SuperNode")
    before = len(stack.answers())
    until(lambda: len(stack.answers()) > before, "an answer through the new SuperNode")
    assert not stack.marker.exists()
    assert "rogue" not in {path.name for path in (stack.folder / "client").rglob("*")}

    node = int(str(stack.status()["supernode_pid"]))
    client.terminate()
    assert client.wait(HANG_S) == 0
    assert not is_running(node)
    assert not (stack.folder / "client" / "client.json").exists()


def test_a_killed_client_leaves_no_node_behind(stack: Stack) -> None:
    client = stack.client()
    until(lambda: (stack.folder / "client" / "client.json").exists(), "the client's status")
    node = int(str(stack.status()["supernode_pid"]))
    assert is_running(node)
    client.kill()
    client.wait()
    until(lambda: not is_running(node), "the end of the SuperNode")
