"""How fast the readers are: files of a given number of rows in every format, each parsed in a
process of its own.

`run(rows)` writes the files in a temporary folder (MovieLens-10M's shape at 10 million rows), reads
each with `fedrec.data.read` and reports seconds and the process's peak memory. The goal is 10 s and
2 GB at 10 million rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from scipy import sparse

from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, PlantedShape, generate_chunks

# In a fresh interpreter, so that the peak is the reader's own. VmHWM, not ru_maxrss: Linux hands
# the latter down from the parent.
_MEASURE = """
import json, re, sys, time
from fedrec.data.read import read
def peak_mb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024
path, format, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
before, started, used = peak_mb(), time.perf_counter(), time.process_time()
data = read(path, format, **options)
seconds, cpu = time.perf_counter() - started, time.process_time() - used
rows = len(data.interactions)
memory = {"peak_rss_mb": peak_mb(), "rss_before_mb": before}
print(json.dumps({"rows": rows, "seconds": seconds, "cpu_seconds": cpu, **memory}))
"""
_NAMES: dict[str, object] = {
    "user": "user",
    "item": "item",
    "rating": "rating",
    "timestamp": "timestamp",
    "rating_range": [0.5, 5.0],
}
ROWS = 10_000_000
"""MovieLens-10M's number of ratings; a tenth of a percent of it where it is only a smoke test."""


@dataclass(frozen=True)
class Case:
    """One file to write and read: where, in which format, with which separator and header, at which
    whole-star rounding."""

    file: str
    format: str
    separator: str
    header: str = ""
    whole_stars: bool = False
    options: dict[str, object] = field(default_factory=dict)


_CASES = (
    Case("ml-100k/u.data", "ml-100k", "\t", whole_stars=True),
    Case("ml-1m/ratings.dat", "ml-1m", "::", whole_stars=True),
    Case("ml-10m/ratings.dat", "ml-10m", "::"),
    Case("ml-20m/ratings.csv", "ml-20m", ",", "userId,movieId,rating,timestamp"),
    Case("csv/log.csv", "table", ",", "user,item,rating,timestamp", options=_NAMES),
    Case(
        "recbole/log.inter",
        "recbole",
        "\t",
        "user_id:token\titem_id:token\trating:float\ttimestamp:float",
        options={"rating_range": [0.5, 5.0]},
    ),
)


def run(*, quick: bool = False) -> dict[str, dict[str, float]]:
    """Format name to `rows`, `seconds`, `cpu_seconds`, `peak_rss_mb` and `rss_before_mb`
    (interpreter and libraries). Linux only."""
    shape, rows = SHAPES["ml10m"], ROWS // 1000 if quick else ROWS
    if rows < shape.events:
        shape = PlantedShape(
            users=max(20, rows // 140), items=10_677, events=rows, value_range=(0.5, 5.0), step=0.5
        )
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in _CASES:
            path = Path(folder) / case.file
            _write_text(path, shape, case)
            results[case.format] = _measure(path, case.format, case.options)
            path.unlink()
        results["table (parquet)"] = _measure(
            _write_parquet(Path(folder) / "log.parquet", shape), "table", _NAMES
        )
        results["clicks-lists"] = _measure(
            _write_lists(Path(folder) / "train.txt", shape), "clicks-lists", {}
        )
        results["clicks-npz"] = _measure(
            _write_matrix(Path(folder) / "train.npz", shape), "clicks-npz", {}
        )
    return results


def _measure(path: Path, format: str, options: dict[str, object]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path), format, json.dumps(options)],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: round(float(value), 3) for name, value in json.loads(done.stdout).items()}


def _write_text(path: Path, shape: PlantedShape, case: Case) -> None:
    """Rows with the separator between; Polars writes one-byte separators, so empty columns make the
    second byte of `::`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        if case.header:
            file.write(case.header.encode() + b"\n")
        for chunk in generate_chunks(shape, seed=1):
            events = chunk.interactions
            ratings = (
                np.maximum(np.floor(events.values), 1.0).astype(np.int64)
                if case.whole_stars
                else events.values
            )
            columns = {
                "user": events.users + chunk.first_user + 1,
                "item": events.items + 1,
                "rating": ratings,
                "time": events.times,
            }
            between = (
                {f"between_{name}": pl.lit(None, dtype=pl.String) for name in columns}
                if len(case.separator) == 2
                else {}
            )
            frame = pl.DataFrame(columns).with_columns(**between)
            order = [
                n
                for name in columns
                for n in ([f"between_{name}"] if between and name != "user" else []) + [name]
            ]
            frame.select(order).write_csv(file, separator=case.separator[0], include_header=False)


def _whole(shape: PlantedShape) -> Interactions:
    return next(generate_chunks(shape, seed=1, events_per_chunk=shape.events)).interactions


def _write_parquet(path: Path, shape: PlantedShape) -> Path:
    events = _whole(shape)
    pl.DataFrame(
        {
            "user": events.users,
            "item": events.items,
            "rating": events.values,
            "timestamp": events.times,
        }
    ).write_parquet(path)
    return path


def _write_lists(path: Path, shape: PlantedShape) -> Path:
    events = _whole(shape)
    with path.open("w") as file:
        for k, items in enumerate(np.split(events.items, events.user_ptr[1:-1])):
            file.write(" ".join(map(str, [k, *items.tolist()])) + "\n")
    return path


def _write_matrix(path: Path, shape: PlantedShape) -> Path:
    events = _whole(shape)
    shape_of = (events.num_users, events.num_items)
    sparse.save_npz(
        path,
        sparse.csr_matrix(
            (np.ones(len(events), np.float32), events.items, events.user_ptr), shape=shape_of
        ),
    )
    return path
