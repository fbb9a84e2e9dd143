"""Partitions by user, made of a data set of any size in bounded memory.

Rows are scattered by a hash of their user's id to pieces on disk; then each part is made of its
pieces alone, with its duplicates and values outside the scale resolved as the format's reader does:
both are a matter of one user. Stopped, it goes on where it was: scattered pieces and finished parts
are kept until the manifest is written: in `DIR/.work`, for an object store in the user's state
folder, readable by this user alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from fedrec.data.assembling import digests_of, numbered_ids
from fedrec.data.frame_files import of_parquet, parquet
from fedrec.data.ids import person_id, require_distinct
from fedrec.data.interactions import Dataset, Provenance, ReadReport, added
from fedrec.data.keyed_hash import id_words
from fedrec.data.kinds import KINDS
from fedrec.data.partitions import (
    GIVEN,
    MANIFEST,
    PartFile,
    Place,
    part_frame,
    part_of,
    write_manifest,
    write_part,
)
from fedrec.data.planted import PlantedShape, generate_chunks, planted_items
from fedrec.data.resolving import Rows
from fedrec.data.table_batches import row_batches
from fedrec.data.tables import AskedTable
from fedrec.errors import DataError, RunError, SettingsError
from fedrec.output_folders import clear, discard
from fedrec.storage import parsed_json

Told = Callable[[int, int], None]
"""Called with how many steps are done, and of how many (0 where nobody knows yet)."""


def _quiet(done: int, total: int) -> None:
    pass


def open_output(output: str, *, parts: int, source: str, resume: bool) -> Path:
    """The folder for scattered pieces, as an interrupted command left it where `resume`, else new.

    source: what is partitioned, in any words that tell it from another. Raises SettingsError on
    less than one part, RunError where there is a data set already, something else, or another
    interrupted one.
    """
    if parts < 1:
        raise SettingsError(f"--parts must be at least 1, found {parts}", "Give a positive number.")
    if Place(output).exists(MANIFEST):
        raise RunError(
            f"{output} holds a partitioned data set already", "Name another folder, or remove it."
        )
    local = Place(output).is_local
    folder = Path(output)
    work = _work(output)
    asked = json.dumps({"parts": parts, "source": source}, sort_keys=True)
    try:
        if os.path.lexists(work) and (work.is_symlink() or work.stat().st_uid != os.getuid()):
            raise RunError(
                f"{work}, where the pieces of {output} are kept, belongs to another user",
                "Ask its owner to remove it, or name another folder.",
            )
        if work.exists() and resume:
            if (work / "asked.json").read_text() != asked:
                raise RunError(
                    f"{output} was begun with other data or another number of parts",
                    "Name another folder, or remove it.",
                )
            return work
        if work.exists():
            raise RunError(
                f"{output} is an unfinished data set",
                f"Give --resume to finish it, or remove {folder if local else work}.",
            )
        if local and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{output} is not empty", "Name another folder.")
        if local:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        clear(work, "pieces", private=True)
        (work / "asked.json").write_text(asked)
    except OSError as failure:
        raise RunError(
            f"{output} cannot be written: {failure.strerror or failure}", "Name another folder."
        ) from None
    return work


def _work(output: str) -> Path:
    """Where pieces, which hold raw rows, are kept; never in a folder that all users share."""
    if Place(output).is_local:
        return Path(output) / ".work"
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return state / "fedrec" / "partitioning" / hashlib.sha256(output.encode()).hexdigest()[:16]


def partition_dataset(
    dataset: Dataset, output: str, work: Path, *, parts: int, told: Told = _quiet
) -> None:
    """A data set that is in memory."""
    catalogue = dataset.catalogue
    events = dataset.interactions
    found = {"test": dataset.given_test, "validation": dataset.given_validation}
    given = {name: part for name in GIVEN if (part := found[name]) is not None}
    # by their looks, as of a table: ids that look the same meet in one part
    where = part_of(id_words([person_id(name) for name in catalogue.user_ids]), parts)
    place = Place(output)
    files = list[PartFile]()
    for index in range(parts):
        users = np.flatnonzero(where == index)
        own = {name: part.users_subset(users) for name, part in given.items()}
        ids = [catalogue.user_ids[k] for k in users]
        files.append(
            write_part(
                place,
                _name(index),
                part_frame(users.astype(np.int64), ids, events.users_subset(users), own),
            )
        )
        told(index + 1, parts)
    write_manifest(
        place, files, kind=events.kind, value_range=events.value_range,
        item_ids=catalogue.item_ids, titles=catalogue.titles,
        features=dataset.features, provenance=dataset.provenance, timed=events.times is not None,
        given=tuple(given),
    )  # fmt: skip
    discard(work, "pieces")


def partition_planted(
    shape: PlantedShape, seed: int, output: str, work: Path, *, parts: int, told: Told = _quiet
) -> None:
    """The planted data set of `planted.planted`, drawn and written piece by piece."""
    items = planted_items(shape, seed=seed)
    ids = tuple(str(j + 1) for j in range(shape.items))
    item_words = id_words(ids)

    def pieces() -> Iterator[tuple[npt.NDArray[np.int64], pl.DataFrame]]:
        for chunk in generate_chunks(shape, seed=seed):
            numbers = np.arange(chunk.interactions.num_users, dtype=np.int64) + chunk.first_user
            names = [str(number + 1) for number in numbers.tolist()]
            events = replace(chunk.interactions, user_words=id_words(names), item_words=item_words)
            assert events.user_words is not None
            yield part_of(events.user_words, parts), part_frame(numbers, names, events, {})

    _scatter(pieces(), work, parts)
    files = list[PartFile]()
    for index in range(parts):
        files.append(
            _kept(work, index)
            or _keep(work, index, write_part(Place(output), _name(index), _piece(work, index)))
        )
        told(index + 1, parts)
    events = sum(file.events for file in files)
    report = ReadReport(events, events, notes=(f"planted with seed {seed}: {shape}",))
    scale = KINDS[shape.kind].scale(shape.value_range)
    write_manifest(
        Place(output), files, kind=shape.kind, value_range=scale, item_ids=ids,
        titles=items.titles, features=items.features,
        provenance=Provenance("planted", (), report), timed=True, given=(),
    )  # fmt: skip
    discard(work, "pieces")


def partition_table(
    asked: AskedTable, output: str, work: Path, *, parts: int, told: Told = _quiet
) -> None:
    """A table of one source of rows.

    Users are numbered in the order of the parts. Raises what `read_table` raises."""
    rules = asked.rules
    columns = rules.columns
    path = asked.source["train"]
    if len(asked.source) > 1:
        raise ValueError("a table that comes divided is read whole")
    notes = dict.fromkeys(asked.notes)

    def pieces() -> Iterator[tuple[npt.NDArray[np.int64], pl.DataFrame]]:
        for frame, said in row_batches(asked):
            notes.update(dict.fromkeys(said))
            whole = frame["user"].dtype.is_integer(), frame["item"].dtype.is_integer()
            texts = frame.with_columns(pl.col("user", "item").cast(pl.String))
            distinct = texts["user"].unique()
            # ids that look the same meet in one part, which then refuses them
            looks = [person_id(user) for user in distinct.to_list()]
            place = pl.DataFrame({"user": distinct, "part": part_of(id_words(looks), parts)})
            where = texts.join(place, on="user", how="left", maintain_order="left")[
                "part"
            ].to_numpy()
            yield where, texts.with_columns(pl.lit(all(whole)).alias("numbers"))

    _scatter(pieces(), work, parts)
    ids, more = _catalogue(asked, work, parts)
    require_distinct(ids, "item", path)
    words = id_words(ids)
    files = list[PartFile]()
    reports = list[ReadReport]()
    first = 0
    numbers = pl.DataFrame({"item": ids, "number": np.arange(len(ids), dtype=np.int32)})
    for index in range(parts):
        file = _kept(work, index)
        report = _kept_report(work, index)
        if file is None or report is None:
            every = _piece(work, index).sort("line", maintain_order=True)
            # of items of the table of items alone
            rows = every.join(numbers, on="item", how="inner", maintain_order="left")
            users, user_ids = (
                numbered_ids(rows["user"].cast(pl.Categorical))
                if len(rows)
                else (np.zeros(0, np.int32), ())
            )
            require_distinct(user_ids, "user", path)
            items = rows["number"].to_numpy()
            values = rows["rating"].to_numpy() if columns.rating else None
            times = rows["timestamp"].to_numpy().astype(np.int64) if columns.timestamp else None
            read, report = rules.read(
                Rows(path, users, items, values, times, lines=rows["line"].to_numpy()),
                num_users=len(user_ids),
                num_items=len(ids),
            )
            events = rules.counted(read)
            events = replace(events, user_words=id_words(user_ids), item_words=words)
            own = np.arange(first, first + len(user_ids), dtype=np.int64)
            file = write_part(Place(output), _name(index), part_frame(own, user_ids, events, {}))
            (work / f"report-{index:05d}.json").write_text(json.dumps(asdict(report)))
            _keep(work, index, file)
        files = [*files, file]
        reports = [*reports, report]
        first = first + file.users
        told(index + 1, parts)
    if not sum(file.events for file in files):
        raise DataError(f"no row of {path.name} counts", "Choose a lower click_threshold.")
    provenance = Provenance(
        "table",
        digests_of(asked.source, rules.items),
        added(reports, (*notes, *more)),
        rules.not_covered,
    )
    write_manifest(
        Place(output), files, kind=rules.kind, value_range=rules.scale, item_ids=ids,
        given=(), titles=rules.titles, features=rules.features,
        provenance=provenance, timed=columns.timestamp is not None,
    )  # fmt: skip
    discard(work, "pieces")


def _catalogue(
    asked: AskedTable, work: Path, parts: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All items, in the order that `read_table` gives them, and a note on those that the table of
    items does not name."""
    pieces = [work / f"part-{index:05d}" for index in range(parts)]
    files = [file for piece in pieces if piece.exists() for file in sorted(piece.iterdir())]
    if not files:
        raise DataError(f"{asked.source['train']} holds no rows", "Check that the file is whole.")
    known = of_parquet(files, lambda rows: rows.select(pl.col("item").unique()).collect())["item"]
    if of_parquet(files, lambda rows: rows.select(pl.col("numbers").all()).collect()).item():
        ids = tuple(map(str, sorted(int(name) for name in known.to_list())))
    else:
        ids = numbered_ids(known.cast(pl.Categorical))[1]
    return asked.rules.catalogue(ids)


