"""A client's side of Flower in a process of its own: the real SuperNode, the real executor, and a
participant that only counts."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fedrec.operations.addresses import free_port
from fedrec.operations.flower_process import flower_environment
from tests import waiting

CLIENT = """
import sys, threading
from pathlib import Path
from fedrec.federation.protocol import Answer
from fedrec.operations import logs
from fedrec_client.executor import Executor
from fedrec_client.flower import client_app
from fedrec_client.settings import SuperLinkAccess
from fedrec_client.supernode import SuperNode

address, keys, folder, name, said = sys.argv[1:]
class Participant:
    def __init__(self): self.name, self.joined = said, 0
    def join(self, terms):
        self.joined += 1
        return Answer(said, self.joined)
logs.configure("client")
own = dict(certificate=f"{keys}/client-{name}.pem", key=f"{keys}/client-{name}-key.pem", root_certificates=f"{keys}/ca.pem")
node = SuperNode(Path(folder), SuperLinkAccess(address=address, **own))
node.start()
Executor(client_app(Participant()), lambda: node.address, node.secret).run(threading.Event())
"""


@dataclass
class Clients:
    """Starts client processes and ends them with the test."""

    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)

    def start(
        self, name: str, *, proxy: str, keys: Path, says: str = ""
    ) -> subprocess.Popen[bytes]:
        """A client with the certificate of that name in `keys`, which says it is `says`."""
        log = self.stack.enter_context((self.folder / f"{name}.log").open("ab"))
        command = [
            sys.executable,
            "-c",
            CLIENT,
            proxy,
            str(keys),
            str(self.folder / name),
            name,
            says or name,
        ]
        client = subprocess.Popen(command, stdout=log, stderr=log)
        self.stack.callback(_end, client)
        return client

    def stock(self, *, proxy: str, ca: Path) -> subprocess.Popen[bytes]:
        """Flower's own SuperNode, with the authority's certificate and nothing else of ours."""
        log = self.stack.enter_context((self.folder / "stock.log").open("ab"))
        program = Path(sys.executable).parent / "flower-supernode"
        command = [
            str(program),
            "--superlink",
            proxy,
            "--root-certificates",
            str(ca),
            "--isolation",
            "process",
        ]
        environment = flower_environment(self.folder / "stock")
        node = subprocess.Popen(
            [*command, "--port", str(free_port("127.0.0.1"))],
            stdout=log,
            stderr=log,
            env=environment,
        )
        self.stack.callback(_end, node)
        return node

    def log(self, name: str) -> str:
        """What it said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")


def _end(client: "subprocess.Popen[bytes]") -> None:
    client.terminate()
    client.wait()


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    started = Clients(tmp_path)
    with started.stack:
        yield started


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits for a condition, and fails in its words where it never comes."""

    return waiting.until
