from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from fedrec.data.movielens import ML_1M, ML_10M, ML_20M, ML_100K, read_films, read_movielens
from fedrec.data.read import read
from fedrec.errors import DataError, MalformedRowError

FLAGS = "0|0|0|1|1|1|0|0|0|0|0|0|0|0|0|0|0|0|0"


def ml_100k(folder: Path) -> Path:
    (folder / "u.data").write_text(
        "196\t2\t3\t881250949\n186\t1\t5\t891717742\n196\t1\t4\t881251000\n"
    )
    films = [
        f"1|Toy Story (1995)|01-Jan-1995||http://x|{FLAGS}",
        f"2|Misérables, Les (1995)|01-Jan-1995||http://x|{FLAGS}",
    ]
    films += ["3|unknown||||1|" + "|".join("0" * 18), ""]
    (folder / "u.item").write_bytes("\n".join(films).encode("latin-1"))
    (folder / "u1.base").write_text("196\t2\t3\t881250949\n186\t1\t5\t891717742\n")
    (folder / "u1.test").write_text("196\t1\t4\t881251000\n")
    return folder


def ml_1m(
    folder: Path,
    ratings: str = "1::1193::5::978300760\n1::661::3::978302109\n2::661::4::978298413\n",
) -> Path:
    (folder / "ratings.dat").write_text(ratings)
    films = (
        "661::James and the Giant Peach (1996)::Animation|Children's\n1193::Misérables, Les "
        "(1975)::Drama\n9::Unseen (1999)::Drama\n"
    )
    (folder / "movies.dat").write_bytes(films.encode("latin-1"))
    (folder / "users.dat").write_text("1::F::1::10::48067\n2::M::56::16::70072\n")
    return folder


def ml_10m(folder: Path) -> Path:
    (folder / "ratings.dat").write_text(
        "1::122::5::838985046\n1::185::3.5::838983525\n4::122::0.5::838983392\n"
    )
    (folder / "movies.dat").write_text(
        "122::Boomerang (1992)::Comedy|Romance\n185::Café :: Net, The (1995)::(no genres listed)\n",
        encoding="utf-8",
    )
    (folder / "tags.dat").write_text("")
    return folder


def ml_20m(folder: Path) -> Path:
    (folder / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n1,29,4.0,1112484676\n3,2,0.5,1112484819\n"
    )
    films = (
        'movieId,title,genres\n2,Jumanji (1995),Adventure|Children\n29,"City of ""Lost"" '
        'Children, The (1995)",Fantasy\n'
    )
    (folder / "movies.csv").write_text(films)
    return folder


@pytest.mark.parametrize(("write", "name", "events", "users", "items"), [
    (ml_100k, "ml-100k", 3, 2, 3), (ml_1m, "ml-1m", 3, 2, 3), (ml_10m, "ml-10m", 3, 2, 2), (ml_20m,
    "ml-20m", 3, 2, 2),
])  # fmt: skip
def test_every_official_format_is_recognised_and_read(tmp_path, write, name, events, users, items):
    data = read(write(tmp_path))
    found = data.interactions
    assert data.provenance.format == name
    assert (len(found), found.num_users, found.num_items) == (events, users, items)
    assert found.value_range == ((0.5, 5.0) if name in ("ml-10m", "ml-20m") else (1.0, 5.0))


def test_1m_events_are_the_files_events_on_the_catalogue_of_the_films_file(tmp_path):
    data = read(ml_1m(tmp_path))
    ids = data.catalogue.item_ids
    users = data.catalogue.user_ids
    events = data.interactions
    rows = {
        (users[u], ids[j], v, t)
        for u, j, v, t in zip(events.users, events.items, events.values, events.times, strict=True)
    }
    assert rows == {
        ("1", "1193", 5.0, 978300760),
        ("1", "661", 3.0, 978302109),
        ("2", "661", 4.0, 978298413),
    }
    assert ids == ("661", "1193", "9")
    assert data.catalogue.titles == (
        "James and the Giant Peach (1996)",
        "Misérables, Les (1975)",
        "Unseen (1999)",
    )


def test_genres_years_and_title_words_become_bags(tmp_path):
    bags = read(ml_1m(tmp_path), min_items=1).features.bags
    assert set(bags) == {"listed_genre", "title", "year", "period"}
    assert bags["listed_genre"].vocabulary == ("Animation", "Children's", "Drama")
    np.testing.assert_array_equal(
        bags["listed_genre"].counts.toarray(), [[1, 1, 0], [0, 0, 1], [0, 0, 1]]
    )
    assert bags["year"].vocabulary == ("1975", "1996", "1999")
    assert "peach" in bags["title"].vocabulary
    np.testing.assert_allclose(bags["period"].counts.sum(axis=1), 1, rtol=1e-6)


