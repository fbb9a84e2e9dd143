"""Tables as people have them: compressed, with any separator, without a header, with dates, with
repeated clicks, divided already."""

from __future__ import annotations

import gzip
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from fedrec.data import table_batches
from fedrec.data.frames import read_frame
from fedrec.data.interactions import Dataset
from fedrec.data.read import read
from fedrec.data.table_batches import row_batches
from fedrec.data.tables import TableOptions, asked_table
from fedrec.errors import DataError, LeakageError, MalformedRowError, SettingsError

ROWS = [
    ("ann", "x", "4", "2001-09-09"),
    ("bob", "y", "2.5", "2001-09-10"),
    ("ann", "y", "5", "2001-09-11"),
]
SECONDS = [999_993_600, 1_000_166_400, 1_000_080_000]
RATED = {"rating_range": (0.5, 5.0), "timestamp": "timestamp"}


def lines(separator: str, *, header: bool = True) -> str:
    rows = [("user", "item", "rating", "timestamp"), *ROWS] if header else ROWS
    return "".join(separator.join(row) + "\n" for row in rows)


def is_as_it_should_be(data: Dataset) -> None:
    assert data.catalogue.user_ids == ("ann", "bob")
    assert data.catalogue.item_ids == ("x", "y")
    assert data.interactions.values.tolist() == [4.0, 5.0, 2.5]
    assert data.interactions.times is not None
    assert data.interactions.times.tolist() == [SECONDS[0], SECONDS[1], SECONDS[2]]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("name", "separator"),
    [
        ("a.csv", ","),
        ("a.tsv", "\t"),
        ("a.csv", ";"),
        ("a.dat", "::"),
        ("a.txt", "|"),
        ("a.txt", "\t"),
        ("a.txt", " "),
        ("a.csv", "\t"),
    ],
)
def test_any_separator_is_found_and_gzip_unpacked(
    name: str, separator: str, compressed: bool, tmp_path: Path
) -> None:
    content = lines(separator).encode()
    path = tmp_path / (f"{name}.gz" if compressed else name)
    path.write_bytes(gzip.compress(content) if compressed else content)
    data = read(path, **RATED)
    is_as_it_should_be(data)
    usual = {"a.csv": ",", "a.tsv": "\t"}.get(name)
    assert any("guessed" in note for note in data.provenance.report.notes) == (separator != usual)


