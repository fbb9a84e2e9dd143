"""The table of docs/data.md: what each source of data makes of each key of a scenario.

python -m tests.data.door_table     # writes the table into docs/data.md

A cell is found by reading: a tiny source of its kind is read without the key and with it, by a
value that must change what is read. `used`: it did. `refused`: an error names the key. What is
neither is `ignored`, which no cell may be.
"""

from __future__ import annotations

import atexit
import hashlib
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
from scipy import sparse

import fedrec
from fedrec.api import recommender, running
from fedrec.data.frames import read_frame
from fedrec.data.interactions import Dataset, Provenance
from fedrec.data.news_tables import write_news
from fedrec.data.partitions import open_partitions, read_partitions
from fedrec.errors import FedRecError, SettingsError
from fedrec.run.data.datasets import beside, load_dataset, load_split
from fedrec.run.data.describing import partition
from fedrec.run.data.news import catalogue_of, load_news
from fedrec.run.partitions.parts import Parts
from fedrec.settings import Scenario, validated
from fedrec.settings_tables import nested

BEGIN, END = "<!-- keys by source: python -m tests.data.door_table -->", "<!-- end -->"
PAGE = Path(__file__).parents[2] / "docs" / "data.md"
Row = tuple[str, str, str, str]
USERS, ITEMS, START = 12, 6, 1_600_000_000
ROWS: list[Row] = [
    (str(k), str(j), str(1 + (2 * k + j) % 5), str(START + 25_200 * (k * 5 + j * 3)))
    for k in range(1, USERS + 1)
    for j in range(1, ITEMS + 1)
    if (k + j) % 4
]
TROUBLES: Mapping[str, Callable[[list[Row]], list[Row]]] = {
    "": lambda rows: rows,
    "fewer": lambda rows: rows[:-5],
    "double": lambda rows: [*rows, (*rows[0][:2], str(1 + int(rows[0][2]) % 5), rows[0][3])],
    "off": lambda rows: [(*rows[0][:2], "11", rows[0][3]), *rows[1:]],
    "missing": lambda rows: [(*rows[0][:2], "", rows[0][3]), *rows[1:]],
    "comma": lambda rows: [(*row[:2], f"{row[2]},0", row[3]) for row in rows],
    "dates": lambda rows: [(*row[:3], f"{1 + n % 28:02}.03.2020") for n, row in enumerate(rows)],
}
"""Rows that only a key makes readable, or by which it shows."""


def _delimited(separator: str, header: bool = True) -> Callable[[list[Row]], str]:
    def written(rows: list[Row]) -> str:
        quoted = [[f'"{cell}"' if separator in cell else cell for cell in row] for row in rows]
        others = [
            [
                str(ITEMS + 1 - int(row[1])),
                f"{USERS + 1 - int(row[0])}",
                str(1 + n % 5),
                str(START + n),
            ]
            for n, row in enumerate(rows)
        ]
        more = [[*row, *other] for row, other in zip(quoted, others, strict=True)]
        names = ["user", "item", "rating", "when", "what", "who", "stars", "at"]
        return "".join(separator.join(row) + "\n" for row in [*([names] * header), *more])

    return written


def _bare(rows: list[Row]) -> str:
    """Without a header, and with too few numbers for a row to be known by them."""
    return "".join(f"u{row[0]},i{row[1]},{row[2]}\n" for row in rows)


def _json(rows: list[Row]) -> str:
    names, *texts = _delimited("|")(rows).splitlines()
    own = [dict(zip(names.split("|"), text.split("|"), strict=True)) for text in texts]
    return pl.DataFrame(own).write_ndjson()


def _lists(rows: list[Row]) -> str:
    users = dict.fromkeys(row[0] for row in rows)
    return "".join(
        f"{user} {' '.join(row[1] for row in rows if row[0] == user)}\n" for user in users
    )


