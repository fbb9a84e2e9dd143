"""Processor time of what a new installation does first.

Processor time of processes, children included, each with an empty folder for compiled code (numba's
and fedrec's own): the first `MatrixFactorization.fit` on planted "small" ratings, the README's ten
lines of Python on the table of docs/examples/made_up.py, and `fedrec demo`. Beside each the same
process again, which finds what the first one compiled. Medians of three, all within one run.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.results import Row, Tables

_ROOT = Path(__file__).parents[1]
_TURNS = 3
_FIT = """
import fedrec

ratings = fedrec.Dataset.planted("small")
fedrec.MatrixFactorization(epsilon=5, delta=1e-5).fit(ratings)
"""


def run(*, quick: bool) -> Tables:
    """One row for each thing that is done first. quick: the fit alone, once."""
    readme = re.search("```python\n(.+?)```", (_ROOT / "README.md").read_text(), re.DOTALL)
    assert readme
    done = {
        'MatrixFactorization.fit, planted "small"': [sys.executable, "-c", _FIT],
        "the README's ten lines": [sys.executable, "-c", readme.group(1)],
        "fedrec demo": [sys.executable, "-m", "fedrec.cli", "demo"],
    }
    if quick:
        done = dict([next(iter(done.items()))])
    rows = list[Row]()
    for name, command in done.items():
        turns = [_first_and_second(command) for _ in range(1 if quick else _TURNS)]
        first, second = (statistics.median(column) for column in zip(*turns, strict=True))
        rows.append({"what": name, "first_s": first, "second_s": second})
    return {"Processor seconds": rows}


def _first_and_second(command: list[str]) -> tuple[float, float]:
    with TemporaryDirectory(prefix="fedrec-first-") as folder:
        subprocess.run(
            [sys.executable, str(_ROOT / "docs/examples/made_up.py")],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        home = {
            "HOME": folder,
            "XDG_CACHE_HOME": f"{folder}/cache",
            "NUMBA_CACHE_DIR": f"{folder}/numba",
        }
        return _processor_s(command, folder, home), _processor_s(command, folder, home)


def _processor_s(command: list[str], folder: str, home: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=os.environ | home, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
