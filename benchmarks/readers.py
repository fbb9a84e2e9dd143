"""Readers.

Time and memory to read and check whole files of 10 million rows (MovieLens-10M's shape, planted) in
every format, each in a process of its own. The goal is 10 s and 2 GB.

Reading and a random split of 80/10/10, beside what a user of Polars alone would write: columns
read, each part of a shuffle sorted by user and item. That neither checks ids, values and repeated
pairs nor numbers users and items. Processor time of all threads.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from scipy import sparse

from benchmarks.results import Row, Tables
from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, PlantedShape, generate_chunks

# in a fresh interpreter, so that the peak is the reader's own
_MEASURE = """
import json, sys, time
from benchmarks.measuring import memory_mb
from fedrec.data.read import read
path, format, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
before, started, used = memory_mb(peak=True), time.perf_counter(), time.process_time()
rows = len(read(path, format, **options).interactions)
seconds, cpu = time.perf_counter() - started, time.process_time() - used
memory = {"peak_mb": memory_mb(peak=True), "mb_before": before}
print(json.dumps({"rows": rows, "seconds": seconds, "processor_s": cpu, **memory}))
"""
_SPLIT = """
import json, sys, time
from benchmarks.measuring import memory_mb
import fedrec
import polars as pl
path, format, options, form = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
fedrec.Dataset  # what fedrec loads when it is first used
started, used = time.perf_counter(), time.process_time()
if form == "fedrec":
    options["time"] = options.pop("timestamp", None)
    fedrec.Dataset.from_file(path, format=format, **options).split("random", seed=1)
else:
    if path.endswith("parquet"):
        rows = pl.read_parquet(path)
    elif format == "ml-1m":  # "::": every second column is empty
        rows = pl.read_csv(path, separator=":", has_header=False)[:, ::2]
    else:
        rows = pl.read_csv(path)
    rows = rows.sample(fraction=1.0, shuffle=True, seed=1)
    for first, last in ((0.0, 0.8), (0.8, 0.9), (0.9, 1.0)):
        part = rows[int(first * len(rows)) : int(last * len(rows))]
        part.sort(rows.columns[:2])
seconds, cpu = time.perf_counter() - started, time.process_time() - used
print(json.dumps({"seconds": seconds, "processor_s": cpu, "peak_mb": memory_mb(peak=True)}))
"""
_SPLIT_TOO = ("ml-1m", "table", "table (parquet)")
_NAMES: dict[str, object] = {
    **{name: name for name in ("user", "item", "rating", "timestamp")},
    "rating_range": [0.5, 5.0],
}


_TEXTS: tuple[tuple[str, str, str, str, dict[str, object]], ...] = (
    ("ml-100k/u.data", "ml-100k", "\t", "", {}),
    ("ml-1m/ratings.dat", "ml-1m", "::", "", {}),
    ("ml-10m/ratings.dat", "ml-10m", "::", "", {}),
    ("ml-20m/ratings.csv", "ml-20m", ",", "userId,movieId,rating,timestamp", {}),
    ("csv/log.csv", "table", ",", "user,item,rating,timestamp", _NAMES),
    (
        "recbole/log.inter",
        "recbole",
        "\t",
        "user_id:token\titem_id:token\trating:float\ttimestamp:float",
        {"rating_range": [0.5, 5.0]},
    ),
)
"""Files of lines: where, format, separator, header, and options of reading."""


def run(*, quick: bool) -> Tables:
    """A row for each format; Linux only."""
    shape = SHAPES["ml10m"]
    if quick:
        rows = 10_000
        ratings = {"value_range": (0.5, 5.0), "step": 0.5}
        shape = PlantedShape(users=rows // 140, items=10_677, events=rows, **ratings)  # type: ignore[arg-type]
    files = list[Row]()
    splits = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for path, name, options in _files(Path(folder), shape):
            files.append({"format": name, **_of_process(_MEASURE, path, name, options)})
            if name in _SPLIT_TOO:
                splits.append(_split(path, name, options, 1 if quick else 3))
            path.unlink()
    return {"Files": files, "Read and split, beside Polars alone": splits}


def _split(path: Path, name: str, options: dict[str, object], number: int) -> Row:
    """Medians of so many turns, in which both alternate; `over_polars` is of processor time."""
    turns = [
        {form: _of_process(_SPLIT, path, name, options, form) for form in ("fedrec", "polars")}
        for _ in range(number)
    ]
    row: Row = {"format": name}
    for form in turns[0]:
        for what in turns[0][form]:
            row[f"{form}_{what}"] = statistics.median(turn[form][what] for turn in turns)
    return row | {"over_polars": row["fedrec_processor_s"] / row["polars_processor_s"]}


def _of_process(
    code: str, path: Path, name: str, options: dict[str, object], *more: str
) -> dict[str, float]:
    format = name.partition(" ")[0]
    command = [sys.executable, "-c", code, str(path), format, json.dumps(options), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _files(folder: Path, shape: PlantedShape) -> Iterator[tuple[Path, str, dict[str, object]]]:
    """One after the other: each is read before the next is written."""
    for file, format, separator, header, options in _TEXTS:
        _write_text(folder / file, shape, separator, header, whole=format in {"ml-100k", "ml-1m"})
        yield folder / file, format, options
    chunks = generate_chunks(shape, seed=1, events_per_chunk=shape.events)
    events = next(chunks).interactions
    columns = (events.users, events.items, events.values, events.times)
    pl.DataFrame(dict(zip(_NAMES, columns, strict=False))).write_parquet(folder / "log.parquet")
    yield folder / "log.parquet", "table (parquet)", _NAMES
    _write_lists(folder / "train.txt", events)
    yield folder / "train.txt", "clicks-lists", {}
    ones = np.ones(len(events), np.float32)
    matrix = sparse.csr_matrix(
        (ones, events.items, events.user_ptr), shape=(events.num_users, events.num_items)
    )
    sparse.save_npz(folder / "train.npz", matrix)
    yield folder / "train.npz", "clicks-npz", {}


def _write_text(
    path: Path, shape: PlantedShape, separator: str, header: str, *, whole: bool
) -> None:
    """Rows with the separator between; Polars writes one-byte separators, so empty columns make the
    second byte of `::`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        if header:
            file.write(header.encode() + b"\n")
        for chunk in generate_chunks(shape, seed=1):
            events = chunk.interactions
            stars = np.maximum(np.floor(events.values), 1.0).astype(np.int64)
            columns = {
                "user": events.users + chunk.first_user + 1,
                "item": events.items + 1,
                "rating": stars if whole else events.values,
                "time": events.times,
            }
            frame = pl.DataFrame(columns)
            order = list(columns)
            if len(separator) == 2:
                empty = {f"before {name}": pl.lit(None, dtype=pl.String) for name in order[1:]}
                frame = frame.with_columns(**empty)
                order = ["user", *(each for name in order[1:] for each in (f"before {name}", name))]
            frame.select(order).write_csv(file, separator=separator[0], include_header=False)


def _write_lists(path: Path, events: Interactions) -> None:
    with path.open("w") as file:
        for user, items in enumerate(np.split(events.items, events.user_ptr[1:-1])):
            file.write(" ".join(map(str, [user, *items.tolist()])) + "\n")
