"""An idle client.

What a real `fedrec client` holds at rest, over mutual TLS, after it has joined a run with one
person's ratings: a server and an aggregator as in deployment.
Taken while the worker is there, which holds the data and the ledger and answers, and after it has
ended because nothing was asked (`idle_s` of the client's settings). Resident memory counts pages
that two processes share twice; "together" counts every page once, from the kernel's own tables,
which only root may read: 0 elsewhere. Allowed at rest, together: 150 MB.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks import nodes
from benchmarks.measuring import memory_mb
from benchmarks.parties import CLIENTS, aggregator, started
from benchmarks.results import Row, Tables
from fedrec.transport.channel import Access

_NAME = CLIENTS[0]
_WORKER = "fedrec_client.worker_main"
_PAGE = os.sysconf("SC_PAGE_SIZE")


def run(*, quick: bool) -> Tables:
    """Megabytes by process, with the worker and at rest. `quick` rests for a second.

    Raises RuntimeError where the client does not join.
    """
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        ways, _ = stack.enter_context(aggregator(folder))
        server, pipe = started(nodes.serve, folder, [_NAME], 86_400.0, daemon=False)
        stack.callback(server.join)
        stack.callback(server.terminate)
        settings = _settings(folder, ways[_NAME], server=pipe.recv())
        client = subprocess.Popen(
            [sys.executable, "-m", "fedrec.cli", "client", "--settings", str(settings)]
        )
        stack.callback(client.wait)
        stack.callback(client.send_signal, signal.SIGTERM)
        log = folder / "client.jsonl"
        _until(lambda: log.exists() and "joined" in log.read_text(), client, "the client joins")
        pids = {"client": client.pid}
        [worker] = _children(client.pid, _WORKER)
        answering = _held({**pids, "worker": worker})
        _until(lambda: not _children(client.pid, _WORKER), client, "the worker ends")
        time.sleep(1.0 if quick else 30.0)
        resting = _held(pids)
    rows: list[Row] = [{"when": "answering", **answering}, {"when": "at rest", **resting}]
    return {"Resident MB": rows}


def _settings(folder: Path, way: Access, *, server: str) -> Path:
    ratings = "".join(f"me,item{number or ''},{1 + number % 5}\n" for number in range(100))
    (folder / "ratings.csv").write_text("user,item,rating\n" + ratings)
    keys = f'certificate = "{way.certificate}"\nkey = "{way.key}"\n'
    path = folder / "client.toml"
    path.write_text(
        f'name = "{_NAME}"\nstate = "client"\nlog = "client.jsonl"\nidle_s = 5.0\n'
        f'[data]\npath = "ratings.csv"\nrating_range = [1, 5]\n'
        f'[privacy]\nmax_epsilon = "inf"\n'
        f'[aggregator]\naddress = "{way.address}"\nca = "{way.ca}"\n{keys}'
        f'[server]\naddress = "{server}"\nca = "{way.ca}"\n{keys}'
    )
    return path


def _until(condition: Callable[[], bool], client: subprocess.Popen[bytes], what: str) -> None:
    end_s = time.monotonic() + 120.0
    while not condition():
        if client.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"never: {what}")
        time.sleep(0.05)


def _held(pids: Mapping[str, int]) -> Row:
    parts = ("client", "worker")
    mb = {name: memory_mb(pids[name]) if name in pids else None for name in parts}
    return {**mb, "together": together_mb(list(pids.values()))}


def _children(parent: int, program: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if int(fields[1]) == parent and program in command:
            found.append(int(path.name))
    return found


def together_mb(pids: Sequence[int]) -> float:
    """Memory of all pages that any of these processes has, each counted once; 0 where the kernel
    does not tell."""
    return len(np.unique(np.concatenate([_frames(pid) for pid in pids]))) * _PAGE / 2**20


def _frames(pid: int) -> npt.NDArray[np.uint64]:
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
