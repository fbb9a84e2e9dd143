"""Frames of articles and of impressions as a folder in MIND's format, which every command reads:
`news.tsv` beside `train` and `dev`, and `entity_embedding.vec` where articles come with vectors.

Articles have a row each, impressions a row for each candidate shown, with whether it was clicked.
Two public times divide them: what a user clicked before the first is the history of training, what
was shown between them is trained on, what was shown from the second on is the test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from fedrec.data.news_files import require_titles
from fedrec.data.values import in_unit, plain_ids, times_of
from fedrec.errors import DataError, RunError
from fedrec.storage import PRIVATE, write_bytes

VECTORS = "entity_embedding.vec"
_TEXTS = ("title", "abstract", "category", "subcategory")
_MIND_TIME = "%m/%d/%Y %-I:%M:%S %p"


def write_news(
    articles: pl.DataFrame,
    impressions: pl.DataFrame,
    folder: Path,
    *,
    cuts: tuple[float | str, float | str],
) -> bool:
    """Write the folder; whether articles had vectors.

    articles: columns item, title, and perhaps abstract, category, subcategory, and vector (a list
    of numbers). impressions: columns impression, user, time, item, clicked. cuts: seconds since
    1970 or ISO times, UTC; decide them without a look at the clicks, since no guarantee covers
    times that are read off the data. An impression without a click is kept.

    Raises DataError where a row cannot be used, RunError where `folder` holds something.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise RunError(f"{folder} holds something", "Give a new or an empty folder.")
    news = _articles(_plain(articles, "item"))
    first, second = (_seconds(pl.Series([cut]), "cuts")[0] for cut in cuts)
    if not first < second:
        raise DataError(f"the cuts {cuts[0]} and {cuts[1]} are not in order", "Earlier time first.")
    shown = _impressions(_plain(impressions, "impression", "user", "item"), set(news["item"]))
    parts = {
        "train": (shown.filter(pl.col("time").is_between(first, second, closed="left")), first),
        "dev": (shown.filter(pl.col("time") >= second), second),
    }
    for name, (part, _) in parts.items():
        if not part["clicked"].explode().any():
            raise DataError(
                f"no impression of {name} has a click: {cuts[0]} to {cuts[1]}",
                "Give cuts with clicks between them and after the second.",
            )
    files = {VECTORS: _vectors(news)} if "vector" in news.columns else {}
    for name, (part, since) in parts.items():
        files[f"{name}/news.tsv"] = _news_lines(news)
        files[f"{name}/behaviors.tsv"] = _behaviors(part, shown.filter(pl.col("time") < since))
    for place, content in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / place, content, mode=PRIVATE)
    return VECTORS in files


def _articles(frame: pl.DataFrame) -> pl.DataFrame:
    _require(frame, ("item", "title"), "articles")
    kept = frame.select(
        _id("item"),
        *(
            (pl.col(name).cast(pl.String) if name in frame.columns else pl.lit(""))
            .fill_null("")
            .str.replace_all(r"[\t\r\n]+", " ")
            .alias(name)
            for name in _TEXTS
        ),
        *([pl.col("vector")] if "vector" in frame.columns else []),
    )
    _require_ids(kept["item"], "articles", "item")
    require_titles(kept["item"].to_list(), kept["title"].to_list(), "the articles")
    if twice := kept["item"].filter(kept["item"].is_duplicated()).to_list():
        raise DataError(f"articles: item {twice[0]!r} comes twice", "Give every article one row.")
    return kept


def _impressions(frame: pl.DataFrame, known: set[str]) -> pl.DataFrame:
    """One row an impression, in the order of time: impression, user, time, items, clicked."""
    _require(frame, ("impression", "user", "time", "item", "clicked"), "impressions")
    try:
        clicked = frame["clicked"].cast(pl.Boolean)
    except pl.exceptions.PolarsError:
        raise DataError(
            f"impressions: clicked is of type {frame['clicked'].dtype}", "Give 0 or 1, or a bool."
        ) from None
    numbers = frame["clicked"] if frame["clicked"].dtype.is_numeric() else None
    if numbers is not None and not ((numbers == 0) | (numbers == 1)).all():
        raise DataError("impressions: clicked holds other numbers than 0 and 1", "Give 0 or 1.")
    rows = frame.select(_id("impression"), _id("user"), _id("item")).with_columns(
        _seconds(frame["time"], "impressions: time").alias("time"), clicked.alias("clicked")
    )
    for name in ("user", "item"):
        _require_ids(rows[name], "impressions", name)
    if rows["impression"].null_count() or rows["clicked"].null_count():
        raise DataError("impressions: a value is missing", "Fill it, or drop the row.")
    if unknown := rows["item"].filter(~rows["item"].is_in(sorted(known))).to_list():
        raise DataError(
            f"impressions: articles has no item {unknown[0]!r}",
            "Give every article a row, or drop the rows that show it.",
        )
    # an item that is shown twice in one list is one candidate
    once = rows.group_by("impression", "item", maintain_order=True).agg(
        pl.col("user", "time").unique(), pl.col("clicked").any()
    )
    lists = once.group_by("impression", maintain_order=True).agg(
        pl.col("user", "time").explode().unique(), pl.col("item"), pl.col("clicked")
    )
    mixed = lists.filter((pl.col("user").list.len() > 1) | (pl.col("time").list.len() > 1))
    if len(mixed):
        raise DataError(
            f"impressions: impression {mixed['impression'][0]!r} has two users or two times",
            "Give each list that was shown an id, a user and a time of its own.",
        )
    return lists.explode("user", "time").sort("time", maintain_order=True)