def test_quotes_half_stars_and_separators_inside_titles_survive(tmp_path):
    (tmp_path / "10").mkdir()
    (tmp_path / "20").mkdir()
    assert read(ml_10m(tmp_path / "10")).catalogue.titles == (
        "Boomerang (1992)",
        "Café :: Net, The (1995)",
    )
    data = read(ml_20m(tmp_path / "20"))
    assert data.catalogue.titles == ("Jumanji (1995)", 'City of "Lost" Children, The (1995)')
    assert sorted(data.interactions.values.tolist()) == [0.5, 3.5, 4.0]


def test_given_split_of_100k_is_kept_apart_with_common_numbers(tmp_path):
    data = read(ml_100k(tmp_path), given="u1")
    assert (len(data.interactions), len(data.given_test)) == (2, 1)
    assert data.given_test.num_users == data.interactions.num_users == 2
    assert data.catalogue.user_ids[data.given_test.users[0]] == "196"


def test_without_films_file_the_catalogue_is_what_was_rated(tmp_path):
    ml_1m(tmp_path)
    (tmp_path / "movies.dat").unlink()
    data = read(tmp_path, "ml-1m")
    assert data.catalogue.item_ids == ("661", "1193")
    assert data.catalogue.titles is None


@pytest.mark.parametrize(("bad", "expected"), [
    ("1::9::5", "4 fields"), ("1::9::5::6::7", "4 fields"), ("1::9:5::6", "4 fields"), ("",
    "4 fields"), ("x::9::5::6", "a user id"),
    ("-1::9::5::6", "a user id"), ("1::9.0::5::6", "an item id"), ("1::9::five::6", "a rating"),
    ("1::9::nan::6", "a rating"),
    ("1::9::5::6.5", "a time"), ("1::9::5::", "a time"), ("1::99999999999::5::6", "an item id"),
    ("1::9::::6", "a rating"), ("1:2::9:::5::6", "a user id"), ("1::9::6::6", "a rating in"),
    ("1::9::4.5::6", "a rating in steps of 1"),
    ("1::10::4::6", "a film of the films file"), ("1::661::4::6", "one row per user and item"),
])  # fmt: skip
def test_a_bad_row_is_named_by_file_line_and_expectation(tmp_path, bad, expected):
    folder = ml_1m(
        tmp_path, f"1::1193::5::978300760\n1::661::3::978302109\n{bad}\n2::661::4::978298413\n"
    )
    with pytest.raises(MalformedRowError, match=expected) as raised:
        read(folder, "ml-1m")
    assert raised.value.path.name == "ratings.dat"
    assert raised.value.line == 3


def test_a_line_ending_in_the_middle_and_a_longer_one_do_not_cancel_out(tmp_path):
    """One separator too many in one row and one too few in another give the right totals; the row
    is found all the same."""
    folder = ml_1m(tmp_path, "1::1193::5::1::2\n1::661::3\n2::661::4::3\n")
    with pytest.raises(MalformedRowError) as raised:
        read(folder)
    assert raised.value.line == 1


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path):
    assert (
        len(
            read(
                ml_1m(tmp_path, "\ufeff1::1193::5::978300760\r\n1::661::3::978302109\r\n")
            ).interactions
        )
        == 2
    )


@pytest.mark.parametrize("content", ["", "\n"])
def test_an_empty_ratings_file_is_a_data_error(tmp_path, content):
    with pytest.raises(DataError):
        read(ml_1m(tmp_path, content), "ml-1m")


def test_a_missing_ratings_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"ratings\.dat is missing"):
        read(tmp_path, "ml-1m")


def test_a_wrong_header_is_line_one(tmp_path):
    ml_20m(tmp_path)
    (tmp_path / "ratings.csv").write_text("user,movie,rating,timestamp\n1,2,3.5,1112486027\n")
    with pytest.raises(MalformedRowError) as raised:
        read_movielens(ML_20M, tmp_path)
    assert raised.value.line == 1


@pytest.mark.parametrize(
    ("form", "bad"),
    [(ML_1M, "x::A (1990)::Drama"), (ML_1M, "7::A (1990)"), (ML_1M, "661::Again (1990)::Drama")],
)
def test_a_bad_film_is_named_by_file_and_line(tmp_path, form, bad):
    (tmp_path / "movies.dat").write_text(f"661::James (1996)::Animation\n{bad}\n")
    with pytest.raises(MalformedRowError) as raised:
        read_films(tmp_path / "movies.dat", form)
    assert (raised.value.path.name, raised.value.line) == ("movies.dat", 2)


