import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, AcquireTaskResponse

from fedrec.errors import SettingsError
from fedrec.operations import parent_death
from fedrec.operations.flower_process import FLOWER_ENVIRONMENT, flower_environment
from fedrec_client.executor import RuntimeApi, TaskLostError
from fedrec_client.settings import SuperLinkAccess
from fedrec_client.supernode import SuperNode, supernode_command
from tests.waiting import until

pytestmark = pytest.mark.processes


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return bool(address) and probe.connect_ex((host, int(port))) == 0


@pytest.fixture
def nobody() -> str:
    """An address where no SuperLink is: a SuperNode goes on trying."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def node(tmp_path: Path, nobody: str) -> Iterator[SuperNode]:
    running = SuperNode(
        tmp_path / "state", SuperLinkAccess(address=nobody, insecure=True), first_pause_s=0.01
    )
    running.start()
    yield running
    running.stop()


def test_a_killed_node_is_started_again_and_told_about(node: SuperNode) -> None:
    told = list[tuple[int, str]]()
    node.changed = lambda: told.append((node.pid, node.address))
    first, address = node.pid, node.address
    os.kill(first, signal.SIGKILL)
    until(lambda: told)
    assert told[0] == (node.pid, node.address)
    assert node.pid not in {0, first}
    assert node.address != address
    until(lambda: listens(node.address))
    assert node.starts == 2


def test_stopping_ends_the_child_and_forgets_its_address(node: SuperNode) -> None:
    child = node.pid
    assert is_running(child)
    node.stop()
    assert not is_running(child)
    assert (node.pid, node.address) == (0, "")


def test_the_secret_is_for_its_owner_alone_and_new_every_time(
    tmp_path: Path, node: SuperNode, nobody: str
) -> None:
    path = tmp_path / "state" / "runtime.secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == node.secret
    assert SuperNode(tmp_path, node.access).secret != node.secret
    assert node.secret.decode() not in repr(node)


def test_who_asks_without_the_secret_gets_no_task(node: SuperNode) -> None:
    until(lambda: listens(node.address))
    with (
        closing(RuntimeApi(node.address, b"")) as stranger,
        pytest.raises(TaskLostError, match="status 401"),
    ):
        stranger.call("acquire-task", AcquireTaskRequest(), AcquireTaskResponse, {})


PARENT = """
import json, subprocess, sys, time
from fedrec.operations import parent_death
from fedrec.operations.flower_process import FLOWER_ENVIRONMENT, flower_environment
child = subprocess.Popen(parent_death.command(
    [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"], max_bytes=2**30
))
print(json.dumps(child.pid), flush=True)
time.sleep(600)
"""


def test_a_child_bound_to_its_parent_does_not_outlive_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        lines = [parent.stdout.readline(), parent.stdout.readline()]
        child = next(json.loads(line) for line in lines if line != b"up\n")
        assert is_running(child)
        parent.kill()
        parent.wait()
        until(lambda: not is_running(child))


def test_a_child_bound_to_its_parent_has_no_more_memory_than_it_may() -> None:
    greedy = [sys.executable, "-c", "bytearray(2**30)"]
    done = subprocess.run(
        parent_death.command(greedy, max_bytes=2**29), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "MemoryError" in done.stderr


def test_flowers_calls_home_are_off_and_its_files_stay_in_the_state_folder(tmp_path: Path) -> None:
    environment = flower_environment(tmp_path)
    assert environment.items() >= FLOWER_ENVIRONMENT.items()
    assert environment["FLWR_HOME"] == str(tmp_path / "flower")
    assert environment["PATH"].startswith(str(Path(sys.executable).parent))


def test_the_command_isolates_processes_and_listens_on_loopback(tmp_path: Path) -> None:
    access = SuperLinkAccess(
        address="server.example.org:7002", root_certificates="ca.pem", auth_private_key="node"
    )
    command = " ".join(supernode_command(access, tmp_path, 7003))
    assert "--isolation process --superexec-auth-secret-file" in command
    assert "--host 127.0.0.1 --port 7003" in command
    assert "--root-certificates ca.pem --auth-supernode-private-key node" in command
    assert "--insecure" not in command


def test_by_the_way_a_node_talks_to_loopback_alone(tmp_path: Path) -> None:
    access = SuperLinkAccess(
        address="server.example.org:7002",
        root_certificates="ca.pem",
        certificate="client.pem",
        key="client-key.pem",
        pin="0" * 64,
    )
    command = " ".join(supernode_command(access, tmp_path, 7003, way="127.0.0.1:7004"))
    assert "--superlink 127.0.0.1:7004" in command
    assert "--insecure" in command
    assert "example.org" not in command


@pytest.mark.parametrize(
    ("access", "said"),
    [
        (SuperLinkAccess(address="server.example.org:7002", insecure=True), "insecure"),
        (
            SuperLinkAccess(address="127.0.0.1:1", insecure=True, auth_private_key=__file__),
            "insecure",
        ),
        (SuperLinkAccess(address="127.0.0.1", auth_private_key=__file__), "address"),
        (
            SuperLinkAccess(
                address="127.0.0.1:1",
                root_certificates="/nowhere/ca.pem",
                auth_private_key=__file__,
            ),
            "root_certificates",
        ),
        (
            SuperLinkAccess(address="127.0.0.1:1", certificate="/nowhere/own.pem", key=__file__),
            "certificate",
        ),
        (
            SuperLinkAccess(address="127.0.0.1:1", auth_private_key="/nowhere/key"),
            "auth_private_key",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_starts(
    tmp_path: Path, access: SuperLinkAccess, said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        SuperNode(tmp_path, access).start()
    assert not (tmp_path / "runtime.secret").exists()
