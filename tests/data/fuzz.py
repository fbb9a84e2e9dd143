"""Fuzzer of all readers: files that are nearly right are read or refused, and nothing else happens.

python -m tests.data.fuzz --minutes 60     # exit code 1, and the inputs, where an error was no ours

Each round takes a good file of a reader, changes bytes, lines or fields of it by a seeded
generator, and reads it by every door that takes such a file. Whatever is raised must descend from
FedRecError. Of Parquet and NPZ the values are changed too, not only their bytes.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
from scipy import sparse

from fedrec.data.behaviors import read_behaviors
from fedrec.data.features import read_records
from fedrec.data.frames import read_frame
from fedrec.data.interactions import Dataset
from fedrec.data.item_tables import frame_of_items, read_item_table
from fedrec.data.news_files import read_mind, read_news
from fedrec.data.public_sources import with_item_vectors, with_similar_items
from fedrec.data.read import read
from fedrec.data.table_batches import row_batches
from fedrec.data.tables import TableOptions, asked_table
from fedrec.encoders.word_vectors import read_vectors
from fedrec.errors import FedRecError
from fedrec.run.data.describing import partition
from fedrec.settings import load, validated
from fedrec_client.clicks import read_clicks

SPECIAL = (
    *(b"\0", b'"', b'""', b"\r", b"\n", b"\r\n", b",", b";", b"\t", b"::", b"|", b" ", b"-", b"+"),
    *(b"\xff", b"\xc3\x28", b"\xef\xbb\xbf", "ä".encode("cp1252"), "\u202e".encode(), b"[", b"{"),
    *(b"NaN", b"inf", b"-inf", b"1e999", b"1e-999", b"null", b"true", b'="0012"', b"472.0"),
    *(b"9223372036854775808", b"-9223372036854775809", b"340282366920938463463374607431768211456"),
    *(b"99999999999999999999999999", b"1E+16", b"4,5", b"1.234,5", b"31.12.2020", b"2020-13-40"),
    *(b"9999-12-31", b"0001-01-01", b"253402300800", b"-1", b"0", b"[[", b"{}", b"\\", b"\\N"),
    *(b"x" * 5_000, b"(" * 300, b"[" * 3_000),
)
VALUES: tuple[object, ...] = (
    *(None, True, 0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 1.5, 472.0, 1e300),
    *(float("nan"), float("inf"), "", "NaN", "a", '="0012"', "\ud7ff", "4,5", b"\xff", [], [1, 2]),
    *({"a": 1}, [None], "x" * 1_000),
)

CLICKS = "user,item,rating,time\n" + "".join(
    f"u{k},i{j},{1 + (k + j) % 5},{1_600_000_000 + 60 * k + j}\n"
    for k in range(6)
    for j in range(4)
)
NEWS = "".join(f"N{n}\tsport\tball\tTitle {n}\tText\t\t[]\t[]\n" for n in range(5))
SHOWN = "".join(
    f"{n}\tU{n % 3}\t11/15/2019 10:{n:02}:32 AM\tN0 N1\tN2-1 N3-0 N4-0\n" for n in range(6)
)
TEXTS: Mapping[str, str] = {
    "log.csv": CLICKS,
    "log.tsv": CLICKS.replace(",", "\t"),
    "log.dat": CLICKS.replace(",", "::"),
    "log.txt": CLICKS.replace(",", ";"),
    "log.jsonl": "".join(
        f'{{"user": "u{k}", "item": {j}, "rating": {1 + j}}}\n' for k in range(4) for j in range(4)
    ),
    "u.data": "".join(f"{k}\t{j}\t{1 + j % 5}\t88{k}\n" for k in range(1, 5) for j in range(1, 5)),
    "ratings.dat": "".join(f"{k}::{j}::{1 + j % 5}::97{k}\n" for k in range(1, 5) for j in (1, 2)),
    "ratings.csv": "userId,movieId,rating,timestamp\n"
    + "".join(f"{k},{j},{1 + j % 4}.5,97{k}\n" for k in range(1, 5) for j in (1, 2)),
    "a.inter": "user_id:token\titem_id:token\tcount:float\n"
    + "".join(f"u{k}\ti{j}\t{j}\n" for k in range(4) for j in range(4)),
    "train.txt": "".join(f"{k} 0 1 {2 + k}\n" for k in range(4)),
}  # fmt: skip
ITEMS = "item,title,genre,price\n" + "".join(f"i{j},Title {j},a|b{j % 2},{j}.5\n" for j in range(4))
LINKS = "item,neighbour,score\ni0,i1,.5\ni1,i2,.25\ni2,i3,1\n"
BESIDE: Mapping[str, tuple[str, str]] = {
    "u.item": (
        "u.data",
        "".join(
            f"{j}|Film {j} (1990)|01-Jan-1990||u|{'0|' * j}1|{'0|' * (17 - j)}0\n"
            for j in range(1, 5)
        ),
    ),
    "movies.dat": (
        "ratings.dat",
        "".join(f"{j}::Film {j} (1990)::Drama|War\n" for j in range(1, 5)),
    ),
    "movies.csv": (
        "ratings.csv",
        "movieId,title,genres\n"
        + "".join(f'{j},"Film, {j} (1990)",Drama|War\n' for j in range(1, 5)),
    ),
    "a.item": (
        "a.inter",
        "item_id:token\tgenre:token_seq\tprice:float\n"
        + "".join(f"i{j}\tg{j} h\t{j}.5\n" for j in range(4)),
    ),
    "metadata.jsonl": (
        "ratings.dat",
        '{"movieId": 1, "plot": "a b"}\n{"movieId": 2, "genre": "x"}\n',
    ),
}
"""Files that are read beside rows: those of which, and a good one."""
OPTIONS: tuple[Mapping[str, object], ...] = (
    {},
    {"rating_range": (1, 5)},
    {"click_threshold": 3},
    {"rating_range": (1, 5), "timestamp": "time", "duplicates": "last", "out_of_range": "drop"},
    {"click_threshold": 2, "duplicates": "sum", "missing": "drop"},
    {"rating_range": (1, 5), "decimal": ",", "timestamp": "time", "time_format": "%d.%m.%Y"},
    {"header": "no"},
    {"separator": "comma", "header": "yes"},
)


@dataclass(frozen=True)
class Failure:
    """An input that raised what is no error of ours."""

    name: str
    door: str
    said: str
    content: bytes


def changed(content: bytes, rng: random.Random) -> bytes:
    """The content with up to four changes."""
    for _ in range(rng.randint(1, 4)):
        lines = content.splitlines(keepends=True) or [b""]
        place = rng.randrange(len(content) + 1)
        n = rng.randrange(len(lines))
        change = rng.randrange(8)
        if change == 0:
            content = content[:place] + rng.choice(SPECIAL) + content[place:]
        elif change == 1:
            content = content[:place] + content[place + rng.randint(1, 9) :]
        elif change == 2:
            content = content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
        elif change == 3:
            content = b"".join([*lines[:n], lines[n] * rng.randint(2, 3), *lines[n + 1 :]])
        elif change == 4:
            content = b"".join([*lines[:n], *lines[n + 1 :]])
        elif change == 5:
            content = content[:place]
        else:  # a field of a line
            mark = rng.choice([b",", b"\t", b";", b"::", b" ", b":"])
            fields = lines[n].split(mark)
            fields[rng.randrange(len(fields))] = rng.choice(SPECIAL)
            lines[n] = mark.join(fields) + (b"" if fields[-1].endswith(b"\n") else b"\n")
            content = b"".join(lines)
    return content


def parquet(rng: random.Random, columns: Mapping[str, list[object]]) -> bytes:
    """A Parquet file of columns of which some are others."""
    own = {name: list(values) for name, values in columns.items()}
    for _ in range(rng.randint(0, 3)):
        name = rng.choice(list(own))
        value = rng.choice(VALUES)
        if rng.random() < 0.5:
            own[name] = [value] * len(own[name])
        else:
            own[name][rng.randrange(len(own[name]))] = value
    with tempfile.TemporaryFile() as file:
        frame = pl.DataFrame(own, strict=False).select(pl.exclude(pl.Object))
        if frame.columns and rng.random() < 0.3:
            kinds = (pl.Float32, pl.Float64, pl.Int8, pl.UInt64, pl.String, pl.Categorical, pl.Date)
            name, kind = rng.choice(frame.columns), rng.choice(kinds)
            with suppress(pl.exceptions.PolarsError):  # no text, say, is made a date
                frame = frame.with_columns(pl.col(name).cast(kind, strict=False))
        frame.write_parquet(file)
        file.seek(0)
        return file.read()


def doors_of(name: str) -> Mapping[str, Callable[[Path, random.Random], object]]:
    """Every door that takes a file of this name."""
    clicks = _clicks()

    def batches(path: Path, rng: random.Random) -> object:
        return list(row_batches(asked_table(path, TableOptions(**rng.choice(OPTIONS)))))  # type: ignore[arg-type]

    def any_format(path: Path, rng: random.Random) -> object:
        options = rng.choice(OPTIONS) if path.suffix in (".csv", ".tsv", ".jsonl") else {}
        return read(path, **options)

    def table(path: Path, rng: random.Random) -> object:
        return read(path, "table", **rng.choice(OPTIONS))

    def links(path: Path, rng: random.Random) -> object:
        return with_similar_items(clicks, path)

    def items(path: Path, rng: random.Random) -> object:
        return read_item_table(path, id_column="item", separator="|")

    def vectors(path: Path, rng: random.Random) -> object:
        return with_item_vectors(clicks, path)

    if name.startswith("items"):
        return {"items": items, "frame": lambda path, _: frame_of_items(path), "links": links}
    if name.startswith("links"):
        return {"links": links}
    if name.startswith("vectors"):
        return {"vectors": vectors}
    if name == "words.vec":
        return {"words": lambda path, _: read_vectors(path, wanted=["Q1", "ball"])}
    if name == "history.csv":
        return {"history": lambda path, _: read_clicks(path)}
    if name in BESIDE:
        beside: Callable[[Path, random.Random], object] = lambda path, _: read(  # noqa: E731
            path.with_name(BESIDE[name][0]), "ml-1m" if name == "movies.dat" else "auto"
        )
        return {"beside": beside} | (
            {"records": lambda path, _: read_records(path)} if name == "metadata.jsonl" else {}
        )
    if name in _parts():
        return {"partitions": lambda path, _: read(path.parent)}
    if name == "scenario.toml":
        return {"scenario": lambda path, _: load(path)}
    if name == "news.tsv":
        return {
            "news": lambda path, _: read_news(path),
            "mind": lambda path, _: read_mind(path.parent),
        }
    if name == "behaviors.tsv":
        return {"mind": lambda path, _: read_mind(path.parent), "rows": _behaviors}
    return {"any": any_format, "table": table, "batches": batches}


@cache
def _parts() -> Mapping[str, bytes]:
    """The files of partitions."""
    with tempfile.TemporaryDirectory() as made:
        log = Path(made) / "log.csv"
        log.write_text(CLICKS)
        (Path(made) / "items.csv").write_text(ITEMS)
        keys = {"path": str(log), "features_path": f"{made}/items.csv", "rating_range": [1, 5]}
        asked = validated({"data": keys}, source="the fuzzer")
        partition(asked, f"{made}/parts", parts=2, resume=False)
        return {file.name: file.read_bytes() for file in sorted(Path(made, "parts").iterdir())}


@cache
def _clicks() -> Dataset:
    return read_frame({"user": ["a", "a", "b"] * 2, "item": [f"i{j % 4}" for j in range(6)]})


def _behaviors(path: Path, rng: random.Random) -> object:
    good = path.with_name("news.tsv")
    good.write_text(NEWS)
    return read_behaviors(path, read_news(good))


def one(folder: Path, rng: random.Random) -> Failure | None:
    """One input by one door."""
    made = _made(rng)
    name, content = made
    for other in folder.iterdir():
        other.unlink()
    if name in ("news.tsv", "behaviors.tsv"):
        (folder / "news.tsv").write_text(NEWS)
        (folder / "behaviors.tsv").write_text(SHOWN)
    if name in BESIDE:
        (folder / BESIDE[name][0]).write_text(TEXTS[BESIDE[name][0]])
    if name in _parts():
        for own, good in _parts().items():
            (folder / own).write_bytes(good)
    (folder / name).write_bytes(content)
    door, read_by = rng.choice(list(doors_of(name).items()))
    try:
        read_by(folder / name, rng)
    except FedRecError as failure:
        if not (failure.cause and failure.remedy):
            return Failure(name, door, f"no remedy: {failure}", content)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a Rust panic is no Exception
        return Failure(name, door, traceback.format_exc(), content)
    return None


def _made(rng: random.Random) -> tuple[str, bytes]:
    rows = [f"u{k}" for k in range(6)], [f"i{j % 4}" for j in range(6)]
    binary: Mapping[str, Callable[[], bytes]] = {
        "log.parquet": lambda: parquet(
            rng, {"user": [*rows[0]], "item": [*rows[1]], "rating": [1.0, 2, 3, 4, 5, 1]}
        ),
        "items.parquet": lambda: parquet(
            rng,
            {"item": [*rows[1][:4]], "title": [*rows[0][:4]], "genre": [["a"], ["b"], [], ["a"]]},
        ),
        "links.parquet": lambda: parquet(rng, {"item": ["i0", "i1"], "other": ["i1", "i2"]}),
        "vectors.parquet": lambda: parquet(
            rng, {"item": ["i0", "i1"], "vector": [[1.0, 2.0], [0.5, 1.0]]}
        ),
        "x_train.npz": lambda: _npz(rng),
    }
    texts = {
        **TEXTS,
        "items.csv": ITEMS,
        "links.csv": LINKS,
        "history.csv": "item,rating,timestamp\ni1,4,1600000000\ni2,3,1600000001\n",
        **{name: good for name, (_, good) in BESIDE.items()},
        "scenario.toml": 'recipe = "default"\n[privacy]\nepsilon = 5\n[data]\npreset = "small"\n',
        "news.tsv": NEWS,
        "behaviors.tsv": SHOWN,
        "words.vec": "Q1\t0.5\t1\nQ2\t1\t2\nball\t0\t-1e-3\n",
    }
    name = rng.choice([*texts, *binary, *_parts()])
    if name in _parts():
        return name, changed(_parts()[name], rng)
    if name in texts:
        return name, changed(texts[name].encode(), rng)
    content = binary[name]()
    return name, changed(content, rng) if rng.random() < 0.2 else content


def _npz(rng: random.Random) -> bytes:
    values = np.array([rng.choice([0, 1, -1, 2.5, np.nan, np.inf, 1e30]) for _ in range(12)])
    with tempfile.TemporaryFile() as file:
        sparse.save_npz(file, sparse.csr_matrix(values.reshape(3, 4).astype(rng.choice("fdiq?"))))
        file.seek(0)
        return file.read()


def failures(seconds: float, seed: int) -> tuple[int, list[Failure]]:
    """How many inputs were tried, and those that failed."""
    rng = random.Random(seed)
    found = dict[str, Failure]()
    tried = 0
    until = time.perf_counter() + seconds
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while time.perf_counter() < until:
            tried += 1
            if failed := one(Path(folder), rng):
                kind = f"{failed.door} {failed.said.splitlines()[-1][:60]}"
                if kind not in found:
                    print(f"--- {failed.name} by {failed.door}: {failed.said}", flush=True)
                found.setdefault(kind, failed)
    return tried, list(found.values())


def main() -> int:
    """The command."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--minutes", type=float, default=1.0)
    asked.add_argument("--seed", type=int, default=1)
    chosen = asked.parse_args()
    tried, found = failures(60 * chosen.minutes, chosen.seed)
    print(f"{tried:,} inputs, {len(found)} kinds of errors that are not ours")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
