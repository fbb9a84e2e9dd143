"""Partitions hold what was read, whoever reads them, and refuse to be anything else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedrec.data import partitioning
from fedrec.data.interactions import Dataset
from fedrec.data.keyed_hash import id_words
from fedrec.data.partitions import MANIFEST, open_partitions, part_of
from fedrec.data.planted import SHAPES, planted
from fedrec.data.read import read
from fedrec.data.splits import random_split
from fedrec.data.table_batches import row_batches
from fedrec.data.tables import TableOptions, asked_table
from fedrec.errors import DataError, MalformedRowError, RunError, SettingsError
from fedrec.run.data.describing import partition
from fedrec.run.partitions.on_ray import RayWorker
from fedrec.run.partitions.parts import InThisProcess, Parts, PartSplit
from fedrec.settings import load


def _same(one: Dataset, other: Dataset) -> None:
    """Events, names and features, users in any order."""
    assert one.catalogue.item_ids == other.catalogue.item_ids
    assert one.catalogue.titles == other.catalogue.titles
    place = {name: k for k, name in enumerate(one.catalogue.user_ids)}
    mine = one.interactions.users_subset(
        np.array([place[name] for name in other.catalogue.user_ids])
    )
    for name in ("user_ptr", "items", "values", "times", "user_words", "item_words"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(other.interactions, name))
    assert one.features.bags.keys() == other.features.bags.keys()
    for name, bag in other.features.bags.items():
        assert one.features.bags[name].vocabulary == bag.vocabulary
        for part in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(
                getattr(one.features.bags[name].counts, part), getattr(bag.counts, part)
            )


def _csv(path: Path, dataset: Dataset) -> Path:
    events = dataset.interactions
    columns = {
        "who": events.users + 1,
        "what": events.items + 1,
        "stars": events.values,
        "at": events.times,
    }
    shuffled = np.random.default_rng(1).permutation(len(events))
    pl.DataFrame(
        {name: np.asarray(column)[shuffled] for name, column in columns.items()}
    ).write_csv(path)
    return path


_CSV = [
    "data.columns.user=who",
    "data.columns.item=what",
    "data.columns.rating=stars",
    "data.columns.timestamp=at",
    "data.rating_range=[1,5]",
]


def test_planted_partitions_are_the_planted_data_set(tmp_path: Path) -> None:
    made = partition(
        load(None, ["data.preset=small"]), str(tmp_path / "parts"), parts=4, resume=False
    )
    assert (made["parts"], made["users"], made["events"]) == (4, 300, 7_500)
    read_again = read(tmp_path / "parts")
    before = planted(SHAPES["small"], seed=1)
    _same(read_again, before)
    assert read_again.catalogue.user_ids == before.catalogue.user_ids


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.parquet"])
def test_a_table_in_batches_is_the_table_read_whole(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrec.data.table_batches._BATCH_BYTES", 10_000)
    monkeypatch.setattr("fedrec.data.table_batches._BATCH_ROWS", 700)
    path = _csv(tmp_path / "log.csv", planted(SHAPES["small"], seed=2))
    if name.endswith("gz"):
        import gzip

        path = tmp_path / name
        path.write_bytes(gzip.compress((tmp_path / "log.csv").read_bytes()))
    if name.endswith("parquet"):
        pl.read_csv(path).write_parquet(tmp_path / name)
        path = tmp_path / name
    words = [f'data.path="{path}"', *_CSV]
    partition(load(None, words), str(tmp_path / "parts"), parts=3, resume=False)
    whole = read(path, user="who", item="what", rating="stars", timestamp="at", rating_range=(1, 5))
    found = read(tmp_path / "parts")
    _same(found, whole)
    assert found.provenance.report.rows_read == 7_500
    assert found.provenance.files == whole.provenance.files


@pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")  # of whoever holds the rows
def test_rows_on_items_that_the_table_of_items_does_not_name_are_in_no_part(tmp_path: Path) -> None:
    planted_rows = planted(SHAPES["small"], seed=2)
    path = _csv(tmp_path / "log.csv", planted_rows)
    ids = planted_rows.catalogue.item_ids[:-7]
    items = tmp_path / "items.csv"
    items.write_text("what,genre\n" + "".join(f"{one},{int(one) % 3}\n" for one in ids))
    words = [f'data.path="{path}"', *_CSV, f'data.features_path="{items}"']
    partition(load(None, words), str(tmp_path / "parts"), parts=3, resume=False)
    found = read(tmp_path / "parts")
    assert found.catalogue.item_ids == ids
    assert found.provenance.not_covered == ()
    assert len(found.interactions) == (planted_rows.interactions.items < len(ids)).sum() < 7_500


def test_batches_are_many_where_a_file_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrec.data.table_batches._BATCH_BYTES", 10_000)
    path = _csv(tmp_path / "log.csv", planted(SHAPES["small"], seed=2))
    asked = asked_table(
        path,
        TableOptions(user="who", item="what", rating="stars", timestamp="at", rating_range=(1, 5)),
    )
    lengths = [len(frame) for frame, _ in row_batches(asked)]
    assert len(lengths) > 5
    assert sum(lengths) == 7_500


def test_a_part_is_divided_as_within_the_whole(tmp_path: Path) -> None:
    dataset = planted(SHAPES["small"], seed=3)
    partition(
        load(None, ["data.preset=small", "seed=3"]), str(tmp_path / "parts"), parts=5, resume=False
    )
    data = open_partitions(str(tmp_path / "parts"))
    whole = random_split(dataset.interactions, seed=7)
    for index in range(5):
        part = data.read_part(index)
        own = random_split(part.events, seed=7, some_users=True)
        np.testing.assert_array_equal(own.train.items, whole.train.users_subset(part.numbers).items)
        np.testing.assert_array_equal(
            own.test.targets.items, whole.test.targets.users_subset(part.numbers).items
        )


def test_given_parts_stay_given(tmp_path: Path) -> None:
    dataset = planted(SHAPES["small"], seed=1)
    split = random_split(dataset.interactions, seed=1)
    given = replace(
        dataset,
        interactions=split.train,
        given_test=split.test.targets,
        given_validation=split.validation.targets,
    )
    work = partitioning.open_output(str(tmp_path / "parts"), parts=2, source="", resume=False)
    partitioning.partition_dataset(given, str(tmp_path / "parts"), work, parts=2)
    found = read(tmp_path / "parts")
    assert found.given_test is not None
    assert found.given_validation is not None
    np.testing.assert_array_equal(found.given_test.items, split.test.targets.items)
    np.testing.assert_array_equal(
        found.given_validation.user_ptr, split.validation.targets.user_ptr
    )


def test_an_interrupted_command_is_finished_with_resume_and_to_the_same_bytes(
    tmp_path: Path,
) -> None:
    path = _csv(tmp_path / "log.csv", planted(SHAPES["small"], seed=2))
    scenario = load(None, [f'data.path="{path}"', *_CSV])

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition(scenario, str(tmp_path / "parts"), parts=4, resume=False, told=stop)
    with pytest.raises(RunError, match="unfinished"):
        partition(scenario, str(tmp_path / "parts"), parts=4, resume=False)
    with pytest.raises(RunError, match="another number of parts"):
        partition(scenario, str(tmp_path / "parts"), parts=3, resume=True)
    partition(scenario, str(tmp_path / "parts"), parts=4, resume=True)
    partition(scenario, str(tmp_path / "again"), parts=4, resume=False)
    for name in [MANIFEST, *(f"part-{index:05d}.parquet" for index in range(4))]:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert not (tmp_path / "parts" / ".work").exists()


def test_a_damaged_part_is_refused(tmp_path: Path) -> None:
    partition(load(None, ["data.preset=small"]), str(tmp_path / "parts"), parts=2, resume=False)
    data = open_partitions(str(tmp_path / "parts"))
    part = tmp_path / "parts" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    data.read_part(0)
    with pytest.raises(DataError, match="not the file that the manifest describes"):
        data.read_part(1)
    part.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        data.read_part(1)
    (tmp_path / "parts" / MANIFEST).write_text('{"format": "fedrec-partitions/1"}')
    with pytest.raises(DataError, match="no manifest"):
        open_partitions(str(tmp_path / "parts"))


def test_a_malformed_row_is_named_by_its_line_in_any_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrec.data.table_batches._BATCH_BYTES", 200)
    rows = ["user,item,rating", *(f"{k},{k % 7},3" for k in range(60))]
    rows[41] = "40,5,many"
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    scenario = load(None, [f'data.path="{tmp_path / "log.csv"}"', "data.rating_range=[1,5]"])
    with pytest.raises(MalformedRowError, match="line 42: expected a finite number"):
        partition(scenario, str(tmp_path / "parts"), parts=2, resume=False)


def test_a_repeated_row_is_named_by_its_line_in_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrec.data.table_batches._BATCH_BYTES", 200)
    rows = ["user,item,rating", *(f"{k},{k % 7},3" for k in range(60)), "10,3,4"]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    words = [f'data.path="{tmp_path / "log.csv"}"', "data.rating_range=[1,5]"]
    with pytest.raises(MalformedRowError, match=r"line 62.*line 12 again"):
        partition(load(None, words), str(tmp_path / "parts"), parts=3, resume=False)
    partition(
        load(None, [*words, "data.duplicates=last"]), str(tmp_path / "last"), parts=3, resume=False
    )
    assert read(tmp_path / "last").provenance.report.duplicates_resolved == 1


@pytest.mark.parametrize("words", ["recipe=privaterec", "data.keep_users=10"])
def test_what_no_part_can_decide_is_refused(tmp_path: Path, words: str) -> None:
    asked = (
        [words, "privacy.unit=click", "data.format=planted-news"]
        if words.startswith("recipe")
        else [words]
    )
    with pytest.raises(SettingsError, match="partition"):
        partition(load(None, asked), str(tmp_path / "parts"), parts=2, resume=False)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine.txt").write_text("")
    with pytest.raises(RunError, match="not empty"):
        partition(load(None, ["data.preset=small"]), str(tmp_path / "parts"), parts=2, resume=False)
    partition(load(None, ["data.preset=small"]), str(tmp_path / "new"), parts=2, resume=False)
    with pytest.raises(RunError, match="already"):
        partition(load(None, ["data.preset=small"]), str(tmp_path / "new"), parts=2, resume=False)


def test_an_object_store_is_a_path_like_any_other(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    url = f"memory://{tmp_path.name}/parts"
    partition(load(None, ["data.preset=small"]), url, parts=2, resume=False)
    _same(open_partitions(url).whole(), planted(SHAPES["small"], seed=1))


def test_pieces_for_an_object_store_are_kept_where_this_user_alone_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "shared"))
    url = f"memory://{tmp_path.name}/pieces"
    work = partitioning.open_output(url, parts=2, source="", resume=False)
    assert work.is_relative_to(tmp_path / "state")
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    with pytest.raises(RunError, match="unfinished") as refused:
        partitioning.open_output(url, parts=2, source="", resume=False)
    assert str(work) in str(refused.value.remedy)


@pytest.mark.parametrize("harm", ["another user's", "a link"])
def test_pieces_that_another_user_could_have_laid_there_are_refused(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    url = f"memory://{tmp_path.name}/pieces"
    work = partitioning.open_output(url, parts=2, source="", resume=False)
    if harm == "a link":
        work.rename(tmp_path / "theirs")
        work.symlink_to(tmp_path / "theirs")
    else:
        monkeypatch.setattr(os, "getuid", lambda: work.stat().st_uid + 1)
    with pytest.raises(RunError, match="belongs to another user"):
        partitioning.open_output(url, parts=2, source="", resume=True)


# --- what somebody else wrote, each digest made anew ---

LISTS = ("items", "values", "times")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parts with events of all kinds: ratings, times, test and validation."""
    folder = tmp_path_factory.mktemp("parts")
    for name, own in (("train", range(6)), ("test", (6, 7)), ("validation", (8, 9))):
        lines = [
            f"p{user},i{(user + item) % 10},{1 + (user + item) % 5},{user + item}"
            for user in range(12)
            for item in own
        ]
        (folder / f"{name}.csv").write_text("\n".join(["user,item,rating,timestamp", *lines]))
    asked = [f'data.path="{folder}/train.csv"', f'data.test="{folder}/test.csv"']
    asked += [f'data.validation="{folder}/validation.csv"', "data.rating_range=[1,5]"]
    names = ("user", "item", "rating", "timestamp")
    asked += [f"data.columns.{name}={name}" for name in names]
    partition(load(None, asked), str(folder / "parts"), parts=2, resume=False)
    return folder / "parts"


