"""Readers of MIND on files in its format that the tests write, and on real samples where there are
any."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import fedrec.data.behaviors
from fedrec.data.impressions import Impressions, News
from fedrec.data.news_files import merge_news, read_behaviors, read_mind, read_news
from fedrec.encoders.word_vectors import read_vectors
from fedrec.errors import DataError, MalformedRowError
from fedrec.randomness import Streams

ENTITY = json.dumps(
    [
        {
            "Label": "PGA Tour",
            "Type": "O",
            "WikidataId": "Q910409",
            "Confidence": 1.0,
            "OccurrenceOffsets": [0],
        }
    ]
)
NEWS = [
    f"N1\tsports\tgolf\tPGA Tour winners\tA gallery.\thttps://x\t{ENTITY}\t{ENTITY}",
    "N2\tnews\tnewsus\tTitle two\t\thttps://x\t[]\t",
    'N3\tnews\tnewsworld\tThe "third" title\tSaid "so.\thttps://x\t\t[]',
]
TIME = "11/15/2019 10:22:32 AM"
ROWS = [
    f"1\tU9\t{TIME}\tN1 N2\tN3-1 N2-0",
    f"2\tU4\t{TIME}\t\tN1-0 N2-1 N3-1",
    f"3\tU9\t{TIME}\tN1 N2\tN2-1 N1-0",
]


def write(path: Path, rows: list[str], end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((end.join(rows) + end).encode())
    return path


@pytest.fixture
def news(tmp_path: Path) -> News:
    return read_news(write(tmp_path / "news.tsv", NEWS))


def histories(part: Impressions) -> list[list[int]]:
    return [part.history[a:b].tolist() for a, b in itertools.pairwise(part.history_ptr)]


def test_news_have_their_texts_categories_and_distinct_entities(news: News) -> None:
    assert news.ids == ("N1", "N2", "N3")
    assert news.titles[2] == 'The "third" title'
    assert news.abstracts == ("A gallery.", "", 'Said "so.')
    assert news.subcategories == ("golf", "newsus", "newsworld")
    assert news.entities == (("Q910409",), (), ())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_behaviors_are_users_histories_and_candidates_in_the_order_of_the_file(
    tmp_path: Path, news: News, end: str
) -> None:
    found = read_behaviors(write(tmp_path / "behaviors.tsv", ROWS, end), news)
    assert found.num_news == 3
    assert histories(found) == [[0, 1], []]
    assert found.users.tolist() == [0, 1, 0]
    assert found.candidate_ptr.tolist() == [0, 2, 5, 7]
    assert found.candidates.tolist() == [2, 1, 0, 1, 2, 1, 0]
    assert found.clicked.tolist() == [True, False, False, True, True, True, False]


def test_a_last_line_without_an_end_is_read(tmp_path: Path, news: News) -> None:
    path = tmp_path / "behaviors.tsv"
    path.write_text("\n".join(ROWS))
    assert len(read_behaviors(path, news)) == 3


def test_a_test_file_has_no_labels(tmp_path: Path, news: News) -> None:
    found = read_behaviors(
        write(tmp_path / "behaviors.tsv", [f"1\tU9\t{TIME}\tN1\tN3 N2", f"2\tU9\t{TIME}\tN1\tN1"]),
        news,
    )
    assert found.candidates.tolist() == [2, 1, 0]
    assert not found.clicked.any()


def test_blocks_of_any_size_give_the_same(
    tmp_path: Path, news: News, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        tmp_path / "behaviors.tsv",
        [*ROWS, f"4\tU7\t{TIME}\tN3\tN1-0 N2-1", f"5\tU4\t{TIME}\t\tN1-1 N2-0"],
    )
    whole = read_behaviors(path, news)
    monkeypatch.setattr(fedrec.data.behaviors, "_BLOCK_BYTES", 20)
    for column, values in vars(read_behaviors(path, news)).items():
        np.testing.assert_array_equal(values, getattr(whole, column))


GOOD = f"\tU9\t{TIME}\tN1\tN3-1 N2-0"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("7\tU9\tN3-1 N2-0", "5 fields separated by tabs"),
        (f"7{GOOD}\tmore", "5 fields separated by tabs"),
        ("", "5 fields separated by tabs"),
        (f"seven{GOOD}", "an impression id, a number"),
        (f"7\t\t{TIME}\tN1\tN3-1", "a user id"),
        ("7\tU9\t2019-11-15 10:22\tN1\tN3-1", "a time as in"),
        (f"7\tU9\t{TIME}\tN1\tN3-1 N2", "news ids with -0 or -1, one blank between, found 'N2'"),
        (
            f"7\tU9\t{TIME}\tN1\tN3-1 N2-2",
            "news ids with -0 or -1, one blank between, found 'N2-2'",
        ),
        (f"7\tU9\t{TIME}\tN1\t", "news ids with -0 or -1"),
        (f"7\tU9\t{TIME}\tN1\tN3-1  N2-0", "news ids with -0 or -1"),
        (f"7\tU9\t{TIME}\tN1\t -1 N2-0", "news ids with -0 or -1"),
        (f"7\tU9\t{TIME}\tN1\tN3-1 -0", "news ids with -0 or -1"),
        (f"7\tU9\t{TIME}\tN1  N2\tN3-1", "news ids, one blank between"),
        (f"7\tU9\t{TIME}\tN1\tN3-1 N8-0", "news that news.tsv has, found 'N8'"),
        (f"7\tU6\t{TIME}\tN1 N8\tN3-1", "news that news.tsv has, found 'N8'"),
        (
            f"7\tU9\t{TIME}\tN2 N1\tN3-1",
            "a history that continues or begins the user's others, found 'N2 N1'",
        ),
    ],
)
@pytest.mark.parametrize("block_bytes", [20, 1 << 20])
def test_a_bad_line_is_named(
    tmp_path: Path,
    news: News,
    monkeypatch: pytest.MonkeyPatch,
    row: str,
    expected: str,
    block_bytes: int,
) -> None:
    monkeypatch.setattr(fedrec.data.behaviors, "_BLOCK_BYTES", block_bytes)
    path = write(tmp_path / "behaviors.tsv", [*ROWS, row, f"8{GOOD}"])
    with pytest.raises(MalformedRowError) as caught:
        read_behaviors(path, news)
    assert (caught.value.path, caught.value.line) == (path, 4)
    assert expected in caught.value.cause


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path, news: News) -> None:
    path = tmp_path / "behaviors.tsv"
    path.write_bytes("\n".join(ROWS).encode() + b"\n4\tU\xff\t" + TIME.encode() + b"\tN1\tN3-1\n")
    with pytest.raises(MalformedRowError, match="line 4: expected UTF-8"):
        read_behaviors(path, news)


def test_missing_and_empty_files_are_refused(tmp_path: Path, news: News) -> None:
    with pytest.raises(DataError, match="is missing"):
        read_behaviors(tmp_path / "none.tsv", news)
    (tmp_path / "behaviors.tsv").write_text("")
    with pytest.raises(DataError, match="is empty"):
        read_behaviors(tmp_path / "behaviors.tsv", news)


def test_of_growing_histories_the_shortest_is_taken_so_that_no_label_is_in_it(
    tmp_path: Path, news: News
) -> None:
    rows = [
        f"{i}\tU9\t{TIME}\t{history}\tN3-1 N2-0"
        for i, history in enumerate(["N1 N2", "N1", "N1 N2 N3"], start=1)
    ]
    found = read_behaviors(
        write(tmp_path / "behaviors.tsv", [*rows, f"4\tU8\t{TIME}\tN3 N2\tN1-1 N2-0"]), news
    )
    assert histories(found) == [[0], [2, 1]]


def test_news_without_text_are_added_at_the_end_on_demand(tmp_path: Path) -> None:
    write(tmp_path / "MINDdemo_train/news.tsv", NEWS[:2])
    write(tmp_path / "MINDdemo_train/behaviors.tsv", ROWS)
    write(tmp_path / "MINDdemo_dev/news.tsv", NEWS[1:2])
    write(tmp_path / "MINDdemo_dev/behaviors.tsv", [f"1\tU4\t{TIME}\tN7\tN8-1 N2-0"])
    with pytest.raises(MalformedRowError, match="'N3'"):
        read_mind(tmp_path)
    mind = read_mind(tmp_path, unknown="add")
    assert mind.news.ids[:3] == ("N1", "N2", "N3")
    assert set(mind.news.ids[3:]) == {"N7", "N8"}
    assert mind.news.titles[2:] == ("", "", "")
    assert {part.num_news for part in mind.splits.values()} == {5}
    assert [mind.news.ids[j] for j in mind.splits["dev"].candidates] == ["N8", "N2"]
    with pytest.raises(ValueError, match="found 'guess'"):
        read_mind(tmp_path, unknown="guess")  # type: ignore[arg-type]


def test_splits_share_one_catalogue_and_dev_is_the_test(tmp_path: Path) -> None:
    many = [f"{i}\tU{i}\t{TIME}\tN1\tN3-1 N2-0" for i in range(40)]
    for split, rows, items in (("train", many, NEWS), ("dev", ROWS, NEWS[::-1])):
        write(tmp_path / split / "news.tsv", items)
        write(tmp_path / split / "behaviors.tsv", rows)
    mind = read_mind(tmp_path)
    assert list(mind.splits) == ["train", "dev"]
    assert (
        mind.news
        == read_news(tmp_path / "train/news.tsv")
        == merge_news([mind.news, read_news(tmp_path / "dev/news.tsv")])
    )
    log = mind.click_log(streams=Streams(0))
    assert log.test.num_users == 2
    assert log.train.num_users + log.validation.num_users == 40
    assert 1 <= log.validation.num_users <= 12
    assert len(log.train) + len(log.validation) == 40
    with pytest.raises(DataError, match="no split dev"):
        read_mind(tmp_path / "train").click_log(streams=Streams(0))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("N4\tsports\tgolf\ttitle", "8 fields"),
        (NEWS[0], "did not come before"),
        ("\ta\tb\tc\td\te\t[]\t[]", "a news id"),
        ("N4\ta\tb\tc\td\te\t[{\t[]", "a JSON list of entities"),
        ('N4\ta\tb\tc\td\te\t[]\t[{"Label": "x"}]', "a JSON list of entities"),
        ("N4\ta\tb\tc\td\te\t5\t[]", "a JSON list of entities"),
    ],
)
def test_a_bad_news_line_is_named(tmp_path: Path, row: str, expected: str) -> None:
    with pytest.raises(MalformedRowError, match=expected) as caught:
        read_news(write(tmp_path / "news.tsv", [*NEWS, row]))
    assert caught.value.line == 4


def test_entity_embeddings_and_glove_are_read_by_what_is_wanted(tmp_path: Path) -> None:
    entities = write(tmp_path / "entity_embedding.vec", ["Q41\t0.5\t-1\t", "Q7\t2\t3\t"])
    assert {name: vector.tolist() for name, vector in read_vectors(entities).items()} == {
        "Q41": [0.5, -1.0],
        "Q7": [2.0, 3.0],
    }
    glove = write(
        tmp_path / "glove.txt",
        ["the 1 2 3", "a 4 5 6", ". . . 7 8 9", "the 0 0 0", "bad 1 x 3", "naïve 1e-1 0 1"],
    )
    found = read_vectors(glove, wanted={"the", "naïve", ". . .", "absent"})
    assert {name: vector.tolist() for name, vector in found.items()} == {
        "the": [1, 2, 3],
        ". . .": [7, 8, 9],
        "naïve": [pytest.approx(0.1), 0, 1],
    }
    assert found["the"].dtype == np.float32
    assert read_vectors(glove, wanted={"."}) == {}, "'. . .' is another word than '.'"


@pytest.mark.parametrize("row", ["bad 1 x 3", "short 1 2", "inf 1 inf 2"])
def test_a_bad_vector_is_named_when_it_is_wanted(tmp_path: Path, row: str) -> None:
    path = write(tmp_path / "glove.txt", ["the 1 2 3", row])
    with pytest.raises(MalformedRowError, match="line 2: expected a word and 3 numbers"):
        read_vectors(path, wanted={"the", row.split()[0]})
    assert list(read_vectors(path, wanted={"the"})) == ["the"]


def test_a_file_that_holds_no_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not begin with a word and its numbers"):
        read_vectors(write(tmp_path / "x.vec", ["word"]))


def test_the_real_samples_hold_what_a_line_by_line_count_finds(real_data: Path) -> None:
    folder = real_data / "mind-sample"
    for name, impressions, clicks in (
        ("MINDsmall_train-5000", 5000, 7542),
        ("MINDdemo_opt", 4532, 7377),
    ):
        mind = read_mind(folder / name, unknown="add")
        (part,) = mind.splits.values()
        rows = [
            line.split("\t") for line in (folder / name / "behaviors.tsv").read_text().splitlines()
        ]
        assert (len(part), int(part.clicked.sum())) == (impressions, clicks)
        assert part.num_users == len({row[1] for row in rows})
        for i in (0, 17, impressions - 1):
            shown = slice(part.candidate_ptr[i], part.candidate_ptr[i + 1])
            tokens = [
                f"{mind.news.ids[j]}-{int(y)}"
                for j, y in zip(part.candidates[shown], part.clicked[shown], strict=True)
            ]
            assert " ".join(tokens) == rows[i][4]
            user = part.users[i]
            mine = part.history[part.history_ptr[user] : part.history_ptr[user + 1]]
            assert " ".join(mind.news.ids[j] for j in mine) == rows[i][3]


def test_the_real_news_sample_has_titles_and_entities(real_data: Path) -> None:
    news = read_news(real_data / "mind-sample/MINDsmall_train-5000/news.tsv")
    assert len(news) == 2000
    assert all(news.titles)
    assert sum(map(bool, news.entities)) > 1000
    with pytest.raises(MalformedRowError, match=r"line 1: expected news that news\.tsv has"):
        read_behaviors(real_data / "mind-sample/MINDsmall_train-5000/behaviors.tsv", news)
