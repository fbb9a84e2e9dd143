"""Processor time and memory of processes that should be small.

Each is a command of its own, on a model of 500 random items (serving), of planted "small" ratings
(`fedrec recommend`), or without any: `fedrec --help`; `fedrec serve` to its first answer over
HTTP and `fedrec aggregator` until it listens, both still running; `fedrec recommend` to its list,
ranked by the device and by the server; a light device, from its imports on. Processor
seconds and the most resident memory of that process; the model's certificate is verified by a
child, which is not counted. Least of three, compiled code warm; beside them a Python that imports
NumPy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

from benchmarks.measuring import memory_mb, processor_s
from benchmarks.results import Row, Tables
from benchmarks.serving_load import message
from benchmarks.serving_process import Shape, random_bundle, served
from fedrec.operations.certificates import write_development_certificates
from fedrec.serving.bundle import FILE

_TURNS = 3
_LOOK_S = 0.005
_PYTHON = (sys.executable, "-c")
_FEDREC = (sys.executable, "-m", "fedrec.cli")
_FIT = """
import fedrec, sys
ratings = fedrec.Dataset.planted("small")
fedrec.MatrixFactorization(epsilon=5, delta=1e-5).fit(ratings).save(sys.argv[1])
"""
_AGGREGATOR = """
listen = "127.0.0.1:0"
state = "state"
servers = ["server"]
any_client = true
tls = { certificate = "aggregator.pem", key = "aggregator-key.pem", client_ca = "ca.pem" }
privacy = { max_epsilon = 5.0, delta = 1e-5 }
"""


def run(*, quick: bool) -> Tables:
    """A row for each process. quick: one turn."""
    turns = 1 if quick else _TURNS
    with TemporaryDirectory(prefix="fedrec-small-") as name:
        folder = Path(name)
        model = folder / "model"
        subprocess.run([*_PYTHON, _FIT, str(model)], check=True, capture_output=True)
        history = folder / "history.txt"
        history.write_text("1\n2\n3\n")
        shape = Shape(500, 16, 8)
        bundle = folder / "random"
        bundle.mkdir()
        random_bundle(bundle / FILE, shape, seed=1)
        write_development_certificates(folder, clients=["client"])
        rows = [
            _row("python -c 'import numpy'", lambda: _ended([*_PYTHON, "import numpy"]), turns),
            _row("fedrec --help", lambda: _ended([*_FEDREC, "--help"]), turns),
            _row("fedrec serve", lambda: _served(bundle, shape), turns),
            _row("fedrec aggregator", lambda: _aggregator(folder), turns),
            _row("light device", lambda: _ended([*_PYTHON, "import fedrec_client.device"]), turns),
        ]
        with served(model, folder) as server:
            ask = [*_FEDREC, "recommend", "--server", server.http, "--history", str(history)]
            for via in ("device", "server"):
                state = ["--via", via, "--state", str(folder / via), "--limit", "1000"]
                _ended([*ask, *state])  # the bundle is fetched once
                command = [*ask, *state]
                name = f"fedrec recommend --via {via}"
                rows.append(_row(name, partial(_ended, command), turns))
    return {"To the first answer": rows}


def _row(name: str, once: Callable[[], tuple[float, float]], turns: int) -> Row:
    seconds, mb = (min(column) for column in zip(*(once() for _ in range(turns)), strict=True))
    return {"process": name, "processor_s": seconds, "peak_mb": mb}


def _ended(command: Sequence[str]) -> tuple[float, float]:
    """Processor seconds and peak of a command that ends by itself."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak_mb = 0.0
    while True:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        # not of `used`: Linux hands that down from the parent
        peak_mb = max(peak_mb, memory_mb(process.pid, peak=True))
        time.sleep(_LOOK_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return used.ru_utime + used.ru_stime, peak_mb


def _served(folder: Path, shape: Shape) -> tuple[float, float]:
    with served(folder, folder) as server:
        numbers = [0.5] * shape.coefficients
        body = message("http", server.version, numbers, 10).partition(b"\r\n\r\n")[2]
        with urlopen(Request(f"{server.http}/v1/recommend", body, method="POST")) as answer:
            answer.read()
        return processor_s(server.process.pid), memory_mb(server.process.pid, peak=True)


def _aggregator(folder: Path) -> tuple[float, float]:
    file = folder / "aggregator.toml"
    file.write_text(_AGGREGATOR)
    told = folder / "state" / "address.json"
    told.unlink(missing_ok=True)
    command = [*_FEDREC, "aggregator", "--settings", str(file)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        try:
            while not told.exists():
                assert process.poll() is None, command
                time.sleep(0.01)
            return processor_s(process.pid), memory_mb(process.pid, peak=True)
        finally:
            process.kill()