FIXED: Mapping[str, Callable[[list[Row]], str]] = {
    "u.data": lambda rows: "".join("\t".join(row) + "\n" for row in rows),
    "ratings.dat": lambda rows: "".join("::".join(row) + "\n" for row in rows),
    "ratings.csv": lambda rows: (
        "userId,movieId,rating,timestamp\n" + "".join(",".join(row) + "\n" for row in rows)
    ),
    "a.inter": lambda rows: (
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\t"
        "what:token\twho:token\tstars:float\tat:float\n" + _delimited("\t", header=False)(rows)
    ),
    "train.txt": _lists,
    "log.csv": _delimited(","),
    "log.tsv": _delimited("\t"),
    "log.jsonl": _json,
}
FILMS = {
    "u.data": ("u.item", "".join(f"{j}|Film {j} (1990)|01-Jan-1990||u|{'0|' * j}1|{'0|' * (17 - j)}0\n"
                                 for j in range(1, ITEMS + 1))),
    "ratings.dat": ("movies.dat", "".join(f"{j}::Film {j} (199{j})::Drama\n" for j in range(1, ITEMS + 1))),
    "ratings.csv": ("movies.csv", "movieId,title,genres\n" + "".join(f"{j},Film {j} (199{j}),Drama\n" for j in range(1, ITEMS + 1))),
    "a.inter": ("a.item", "item_id:token\tgenre:token\twhat:token\n" + "".join(f"{j}\tg{j % 3}\t{ITEMS + 1 - j}\n" for j in range(1, ITEMS + 1))),
}  # fmt: skip
"""Public items beside the rows, so that data.features = false has something to leave out."""


RANGE = {"data.rating_range": [1, 5]}


@dataclass(frozen=True)
class Door:
    """A source of data. make: writes it into a folder, of rows with a trouble, and returns the keys
    that it needs. read: what a scenario makes of it. file: how public users may be written beside
    it. tables: of a scenario that it reads."""

    name: str
    make: Callable[[Path, str], dict[str, Any]]
    read: Callable[[Scenario], Any]
    file: str = "log.csv"
    tables: tuple[str, ...] = ("data", "split", "collective")


def _events(scenario: Scenario) -> Any:
    dataset = load_dataset(scenario)
    return dataset, load_split(scenario, dataset)


def _of_file(name: str, **base: Any) -> Callable[[Path, str], dict[str, Any]]:
    def make(folder: Path, trouble: str) -> dict[str, Any]:
        written = FIXED[name]
        if name.startswith("log.") and name != "log.jsonl":
            written = {"caret": _delimited("^"), "bare": _bare}.get(trouble, written)
        path = folder / name
        path.write_text(written(TROUBLES.get(trouble, TROUBLES[""])(ROWS)))
        if films := FILMS.get(name):
            (folder / films[0]).write_text(films[1])
        return {"data.path": str(path), **base}

    return make


def _parquet(folder: Path, trouble: str) -> dict[str, Any]:
    made = _of_file("log.csv")(folder, trouble if trouble in TROUBLES else "")
    frame = pl.read_csv(made["data.path"], infer_schema=trouble not in ("comma", "dates"))
    frame.write_parquet(folder / "log.parquet")
    return {"data.path": str(folder / "log.parquet"), "data.rating_range": [1, 5]}


def _divided(folder: Path, trouble: str) -> dict[str, Any]:
    _of_file("log.csv")(folder, trouble)
    log = folder / "log.csv"
    header, *rows = log.read_text().splitlines(keepends=True)
    log.unlink()
    names = [header] * (trouble != "bare")
    if trouble == "bare":
        rows = [header, *rows]
    for part, some in (
        ("train", [row for n, row in enumerate(rows) if n % 5]),
        ("test", rows[::5]),
    ):
        (folder / f"{part}.csv").write_text("".join([*names, *some]))
    return {"data.path": str(folder), "data.rating_range": [1, 5], "split.kind": "given"}


def _npz(folder: Path, trouble: str) -> dict[str, Any]:
    rows = TROUBLES.get(trouble, TROUBLES[""])(ROWS)
    users, items = ([int(row[n]) for row in rows] for n in (0, 1))
    values = [float(row[2].replace(",", ".") or "nan") for row in rows]
    sparse.save_npz(
        folder / "x_train.npz",
        sparse.coo_matrix((np.array(values), (np.array(users), np.array(items)))),
    )
    return {"data.path": str(folder / "x_train.npz")}


