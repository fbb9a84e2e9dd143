from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedrec.data.item_tables import read_item_table
from fedrec.data.read import read
from fedrec.errors import DataError, MalformedRowError, SettingsError

NAMES = {
    "user": "who",
    "item": "what",
    "rating": "stars",
    "timestamp": "when",
    "rating_range": (1, 5),
}
ROWS = {
    "who": ["b", "a", "a"],
    "what": ["x", "y,z", "x"],
    "stars": [4.0, 1.5, 5.0],
    "when": [30.0, 20.0, 10.0],
    "other": ["p", "q", "r"],
}


def write(folder: Path, suffix: str) -> Path:
    path = folder / f"log{suffix}"
    frame = pl.DataFrame(ROWS)
    if suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="," if suffix == ".csv" else "\t")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_the_same_table_reads_the_same_from_every_file_type(tmp_path, suffix):
    data = read(write(tmp_path, suffix), **NAMES)
    events = data.interactions
    assert data.catalogue.item_ids == ("x", "y,z")
    assert data.catalogue.user_ids == ("a", "b")
    np.testing.assert_array_equal(events.items, [0, 1, 0])
    np.testing.assert_array_equal(events.values, [5, 1.5, 4])
    np.testing.assert_array_equal(events.times, [10, 20, 30])
    assert events.value_range == (1.0, 5.0)


def test_ids_that_are_all_numbers_are_ordered_as_numbers(tmp_path):
    (tmp_path / "log.csv").write_text("user,item\n10,7\n9,100\n")
    data = read(tmp_path / "log.csv")
    assert data.catalogue.user_ids == ("9", "10")
    assert data.catalogue.item_ids == ("7", "100")
    assert data.interactions.kind == "clicks"


def test_a_scale_is_never_read_off_the_ratings(tmp_path):
    with pytest.raises(SettingsError, match="rating_range"):
        read(write(tmp_path, ".csv"), **{k: v for k, v in NAMES.items() if k != "rating_range"})


def test_a_folder_of_parquet_parts_is_one_table(tmp_path):
    pl.DataFrame(ROWS)[:2].write_parquet(tmp_path / "part-0.parquet")
    pl.DataFrame(ROWS)[2:].write_parquet(tmp_path / "part-1.parquet")
    assert len(read(tmp_path, **NAMES).interactions) == 3


@pytest.mark.parametrize(("bad", "expected"), [
    ("a,x,3", "4 fields"), ("a,x,3,4,5", "4 fields"), ("a,x,three,4", "a finite number as stars"),
    ("a,,3,4", "an id as what"),
    ("a,x,,4", "a finite number as stars"), ("a,x,inf,4", "a finite number as stars"),
    ("a,x,3,soon", r"or an ISO date\) as when"),
    ("", "4 fields"),
    ("a,x,6,4", r"a rating in \[1, 5\]"), ("b,x,2,4", "one row per user and item"),
])  # fmt: skip
def test_a_bad_row_is_named_by_file_line_and_expectation(tmp_path, bad, expected):
    (tmp_path / "log.csv").write_text(f"who,what,stars,when\nb,x,4,3\n{bad}\nc,y,1,2\n")
    with pytest.raises(MalformedRowError, match=expected) as raised:
        read(tmp_path / "log.csv", **NAMES)
    assert (raised.value.path.name, raised.value.line) == ("log.csv", 3)


def test_a_header_that_no_table_has_is_a_bad_row_and_no_defect(tmp_path):
    path = tmp_path / "junk.csv"
    path.write_bytes(b"user,it\rem,rating\n1,2,3\n")
    with pytest.raises(MalformedRowError, match="line 1: expected a row of a table"):
        read(path, rating_range=(1, 5))


def test_a_long_row_is_found_beside_quoted_commas(tmp_path):
    (tmp_path / "log.csv").write_text('who,what,stars,when\nb,"x,y",4,3\na,x,3,4,5\n')
    with pytest.raises(MalformedRowError) as raised:
        read(tmp_path / "log.csv", **NAMES)
    assert raised.value.line == 3


def test_a_missing_column_names_those_there_are(tmp_path):
    with pytest.raises(DataError) as raised:
        read(write(tmp_path, ".csv"), user="who", item="thing")
    assert "thing" in raised.value.cause
    assert "what" in raised.value.remedy


