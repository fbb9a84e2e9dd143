"""Mistakes that everybody makes and that passed in silence: each is refused or warned of by name."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas
import polars as pl
import pytest

import fedrec
from fedrec.data.news_files import read_mind
from fedrec.errors import DataWarning
from fedrec_client.clicks import read_clicks

LOG = {"user": [1, 1, 2, 2, 3], "item": [1, 2, 3, 1, 2]}
ARTICLES = {"item": ["a", "b", "c"], "title": ["sun", "rain", "snow"], "category": ["x", "y", "x"]}


def _shown(**changed: Any) -> dict[str, Any]:
    rows = [(day, user) for day in (1, 2, 3) for user in "uv"]
    log = {
        "impression": [f"{day}{user}" for day, user in rows for _ in "abc"],
        "user": [user for _, user in rows for _ in "abc"],
        "time": [f"2026-01-0{day}" for day, _ in rows for _ in "abc"],
        "item": [*"abc"] * 6,
        "clicked": [1, 0, 0, 0, 1, 0] * 3,
    }
    return log | changed


def _news(folder: Path, titles: list[str | None], **changed: Any) -> fedrec.NewsData:
    return fedrec.NewsData.from_frames(
        ARTICLES | {"title": titles},
        _shown(**changed),
        folder,
        cuts=("2026-01-02", "2026-01-03"),
    )


@pytest.mark.parametrize("blank", ["", "  ", None, "\t"])
def test_a_blank_title_of_news_is_warned_of(blank: str | None, tmp_path: Path) -> None:
    said = r"1 of the 3 titles of the articles are blank, such as that of 'b'"
    with pytest.warns(DataWarning, match=said):
        _news(tmp_path, ["sun", blank, "snow"])
    with pytest.warns(DataWarning, match="1 of the 3 titles"):
        read_mind(tmp_path)


def test_news_without_any_title_are_refused(tmp_path: Path) -> None:
    with pytest.raises(fedrec.DataError, match="every title of the articles is blank"):
        _news(tmp_path, ["", " ", None])


def test_an_item_without_a_title_is_called_by_its_id_and_counted() -> None:
    items = {"item": [1, 2, 3], "title": ["One", " ", ""], "kind": ["a", "b", "a"]}
    data = fedrec.Dataset.from_frame(LOG, items=items)
    assert data.source.catalogue.titles == ("One", "2", "3")
    assert "2 of the 3 titles of items are blank" in str(data.source.provenance.report.notes)
    model = fedrec.MatrixFactorization(noise="seeded").fit(data)
    with pytest.warns(DataWarning, match="1 of the 4 titles"):
        more = model.with_items(
            {"item": [1, 2, 3, 4], "title": ["One", "Two", "Three", ""], "kind": [*"abab"]}
        )
    assert more.recommend(history=[1, 2, 3])["title"].to_list() == ["4"]


ZONED = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1, 12)
MIXED: dict[str, list[Any]] = {
    "ISO": ["2026-01-01T12:00:00+05:00", "2026-01-01T12:00:00"] + ["2026-01-01T12:00:00Z"] * 3,
    "ISO without first": ["2026-01-01 12:00"] + ["2026-01-01T12:00:00Z"] * 4,
    "ISO and a date": ["2026-01-01T12:00:00.5+0000", "2026-01-01"] + ["2026-01-01T12:00Z"] * 3,
    "UTC in letters": ["2026-01-01 12:00:00 UTC"] + ["2026-01-01 12:00:00"] * 4,
    "objects": [ZONED, NAIVE, ZONED, ZONED, ZONED],
    "objects without first": [NAIVE, ZONED, ZONED, ZONED, ZONED],
}


def _read(door: str, times: list[Any], folder: Path) -> fedrec.Dataset:
    log = {**LOG, "when": times}
    if door == "mapping":
        return fedrec.Dataset.from_frame(log, time="when")
    if door == "pandas":
        frame = pandas.DataFrame({**LOG, "when": pandas.Series(times, dtype=object)})
        return fedrec.Dataset.from_frame(frame, time="when")
    file = folder / f"log{door}"
    rows = pl.DataFrame({**LOG, "when": [str(time) for time in times]})
    writers = {
        ".csv": rows.write_csv,
        ".parquet": rows.write_parquet,
        ".jsonl": rows.write_ndjson,
    }
    writers[door](file)
    return fedrec.Dataset.from_file(file, time="when")


@pytest.mark.parametrize("door", ["mapping", "pandas", ".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("case", MIXED)
def test_times_with_and_without_a_zone_in_one_column_are_refused(
    case: str, door: str, tmp_path: Path
) -> None:
    with pytest.raises(fedrec.DataError, match="time zone") as said:
        _read(door, MIXED[case], tmp_path)
    assert "without one" in str(said.value.remedy)


@pytest.mark.parametrize("zones", [("Z", "+05:00", " UTC", "-0130", "Z"), ("",) * 5])
def test_zones_may_differ_and_times_without_one_are_said_to_be_utc(
    zones: tuple[str, ...], tmp_path: Path
) -> None:
    times = [f"2026-01-01T12:00:00{zone}" for zone in zones]
    data = _read(".csv", times, tmp_path)
    notes = str(data.source.provenance.report.notes)
    assert ("times name no time zone and count as UTC" in notes) == (zones[0] == "")


def test_columns_that_carry_their_zone_are_converted() -> None:
    paris = pl.Series([NAIVE] * 5).dt.replace_time_zone("Europe/Paris")
    for times in (paris, paris.dt.convert_time_zone("UTC"), paris.dt.cast_time_unit("ns")):
        frame = pl.DataFrame({**LOG, "when": times})
        data = fedrec.Dataset.from_frame(frame, time="when")
        assert data.source.interactions.times is not None
        assert set(data.source.interactions.times) == {int(ZONED.timestamp()) - 3600}


def test_impressions_and_histories_have_one_kind_of_time_too(tmp_path: Path) -> None:
    times = ["2026-01-01T00:00Z" if n < 3 else time for n, time in enumerate(_shown()["time"])]
    with pytest.raises(fedrec.DataError, match="the first have a time zone, row 4 does not"):
        _news(tmp_path / "news", ["sun", "rain", "snow"], time=times)
    model = fedrec.Popularity(noise="seeded").fit(fedrec.Dataset.from_frame(LOG))
    mixed = {"item": [1, 2], "timestamp": ["2026-01-01T12:00Z", "2026-01-01T12:00"]}
    with pytest.raises(fedrec.DataError, match="'timestamp' of the history"):
        model.recommend(history=mixed)
    file = tmp_path / "history.csv"
    for second in ("2026-01-01T12:00", "1700000000"):
        file.write_text(f"item,time\n1,2026-01-01T12:00Z\n2,{second}\n")
        with pytest.raises(fedrec.DataError, match="line 3: expected a time with a zone"):
            read_clicks(file)


def test_the_history_of_a_frame_is_read_in_the_order_of_its_times_not_of_their_letters() -> None:
    entries = fedrec.Popularity(noise="seeded").fit(fedrec.Dataset.from_frame(LOG)).released
    frame = {"item": ["new", "old"], "timestamp": ["1000", "999"]}
    assert [item for item, _ in entries.histories.entries(frame)] == ["old", "new"]


@pytest.fixture(scope="module")
def model() -> fedrec.Popularity:
    return fedrec.Popularity(noise="seeded").fit(fedrec.Dataset.from_frame(LOG))


@pytest.mark.parametrize(
    "choice",
    [
        {"filter": []},
        {"filter": lambda item: item == "1"},  # ids are numbers
        {"exclude": [1, 2, 3]},
        {"filter": [1], "exclude": [1]},
        {"filter": [2]},
        {"history": [1, 2, 3]},
    ],
)
def test_a_choice_that_leaves_nothing_is_warned_of(
    choice: dict[str, Any], model: fedrec.Popularity
) -> None:
    with pytest.warns(DataWarning, match=r"the list is empty: .* none of the 3 items"):
        assert model.recommend(**{"history": [2], **choice}).is_empty()


def test_empty_lists_of_many_people_are_counted(model: fedrec.Popularity) -> None:
    with pytest.warns(DataWarning, match="2 lists are empty"):
        model.recommend(histories={"a": [1], "b": [2], "c": [1, 2]}, filter=[1, 2][:1] + [2][:0])


@pytest.mark.parametrize("word", ["n", "N", "n_items", "top_k"])
def test_other_libraries_words_for_the_length_are_answered_with_k(
    word: str, model: fedrec.Popularity
) -> None:
    given: dict[str, Any] = {word: 2}
    for ask in (model.recommend, model.similar_items, fedrec.NewsRecommender().recommend):
        with pytest.raises(fedrec.SettingsError, match=f"no argument {word}") as said:
            ask(1, **given)
        assert "k=2" in str(said.value.remedy)
    with pytest.raises(fedrec.SettingsError, match="given 2 without a name"):
        model.recommend(1, 2)  # type: ignore[call-arg]


WORDS = ("y", "note", "puntuación", "valoración", "nota", "bewertung", "évaluation", "评分")
SCALES = ([1, 2, 3, 4, 5], [0.5, 1, 3.5, 4, 5], [10, 1, 7, 3, 8])


@pytest.mark.parametrize("door", ["frame", ".csv", ".parquet", ".jsonl", ".inter"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("word", WORDS)
def test_numbers_like_ratings_under_another_name_are_warned_of(
    word: str, scale: list[float], door: str, tmp_path: Path
) -> None:
    said = rf"the column '{word}.*' is not used.*--rating {word}"
    with pytest.warns(fedrec.UnusedColumnsWarning, match=said):
        _with_column(word, scale, door, tmp_path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("year", [2001, 2002, 2003, 2004, 2005]),
        ("shop_id", [1, 2, 3, 4, 5]),
        ("weekday", [1, 2, 3, 4, 7]),
        ("price", [1.99, 2, 3, 4, 5]),
        ("gender", [1, 2, 1, 2, 1]),
        ("kind", ["1", "x", "3", "4", "5"]),
        ("empty", [None] * 5),
        ("time", [1, 2, 3, 4, 5]),
    ],
)
@pytest.mark.parametrize("door", ["frame", ".csv", ".parquet", ".jsonl"])
def test_other_numbers_are_not_taken_for_ratings(
    name: str, values: list[Any], door: str, tmp_path: Path
) -> None:
    _with_column(name, values, door, tmp_path)


def _with_column(name: str, values: list[Any], door: str, folder: Path) -> fedrec.Dataset:
    frame = pl.DataFrame({**LOG, name: values})
    if door == "frame":
        return fedrec.Dataset.from_frame(frame)
    file = folder / f"log{door}"
    if door == ".inter":
        heads = {"user": "user_id:token", "item": "item_id:token", name: f"{name}:float"}
        frame.rename(heads).write_csv(file, separator="\t")
    else:
        writers = {
            ".csv": frame.write_csv,
            ".parquet": frame.write_parquet,
            ".jsonl": frame.write_ndjson,
        }
        writers[door](file)
    return fedrec.Dataset.from_file(file)