def _behaviors(part: pl.DataFrame, before: pl.DataFrame) -> bytes:
    history = (
        before.explode("item", "clicked").filter("clicked").group_by("user").agg(pl.col("item"))
    )
    past = dict(zip(history["user"], history["item"].to_list(), strict=True))
    lists = zip(part["item"].to_list(), part["clicked"].to_list(), strict=True)
    shown = (
        " ".join(f"{item}-{int(hit)}" for item, hit in zip(*row, strict=True)) for row in lists
    )
    times = pl.from_epoch(part["time"].cast(pl.Int64)).dt.strftime(_MIND_TIME)
    lines = [
        "\t".join((str(number), user, time, " ".join(past.get(user, ())), candidates))
        for number, (user, time, candidates) in enumerate(
            zip(part["user"], times, shown, strict=True), start=1
        )
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _news_lines(news: pl.DataFrame) -> bytes:
    """An article with a vector names one entity: itself."""
    entities = [
        json.dumps([{"WikidataId": item}]) if "vector" in news.columns else "[]"
        for item in news["item"]
    ]
    texts = zip(*(news[name] for name in ("item", *_TEXTS)), entities, strict=True)
    return "".join(
        f"{item}\t{category}\t{subcategory}\t{title}\t{abstract}\t\t{entity}\t[]\n"
        for item, title, abstract, category, subcategory, entity in texts
    ).encode()


def _vectors(news: pl.DataFrame) -> bytes:
    try:
        vectors = [[float(x) for x in vector] for vector in news["vector"]]
    except (TypeError, ValueError):
        vectors = []
    if not vectors or len({*map(len, vectors)}) != 1 or not np.isfinite(vectors).all():
        raise DataError(
            "articles: vector is not a list of as many finite numbers in every row",
            "Give each article a vector of the same length.",
        )
    lines = (
        "\t".join((item, *map(repr, v))) for item, v in zip(news["item"], vectors, strict=True)
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _plain(frame: pl.DataFrame, *names: str) -> pl.DataFrame:
    """The frame with ids that pandas made floats of as they were."""
    return frame.with_columns(
        plain_ids(frame[name], "articles or impressions") for name in names if name in frame.columns
    )


def _id(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.String)


def _seconds(column: pl.Series, what: str) -> pl.Series:
    times = times_of(column)
    seconds = times.seconds
    if times.other is not None:
        raise DataError(
            f"{what} holds times of two units: the first {in_unit(times.unit)},"
            f" row {times.other + 1} does not",
            "Write all times in one unit, or as ISO times, all with a zone or none.",
        )
    if seconds.null_count() or not seconds.is_finite().all():
        raise DataError(
            f"{what} holds a value that is no time", "Seconds since 1970, or ISO times."
        )
    return seconds


def _require(frame: pl.DataFrame, names: Sequence[str], what: str) -> None:
    if missing := [name for name in names if name not in frame.columns]:
        raise DataError(
            f"the {what} have no column {missing[0]!r}",
            f"Name it by {missing[0]}=...; the columns are {', '.join(frame.columns)}.",
        )


def _require_ids(column: pl.Series, what: str, name: str) -> None:
    wrong = column.filter(column.is_null() | ~column.str.contains(r"^\S+$")).to_list()
    if wrong:
        raise DataError(
            f"{what}: {name} {wrong[0]!r} is empty or holds a blank", "MIND's files separate by it."
        )


def renamed(frame: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """The frame with each role's column under the role's name. names: column by role."""
    chosen = {column: role for role, column in names.items() if column in frame.columns}
    others = [name for name in frame.columns if name in names and name not in chosen]
    return frame.drop(others).rename(chosen)
