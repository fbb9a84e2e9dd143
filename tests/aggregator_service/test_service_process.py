"""The aggregator as a process of its own: started from a file, told to stop, killed."""

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from fedrec.errors import RefusedError
from fedrec.federation.protocol import Phase
from fedrec.federation.round_messages import KEY, PROTOCOL
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_client import (
    RemoteReleaseEndpoint,
    RemoteReportEndpoint,
    Retry,
    healthy,
)
from fedrec.transport.channel import Access, open_channel
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.processes

PROGRAM = """
import sys
from pathlib import Path
from fedrec_aggregator.main import run
from fedrec_aggregator.settings import load
run(load(Path(sys.argv[1])))
heavy = {"torch", "flwr", "ray"} & set(sys.modules)
assert not heavy, heavy
"""


@contextmanager
def process(file: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A process that listens, and what it wrote about itself."""
    address = file.parent / "state/address.json"
    address.unlink(missing_ok=True)
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(file)], env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    )
    try:
        until(lambda: address.exists() or started.poll() is not None, "the aggregator's address")
        assert started.poll() is None
        yield started, json.loads(address.read_text())
    finally:
        started.kill()
        started.wait()


@pytest.fixture
def file(tmp_path: Path, certificates: Any) -> Path:
    tls = certificates.tls()
    lines = [
        (
            'listen = "127.0.0.1:0"\nstate = "state"\nlog = "log.jsonl"\nmetrics = '
            '"127.0.0.1:0"\nsimulation = true\nany_client = true'
        ),
        "[tls]",
        *(f'{key} = "{value}"' for key, value in tls.items()),
        '[privacy]\nmax_epsilon = 10.0\nnoise = "seeded"\nseed = 3',
        "[limits]\nmin_cohort = 2",
        "[traffic]\nmax_uploads_per_client = 1",
    ]
    path = tmp_path / "aggregator.toml"
    path.write_text("\n".join(lines))
    return path


def endpoints(
    told: dict[str, Any], certificates: Any
) -> tuple[RemoteReportEndpoint, RemoteReleaseEndpoint]:
    retry = Retry(patience_s=HANG_S, first_pause_s=0.05, longest_pause_s=0.3)
    client, server = (access(told, certificates, who) for who in ("client-hospital", "server"))
    return RemoteReportEndpoint(client, retry=retry), RemoteReleaseEndpoint(server, retry=retry)


def access(told: dict[str, Any], certificates: Any, who: str) -> Access:
    return Access(
        told["address"],
        ca=certificates.file("ca.pem"),
        certificate=certificates.file(f"{who}.pem"),
        key=certificates.file(f"{who}-key.pem"),
    )


def test_sigterm_lets_an_upload_finish_and_ends_with_success(
    file: Path, task: Any, certificates: Any
) -> None:
    with process(file) as (aggregator, told):
        client, server = endpoints(told, certificates)
        client.enroll(task.tokens([1, 2, 3]))
        server.open_run(task.run, task.plan)
        server.open_round(task.opening())
        batch = task.batch([1, 2])
        rest = queue.Queue[pb.ReportFrame | None]()
        rest.put(pb.ReportFrame(run=task.run, round=0, total_bytes=len(batch), data=batch[:50]))
        with open_channel(access(told, certificates, "client-hospital")) as channel:
            upload = channel.stream_unary(
                methods.REPORT.path,
                methods.REPORT.request.SerializeToString,
                methods.REPORT.reply.FromString,
            ).future(iter(rest.get, None), timeout=HANG_S, metadata=((KEY, str(PROTOCOL)),))
            busy(
                RemoteReportEndpoint(
                    access(told, certificates, "client-hospital"), retry=Retry(patience_s=0.0)
                )
            )
            aggregator.send_signal(signal.SIGTERM)
            until(lambda: '"stopping"' in (file.parent / "log.jsonl").read_text())
            rest.put(pb.ReportFrame(data=batch[50:]))
            rest.put(None)
            assert upload.result(HANG_S).accepted == 2
        assert aggregator.wait(HANG_S) == 0
    assert not (file.parent / "state/address.json").exists()
    assert '"stopped"' in (file.parent / "log.jsonl").read_text().splitlines()[-1]


def busy(endpoint: RemoteReportEndpoint) -> None:
    """Until the one place of this client is taken."""
    until(lambda: refused_as_busy(endpoint))


def refused_as_busy(endpoint: RemoteReportEndpoint) -> bool:
    try:
        endpoint.enroll([])
    except RefusedError:
        return True
    return False


def test_a_killed_aggregator_goes_on_and_hands_out_the_same_release(
    file: Path, task: Any, certificates: Any
) -> None:
    with process(file) as (aggregator, told):
        client, server = endpoints(told, certificates)
        assert healthy(access(told, certificates, "server"))
        client.enroll(task.tokens([1, 2, 3, 4]))
        server.open_run(task.run, task.plan)
        server.open_round(task.opening())
        assert client.report(task.run, 0, task.batch([1, 2, 3])).accepted == 3
        released = server.close(task.run, 0)
        assert released.phase is Phase.RELEASED
        content = server.release(task.run, 0)
        with urlopen(f"http://{told['metrics']}/metrics", timeout=HANG_S) as page:
            lines = page.read().decode().splitlines()
        assert 'fedrec_reports_total{result="accepted"} 3.0' in lines
        assert 'fedrec_rounds_total{phase="released"} 1.0' in lines
        assert any(
            line.startswith("fedrec_budget_epsilon_spent") and float(line.split()[1]) > 0
            for line in lines
        )
        aggregator.kill()
        aggregator.wait()
    port = told["address"].rpartition(":")[2]
    file.write_text(file.read_text().replace('"127.0.0.1:0"\nstate', f'"127.0.0.1:{port}"\nstate'))
    with process(file):
        # the same channel: it comes back by itself
        assert server.open_round(task.opening()) == released
        assert server.release(task.run, 0) == content
        assert client.enroll([]) == 4


def test_an_address_in_use_is_a_clear_error(file: Path, tmp_path: Path, certificates: Any) -> None:
    with process(file) as (_, told):
        other = file.read_text().replace(
            '"127.0.0.1:0"\nstate = "state"', f'"{told["address"]}"\nstate = "other"'
        )
        path = tmp_path / "other.toml"
        path.write_text(other)
        second = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path)],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    assert "SettingsError" in second.stderr
    assert "cannot be had" in second.stderr