def test_a_null_in_parquet_is_a_malformed_row(tmp_path):
    pl.DataFrame(ROWS | {"stars": [4.0, None, 5.0]}).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(MalformedRowError) as raised:
        read(tmp_path / "log.parquet", **NAMES)
    assert raised.value.line == 2


@pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")
def test_an_item_table_gives_titles_bags_and_items_nobody_met(tmp_path):
    (tmp_path / "items.csv").write_text(
        "what,title,genre\nx,The Blue Door,Drama|Comedy\nn,Never Seen,Drama\n"
    )
    data = read(write(tmp_path, ".csv"), **NAMES, item_features=tmp_path / "items.csv")
    assert data.catalogue.item_ids == ("x", "n")
    assert data.catalogue.titles == ("The Blue Door", "Never Seen")
    assert data.features.bags["genre"].vocabulary == ("Comedy", "Drama")
    np.testing.assert_array_equal(data.features.bags["genre"].counts.toarray(), [[1, 1], [0, 1]])
    assert data.provenance.report.notes == (
        "columns not used: other",
        "log.csv: times are seconds since 1970, guessed: the last is on 1970-01-01",
        "items.csv names 1 of the 2 items",
        "left out: 1 row on items that items.csv does not name",
    )
    np.testing.assert_array_equal(data.interactions.items, [0, 0])


def recbole(folder: Path) -> Path:
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    (folder / "toy.inter").write_text(
        header + "1\t20\t4\t978300760.0\n1\t3\t5\t978302109.0\n2\t3\t1\t978301968.0\n"
    )
    (folder / "toy.item").write_text(
        "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\tprice:float\n"
        '3\tGrumpier "Old" Men\t1995\tComedy Romance\t2.5\n20\tMoney Train\t1995\tAction '
        "Comedy\t1.0\n"
    )
    return folder


def test_recbole_is_read_with_its_items_typed(tmp_path):
    data = read(recbole(tmp_path), rating_range=(1, 5))
    assert data.provenance.format == "recbole"
    assert data.catalogue.item_ids == ("3", "20")
    assert data.catalogue.titles == ('Grumpier "Old" Men', "Money Train")
    assert data.features.bags["class"].vocabulary == ("Action", "Comedy", "Romance")
    assert data.features.bags["release_year"].vocabulary == ("1995",)
    assert len(data.features.bags["price"].vocabulary) == 2
    np.testing.assert_array_equal(data.interactions.values, [5, 4, 1])
    np.testing.assert_array_equal(data.interactions.times, [978302109, 978300760, 978301968])


def test_recbole_ratings_may_be_read_as_clicks(tmp_path):
    events = read(recbole(tmp_path), click_threshold=0).interactions
    assert events.kind == "clicks"
    np.testing.assert_array_equal(events.values, 1)


def test_an_untyped_recbole_header_is_line_one(tmp_path):
    (tmp_path / "toy.inter").write_text("user_id\titem_id\n1\t2\n")
    with pytest.raises(MalformedRowError) as raised:
        read(tmp_path)
    assert raised.value.line == 1


@pytest.mark.parametrize(
    "content", ["\n", "who,what,stars,when\n", "who,what,stars,when", "\x00", "a,b\n1,2\n"]
)
def test_a_table_without_rows_or_header_is_a_data_error(tmp_path, content):
    (tmp_path / "log.csv").write_text(content)
    with pytest.raises(DataError):
        read(tmp_path / "log.csv", **NAMES)


@pytest.mark.parametrize(
    "content",
    [
        "\n",
        "what,title\n",
        "what,title\nx,a\nx,b\n",
        "what,title\n,a\n",
        "what,title\nx\n",
        "name\nx\n",
    ],
)
def test_a_bad_item_table_is_a_data_error(tmp_path, content):
    (tmp_path / "items.csv").write_text(content)
    with pytest.raises(DataError):
        read(write(tmp_path, ".csv"), **NAMES, item_features=tmp_path / "items.csv")