def _film_rows(form):
    name = "caf\u00e9 \u201cz\u201d (1999)"
    rows = {
        "ml-100k": "1|" + name + "|01-Jan-1995||http://x|" + "|".join("0" * 19) + "\n",
        "ml-20m": "movieId,title,genres\n1," + name + ",Drama\n",
    }
    return rows.get(form.name, "1::" + name + "::Drama\n"), name


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "latin-1"])
@pytest.mark.parametrize("form", [ML_100K, ML_1M, ML_10M, ML_20M], ids=lambda form: form.name)
def test_titles_are_read_in_utf_8_and_in_windows_1252(form, encoding, tmp_path):
    rows, name = _film_rows(form)
    if encoding == "latin-1":  # which has no such quotes
        rows, name = (
            text.replace("\u201c", "\x85").replace("\u201d", "\x81") for text in (rows, name)
        )
    (tmp_path / "films").write_bytes(rows.encode(encoding))
    assert read_films(tmp_path / "films", form)[0].title == name


def test_duplicates_and_values_off_the_scale_are_resolved_and_counted_when_told_so(tmp_path):
    folder = ml_1m(
        tmp_path, "1::661::2::50\n1::1193::5::10\n1::661::4::40\n2::661::7::10\n2::1193::1::10\n"
    )
    last = read(folder, duplicates="last", out_of_range="clip")
    # the latest time, not the last row
    np.testing.assert_array_equal(last.interactions.values, [2, 5, 5, 1])
    assert (
        last.provenance.report.duplicates_resolved,
        last.provenance.report.out_of_range_clipped,
    ) == (1, 1)
    mean = read(folder, duplicates="mean", out_of_range="drop")
    np.testing.assert_array_equal(mean.interactions.values, [3, 5, 1])
    report = mean.provenance.report
    assert (
        report.rows_read,
        report.rows_kept,
        report.duplicates_resolved,
        report.out_of_range_dropped,
    ) == (5, 3, 1, 1)


def test_a_duplicate_after_a_dropped_row_is_still_named_by_its_own_line(tmp_path):
    folder = ml_1m(tmp_path, "1::661::9::50\n1::1193::5::10\n1::1193::4::40\n")
    with pytest.raises(MalformedRowError) as raised:
        read(folder, out_of_range="drop")
    assert raised.value.line == 3
    assert "line 2" in raised.value.found


def test_100k_genre_flags_are_read_in_their_order(tmp_path):
    films = read_films(ml_100k(tmp_path) / "u.item", ML_100K)
    assert films[0].genres == ("Animation", "Children's", "Comedy")
    assert films[2].genres == ()
    assert films[1].title == "Misérables, Les (1995)"


@pytest.mark.slow
@pytest.mark.real_data
def test_movielens_1m_has_its_published_sizes_and_metadata_for_every_film(real_data):
    data = read(real_data / "ml-1m")
    events = data.interactions
    assert (len(events), events.num_users, events.num_items) == (1_000_209, 6_040, 3_883)
    assert len(np.unique(events.items)) == 3_706
    assert round(float(events.values.mean(dtype=np.float64)), 5) == 3.58156
    assert data.provenance.report.notes == ("metadata of 3883 of 3883 items",)
    bags = data.features.bags
    assert {
        "year",
        "genre",
        "director",
        "writer",
        "actor",
        "person",
        "language",
        "country",
        "certificate",
        "studio",
        "plot",
    } <= set(bags)
    covered = {name: float((bag.counts.sum(axis=1) > 0).mean()) for name, bag in bags.items()}
    assert min(covered[name] for name in ("genre", "language", "country", "plot", "year")) > 0.98


@pytest.mark.real_data
def test_movielens_100k_has_its_published_sizes_and_u1_is_a_partition(real_data):
    whole = read(real_data / "ml-100k")
    given = read(real_data / "ml-100k", given="u1")
    assert (
        len(whole.interactions),
        whole.interactions.num_users,
        whole.interactions.num_items,
    ) == (100_000, 943, 1_682)
    assert (len(given.interactions), len(given.given_test)) == (80_000, 20_000)
    total = given.interactions.values.sum(dtype=np.float64) + given.given_test.values.sum(
        dtype=np.float64
    )
    assert total == whole.interactions.values.sum(dtype=np.float64)


@pytest.mark.slow
@drawn(content=st.binary(max_size=60), where=st.integers(0, 60))
@settings(max_examples=150)
def test_any_damage_to_a_ratings_file_is_read_or_refused_as_bad_data(
    tmp_path_factory, content, where
):
    """Never another exception, and never a number of events that is not the number of lines."""
    folder = tmp_path_factory.mktemp("damaged")
    sound = b"1::1193::5::978300760\n1::661::3::978302109\n2::661::4::978298413\n"
    (folder / "ratings.dat").write_bytes(sound[:where] + content + sound[where + len(content) :])
    try:
        data = read(folder, "ml-1m")
    except DataError:
        return
    assert len(data.interactions) == len(
        (folder / "ratings.dat").read_bytes().removesuffix(b"\n").split(b"\n")
    )