def _partitions(folder: Path, trouble: str) -> dict[str, Any]:
    items = _write(folder / "features.csv", FEATURES)
    more = {**RANGE, "data.features_path": items, "data.columns.timestamp": "when"}
    partition(
        _scenario(_of_file("log.csv", **more)(folder, "")),
        str(folder / "parts"),
        parts=2,
        resume=False,
    )
    return {"data.path": str(folder / "parts")}


def _over_parts(scenario: Scenario) -> Any:
    parts = Parts(scenario)
    parts.require_usable()
    return parts.public(), [parts.read(n) for n in range(2)]


def _made_parts(scenario: Scenario) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        partition(scenario, f"{folder}/parts", parts=2, resume=False)
        data = open_partitions(f"{folder}/parts")
        return read_partitions(Path(folder) / "parts"), [data.read_part(n) for n in range(2)]


@cache
def _in_memory() -> Dataset:
    rows = {name: [row[n] for row in ROWS] for n, name in enumerate(("user", "item", "rating"))}
    frame = pl.DataFrame(rows).with_columns(pl.col("rating").cast(pl.Float64))
    items = {
        "item": [str(j) for j in range(1, ITEMS + 1)],
        "genre": [f"g{j % 3}" for j in range(ITEMS)],
    }
    return read_frame(frame, rating_range=(1, 5), items=items)


def _beside(scenario: Scenario) -> Any:
    content = {table: {key: getattr(getattr(scenario, table), key)
                       for key in getattr(scenario, table).model_fields_set}
               for table in ("data", "split", "collective")}  # fmt: skip
    given = fedrec.Dataset(_in_memory())
    with mock.patch.object(running, "run", side_effect=_EnoughError) as run, suppress(_EnoughError):
        fedrec.simulate(scenario.recipe, given, settings=content)
    resolved = run.call_args.args[0]
    dataset = beside(run.call_args.kwargs["given"], resolved)
    return dataset, load_split(resolved, dataset)


def _fitted(scenario: Scenario) -> Any:
    """The data that `fit` would train on."""
    said = {
        f"{table}.{key}": getattr(getattr(scenario, table), key)
        for table in ("data", "split", "collective")
        for key in getattr(scenario, table).model_fields_set
    }
    model = fedrec.MatrixFactorization(epsilon=1, noise="seeded", settings=said)
    facts = mock.patch.object(recommender, "public_facts", side_effect=_EnoughError)
    with facts as asked, suppress(_EnoughError):
        model.fit(fedrec.Dataset(_in_memory()))
    return asked.call_args.args[1].features, asked.call_args.args[2]


class _EnoughError(Exception):
    """What was asked for is known."""


def _news(scenario: Scenario) -> Any:
    data = load_news(scenario)
    return data, catalogue_of(scenario, data)


def _mind(folder: Path, trouble: str) -> dict[str, Any]:
    users = [f"u{k}" for k in range(60)]
    items = [f"n{j}" for j in range(6)]
    articles = {"item": items, "title": [f"word{j} other" for j in range(6)]}
    shown = [
        (f"{day}{user}", user, f"2026-01-0{day}", item, int(j == (day + k) % 6))
        for day in (1, 2, 3)
        for k, user in enumerate(users)
        for j, item in enumerate(items)
    ]
    log = pl.DataFrame(
        shown, schema=["impression", "user", "time", "item", "clicked"], orient="row"
    )
    write_news(pl.DataFrame(articles), log, folder / "news", cuts=("2026-01-02", "2026-01-03"))
    if trouble == "unknown":
        for file in (folder / "news").rglob("news.tsv"):
            file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    return {"recipe": "privaterec", "data.format": "mind", "data.path": str(folder / "news"),
            "split.kind": "given"}  # fmt: skip


