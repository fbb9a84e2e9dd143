"""Bundles of random numbers, and a real `fedrec serve` in a process of its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.errors import RunError
from fedrec.serving import bundle
from fedrec.serving.bundle import Texts
from fedrec.serving.user_map import UserMap

CATEGORIES = ("crime", "drama", "news", "war")
_STOP_S = 30.0


@dataclass(frozen=True)
class Shape:
    """m items of width D, asked for with B coefficients."""

    items: int = 10_677
    width: int = 64
    coefficients: int = 32

    @property
    def name(self) -> str:
        """In tables."""
        return f"{self.items:,} x {self.width}"

    @property
    def mb(self) -> float:
        """The item vectors, in MB of 2^20 bytes: what the model is, for memory."""
        return self.items * self.width * 4 / 2**20


def random_bundle(path: Path, shape: Shape, *, seed: int) -> str:
    """Write a bundle of standard normal numbers, each category on half of the items; returns its
    version. Nobody can ask with it."""
    rng = np.random.default_rng(seed)
    m = shape.items
    D = shape.width
    B = shape.coefficients
    names = Texts.of([f"{j}" for j in range(m)])
    linear = rng.standard_normal((B, D)) / math.sqrt(B)
    arrays: dict[str, npt.NDArray[Any]] = {
        **UserMap.of_linear(linear, rng.standard_normal(D) / 4).arrays(),
        **{
            f"{text}.{part}": array
            for text in ("ids", "titles")
            for part, array in vars(names).items()
        },
        "items": rng.standard_normal((m, D), dtype=np.float32),
        "bias": rng.standard_normal(m, dtype=np.float32),
        "categories": rng.integers(0, 2 ** len(CATEGORIES), m, dtype=np.uint64),
        "rows": np.zeros((0, B), np.int32),
        "mean": np.zeros(B),
        "covariance": np.eye(B),
    }
    about = bundle.About(
        name=f"random {seed}",
        family="clicks",
        form="attention",
        history=50,
        sensitivity=1.0,
        delta=1e-5,
        categories=CATEGORIES,
        training={"epsilon": "inf"},
        noise="seeded",
        fedrec="0",
    )
    return bundle.write(path, about, arrays)


@dataclass(frozen=True)
class Served:
    """A server that listens. grpc, metrics: host:port, http: URL."""

    process: subprocess.Popen[str]
    version: str
    grpc: str
    http: str
    log: Path
    metrics: str

    def errors(self) -> list[str]:
        """Lines of its log that tell of a defect."""
        return [
            line
            for line in self.log.read_text().splitlines()
            if '"level":"error"' in line or "Traceback" in line
        ]

    def stop(self) -> int:
        """Told to stop as a service manager does; its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(_STOP_S)
        finally:
            self.process.kill()


@contextmanager
def served(path: Path, folder: Path, settings: Sequence[str] = ()) -> Iterator[Served]:
    """`fedrec serve` of a bundle on free ports; settings: lines of its file beyond the addresses.

    Raises RunError if it does not listen."""
    file = folder / "serving.toml"
    log = folder / "serving.log"
    addresses = [f'{name} = "127.0.0.1:0"' for name in ("grpc", "http", "metrics")]
    file.write_text("\n".join([*addresses, 'state = "."', *settings]))
    program = [sys.executable, "-m", "fedrec.cli", "serve", str(path), "--demo"]
    with (
        open(log, "w") as errors,
        subprocess.Popen(
            [*program, "--settings", str(file)], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout
            lines = [process.stdout.readline() for _ in range(3)]
            told = dict(line.split() for line in lines if line)
            if set(told) != {"model", "grpc", "http"}:
                raise RunError(
                    f"the server did not start: {log.read_text()[-500:]}",
                    "Run fedrec serve with the same bundle to see why.",
                )
            metrics = json.loads((folder / "serving.json").read_text())["metrics"]
            yield Served(process, told["model"], told["grpc"], told["http"], log, metrics)
        finally:
            process.kill()