@pytest.mark.parametrize("said", ["semicolon", ";"])
def test_a_separator_that_is_said_is_taken_and_an_impossible_one_refused(
    said: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text('user;item;rating;timestamp\n"ann";"x;, y";4;2001-09-09\n')
    data = read(tmp_path / "a.csv", separator=said, **RATED)
    assert data.catalogue.item_ids == ("x;, y",)
    assert data.provenance.report.notes == ()
    for wrong in ("ab", '"'):
        with pytest.raises(SettingsError, match="separates nothing"):
            read(tmp_path / "a.csv", separator=wrong, **RATED)
    (tmp_path / "b.csv").write_text("user\nann\n")
    with pytest.raises(DataError, match="no separator was found"):
        read(tmp_path / "b.csv")


def test_without_a_header_columns_are_numbers_and_users_items_and_ratings_come_first(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text(
        lines(",", header=False).replace("ann", "7").replace("bob", "8")
    )
    data = read(tmp_path / "a.csv", rating_range=(0.5, 5.0), timestamp="4")
    assert data.catalogue.user_ids == ("7", "8")
    assert data.interactions.times is not None
    assert data.interactions.times.tolist() == SECONDS
    assert "no header, guessed" in data.provenance.report.notes[0]
    turned = read(tmp_path / "a.csv", rating_range=(0.5, 5.0), user="2", item="1", rating="3")
    assert turned.catalogue.user_ids == ("x", "y")
    (tmp_path / "b.csv").write_text(lines(",", header=False))
    said = read(tmp_path / "b.csv", header="no", rating_range=(0.5, 5.0), timestamp="4")
    is_as_it_should_be(said)
    assert said.provenance.report.notes == ()
    with pytest.raises(SettingsError, match="column '3' but no rating_range"):
        read(tmp_path / "b.csv", header="no")
    (tmp_path / "c.csv").write_text("1,2\n1,3\n")
    assert read(tmp_path / "c.csv").interactions.kind == "clicks"
    with pytest.raises(DataError, match="no column '5'") as caught:
        read(tmp_path / "b.csv", header="no", user="5", rating_range=(0.5, 5.0))
    assert "data.columns.user" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1000000000", 1e9),
        ("2001-09-09", 999_993_600),
        ("2001-09-09 01:46:40", 1e9),
        ("2001-09-09T01:46:40Z", 1e9),
        ("2001-09-09T01:46:40.5", 1e9),
        ("2001-09-09T03:46:40+02:00", 1e9),
        ("2001-09-09 01:46", 1e9 - 40),
        ("1000000000000", 1e9),
        ("1000000000000000", 1e9),
    ],
)
def test_times_are_seconds_or_iso_dates_or_smaller_units_that_are_told(
    text: str, seconds: float, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f"user,item,when\na,x,{text}\n")
    data = read(tmp_path / "a.csv", timestamp="when")
    assert data.interactions.times is not None
    assert data.interactions.times.tolist() == [seconds]
    assert any("seconds, guessed" in note for note in data.provenance.report.notes) == (
        len(text) > 10 and text.isdigit()
    )