def _first(frame: pl.DataFrame, column: str, value: Any) -> pl.DataFrame:
    """With another value in the first row that has something there."""
    old = frame[column].to_list()
    row = next(k for k, one in enumerate(old) if one not in (None, []))
    changed = [value(one) if k == row else one for k, one in enumerate(old)]
    return frame.with_columns(pl.Series(column, changed, frame[column].dtype))


def _moved(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """The last value of the first person is the next one's."""
    old = frame[column].to_list()
    changed = [old[0][:-1], [*old[1], old[0][-1]], *old[2:]]
    return frame.with_columns(pl.Series(column, changed, frame[column].dtype))


def _edits(frame: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Every column of a part with what its format does not allow."""
    for name in frame.columns:
        yield f"{name} is missing", frame.drop(name)
        yield f"{name} is null", _first(frame, name, lambda one: None)
        kind = name.rpartition("_")[2]
        if kind in LISTS:
            yield f"{name} has a null", _first(frame, name, lambda one: [None, *one[1:]])
            yield f"{name} is one more", _first(frame, name, lambda one: [*one, one[-1]])
            yield f"{name} is one less", _first(frame, name, lambda one: one[:-1])
            yield f"{name} is the next person's", _moved(frame, name)
        if kind == "items":
            yield f"{name} falls", _first(frame, name, lambda one: one[::-1])
            yield f"{name} is twice", _first(frame, name, lambda one: [one[0], *one[:-1]])
            yield f"{name} is outside", _first(frame, name, lambda one: [-1, *one[1:]])
        if kind == "values":
            for value in (1e9, 0.5, float("nan"), float("inf")):
                change = lambda one, value=value: [value, *one[1:]]  # noqa: E731
                yield f"{name} is {value}", _first(frame, name, change)
    yield (
        "train and test share events",
        frame.with_columns(frame["items"].list.head(2).alias("test_items")),
    )
    yield "a word of nobody", _first(frame, "word", lambda one: one ^ 1)
    yield "all numbers alike", frame.with_columns(pl.lit(0, pl.Int64).alias("number"))
    yield "a number of nobody", _first(frame, "number", lambda one: 12)
    own = frame[:1]
    yield (
        "a person twice",
        pl.concat([frame, own.with_columns(pl.lit(11, pl.Int64).alias("number"))]),
    )
    # the same id under a word that lies in this part, and in other letters
    for word in range(100):
        one = own.with_columns(pl.lit(word, pl.UInt64).alias("word"))
        if part_of(one["word"].to_numpy(), 2)[0] == 0:
            yield f"a person twice by {word}", pl.concat([frame, one])
            break
    looks = own.with_columns((pl.col("id") + " ").alias("id"))
    twin = looks.with_columns(pl.Series("word", id_words(looks["id"].to_list())))
    yield "a person with a blank", pl.concat([frame, twin])
    yield "one column more", frame.with_columns(pl.lit(1).alias("weight"))


def _rewritten(source: Path, folder: Path, frame: pl.DataFrame, **more: Any) -> Path:
    """A copy whose first part is `frame`, and whose manifest says so."""
    shutil.copytree(source, folder)
    told = json.loads((folder / MANIFEST).read_text())
    frame.write_parquet(folder / "part-00000.parquet")
    content = (folder / "part-00000.parquet").read_bytes()
    part = told["parts"][0]
    part |= {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    lists = [name for name in frame.columns if name.endswith("items")]
    part |= {"users": len(frame), "events": sum(frame[n].list.len().sum() for n in lists)}
    told["users"] = sum(one["users"] for one in told["parts"])
    (folder / MANIFEST).write_text(json.dumps(told | more))
    return folder


def _in_memory(folder: Path) -> None:
    read(folder)


def _in_this_process(folder: Path) -> None:
    InThisProcess(_source(folder)).reduce(_Nothing(), lambda done, of: None)


def _on_ray(folder: Path) -> None:
    worker = RayWorker(_source(folder))
    worker._pass, worker._task = "key", _Nothing()  # type: ignore[assignment]
    for index in range(2):
        worker.map("key", [], index)


def _source(folder: Path) -> Parts:
    return Parts(load(None, [f'data.path="{folder}"', "split.kind=given"]))


class _Nothing:
    def map(self, part: PartSplit) -> None:
        return None


@pytest.mark.parametrize("engine", [_in_memory, _in_this_process, _on_ray])
def test_whatever_a_field_of_a_part_holds_no_engine_takes_what_the_format_does_not_allow(
    written: Path, tmp_path: Path, engine: Callable[[Path], None]
) -> None:
    whole = pl.read_parquet(written / "part-00000.parquet")
    engine(_rewritten(written, tmp_path / "as it was", whole))
    taken = list[str]()
    for number, (what, frame) in enumerate(_edits(whole)):
        try:
            engine(_rewritten(written, tmp_path / str(number), frame))
            taken.append(what)
        except DataError:
            pass
    assert taken == []


def test_whatever_a_field_of_a_manifest_holds_a_folder_is_read_or_refused_in_words(
    written: Path, tmp_path: Path
) -> None:
    told = json.loads((written / MANIFEST).read_text())
    for number, key in enumerate(told):
        for odd, value in enumerate((None, -1, "x", [], {}, float("nan"), [float("nan")] * 2)):
            folder = tmp_path / f"{number}-{odd}"
            shutil.copytree(written, folder)
            (folder / MANIFEST).write_text(json.dumps(told | {key: value}))
            try:
                read(folder)
            except DataError:
                continue
            assert (key, value) in (("bags", []), ("timed", told["timed"]), ("bags", {}))
    parts = [told["parts"][0] | {"name": "../train.csv"}, *told["parts"][1:]]
    (tmp_path / "0-0" / MANIFEST).write_text(json.dumps(told | {"parts": parts}))
    with pytest.raises(DataError, match="manifest"):
        read(tmp_path / "0-0")


def test_ids_that_are_written_otherwise_than_they_look_are_read_from_their_part(
    tmp_path: Path,
) -> None:
    rows = "\n".join(f"{user:04d},i{item},3" for user in range(30) for item in range(3))
    (tmp_path / "r.csv").write_text(f"user,item,rating\n{rows}\n")
    asked = load(None, [f'data.path="{tmp_path}/r.csv"', "data.rating_range=[1,5]"])
    partition(asked, str(tmp_path / "parts"), parts=3, resume=False)
    assert len(read(tmp_path / "parts").catalogue.user_ids) == 30


def test_parts_are_read_by_their_owner_alone(written: Path) -> None:
    modes = {stat.S_IMODE(path.stat().st_mode) for path in written.iterdir()}
    assert (modes, stat.S_IMODE(written.stat().st_mode)) == ({0o600}, 0o700)
