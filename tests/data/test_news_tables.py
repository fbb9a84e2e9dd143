"""Own articles and click logs as frames: the folder that is written says what the frames say, and
what cannot be used is refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedrec.data.news_files import read_mind
from fedrec.data.news_tables import VECTORS, renamed, write_news
from fedrec.encoders.word_vectors import read_vectors
from fedrec.errors import DataError, FedRecError

ARTICLES = pl.DataFrame(
    {
        "item": ["a-1", "b", "c"],
        "title": ["sun\tand sea", "rain", "snow"],
        "category": ["weather", None, "sport"],
        "vector": [[1.0, 0.5], [0.0, 1.0], [-1.0, 0.25]],
    }
)
LISTS = [  # impression, user, day, items, clicked
    ("x1", "u", 1, "b c", "1 0"),
    ("x2", "v", 1, "a-1 c", "0 1"),
    ("x3", "u", 2, "c a-1 b", "0 1 1"),
    ("x4", "v", 2, "a-1 b", "0 0"),
    ("x5", "u", 3, "c b", "1 0"),
]
LOG = pl.DataFrame(
    [
        (name, user, f"2026-01-0{day} 10:00", item, int(hit))
        for name, user, day, items, hits in LISTS
        for item, hit in zip(items.split(), hits.split(), strict=True)
    ],
    schema=["impression", "user", "time", "item", "clicked"],
    orient="row",
)
CUTS = ("2026-01-02", "2026-01-03")


def test_histories_lists_and_clicks_are_read_back_as_the_frames_have_them(tmp_path: Path) -> None:
    assert write_news(ARTICLES, LOG, tmp_path, cuts=CUTS)
    mind = read_mind(tmp_path)
    ids = mind.news.ids
    assert ids == ("a-1", "b", "c")
    assert mind.news.titles[0] == "sun and sea"
    assert mind.news.categories == ("weather", "", "sport")

    def lists(part: str) -> list[tuple[list[str], dict[str, bool]]]:
        shown = mind.splits[part]
        return [
            (
                [ids[j] for j in shown.history[slice(*shown.history_ptr[[k, k + 1]])]],
                {ids[shown.candidates[j]]: bool(shown.clicked[j]) for j in range(*ptr)},
            )
            for k, ptr in zip(
                shown.users,
                np.lib.stride_tricks.sliding_window_view(shown.candidate_ptr, 2),
                strict=True,
            )
        ]

    assert lists("train") == [
        (["b"], {"c": False, "a-1": True, "b": True}),
        (["c"], {"a-1": False, "b": False}),
    ]
    # what was clicked while others were trained on is history of the test
    assert lists("dev") == [(["b", "a-1", "b"], {"c": True, "b": False})]
    vectors = read_vectors(tmp_path / VECTORS)
    assert {name: vector.tolist() for name, vector in vectors.items()} == dict(
        zip(ARTICLES["item"], ARTICLES["vector"].to_list(), strict=True)
    )
    assert mind.news.entities == (("a-1",), ("b",), ("c",))


def test_columns_of_other_names_take_the_place_of_those_called_as_the_role() -> None:
    frame = pl.DataFrame({"item": [9], "article": ["a"], "title": ["t"]})
    assert renamed(frame, {"item": "article", "title": "title"}).to_dicts() == [
        {"item": "a", "title": "t"}
    ]


WRONG: dict[str, tuple[Any, Any, Any, str]] = {
    "no title": (ARTICLES.drop("title"), LOG, CUTS, "no column 'title'"),
    "no user": (ARTICLES, LOG.drop("user"), CUTS, "no column 'user'"),
    "twice": (pl.concat([ARTICLES, ARTICLES]), LOG, CUTS, "'a-1' comes twice"),
    "an id with a blank": (
        ARTICLES.with_columns(pl.col("item") + " x"),
        LOG,
        CUTS,
        "holds a blank",
    ),
    "an unknown article": (ARTICLES.head(2), LOG, CUTS, "no item 'c'"),
    "another number": (ARTICLES, LOG.with_columns(clicked=2), CUTS, "other numbers"),
    "a word for a click": (ARTICLES, LOG.with_columns(clicked=pl.lit("yes")), CUTS, "clicked"),
    "a gap": (ARTICLES, LOG.with_columns(clicked=pl.lit(None, pl.Int8)), CUTS, "missing"),
    "no time": (ARTICLES, LOG.with_columns(time=pl.lit("noon")), CUTS, "no time"),
    "two users": (
        ARTICLES,
        LOG.with_columns(impression=pl.lit("x")),
        CUTS,
        "two users or two times",
    ),
    "cuts": (ARTICLES, LOG, CUTS[::-1], "not in order"),
    "no test": (ARTICLES, LOG, ("2026-01-02", "2027-01-01"), "no impression of dev"),
    "vectors": (
        ARTICLES.with_columns(vector=pl.Series([[1.0], [1.0, 2.0], [0.0]])),
        LOG,
        CUTS,
        "as many finite numbers",
    ),
    "vectors with a gap": (
        ARTICLES.with_columns(vector=pl.Series([[1.0], [float("nan")], [0.0]])),
        LOG,
        CUTS,
        "as many finite numbers",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    articles, log, cuts, cause = WRONG[name]
    with pytest.raises(DataError) as caught:
        write_news(articles, log, tmp_path, cuts=cuts)
    assert cause in caught.value.cause
    assert caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_numbers_with_a_gap_are_the_ids_that_they_were(tmp_path: Path) -> None:
    number = {item: float(n) for n, item in enumerate(ARTICLES["item"])}
    articles = ARTICLES.with_columns(pl.col("item").replace_strict(number))
    log = LOG.with_columns(pl.col("item").replace_strict(number).cast(pl.Int64))
    write_news(articles, log, tmp_path, cuts=CUTS)
    assert (tmp_path / "train/news.tsv").read_text().startswith("0\t")


def test_a_folder_that_holds_something_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(FedRecError, match="holds something"):
        write_news(ARTICLES, LOG, tmp_path, cuts=CUTS)