def _click_log(folder: Path, trouble: str) -> dict[str, Any]:
    rows = [
        (str(k), str(j), "5", str(START + 997 * j + k))
        for k in range(1, 41)
        for j in range(1, 121)
        if not (7 * k + j) % 3
    ]
    made = {"data.path": _write(folder / "ratings.csv", FIXED["ratings.csv"](rows))}
    films = "".join(f"{j},Film name{j} (199{j % 10}),Drama\n" for j in range(1, 121))
    _write(folder / "movies.csv", f"movieId,title,genres\n{films}")
    return {**made, "recipe": "privaterec", "data.format": "click-log"}


DOORS = (
    Door("CSV", _of_file("log.csv", **RANGE), _events),
    Door("TSV", _of_file("log.tsv", **RANGE), _events),
    Door("JSON lines", _of_file("log.jsonl", **RANGE), _events),
    Door("Parquet", _parquet, _events),
    Door("train.csv and test.csv", _divided, _events),
    Door("ml-100k", _of_file("u.data", **{"data.format": "ml-100k"}), _events, "u.data"),
    Door("ml-1m", _of_file("ratings.dat", **{"data.format": "ml-1m"}), _events, "ratings.dat"),
    Door("ml-10m", _of_file("ratings.dat", **{"data.format": "ml-10m"}), _events, "ratings.dat"),
    Door("ml-20m", _of_file("ratings.csv", **{"data.format": "ml-20m"}), _events, "ratings.csv"),
    Door("recbole", _of_file("a.inter", **RANGE), _events, "a.inter"),
    Door(
        "clicks-lists",
        _of_file("train.txt", **{"data.format": "clicks-lists"}),
        _events,
        "train.txt",
    ),
    Door("clicks-npz", _npz, _events, "train.txt"),
    Door("partitions", _partitions, _events, "u.data"),
    Door("run over partitions", _partitions, _over_parts, "u.data"),
    Door(
        "data partition", _of_file("log.csv", **RANGE), _made_parts, tables=("data", "collective")
    ),
    Door("planted", lambda folder, trouble: {"data.preset": "small"}, _events, "u.data"),
    Door("Dataset, simulate", lambda folder, trouble: {}, _beside, "u.data"),
    Door("Dataset, fit", lambda folder, trouble: {}, _fitted, "u.data"),
    Door("mind", _mind, _news),
    Door("click-log", _click_log, _news),
    Door(
        "planted-news",
        lambda folder, trouble: {
            "recipe": "privaterec",
            "data.format": "planted-news",
            "data.preset": "small",
        },
        _news,
    ),
)

FEATURES = "item,title,genre\n" + "".join(
    f"{j},Other{j % 3} name,h{j % 2}\n" for j in range(1, ITEMS + 1)
)
PLOTS = "".join(f'{{"movieId": {j}, "director": "d{j % 2}"}}\n' for j in range(1, ITEMS + 1))


def _write(path: Path, content: str) -> str:
    path.write_text(content)
    return str(path)


def _vectors(folder: Path, _: Door) -> str:
    frame = {
        "item": [str(j) for j in range(1, ITEMS + 1)],
        "x": [float(j * j % 5) for j in range(ITEMS)],
    }
    pl.DataFrame(frame).write_parquet(folder / "vectors.parquet")
    return str(folder / "vectors.parquet")


