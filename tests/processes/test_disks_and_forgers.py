"""Full disks and a listed client that forges: nothing leaves that is not written down, nothing
forged is counted, the same bytes."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.cli.supervisor import Supervisor
from fedrec.errors import RefusedError, RunError, UnreachableError
from fedrec.federation.messages import BlockReports, Question, Reports
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.federation.round_messages import KEY, PROTOCOL
from fedrec.federation.wire import question_digest, question_header, report_digest
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import write_development_certificates
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint, Retry
from fedrec.transport.channel import Access, open_channel
from fedrec_server.runs import run_folder
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes

DISK_BYTES = 8 * 2**20


def test_full_disks_and_a_forger_change_no_byte_and_nothing_leaves_that_is_not_written_down(
    play: Any, stage: Callable[..., Any]
) -> None:
    forger = {
        "clients": [{"name": name} for name in ("client-1", "client-2", "forger")],
        "pins": "",
    }
    run = stage(more={"aggregator": forger}, company=Supervisor(most_starts=20))
    certificates = run.files.root / "certificates"
    write_development_certificates(certificates, clients=["forger"])
    with (
        small_disk(run.files.state("aggregator")) as aggregator_disk,
        small_disk(run.files.state("client-1")) as client_disk,
    ):
        run.start()
        run.until(run.is_planned, "plan")
        fill(client_disk)
        run.until(lambda: run.said("client-1", "refused", round=0), "client that cannot write")
        assert "cannot be written" in run.words("client-1")
        run.until(
            lambda: run.said("server", "waiting-for-quorum", round=0), "round that waits for it"
        )
        assert run.reporters(0) == {"client-2"}
        turned_away = forge(run, certificates)
        fill(aggregator_disk)
        free(client_disk)  # the report that the quorum lacks comes, and the release cannot be kept
        run.until(
            lambda: "cannot be written" in run.words("server"), "server that hears of the full disk"
        )
        assert "Free disk space" in run.words("server")
        assert not run.said("aggregator", "released")
        assert not run.said("aggregator", "fetched")
        assert not list(run.files.state("aggregator").rglob("round-*.safetensors"))
        assert not list(run.files.state("server").rglob("round-*.safetensors"))
        assert _charged(run) == 0
        free(aggregator_disk)
        assert list(run.states()) == play.states
        lines = run.rounds()
        assert [line["reported"] for line in lines] == [play.job.data.num_users] * 2
        assert turned_away.items() <= lines[0]["rejected"].items()
        run.company.stop()
        assert run.charges() == [name for line in lines for name in line["releases"]]


@pytest.mark.rare
def test_a_server_whose_disk_is_full_waits_or_ends_with_the_reason_and_goes_on_once_it_is_free(
    play: Any, stage: Callable[..., Any]
) -> None:
    class Patient(Supervisor):
        """Starts again whoever ends with words, as a unit of systemd does after exit code 6."""

        def gives_up(self, name: str, status: int) -> bool:
            return status != RunError.exit_code

    run = stage(company=Patient(most_starts=100))
    with small_disk(run.files.state("server")) as disk:
        run.start()
        run.until(run.is_planned, "plan")
        fill(disk)
        run.until(lambda: "No space left" in run.words("server"), "server that cannot write")
        kept = run_folder(disk) / "rounds.jsonl"
        assert not kept.exists() or kept.read_text().count("\n") < len(play.states)
        free(disk)
        assert list(run.states()) == play.states
        lines = run.rounds()
        assert [line["reported"] for line in lines] == [play.job.data.num_users] * 2
        run.company.stop()
        assert run.charges() == [name for line in lines for name in line["releases"]]


def _charged(run: Any) -> int:
    """Entries of the aggregator's ledger that charge somebody, while it runs."""
    path = run.files.state("aggregator") / "ledger.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
        # the first is the ledger's birth
        return int(ledger.execute("SELECT COUNT(*) FROM entries").fetchone()[0]) - 1


