"""What does a client hold at rest? A real `fedrec client` with its SuperNode, over mutual TLS,
after it has joined a run.

One person's ratings, a proxy, a SuperLink and an aggregator as in deployment. Taken while the
worker is there, which holds the data and the ledger and answers, and after it has ended because
nothing was asked (`idle_s` of the client's settings). Resident memory counts pages that two
processes share twice; `together_mb` counts every page once, from the kernel's own tables, which
only root may read: 0 elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.storage import read_json
from fedrec.transport.channel import Access
from fedrec_simulations.bench import intake, nodes
from fedrec_simulations.experiments.rows import table

ALLOWED_MB = 150.0
_NAME = intake.CLIENTS[0]
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PATIENCE_S = 120.0


def run(*, quick: bool = False) -> dict[str, Any]:
    """Megabytes by process, with the worker and at rest. `quick` rests for a second, for tests of
    the wiring.

    Raises RuntimeError where the client does not join.
    """
    rest_s = 1.0 if quick else 30.0
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        access, _ = stack.enter_context(intake.running(folder))
        here, there = intake.SPAWN.Pipe()
        server = intake.SPAWN.Process(
            target=nodes.serve, args=(folder, [_NAME], 86_400.0, 1, there)
        )
        server.start()
        there.close()
        stack.callback(server.join)
        stack.callback(server.terminate)
        settings = _settings(folder, access[_NAME], proxy=here.recv(), idle_s=5.0)
        client = subprocess.Popen(
            [sys.executable, "-m", "fedrec.cli", "client", "--settings", str(settings)]
        )
        stack.callback(client.wait)
        stack.callback(client.send_signal, signal.SIGTERM)
        _until(lambda: "joined" in _log(folder), client, "the client joins")
        [worker] = _children(client.pid, "fedrec_client.worker_main")
        most = intake.peak_mb(worker)
        working = _held(folder, client.pid, {"worker": worker})
        _until(
            lambda: not _children(client.pid, "fedrec_client.worker_main"),
            client,
            "the worker ends",
        )
        time.sleep(rest_s)
        resting = _held(folder, client.pid, {})
    return {
        "allowed_mb": ALLOWED_MB,
        "answering": working,
        "worker_peak_mb": most,
        "at_rest": resting,
        "rest_seconds": rest_s,
    }


def _settings(folder: Path, aggregator: Access, *, proxy: str, idle_s: float) -> Path:
    ratings = "".join(f"me,item{number or ''},{1 + number % 5}\n" for number in range(100))
    (folder / "ratings.csv").write_text("user,item,rating\n" + ratings)
    keys = f'certificate = "{aggregator.certificate}"\nkey = "{aggregator.key}"\n'
    path = folder / "client.toml"
    path.write_text(
        f'name = "{_NAME}"\nstate = "client"\nlog = "client.jsonl"\nidle_s = {idle_s}\n'
        f'[data]\npath = "ratings.csv"\nrating_range = [1, 5]\n'
        f'[privacy]\nmax_epsilon = "inf"\n[aggregator]\naddress = "{aggregator.address}"\nca = '
        f'"{aggregator.ca}"\n{keys}'
        f'[superlink]\naddress = "{proxy}"\nroot_certificates = "{aggregator.ca}"\n{keys}'
    )
    return path


def _log(folder: Path) -> str:
    path = folder / "client.jsonl"
    return path.read_text() if path.exists() else ""


def _until(condition: Any, client: subprocess.Popen[bytes], what: str) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not condition():
        if client.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"never: {what}")
        time.sleep(0.05)


def _held(folder: Path, client: int, others: dict[str, int]) -> dict[str, Any]:
    pids = {
        "client": client,
        "supernode": int(read_json(folder / "client" / "client.json")["supernode_pid"]),
        **others,
    }
    return {
        "mb": {name: nodes.resident_mb(pid) for name, pid in pids.items()},
        "together_mb": together_mb(list(pids.values())),
    }


def _children(parent: int, program: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields, command = (
                (path / "stat").read_text().rpartition(")")[2].split(),
                (path / "cmdline").read_bytes(),
            )
        except OSError:
            continue
        if int(fields[1]) == parent and program in command.decode(errors="replace"):
            found.append(int(path.name))
    return found


def together_mb(pids: Sequence[int]) -> float:
    """Memory of all pages that any of these processes has, each counted once; 0 where the kernel
    does not tell."""
    frames = [_frames(pid) for pid in pids]
    return len(np.unique(np.concatenate(frames))) * _PAGE / 2**20


def _frames(pid: int) -> Any:
    """Numbers of the pages of memory that are present in a process (kernel:
    Documentation/admin-guide/mm/pagemap.rst)."""
    found = [np.empty(0, np.uint64)]
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pages:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            first, last = (int(end, 16) // _PAGE for end in line.split()[0].split("-"))
            try:
                pages.seek(8 * first)
                entries = np.frombuffer(pages.read(8 * (last - first)), np.uint64)
            except (OSError, OverflowError):  # the kernel's own page at the end
                continue
            present = entries[(entries >> np.uint64(63)) == 1] & np.uint64(2**55 - 1)
            found.append(present[present > 0])
    return np.concatenate(found)


def markdown(result: dict[str, Any]) -> str:
    """For docs/benchmarks.md."""
    lines = []
    for name in ("client", "supernode", "worker"):
        cells = (result[when]["mb"].get(name) for when in ("answering", "at_rest"))
        lines.append([name, *("–" if mb is None else f"{mb:,.0f}" for mb in cells)])
    together = [result[when]["together_mb"] for when in ("answering", "at_rest")]
    lines.append(["together, each page once", *(f"{mb:,.0f}" if mb else "–" for mb in together)])
    head = ("resident MB", "with its worker, after it joined", "at rest")
    return f"{table(head, lines)}\n\nAllowed at rest: {result['allowed_mb']:.0f} MB."