@pytest.mark.parametrize("rest", ["1000000000000", "1e15", "999999999999", "-1000000000000"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_nobodys_rows_decide_the_unit_of_everybodys_times(
    rest: str, suffix: str, tmp_path: Path
) -> None:
    """Times of two units are refused, however many rows each unit has, and where they stand."""
    frame = pl.DataFrame(
        {"user": list("abcde"), "item": list("vwxyz"), "when": [0.0, 1e9, 1e9, float(rest), 1e9]}
    )
    path = tmp_path / f"a.{suffix}"
    frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
    with pytest.raises(MalformedRowError, match="times of one unit") as refused:
        read(path, timestamp="when")
    assert refused.value.line == (5 if suffix == "csv" else 4)
    with pytest.raises(DataError, match="times of one unit"):
        read_frame(frame, time="when")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_batches_of_one_file_have_one_unit(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_batches, "_BATCH_ROWS", 2)
    monkeypatch.setattr(table_batches, "_BATCH_BYTES", 1)
    when = [0, 0, 10**12, 10**12, 10**9, 10**9]
    frame = pl.DataFrame({"user": list("abcdef"), "item": list("uvwxyz"), "when": when})
    path = tmp_path / f"a.{suffix}"
    for rows, refused in ((4, False), (6, True)):
        part = frame.head(rows)
        part.write_csv(path) if suffix == "csv" else part.write_parquet(path)
        asked = asked_table(path, TableOptions(timestamp="when"))
        with pytest.raises(MalformedRowError, match="one unit") if refused else nullcontext():
            taken = pl.concat([batch for batch, _ in row_batches(asked)])
            assert taken["timestamp"].to_list() == [0.0, 0.0, 1e9, 1e9]


def test_dates_of_parquet_are_times(tmp_path: Path) -> None:
    when = [datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC), datetime(2001, 9, 9, tzinfo=UTC)]
    frame = pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"], "when": when})
    for name, column in (
        ("zoned", pl.col("when")),
        ("plain", pl.col("when").dt.replace_time_zone(None)),
        ("day", pl.col("when").dt.date()),
    ):
        frame.with_columns(column).write_parquet(tmp_path / f"{name}.parquet")
        times = read(tmp_path / f"{name}.parquet", timestamp="when").interactions.times
        assert times is not None
        assert times.tolist() == [999_993_600 if name == "day" else 1_000_000_000, 999_993_600]


@pytest.mark.parametrize(
    ("content", "line", "named"),
    [
        ("user;item;rating\na;x;4\nb;y\n", 3, "3 fields separated by semicolon"),
        ("user;item;rating\na;x;4\nb;y;3;1\n", 3, "3 fields separated by semicolon"),
        (
            "user;item;rating\na;x;4\nb;y;3,5\n",
            3,
            "a number with a point before its decimals as rating",
        ),
        ("user::item::rating\na::x::4\nb::y:3\n", 3, "3 fields separated by '::'"),
        ("user::item::rating\na::x::4\nb::y::3:\n", 3, "a finite number as rating"),
        ("user\titem\trating\na\tx\t4\n\ty\t3\n", 3, "an id as user"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_the_first_bad_line_is_named_whatever_the_separator(
    content: str, line: int, named: str, compressed: bool, tmp_path: Path
) -> None:
    path = tmp_path / ("a.txt.gz" if compressed else "a.txt")
    path.write_bytes(gzip.compress(content.encode()) if compressed else content.encode())
    with pytest.raises(MalformedRowError, match=named) as caught:
        read(path, rating_range=(0.5, 5.0))
    assert caught.value.line == line
    assert caught.value.remedy


def test_a_damaged_archive_and_a_bad_date_are_named(tmp_path: Path) -> None:
    whole = gzip.compress(lines(",").encode() * 50)
    for number, content in enumerate((whole[: len(whole) // 2], b"user,item\na,x\n")):
        path = tmp_path / f"{number}.csv.gz"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"csv\.gz cannot be read"):
            read(path, **RATED)
    (tmp_path / "a.csv").write_text("user,item,when\na,x,2001-09-09\nb,x,2001-13-09\n")
    with pytest.raises(MalformedRowError, match="line 3: expected a time"):
        read(tmp_path / "a.csv", timestamp="when")


def test_repeated_clicks_are_merged_and_counted_and_repeated_ratings_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "clicks.csv").write_text("user,item,when\na,x,5\na,x,9\na,x,7\nb,x,1\n")
    data = read(tmp_path / "clicks.csv", timestamp="when")
    assert (len(data.interactions), data.provenance.report.duplicates_resolved) == (2, 2)
    assert data.interactions.times is not None
    assert data.interactions.times.tolist() == [9, 1]
    with pytest.raises(MalformedRowError, match="one row per user and item"):
        read(tmp_path / "clicks.csv", duplicates="refuse")
    (tmp_path / "ratings.csv").write_text("user,item,rating\na,x,5\na,x,4\n")
    with pytest.raises(MalformedRowError, match="one row per user and item"):
        read(tmp_path / "ratings.csv", rating_range=(1, 5))


def divided(folder: Path, suffix: str = ".csv", **more: str) -> Path:
    folder.mkdir(exist_ok=True)
    parts = {"train": "a,x,4\nb,y,2\n", "validation": "a,y,5\n", "test": "b,x,1\nc,z,3\n"} | more
    for name, rows in parts.items():
        content = f"user,item,rating\n{rows}".encode()
        (folder / f"{name}{suffix}").write_bytes(
            gzip.compress(content) if suffix.endswith(".gz") else content
        )
    return folder


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.filterwarnings("ignore:training names")
def test_own_training_validation_and_test_rows_share_one_catalogue(
    suffix: str, tmp_path: Path
) -> None:
    folder = divided(tmp_path / "parts", suffix)
    named = {name: str(folder / f"{name}{suffix}") for name in ("validation", "test")}
    for data in (
        read(folder, rating_range=(1, 5)),
        read(folder / f"train{suffix}", rating_range=(1, 5), **named),
    ):
        assert data.given_validation is not None
        assert data.given_test is not None
        assert data.catalogue.user_ids == ("a", "b", "c")
        assert data.catalogue.item_ids == ("x", "y", "z")
        parts = (data.interactions, data.given_validation, data.given_test)
        found = [(part.users.tolist(), part.items.tolist(), part.values.tolist()) for part in parts]
        assert found == [([0, 1], [0, 1], [4, 2]), ([0], [1], [5]), ([1, 2], [0, 2], [1, 3])]
        assert len(data.provenance.files) == 3


@pytest.mark.filterwarnings("ignore:training names")
def test_parts_may_have_ids_of_other_types_and_none_has_a_row_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    pl.DataFrame({"user": [1, 2], "item": [5, 6]}).write_parquet(tmp_path / "train.parquet")
    (tmp_path / "held.csv").write_text("user,item\n1,6\n2,6\n2,7\n")
    data = read(tmp_path / "train.parquet", test=str(tmp_path / "held.csv"))
    assert data.catalogue.user_ids == ("1", "2")
    assert data.given_test is not None
    assert data.given_test.items.tolist() == [1, 2]
    assert "1 rows of held.csv repeat" in data.provenance.report.notes[-1]
    with pytest.raises(LeakageError, match="the first: user '2', item '6'"):
        read(tmp_path / "train.parquet", test=str(tmp_path / "held.csv"), duplicates="refuse")
    folder = divided(tmp_path / "parts", test="a,x,1\n")
    with pytest.raises(LeakageError, match=r"test\.csv repeat a user and item"):
        read(folder, rating_range=(1, 5))


def test_folders_and_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    folder = divided(tmp_path / "parts")
    with pytest.raises(SettingsError, match="test rows of its own"):
        read(folder, test=str(folder / "test.csv"), rating_range=(1, 5))
    (folder / "train.tsv").write_text("user\titem\trating\na\tx\t4\n")
    with pytest.raises(DataError, match=r"train\.csv and train\.tsv"):
        read(folder, rating_range=(1, 5))
    with pytest.raises(DataError, match=r"absent\.csv is missing"):
        read(folder / "train.csv", test=str(folder / "absent.csv"), rating_range=(1, 5))
    pl.DataFrame({"user": ["q"], "item": ["x"], "rating": [3.0], "target": [True]}).write_parquet(
        tmp_path / "test.parquet"
    )
    with pytest.raises(DataError, match="users are held out"):
        read(folder / "train.csv", test=str(tmp_path / "test.parquet"), rating_range=(1, 5))


def test_a_text_file_that_is_no_table_of_rows_is_refused_and_not_read_as_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("0 1 2 3\n1 5\n")
    with pytest.raises(MalformedRowError, match="line 2: expected 4 fields"):
        read(tmp_path / "a.txt", rating_range=(1, 5))


def test_a_table_of_items_may_have_another_separator_and_be_packed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item\na,x\nb,y\n")
    (tmp_path / "items.csv.gz").write_bytes(
        gzip.compress(b"item;title;genre\nx;One, two;Drama|Comedy\ny;Three;Drama\nz;Four;Drama\n")
    )
    data = read(tmp_path / "a.csv", item_features=str(tmp_path / "items.csv.gz"))
    assert data.catalogue.titles == ("One, two", "Three", "Four")
    assert data.features.bags["genre"].vocabulary == ("Comedy", "Drama")


def test_lists_of_clicks_may_have_validation_clicks(tmp_path: Path) -> None:
    for name, rows in (("train", "0 1 2\n1 0 0\n"), ("valid", "0 3\n"), ("test", "1 4\n")):
        (tmp_path / f"{name}.txt").write_text(rows)
    data = read(tmp_path)
    assert data.given_validation is not None
    assert data.given_test is not None
    assert (
        len(data.interactions),
        data.given_validation.items.tolist(),
        data.given_test.items.tolist(),
    ) == (3, [3], [4])
    assert data.provenance.report.duplicates_resolved == 1
