"""Data sets in partitions by user: Parquet files that any process reads on its own, and a manifest
with their digests.

    DIR/partitions.json   DIR/items.parquet   DIR/part-00000.parquet   DIR/part-00001.parquet   ...

A part has a row for each of its users: `number` among all users, `id`, `word` (the hash of the id,
by which splits are drawn), and lists `items` (numbers of the catalogue, ascending), `values` of
ratings and `times` where there are any; lists `test_*` and `validation_*` where the source came
divided. A user is in one part, by a hash of the id, so that parts are random samples of the users,
each the same whoever else is in the data. DIR is a folder, or a URL of any file system that fsspec
knows (`s3://bucket/data`).
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import sparse

from fedrec.arrays import Int64s
from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.frame_files import parquet_of
from fedrec.data.ids import person_id
from fedrec.data.interactions import (
    Catalogue,
    Dataset,
    FileDigest,
    Interactions,
    Provenance,
    ReadReport,
)
from fedrec.data.keyed_hash import Words, hashed, id_words
from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import DataError, require
from fedrec.storage import PRIVATE, bounded_bytes, parsed_json, write_bytes

MANIFEST = "partitions.json"
ITEMS = "items.parquet"
MOST_BYTES = 4 << 30
"""Of a manifest or a table of items: a hundred million short ids."""
FORMAT = "fedrec-partitions/1"
_PART_KEY = b"fedrec/1/parts  "
_REMEDY = "Make the folder again with fedrec data partition."
GIVEN = ("test", "validation")
"""Prefixes of the columns of a source's own test and validation events."""