def _scatter(
    pieces: Iterator[tuple[npt.NDArray[np.int64], pl.DataFrame]], work: Path, parts: int
) -> None:
    """Rows of every batch to the part they belong to, once: a mark says that all are there."""
    done = work / "scattered"
    if done.exists():
        return
    for index in range(parts):
        for piece in (work / f"part-{index:05d}").glob("*.parquet"):
            piece.unlink()
    for number, (where, frame) in enumerate(pieces):
        order = np.argsort(where, kind="stable")
        frame = frame[order]
        ends = np.searchsorted(where[order], np.arange(parts + 1))
        for index in range(parts):
            if ends[index] < ends[index + 1]:
                folder = work / f"part-{index:05d}"
                folder.mkdir(parents=True, exist_ok=True)
                frame[int(ends[index]) : int(ends[index + 1])].write_parquet(
                    folder / f"{number:05d}.parquet"
                )
    done.touch()


def _piece(work: Path, index: int) -> pl.DataFrame:
    folder = work / f"part-{index:05d}"
    if folder.exists():
        return parquet(sorted(folder.iterdir()))
    some = next(piece for piece in sorted(work.glob("part-*/*.parquet")))
    return parquet(some).clear()


def _name(index: int) -> str:
    return f"part-{index:05d}.parquet"


def _keep(work: Path, index: int, file: PartFile) -> PartFile:
    (work / f"done-{index:05d}.json").write_text(json.dumps(asdict(file)))
    return file


def _kept(work: Path, index: int) -> PartFile | None:
    """What an interrupted command finished of this part."""
    path = work / f"done-{index:05d}.json"
    return PartFile(**parsed_json(path.read_bytes())) if path.exists() else None


def _kept_report(work: Path, index: int) -> ReadReport | None:
    path = work / f"report-{index:05d}.json"
    if not path.exists():
        return None
    content = parsed_json(path.read_bytes())
    return ReadReport(**content | {"notes": tuple(content["notes"])})
