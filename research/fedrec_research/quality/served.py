"""A real `fedrec serve` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedrec.errors import RunError


@dataclass(frozen=True)
class Served:
    """A server that listens at `grpc`, host:port, with the model `version`."""

    version: str
    grpc: str


@contextmanager
def served(path: Path, folder: Path, settings: Sequence[str] = ()) -> Iterator[Served]:
    """Serve a bundle on a free port; settings: more lines of the server's file.

    Raises RunError if it does not listen."""
    file = folder / "serving.toml"
    log = folder / "serving.log"
    file.write_text("\n".join(['grpc = "127.0.0.1:0"', 'http = "127.0.0.1:0"', *settings]))
    words = ["-m", "fedrec.cli", "serve", str(path), "--demo", "--settings", str(file)]
    program = [sys.executable, *words]
    with (
        open(log, "w") as errors,
        subprocess.Popen(program, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout
            lines = (process.stdout.readline() for _ in range(3))
            told = dict(line.split() for line in lines if line)
            if set(told) != {"model", "grpc", "http"}:
                raise RunError(
                    f"the server did not start: {log.read_text()[-500:]}",
                    "Run fedrec serve with the same bundle to see why.",
                )
            yield Served(told["model"], told["grpc"])
        finally:
            process.kill()