@dataclass(frozen=True)
class Place:
    """A folder of this machine, or of a file system that fsspec knows by its URL."""

    root: str

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return "://" not in self.root

    def read(self, name: str, most_bytes: int) -> bytes:
        """Raises DataError where the file is not there, larger, or cannot be read."""
        try:
            if self.is_local:
                return bounded_bytes(Path(self.root) / name, most_bytes)
            with _fsspec().open(self._url(name), "rb") as file:
                content: bytes = file.read(most_bytes + 1)
                if len(content) > most_bytes:
                    raise OSError(f"it has more than {most_bytes:,} bytes")
                return content
        except OSError as failure:
            raise DataError(
                f"{self._url(name)} cannot be read: {failure.strerror or failure}", _REMEDY
            ) from None

    def write(self, name: str, content: bytes) -> None:
        """Whole or not at all: on this machine by a rename, in an object store because objects are.

        On this machine for its user alone, as raw rows are. Raises OSError."""
        if self.is_local:
            Path(self.root).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes(Path(self.root) / name, content, mode=PRIVATE)
            return
        with _fsspec().open(self._url(name), "wb") as file:
            file.write(content)

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        if self.is_local:
            return (Path(self.root) / name).is_file()
        fs, path = _fsspec().core.url_to_fs(self._url(name))
        return bool(fs.exists(path))

    def _url(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"


def _fsspec() -> Any:
    require("store", "a path with ://")
    return import_module("fsspec")


@dataclass(frozen=True)
class PartFile:
    """One part: its file's name, how many users and events (of all kinds) it has, its size, and its
    SHA-256."""

    name: str
    users: int
    events: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """The users of one part: their numbers among all, and their events; `test` and `validation`
    where the source came divided."""

    numbers: Int64s
    events: Interactions
    test: Interactions | None
    validation: Interactions | None

    @property
    def size_bytes(self) -> int:
        """Memory of its arrays."""
        parts = [part for part in (self.events, self.test, self.validation) if part is not None]
        return sum(
            12 * len(part)
            + (8 * len(part) if part.times is not None else 0)
            + 8 * len(part.user_ptr)
            for part in parts
        )


@dataclass(frozen=True)
class PartitionedData:
    """A data set whose events lie in parts; what is public of it is in memory.

    parts: the files, in the order of their names. timed: whether events have times. given: which of
    `GIVEN` the source came with.
    """

    place: Place
    kind: Kind
    value_range: tuple[float, float]
    num_users: int
    item_ids: tuple[str, ...]
    titles: tuple[str, ...] | None
    features: PublicFeatures
    item_words: Words
    parts: tuple[PartFile, ...]
    provenance: Provenance
    timed: bool
    given: tuple[str, ...]

    @property
    def num_items(self) -> int:
        """Items of the catalogue."""
        return len(self.item_ids)

    @property
    def events(self) -> int:
        """Number of events of all parts."""
        return sum(part.events for part in self.parts)

    def read_part(self, index: int) -> Part:
        """The users of one part.

        Raises DataError where the file is missing, damaged, or not the one that the manifest
        describes, and where somebody in it would be counted twice."""
        return self._part(index)[0]

    def _part(self, index: int) -> tuple[Part, tuple[str, ...]]:
        file = self.parts[index]
        place = f"{self.place.root}/{file.name}"
        frame = _frame(self.place.read(file.name, file.size_bytes), file.sha256, place)
        try:
            self._require_people(frame, index)
            words = frame["word"].to_numpy()
            events = self._events(frame, "", words)
            given = {name: self._events(frame, f"{name}_", words) for name in self.given}
            every = [events, *given.values()]
            keys = [one.users.astype(np.int64) * self.num_items + one.items for one in every]
            if len(np.unique(np.concatenate(keys))) < sum(map(len, every)):
                raise ValueError("an event is in two of its parts")
            counts = len(frame), sum(map(len, every))
            if counts != (file.users, file.events):
                raise ValueError(f"{counts} users and events, not {(file.users, file.events)}")
        except ValueError as failure:
            raise DataError(f"{place} is not as the format says: {failure}", _REMEDY) from None
        ids = tuple(frame["id"].to_list())
        return Part(frame["number"].to_numpy(), events, *map(given.get, GIVEN)), ids

    def _require_people(self, frame: pl.DataFrame, index: int) -> None:
        """What is read is recomputed: whoever wrote a part, nobody in it counts twice.

        Raises ValueError, DataError."""
        rated = {"values": pl.List(pl.Float32)} if KINDS[self.kind].rated else {}
        timed = {"times": pl.List(pl.Int64)} if self.timed else {}
        events = {"items": pl.List(pl.Int32), **rated, **timed}
        columns: dict[str, Any] = {"number": pl.Int64, "id": pl.String, "word": pl.UInt64}
        for prefix in ("", *(f"{name}_" for name in self.given)):
            columns |= {f"{prefix}{name}": kind for name, kind in events.items()}
        if dict(frame.schema) != columns or any(frame.null_count().row(0)):
            raise ValueError(f"its columns are not {', '.join(columns)} without missing values")
        ids = frame["id"].to_list()
        looks = [person_id(name) for name in ids]
        own = part_of(id_words(looks), len(self.parts)) == index
        hashed_alike = id_words(ids) == frame["word"].to_numpy()
        if not (own.all() and hashed_alike.all()) or len(set(looks)) < len(looks):
            raise DataError(
                f"{self.place.root}/{self.parts[index].name} has a person of another part, or one "
                "twice: who is counted twice pays twice what the guarantee says",
                _REMEDY,
            )
        numbers = frame["number"]
        if numbers.n_unique() < len(ids) or not numbers.is_between(0, self.num_users - 1).all():
            raise ValueError("the numbers of its users are not each another one of all")

    def _events(self, frame: pl.DataFrame, prefix: str, words: Words) -> Interactions:
        lengths = frame[f"{prefix}items"].list.len()
        for name in {f"{prefix}{name}" for name in ("items", "values", "times")} & {*frame.columns}:
            if not (frame[name].list.drop_nulls().list.len() == lengths).all():
                raise ValueError(f"not each event of a person has one of {name}")
        ptr = np.concatenate([[0], np.cumsum(lengths.to_numpy().astype(np.int64))]).astype(np.int64)
        some = frame.filter(lengths > 0)
        items = (
            some[f"{prefix}items"].explode().to_numpy().astype(np.int32)
            if len(some)
            else np.zeros(0, np.int32)
        )
        rated = KINDS[self.kind].rated and len(some)
        values = (
            some[f"{prefix}values"].explode().to_numpy().astype(np.float32)
            if rated
            else np.ones(len(items), np.float32)
        )
        times = None
        if self.timed:
            times = (
                some[f"{prefix}times"].explode().to_numpy().astype(np.int64)
                if len(some)
                else np.zeros(0, np.int64)
            )
        users = np.repeat(np.arange(len(frame), dtype=np.int64), np.diff(ptr))
        if len(items) and not (int(items.min()) >= 0 and int(items.max()) < self.num_items):
            raise ValueError("items outside the catalogue")
        if (np.diff(users * self.num_items + items) <= 0).any():
            raise ValueError("the items of a person do not rise")
        low, high = (np.float32(end) for end in self.value_range)
        if rated and not ((values >= low) & (values <= high)).all():
            raise ValueError(f"values outside the scale from {low:g} to {high:g}")
        return Interactions(
            ptr,
            items,
            values,
            self.num_items,
            self.value_range,
            self.kind,
            times,
            words,
            self.item_words,
        )

    def whole(self) -> Dataset:
        """Everything in memory, users in the order of their numbers: the data set that was
        partitioned."""
        read = [self._part(index) for index in range(len(self.parts))]
        order = np.argsort(np.concatenate([part.numbers for part, _ in read]), kind="stable")
        ids = [name for _, names in read for name in names]
        whole = [_joined([part.events for part, _ in read], order)]
        for name in GIVEN:
            whole_given = [getattr(part, name) for part, _ in read]
            whole.append(_joined(whole_given, order) if name in self.given else None)  # type: ignore[arg-type]
        events, test, validation = whole
        catalogue = Catalogue(self.item_ids, self.titles, tuple(ids[k] for k in order))
        return Dataset(events, catalogue, self.features, self.provenance, test, validation)


def _joined(parts: Sequence[Interactions], order: npt.NDArray[np.integer]) -> Interactions:
    first = parts[0]
    ends = np.concatenate([[0], *(np.diff(part.user_ptr) for part in parts)])
    joined = Interactions(
        np.cumsum(ends).astype(np.int64),
        np.concatenate([part.items for part in parts]),
        np.concatenate([part.values for part in parts]),
        first.num_items,
        first.value_range,
        first.kind,
        None if first.times is None else np.concatenate([np.asarray(part.times) for part in parts]),
        np.concatenate([np.asarray(part.user_words) for part in parts]),
        first.item_words,
    )
    return joined.users_subset(order)


def is_partitioned(path: str | Path) -> bool:
    """Whether a manifest is there."""
    return Place(str(path)).exists(MANIFEST)


def read_partitions(path: Path) -> Dataset:
    """The whole data set of a folder of partitions, in memory.

    Raises DataError where a file is missing or damaged."""
    return open_partitions(str(path)).whole()


def open_partitions(path: str) -> PartitionedData:
    """What the manifest and the table of items say; no part is read.

    Raises DataError where one is missing or damaged."""
    place = Place(path)
    content = place.read(MANIFEST, MOST_BYTES)
    try:
        told = parsed_json(content)
        if told["format"] != FORMAT:
            raise ValueError(f"format {told['format']!r}, expected {FORMAT!r}")
        parts = tuple(PartFile(**part) for part in told["parts"])
        items = _frame(place.read(ITEMS, MOST_BYTES), told["items_sha256"], f"{path}/{ITEMS}")
        made = told["provenance"]
        files = tuple(FileDigest(**file) for file in made["files"])
        report = made["report"]
        provenance = Provenance(
            made["format"],
            files,
            ReadReport(**report | {"notes": tuple(report["notes"])}),
            tuple(made["not_covered"]),
        )
        ids = tuple(items["id"].to_list())
        titles = tuple(items["title"].to_list()) if "title" in items.columns else None
        bags = {
            bag["name"]: _bag(items, number, tuple(bag["vocabulary"]))
            for number, bag in enumerate(told["bags"])
        }
        low, high = map(float, told["value_range"])
        given = tuple(name for name in GIVEN if name in told["given"])
        users = int(told["users"])
        if not (low < high and math.isfinite(high - low)):
            raise ValueError(f"value_range {told['value_range']}")
        if KINDS[told["kind"]].scale((low, high)) != (low, high) or len(given) < len(told["given"]):
            raise ValueError(f"kind {told['kind']!r} or given parts {told['given']}")
        names = [f"part-{index:05d}.parquet" for index in range(len(parts))]
        if [part.name for part in parts] != names or sum(part.users for part in parts) != users:
            raise ValueError("its parts are not all users in part-00000.parquet, ...")
        if not isinstance(told["timed"], bool):
            raise ValueError(f"timed {told['timed']!r}")
        if None in ids or len(set(ids)) < len(ids):
            raise ValueError("an item is missing, or twice")
        return PartitionedData(
            place, told["kind"], (low, high), users, ids, titles,
            PublicFeatures(bags), id_words(ids), parts,
            provenance, bool(told["timed"]), given,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, pl.exceptions.PolarsError) as failure:
        raise DataError(
            f"{path}/{MANIFEST} is no manifest of partitions: {failure}", _REMEDY
        ) from None


def _frame(content: bytes, sha256: str, name: str) -> pl.DataFrame:
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(f"{name} is not the file that the manifest describes", _REMEDY)
    return parquet_of(content, name)


def _bag(items: pl.DataFrame, number: int, vocabulary: tuple[str, ...]) -> FeatureBag:
    """CSR parts as they were written: the order of entries in a row decides the last bits of a
    product."""
    lengths = items[f"bag_{number}"].list.len()
    some = items.filter(lengths > 0)
    none = len(some) == 0
    indices = (
        np.zeros(0, np.int32)
        if none
        else some[f"bag_{number}"].explode().to_numpy().astype(np.int32)
    )
    data = (
        np.zeros(0, np.float32)
        if none
        else some[f"bag_{number}_counts"].explode().to_numpy().astype(np.float32)
    )
    ptr = np.concatenate([[0], np.cumsum(lengths.to_numpy().astype(np.int32))]).astype(np.int32)
    return FeatureBag(
        vocabulary, sparse.csr_matrix((data, indices, ptr), shape=(len(items), len(vocabulary)))
    )


# --- writing ---


def part_of(words: Words, parts: int) -> npt.NDArray[np.int64]:
    """(n,) in which of so many parts the users of these id hashes lie."""
    return np.asarray(hashed(_PART_KEY, words) % np.uint64(parts), np.int64)


def part_frame(
    numbers: Int64s, ids: Sequence[str], events: Interactions, given: Mapping[str, Interactions]
) -> pl.DataFrame:
    """The rows of users whose events these are; given: of `GIVEN`, over the same users."""
    columns = {
        "number": pl.Series(numbers),
        "id": pl.Series(ids, dtype=pl.String),
        "word": pl.Series(events.user_words),
    }
    for prefix, part in {"": events, **{f"{name}_": part for name, part in given.items()}}.items():
        columns[f"{prefix}items"] = lists(part.items, part.user_ptr)
        if part.rated:
            columns[f"{prefix}values"] = lists(part.values, part.user_ptr)
        if part.times is not None:
            columns[f"{prefix}times"] = lists(part.times, part.user_ptr)
    return pl.DataFrame(columns)


def lists(values: npt.NDArray[Any], ptr: npt.NDArray[np.integer]) -> pl.Series:
    """A column of lists: row k holds `values[ptr[k]:ptr[k + 1]]`."""
    rows = pl.DataFrame({"row": np.repeat(np.arange(len(ptr) - 1), np.diff(ptr)), "value": values})
    grouped = rows.group_by("row", maintain_order=True).agg("value")
    every = pl.DataFrame({"row": np.arange(len(ptr) - 1)}).join(
        grouped, on="row", how="left", maintain_order="left"
    )
    inner = rows["value"].dtype
    return every.select(pl.col("value").fill_null(pl.lit([], dtype=pl.List(inner))))["value"]


def write_part(place: Place, name: str, frame: pl.DataFrame) -> PartFile:
    """One part's file, whole or not at all. Raises OSError."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    content = buffer.getvalue()
    place.write(name, content)
    events = sum(
        int(frame[column].list.len().sum()) for column in frame.columns if column.endswith("items")
    )
    return PartFile(name, len(frame), events, len(content), hashlib.sha256(content).hexdigest())


def write_manifest(
    place: Place,
    parts: Sequence[PartFile],
    *,
    kind: Kind,
    value_range: tuple[float, float],
    item_ids: Sequence[str],
    titles: Sequence[str] | None,
    features: PublicFeatures,
    provenance: Provenance,
    timed: bool,
    given: Sequence[str],
) -> None:
    """The table of items, then the manifest, which makes the folder a data set: last, when all
    parts are there."""
    columns = {"id": pl.Series(item_ids, dtype=pl.String)}
    columns |= {} if titles is None else {"title": pl.Series(titles, dtype=pl.String)}
    for number, bag in enumerate(features.bags.values()):
        counts = bag.counts
        columns[f"bag_{number}"] = lists(np.asarray(counts.indices, np.int32), counts.indptr)
        columns[f"bag_{number}_counts"] = lists(np.asarray(counts.data, np.float32), counts.indptr)
    buffer = io.BytesIO()
    pl.DataFrame(columns).write_parquet(buffer, compression="zstd")
    place.write(ITEMS, buffer.getvalue())
    told = {
        "format": FORMAT,
        "kind": kind,
        "value_range": list(value_range),
        "users": sum(part.users for part in parts),
        "items_sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
        "bags": [
            {"name": name, "vocabulary": list(bag.vocabulary)}
            for name, bag in features.bags.items()
        ],
        "parts": [asdict(part) for part in parts],
        "provenance": provenance.describe(),
        "timed": timed,
        "given": list(given),
    }
    place.write(MANIFEST, (json.dumps(told, indent=1, sort_keys=True) + "\n").encode())
