"""From a Parquet file of 35,000 clicks to a private list in three commands: processor time and words.

    python tests/release/three_commands.py [--fedrec COMMAND]

Only the first command is written here. Each of the others is what the one before printed last. The
words are all that the three commands print, and the section of README.md that a person needs.
Processor time is cold: kernels are compiled in a folder of this run. Prints one JSON object, and
ends with 1 where the words are too many or the list is not of ten. Processor time is printed beside
what is asked of a quiet machine, and decides nothing: it is as much the machine's as the code's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

ROOT = Path(__file__).parents[2]
ASKED_CPU_S = 15.0
MOST_WORDS = 300


def clicks(users: int, *, each: int = 10, items: int = 400, seed: int = 1) -> pl.DataFrame:
    """Columns who, film and day: people of four tastes, of which they leave one time in ten."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), each)
    taste = np.where(rng.random(len(user)) < 0.9, user % 4, rng.integers(0, 4, len(user)))
    film = taste * (items // 4) + np.minimum(rng.geometric(0.05, len(user)) - 1, items // 4 - 1)
    days = rng.integers(0, 365, len(user))
    return pl.DataFrame({"user_id": user, "film": film, "day": days})


def section(title: str) -> str:
    """A section of README.md, with its heading."""
    text = (ROOT / "README.md").read_text()
    return f"## {title}" + text.partition(f"## {title}")[2].partition("\n## ")[0]


def child_cpu_s() -> float:
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Person:
    """Who types what was printed. said: everything printed so far."""

    def __init__(self, fedrec: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._fedrec = shlex.split(fedrec)
        self._folder = folder
        self._environment = dict(environment)
        self.said = ""

    def typed(self, line: str) -> list[str]:
        """Words of a command line."""
        return [*self._fedrec, *shlex.split(line)[1:]]

    def run(self, line: str) -> str:
        """Its output. Raises SystemExit with it where the command fails."""
        done = subprocess.run(
            self.typed(line),
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{line}\n{done.stdout}{done.stderr}")
        self.said += done.stdout + done.stderr
        return done.stdout

    def serve(self, line: str, then: str) -> tuple[subprocess.Popen[str], str]:
        """The process, and the first line with the words `then`."""
        free = " --http 127.0.0.1:0 --grpc 127.0.0.1:0"
        with open(self._folder / "serve.log", "w") as log:
            process = subprocess.Popen(
                self.typed(line + free),
                cwd=self._folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        for printed in process.stdout:
            self.said += printed
            if then in printed:
                return process, printed.strip()
        raise SystemExit(f"{line}\n{(self._folder / 'serve.log').read_text()}")


def next_of(out: str) -> str:
    """The command that the last line names."""
    return out.strip().splitlines()[-1].removeprefix("next").strip()


def way(fedrec: str, folder: Path) -> dict[str, object]:
    """Everything measured of the three commands."""
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "80"}
    environment["NUMBA_CACHE_DIR"] = str(folder / "kernels")
    person = Person(fedrec, folder, environment)
    clicks(3_500).write_parquet(folder / "clicks.parquet")
    before = child_cpu_s()
    out = person.run("fedrec train clicks.parquet --item film -o films")
    server, ask = person.serve(next_of(out), "fedrec recommend")
    try:
        (folder / "read.txt").write_text("1\n4\n7\n")
        listed = person.run(ask)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    person.said += (folder / "serve.log").read_text()
    sys.stderr.write(person.said)
    rows = [line for line in listed.splitlines() if line[:4].strip().isdigit()]
    return {
        "cpu_s": round(child_cpu_s() - before, 2),
        "words_printed": len(person.said.split()),
        "words_of_page": len(section("Your own table in commands").split()),
        "listed": len(rows),
    }


def main() -> int:
    """One command line, see the module."""
    parser = argparse.ArgumentParser(description="Three commands from a table to a private list.")
    parser.add_argument("--fedrec", default=f"{sys.executable} -m fedrec.cli", metavar="COMMAND")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = way(asked.fedrec, Path(folder))
    words = sum(int(str(found[name])) for name in ("words_printed", "words_of_page"))
    fits = words <= MOST_WORDS and found["listed"] == 10
    print(json.dumps({**found, "cpu_s_asked": ASKED_CPU_S, "words": words, "fits": fits}))
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