# --- disks ---


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own at `folder`, in memory."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    """To the last byte."""
    with (disk / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def free(disk: Path) -> None:
    (disk / "ballast").unlink()


# --- forging ---


def forge(run: Any, certificates: Path) -> Counter[str]:
    """All that a listed client may try against the open round 0; users turned away that the round
    itself counts, by code."""
    access = _access(run, certificates, "forger")
    job = run.files.job
    turned_away = Counter[str]()
    question = job.prepared.recipe.ask(job.prepared.recipe.begin())
    (opened,) = run.said("aggregator", "opened", round=0)
    digest = question_digest(
        question_header(question, run=job.run, plan=job.prepared.plan.digest())
    )
    digest = report_digest(digest, opened["quorum"])
    stolen = _users_of(run, "client-2")
    batch = _batch(question, stolen, digest)
    with RemoteReportEndpoint(access) as endpoint:
        with pytest.raises(RefusedError, match="belongs to the client") as refusal:
            endpoint.enroll(stolen)
        assert refusal.value.code == "forbidden"
        for code, forged in {
            "forbidden": batch,
            "not-enrolled": _batch(question, [os.urandom(16) for _ in stolen], digest),
            "wrong-question": _batch(question, stolen, digest[::-1]),
            "unknown-item": _batch(question, stolen, digest, item=job.data.num_items),
            "out-of-range": batch[:-2] + b"\x00\x80",
            "malformed": b"FRR1" + os.urandom(70_000),
            "too-large": batch[:36] + (100_000).to_bytes(4, "little") + batch[40:],
        }.items():
            receipt = endpoint.report(job.run, 0, forged)
            assert (code, receipt.accepted) == (code, 0)
            turned_away += Counter(receipt.rejected)
        assert set(turned_away) >= {
            "forbidden",
            "not-enrolled",
            "unknown-item",
            "out-of-range",
            "too-large",
        }
        assert endpoint.report(job.run, 0, bytes(20 * 2**20)).rejected == {"too-large": 1}
        assert set(endpoint.report(job.run, 7, batch).rejected) == {"round-unknown"}
        assert set(endpoint.report("another", 0, batch).rejected) == {"run-unknown"}
    _lie_about_lengths(access, job.run)
    _come_as_somebody_else(run, access)
    return turned_away


def _batch(question: Question, users: list[bytes], digest: str, *, item: int = 0) -> bytes:
    """A batch of the right form: each user names one item."""
    ids, tokens = (
        np.frombuffer(b"".join(names), np.uint8).reshape(-1, 16)
        for names in ([os.urandom(16) for _ in users], users)
    )
    n = len(users)
    blocks = tuple(
        BlockReports(np.ones(n, np.int32), np.ones((n, spec.width), np.int32))
        for spec in question.blocks
    )
    return pack_reports(
        Batch(
            ids,
            tokens,
            Reports(np.arange(n + 1, dtype=np.int64), np.full(n, item, np.int32), blocks),
        ),
        digest,
    )


def _lie_about_lengths(access: Access, run: str) -> None:
    """One announces a tebibyte, one less than it sends, one more."""
    frames = {
        "too-large": [pb.ReportFrame(run=run, total_bytes=2**40, data=b"FRR1")],
        "more than announced": [pb.ReportFrame(run=run, total_bytes=10, data=bytes(11))],
        "less than announced": [pb.ReportFrame(run=run, total_bytes=10, data=bytes(9))],
    }
    with open_channel(access) as channel:
        call = channel.stream_unary(
            methods.REPORT.path, pb.ReportFrame.SerializeToString, pb.ReportReply.FromString
        )
        for code, sent in frames.items():
            reply = call(iter(sent), timeout=HANG_S, metadata=((KEY, str(PROTOCOL)),))
            assert (reply.accepted, dict(reply.rejected)) == (
                0,
                {code if code == "too-large" else "malformed": 1},
            )


def _come_as_somebody_else(run: Any, access: Access) -> None:
    """As a server, with a certificate of another authority, and without TLS."""
    with RemoteReleaseEndpoint(access) as endpoint, pytest.raises(RefusedError) as refusal:
        endpoint.close(run.files.job.run, 0)
    assert refusal.value.code == "forbidden"
    elsewhere = run.files.root / "another-authority"
    write_development_certificates(elsewhere, clients=["client-2"])
    own = _access(run, elsewhere, "client-2", ca=access.ca)
    with (
        RemoteReportEndpoint(own, retry=Retry(patience_s=1.0)) as endpoint,
        pytest.raises((RefusedError, UnreachableError)),
    ):
        endpoint.enroll([os.urandom(16)])
    where = Address.of(access.address)
    with socket.create_connection((where.host, where.port)) as plain, suppress(OSError):
        plain.sendall(os.urandom(100_000))


def _access(run: Any, certificates: Path, name: str, *, ca: str = "") -> Access:
    address = json.loads((run.files.state("aggregator") / "address.json").read_text())["address"]
    pair = {
        "certificate": str(certificates / f"client-{name}.pem"),
        "key": str(certificates / f"client-{name}-key.pem"),
    }
    return Access(address, ca=ca or str(certificates / "ca.pem"), **pair)


def _users_of(run: Any, client: str) -> list[bytes]:
    """Their pseudonyms, as if they had leaked."""
    with closing(
        sqlite3.connect(f"file:{run.files.state('aggregator')}/ledger.sqlite?mode=ro", uri=True)
    ) as ledger:
        return [
            token
            for (token,) in ledger.execute("SELECT token FROM users WHERE sender = ?", [client])
        ]