def test_a_scale_means_ratings_and_never_clicks(tmp_path: Path) -> None:
    """A table whose ratings nobody named is not read as clicks by mistake."""
    (tmp_path / "r.csv").write_text("user,item,rating\na,b,3\na,c,5\n")
    assert read(tmp_path / "r.csv", rating_range=(1, 5)).interactions.values.tolist() == [3, 5]
    (tmp_path / "x.csv").write_text("user,item,rating\na,b,3\na,c,x\n")
    with pytest.raises(MalformedRowError, match="line 3"):
        read(tmp_path / "x.csv", rating_range=(1, 5))
    with pytest.raises(SettingsError, match="rating_range"):
        read(tmp_path / "r.csv")
    pl.DataFrame({"user": [1], "item": [2], "rating": [3.0]}).write_parquet(tmp_path / "r.parquet")
    with pytest.raises(SettingsError, match="rating_range"):
        read(tmp_path / "r.parquet")
    (tmp_path / "n.csv").write_text("user,item,plus\na,b,3\n")
    with pytest.raises(DataError, match="rating"):
        read(tmp_path / "n.csv", rating_range=(1, 5))


@pytest.mark.parametrize(
    ("column", "values"),
    [("title", ["T1", "T2", "T3"]), ("kind", ["book", "book", "book"]), ("kind", ["", "", ""])],
    ids=["titles without words", "one value", "no value"],
)
def test_where_no_column_tells_an_item_from_another_there_are_no_features(
    column: str, values: list[str], tmp_path: Path
) -> None:
    """Alone it made the directions of the public features 0 / 0, and every bias after them."""
    rows = "".join(f"{n},{value}\n" for n, value in enumerate(values))
    (tmp_path / "items.csv").write_text(f"item,{column}\n{rows}")
    table = read_item_table(tmp_path / "items.csv", id_column="item", separator="|")
    assert table.features.bags == {}
    (tmp_path / "more.csv").write_text(
        f"item,genre,{column}\n0,drama,{values[0]}\n1,drama,{values[1]}\n2,,{values[2]}\n"
    )
    more = read_item_table(tmp_path / "more.csv", id_column="item", separator="|")
    assert set(more.features.bags) == {"genre", column}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [",", "\t", "::"])
@pytest.mark.parametrize("blanks", [0, 1, 3])
def test_blank_lines_at_the_end_are_no_rows(
    tmp_path: Path, end: str, separator: str, blanks: int
) -> None:
    lines = ["user,item,rating", "u,i,3", "v,i,4"]
    text = end.join(line.replace(",", separator) for line in lines) + end * (1 + blanks)
    path = tmp_path / "log.dat"
    scale = (1, 5)
    path.write_bytes(text.encode())
    assert len(read(path, separator=separator, rating_range=scale).interactions) == 2
    path.write_bytes(text.replace("4", "x").encode())
    with pytest.raises(MalformedRowError, match="line 3: expected a finite number"):
        read(path, separator=separator, rating_range=scale)
    path.write_bytes(text.replace(f"{end}v", f"{end}{end}v").encode())
    with pytest.raises(MalformedRowError, match="line 3: expected 3 fields"):
        read(path, separator=separator, rating_range=scale)


def test_blank_lines_at_the_end_of_a_table_of_items_are_no_items(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,title\n1,one\n2,two\n\n\n")
    table = read_item_table(tmp_path / "items.csv", id_column="item", separator="|")
    assert table.ids == ("1", "2")


@pytest.mark.parametrize(
    ("rows", "line", "said"),
    [
        (["u,i,3,978300760", "v,i,4,2003-01-01"], 3, r"one kind \(the first is a number\) as when"),
        (["u,i,3,2003-01-01", "v,i,4,978300760"], 3, r"one kind \(the first is a date\) as when"),
        (["u,i,3,978300760", "v,i,4,soon"], 3, "a time .* as when, found 'soon'"),
        (["u,i,3,01/02/2020"], 2, "a time .* as when, found '01/02/2020'"),
        (["u,i,3,4,5"], 2, "4 fields separated by comma, found 'u,i,3,4,5'"),
    ],
)
def test_an_error_of_a_row_shows_the_row_and_what_it_should_be(
    tmp_path: Path, rows: list[str], line: int, said: str
) -> None:
    (tmp_path / "log.csv").write_text("\n".join(["user,item,rating,when", *rows]) + "\n")
    with pytest.raises(MalformedRowError, match=said) as failure:
        read(tmp_path / "log.csv", rating_range=(1, 5), timestamp="when")
    assert failure.value.line == line