def _others(users: int, odd: bool = False) -> list[Row]:
    """Rows of pairs that ROWS leaves out. users: added to the numbers of theirs."""
    return [
        (str(k + users), str(j), str(1 + (users // 1000 + j) % 5), str(START + 11 * k + j))
        for k in range(1, USERS + 1)
        for j in range(1, ITEMS + 1)
        if not (k + j) % 4 and (users or j % 2 == odd)
    ]


@dataclass(frozen=True)
class Key:
    """A key, and values of which one must change what is read of rows with this trouble. beside:
    what else is said, with the key and without it; the first that makes a difference counts. fails: whether an error
    shows that the key was used, as of a format that the file does not have."""

    name: str
    values: tuple[Any, ...]
    trouble: str = ""
    beside: tuple[Mapping[str, Any], ...] = ()
    label: str = ""
    fails: bool = False


def _people(ids: int) -> Callable[[Path, Door], str]:
    """Rows of public users in the door's own form. ids: added to the numbers of theirs."""

    def make(folder: Path, door: Door) -> str:
        (own := folder / f"{door.name}-{ids}").mkdir(exist_ok=True)
        return _write(own / door.file, FIXED[door.file](_others(ids)))

    return make


def _links(content: str) -> Callable[[Path, Door], str]:
    return lambda folder, _: _write(
        folder / f"links{len(content)}.csv", f"item,neighbour\n{content}"
    )


def _csv(name: str) -> Callable[[Path, Door], str]:
    return lambda folder, _: _write(folder / name, _delimited(",")(_others(0, name == "test.csv")))


SIDES = {"collective.sides": ["metadata", "public-users"]}
PUBLIC = {**SIDES, "collective.users_file": _people(1000)}
NUMBERED = {**PUBLIC, "collective.users_ids": "separate"}
LINKED = {"recipe": "dp-cmf", "collective.sides": ["metadata", "similar-items"],
          "collective.similar_file": _links("1,2\n")}  # fmt: skip
KEYS = (
    Key("data.path", (_csv("another.csv"),), fails=True),
    Key("data.format", ("recbole", "partitions", "ml-100k"), fails=True),
    Key("data.validation", (_csv("other.csv"),), beside=({"data.test": _csv("test.csv")},)),
    Key("data.test", (_csv("test.csv"),)),
    Key("data.features_path", (lambda folder, _: _write(folder / "features.csv", FEATURES), lambda folder, _: _write(folder / "plots.jsonl", PLOTS))),
    Key("data.similar_items", (_links("1,2\n2,3\n4,5\n"),)),
    Key("data.item_vectors", (_vectors,)),
    Key("data.features", (False,), beside=({}, {"data.item_vectors": _vectors})),
    Key("data.features", (False,), beside=(PUBLIC,), label="data.features beside public users"),
    Key("data.kind", ("clicks", "ratings")),
    Key("data.click_threshold", (3.0,), beside=({"data.kind": "clicks"},)),
    Key("data.click_threshold", (3.0,), label="data.click_threshold alone"),
    Key("data.columns.user", ("who",)),
    Key("data.columns.item", ("what",)),
    Key("data.columns.rating", ("stars",)),
    Key("data.columns.timestamp", ("at",)),
    Key("data.columns.usr", ("who",)),
    Key("data.separator", ("^",), "caret"),
    Key("data.header", ("no",), "bare"),
    Key("data.rating_range", ([0, 9],)),
    Key("data.duplicates", ("last", "refuse"), "double", fails=True),
    Key("data.out_of_range", ("drop",), "off"),
    Key("data.missing", ("drop",), "missing"),
    Key("data.decimal", (",",), "comma"),
    Key("data.time_format", ("%d.%m.%Y",), "dates", ({"data.columns.timestamp": "when"},)),
    Key("data.keep_users", (8,)),
    Key("data.keep_items", (4,)),
    Key("data.unknown_news", ("add",), "unknown"),
    Key("data.preset", ("demo",)),
    Key("data.planted", ({"users": 40, "items": 12, "events": 300},)),
    Key("split.kind", ("held-out-users", "temporal")),
    Key("split.seed", (5,)),
    Key("split.cuts", ([START + 700_000, START + 1_200_000],), beside=({"split.kind": "temporal", "data.columns.timestamp": "when"}, {"split.kind": "temporal"})),
    Key("split.validation_share", (0.3,), beside=({"split.kind": "given"},)),
    Key("collective.users_file", (_people(2000),), beside=(PUBLIC, NUMBERED)),
    Key("collective.users_share", (0.4,), beside=({**SIDES, "collective.users_share": 0.2},)),
    Key("collective.users_format", ("clicks-npz", "ml-100k"), beside=(PUBLIC, NUMBERED), fails=True),
    Key("collective.users_ids", ("separate",), beside=({**SIDES, "collective.users_file": _people(0)},)),
    Key("collective.similar_file", (_links("1,2\n2,3\n4,5\n"),), beside=(LINKED,)),
)  # fmt: skip


def _scenario(keys: Mapping[str, Any]) -> Scenario:
    return validated(nested(keys), source="the walk")


def print_of(value: Any) -> str:
    """A digest of all values within; what only tells where they were read is left out."""
    digest = hashlib.sha256()

    def take(one: Any) -> None:
        if isinstance(one, Provenance | Path):
            return
        if isinstance(one, np.ndarray):
            digest.update(f"{one.dtype}{one.shape}".encode() + np.ascontiguousarray(one).tobytes())
        elif sparse.issparse(one):
            rows: Any = one
            for part in (rows.indptr, rows.indices, rows.data):
                take(part)
        elif is_dataclass(one):
            for own in fields(one):
                if own.name not in ("columns", "untold", "not_covered", "report", "title", "name"):
                    digest.update(own.name.encode())
                    take(getattr(one, own.name))
        elif isinstance(one, Mapping):
            for key in sorted(one, key=str):
                digest.update(str(key).encode())
                take(one[key])
        elif isinstance(one, Sequence) and not isinstance(one, str | bytes):
            for own in one:
                take(own)
        else:
            digest.update(repr(one).encode())

    take(value)
    return digest.hexdigest()


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fedrec-doors-"))
    atexit.register(shutil.rmtree, folder)
    return folder


@cache
def _made(door: Door, trouble: str) -> tuple[Path, dict[str, Any]]:
    """A folder for further files, and the keys of the source."""
    (folder := _folder() / f"{door.name}-{trouble}").mkdir()
    (folder / "other").mkdir()
    return folder / "other", door.make(folder, trouble)


_SEEN = dict[str, tuple[str, FedRecError | None]]()


def _outcome(door: Door, keys: Mapping[str, Any]) -> tuple[str, FedRecError | None]:
    """What was read, as a digest; or nothing and why."""
    asked = f"{door.name} {sorted(keys.items())}"
    if asked not in _SEEN:
        try:
            _SEEN[asked] = print_of(door.read(_scenario(keys))), None
        except FedRecError as failure:
            _SEEN[asked] = "", failure
    return _SEEN[asked]


def cell(door: Door, key: Key) -> str:
    """`used`, `refused` or what was seen in their place."""
    whole = "data.columns" if key.name.startswith("data.columns") else key.name
    word = re.compile(rf"\b({key.name.rpartition('.')[2]}|{whole})\b")
    seen = list[str]()
    folder, made = _made(door, key.trouble)
    given: Callable[[Any], Any] = lambda value: value(folder, door) if callable(value) else value  # noqa: E731
    own = {**made}
    if key.name == "data.planted":
        own.pop("data.preset", None)
    tried = {str(more): more for more in (*key.beside, {})}
    for more in tried.values():
        plain = {**{name: given(value) for name, value in more.items()}, **own}
        before, _ = _outcome(door, plain)
        for value in key.values:
            after, why = _outcome(door, {**plain, key.name: given(value)})
            said = "" if why is None else f"{why.cause} {why.remedy}"
            if after and after != before:
                return "used"
            if isinstance(why, SettingsError) and word.search(said):
                return "refused"
            if why is not None and before and key.fails:
                return "used"
            seen.append(said or "ignored")
    return "; ".join(seen)


@cache
def column(door: Door) -> dict[str, str]:
    """All cells of a door, by what is said of the key."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            key.label or key.name: cell(door, key)
            for key in KEYS
            if key.name.partition(".")[0] in door.tables
        }


def table() -> str:
    """A row for each source, or for several that are alike, with the keys that it uses."""
    rows = dict[str, list[str]]()
    names = {key.name for key in KEYS if not key.label}
    for door in DOORS:
        used = [name for name, found in column(door).items() if found == "used" and name in names]
        spoken = dict[str, list[str]]()
        for name in used:
            place, _, last = name.rpartition(".")
            spoken.setdefault(place, []).append(last)
        words = "; ".join(f"`{place}.` {', '.join(last)}" for place, last in spoken.items())
        rows.setdefault(words, []).append(door.name)
    lines = [f"| {', '.join(doors)} | {words} |" for words, doors in rows.items()]
    return "\n".join(["| source | keys that it uses |", "| --- | --- |", *lines])


def page() -> str:
    """docs/data.md with the table of today."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())
