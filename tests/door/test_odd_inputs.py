"""Over 120 bad or odd inputs of every loader and of every function that takes ids, histories or
frames: each names a cause and a remedy, and following the remedy works. None is silent."""

from __future__ import annotations

import gzip
import json
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars as pl
import pytest
from scipy import sparse

import fedrec
from fedrec.errors import DataWarning, FedRecError

LOG: dict[str, list[Any]] = {
    "user": [n // 5 for n in range(100)],
    "item": [(n * 3 + n // 5) % 11 for n in range(100)],
    "stars": [1 + n % 5 for n in range(100)],
    "when": [1_000_000_000 + n for n in range(100)],
}
IDS: dict[str, Any] = {"user": "user", "item": "item"}
RATED: dict[str, Any] = {**IDS, "rating": "stars", "rating_range": (1, 5)}


@dataclass(frozen=True)
class Ground:
    """What cases stand on: a folder of their own, and trained models."""

    folder: Path
    clicks: Any
    ratings: Any
    loaded: Any
    train: Any
    test: Any


Act = Callable[[Ground], Any]


@dataclass(frozen=True)
class Case:
    """An odd input: what is said of it, and the same input after the remedy was followed."""

    act: Act
    said: str
    followed: Act | None = None


def made(**changed: Any) -> dict[str, Any]:
    """The log with columns changed; None takes one out."""
    table = {"user": LOG["user"], "item": LOG["item"], **changed}
    return {name: values for name, values in table.items() if values is not None}


def put(column: str, value: Any, row: int = 7) -> dict[str, Any]:
    """The log of ratings with one value changed."""
    log = {name: list(LOG[name]) for name in ("user", "item", "stars")}
    log[column][row] = value
    return log


def frame(table: Any, **said: Any) -> Act:
    return lambda _: fedrec.Dataset.from_frame(table() if callable(table) else table, **said)


def file(name: str, content: str | bytes | Callable[[Path], Any], **said: Any) -> Act:
    """A file of that name, read."""

    def act(ground: Ground) -> Any:
        place = ground.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(place)
        elif isinstance(content, bytes):
            place.write_bytes(content)
        else:
            place.write_text(content)
        path = place if "/" not in name else place.parent
        return fedrec.Dataset.from_file(path, **said)

    return act


def csv(rows: list[str], head: str = "user,item,stars") -> str:
    good = [
        f"{u},{i},{s}" for u, i, s in zip(*(LOG[c] for c in ("user", "item", "stars")), strict=True)
    ]
    return "\n".join([head, *good[:20], *rows, *good[20:]]) + "\n"


def lines(objects: list[Any]) -> str:
    good = [{"user": u, "item": i} for u, i in zip(LOG["user"], LOG["item"], strict=True)]
    return "".join(
        f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in [*good, *objects]
    )


GOOD = csv([])
READ: dict[str, Any] = {**RATED, "duplicates": "last"}
CLICKS: dict[str, Any] = {**IDS, "duplicates": "last"}
BAD_PAIR = pandas.DataFrame({"user": ["1"], "item": [None]})

FRAMES: dict[str, Case] = {
    "a list": Case(frame([1, 2]), "a list is no frame", frame(made())),
    "a text": Case(frame("log.csv"), "a str is no frame"),
    "a number": Case(frame(3), "a int is no frame"),
    "nothing": Case(frame(None), "a NoneType is no frame"),
    "a matrix": Case(frame(np.eye(3)), "a ndarray is no frame"),
    "a Series": Case(frame(pandas.Series([1])), "a Series is no frame"),
    "columns of two lengths": Case(
        frame({"user": [1, 2], "item": [1]}), "cannot be read", frame(made())
    ),
    "a column of two types": Case(
        frame({"user": [1, "a"], "item": [1, 2]}),
        "'user' of the frame holds values of several types, 1 and 'a'.*str",
        frame(made(user=list(map(str, LOG["user"])))),
    ),
    "a column of two types in pandas": Case(
        frame(lambda: pandas.DataFrame(made(user=["a", *LOG["user"][1:]]))),
        "'user' of the frame holds values of several types, 'a' and 0.*str",
        frame(lambda: pandas.DataFrame(made(user=[*map(str, LOG["user"])]))),
    ),
    "links of numbers past 32 bits": Case(
        frame(made(), similar_items={"item": [0], "similar": [1], "score": [1e300]}),
        "a finite score",
        frame(made(), similar_items={"item": [*range(10)], "similar": [*range(1, 11)]}),
    ),
    "vectors of numbers past 32 bits": Case(
        frame(made(), item_vectors={"item": [0, 1], "x": [1e300, 1.0]}),
        "vectors of finite numbers",
        frame(made(), item_vectors={"item": [*range(11)], "x": [0.5] * 10 + [1.0]}),
    ),
    "no rows": Case(frame({"user": [], "item": []}), "holds no rows", frame(made())),
    "no user": Case(
        frame({"who": [1], "what": [2], "x": [3]}),
        "no column 'user'",
        frame({"who": [1], "what": [2], "x": [3]}, user="who", item="what"),
    ),
    "no item": Case(
        frame({"user": [1], "x": [2], "y": [3]}),
        "no column 'item'",
        frame({"user": [1], "x": [2], "y": [3]}, item="x"),
    ),
    "a mistyped column": Case(
        frame(made(), user="usr"), "no column 'usr'", frame(made(), user="user")
    ),
    "a column twice": Case(frame(made(), user="item"), "both the column 'item'", frame(made())),
    "ratings without a scale": Case(
        frame(put("user", 3), **IDS, rating="stars", duplicates="last"),
        "no rating_range",
        frame(LOG, **READ),
    ),
    "a column rating and nothing said": Case(
        frame(made(rating=LOG["stars"])),
        "no rating_range",
        frame(made(rating=LOG["stars"]), rating_range=(1, 5), duplicates="last"),
    ),
    "a column stars and nothing said": Case(
        frame(made(stars=LOG["stars"])),
        "'stars' is not used",
        frame(made(stars=LOG["stars"]), **READ),
    ),
    "a column of thumbs": Case(
        frame(made(thumb=[0, 1] * 50)),
        "'thumb' is not used",
        frame(made(thumb=[0, 1] * 50), rating="thumb", click_threshold=1),
    ),
    "a column of plays": Case(
        frame(made(plays=LOG["when"])),
        "'plays' is not used",
        frame(made(plays=LOG["when"]), rating="plays", click_threshold=5),
    ),
    "a threshold and no ratings": Case(
        frame(made(), click_threshold=4),
        "no column 'rating'",
        frame(LOG, **IDS, rating="stars", click_threshold=4),
    ),
    "a threshold above all": Case(
        frame(LOG, **READ, click_threshold=9),
        "none counts as a click",
        frame(LOG, **READ, click_threshold=4),
    ),
    "a scale turned round": Case(
        frame(LOG, **{**READ, "rating_range": (5, 1)}), "is no scale", frame(LOG, **READ)
    ),
    "a scale of one end": Case(frame(LOG, **{**READ, "rating_range": (5,)}), "is no scale"),
    "a scale that is infinite": Case(
        frame(LOG, **{**READ, "rating_range": (0, math.inf)}), "is no scale"
    ),
    "a scale of words": Case(frame(LOG, **{**READ, "rating_range": ("1", "5")}), "is no scale"),
    "a rating off the scale": Case(
        frame(put("stars", 9), **READ),
        r"row 7 .*a rating in \[1, 5\]",
        frame(put("stars", 9), **READ, out_of_range="drop"),
    ),
    "a rating that is infinite": Case(
        frame(lambda: {**made(), "stars": [math.inf, *map(float, LOG["stars"][1:])]}, **READ),
        "row 0",
    ),
    "a rating that is missing": Case(
        frame(put("stars", None), **READ),
        "1 of 100 rows lack a value",
        frame(put("stars", None), **READ, missing="drop"),
    ),
    "a rating that is no number": Case(
        frame(lambda: {**made(), "stars": ["good"] * 100}, **READ), "a finite number"
    ),
    "a user that is missing": Case(
        frame(put("user", None), **READ), "1 user", frame(put("user", None), **READ, missing="drop")
    ),
    "an item that is missing": Case(
        frame(put("item", None), **READ), "1 item", frame(put("item", None), **READ, missing="drop")
    ),
    "an id without a letter": Case(
        frame(made(user=["", *map(str, LOG["user"][1:])])),
        "lack a value",
        frame(made(user=["", *map(str, LOG["user"][1:])]), missing="drop"),
    ),
    "an id with a blank": Case(
        frame(made(user=["1 ", *map(str, LOG["user"][1:-1]), "1"])),
        "but for blanks",
        frame(made(user=[*map(str, LOG["user"])])),
    ),
    "an id of another Unicode form": Case(
        frame({"user": ["e\u0301", "\u00e9"], "item": [1, 2]}), "Unicode form"
    ),
    "an id of no width": Case(frame({"user": ["a\u200b", "a"], "item": [1, 2]}), "but for blanks"),
    "an id with a blank within": Case(frame({"user": ["a b", "a  b"], "item": [1, 2]}), "but for"),
    "an id with a soft hyphen": Case(
        frame({"user": ["an\u00adn", "ann"], "item": [1, 2]}), "but for"
    ),
    "an id of wide letters": Case(frame({"user": ["\uff41nn", "ann"], "item": [1, 2]}), "but for"),
    "an id with a sign": Case(frame({"user": ["+7", "7"], "item": [1, 2]}), "but for"),
    "a user that was made text": Case(
        frame(lambda: pandas.DataFrame(made(user=["nan", *map(str, LOG["user"][1:])]))),
        "1 of 100 rows lack a value",
        frame(lambda: made(user=["nan", *map(str, LOG["user"][1:])]), missing="drop"),
    ),
    "ratings beside ratings": Case(
        frame(made(rating_x=LOG["stars"], rating_y=LOG["stars"])),
        "'rating_x' is not used",
        frame(made(rating_x=LOG["stars"]), rating="rating_x", rating_range=(1, 5)),
    ),
    "plays by another name": Case(frame(made(numPlays=LOG["stars"])), "'numPlays' is not used"),
    "a threshold that is a text": Case(
        frame(made(plays=LOG["stars"]), rating="plays", click_threshold="5"),
        "is no number",
        frame(made(plays=LOG["stars"]), rating="plays", click_threshold=5),
    ),
    "the header again": Case(frame({"user": ["1", "user"], "item": ["2", "item"]}), "header again"),
    "ids that are lists": Case(frame({"user": [[1], [2]], "item": [1, 2]}), "holds lists"),
    "ids that are bytes": Case(frame({"user": [b"a", b"b"], "item": [1, 2]}), "holds bytes"),
    "ids that are objects": Case(
        frame(lambda: pl.DataFrame({"user": pl.Series([object()], dtype=pl.Object), "item": [1]})),
        "holds Python objects",
    ),
    "a second rating": Case(
        frame(LOG | {"item": [1] * 100}, **RATED),
        "one row per user and item",
        frame(LOG | {"item": [1] * 100}, **READ),
    ),
    "a policy that there is not": Case(frame(made(), duplicates="first"), "duplicates"),
    "a policy of values that there is not": Case(
        frame(LOG, **READ, out_of_range="ignore"), "out_of_range"
    ),
    "a policy of nulls that there is not": Case(frame(made(), missing="fill"), "missing"),
    "times of two units": Case(
        frame(lambda: {**made(), "when": [10**9] * 99 + [10**12 + 5]}, time="when"),
        "times of one unit",
    ),
    "a time that is none": Case(
        frame(lambda: {**made(), "when": ["2020-01-01"] * 99 + ["soon"]}, time="when"),
        "found 'soon'",
    ),
    "a time that is missing": Case(
        frame(lambda: {**made(), "when": [10**9] * 99 + [None]}, time="when"),
        "lack a value",
        frame(lambda: {**made(), "when": [10**9] * 99 + [None]}, time="when", missing="drop"),
    ),
    "items of other ids": Case(frame(made(), items={"item": ["x"], "title": ["X"]}), "names none"),
    "items without ids": Case(frame(made(), items={"title": ["X"]}), "no column 'item'"),
    "an item twice": Case(
        frame(made(), items={"item": [1, 1], "title": ["X", "Y"]}), "an item id that is new"
    ),
    "items that are none": Case(frame(made(), items=[1]), "a list is no frame of items"),
    "test rows of other columns": Case(
        frame(made(), test={"who": [1], "what": [2], "x": [1]}), "no column"
    ),
    "a rating in training and test": Case(
        frame(LOG, **RATED, test={"user": [0], "item": [0], "stars": [1]}),
        "repeat a user and item",
        frame(LOG, **READ, test={"user": [0, 0], "item": [0, 10], "stars": [1, 2]}),
    ),
}

FILES: dict[str, Case] = {
    "a header and blank lines": Case(file("log.csv", "user,item\n\n"), "holds no rows"),
    "a header and blank lines, compressed": Case(
        file("log.csv.gz", gzip.compress(b"user;item;timestamp\n\n")), "holds no rows"
    ),
    "JSON lines that are blank": Case(file("log.jsonl", "\n\n"), "holds no rows"),
    "no file": Case(lambda g: fedrec.Dataset.from_file(g.folder / "nowhere.csv"), "does not exist"),
    "a mistyped file": Case(
        lambda g: (
            (g.folder / "log.csv").write_text(GOOD)
            and fedrec.Dataset.from_file(g.folder / "lgo.csv")
        ),
        "does not exist Did you mean .*log.csv",
    ),
    "an empty file": Case(file("log.csv", ""), "empty", file("log.csv", GOOD, **READ)),
    "a header alone": Case(file("log.csv", "user,item\n"), "holds no rows"),
    "an unknown format": Case(
        file("log.csv", GOOD, format="tabel"),
        "unknown data format",
        file("log.csv", GOOD, format="table", **READ),
    ),
    "gzip without its suffix": Case(
        file("log.csv", gzip.compress(GOOD.encode())),
        "by gzip Call it log.csv.gz",
        file("log.csv.gz", gzip.compress(GOOD.encode()), **READ),
    ),
    "an archive": Case(file("log.csv.zip", b"PK\x03\x04"), "is packed"),
    "an archive without its suffix": Case(file("log.csv", b"PK\x03\x04\n"), "a ZIP archive"),
    "Parquet without its suffix": Case(file("log.csv", b"PAR1\x00\n"), "a Parquet file"),
    "CSV called Parquet": Case(file("log.parquet", GOOD, **READ), "text is read from .csv"),
    "JSON called CSV": Case(file("log.csv", '{"user": 1, "item": 2}\n'), "Call rows log.jsonl"),
    "a web page": Case(file("log.csv", "<!DOCTYPE html>\n<html></html>\n"), "a web page"),
    "a pointer": Case(file("log.csv", "version https://git-lfs.github.com/spec/v1\n"), "LFS"),
    "blank lines alone": Case(file("log.csv", "\n\n"), "begins with a blank line"),
    "a title above the header": Case(
        file("log.csv", "Sales, 2020\nuser,item\n1,2\n"),
        "drop what is above",
        file("log.csv", "user,item\n1,2\n"),
    ),
    "a header in the middle": Case(
        file("log.csv", "user,item\n1,2\nuser,item\n3,4\n"),
        "line 3: .*the header again",
        file("log.csv", "user,item\n1,2\n3,4\n"),
    ),
    "a column twice in a file": Case(
        file("log.csv", "user,item,item\n1,2,3\n"),
        "several columns 'item'",
        file("log.csv", "user,item,other\n1,2,3\n"),
    ),
    "missing as other programs write it": Case(
        file("log.csv", csv(["NULL,2,3", "1,#N/A,3", "1,2,NA", "\\N,3,3"]), **READ),
        "line 22: .*4 of 104 rows lack a value: 2 user, 1 item, 1 stars",
        file("log.csv", csv(["NULL,2,3", "1,#N/A,3", "1,2,NA"]), **READ, missing="drop"),
    ),
    "true and false": Case(
        file("log.csv", csv(["1,2,True"], "user,item,liked"), rating="liked", click_threshold=1),
        "line 22: .*Write 1 for what is true",
        file("log.csv", csv(["1,2,1"], "user,item,liked"), rating="liked", click_threshold=1),
    ),
    "separators of thousands": Case(
        file("log.csv", csv(['1,2,"1,234"']), **IDS, rating="stars", click_threshold=1),
        "without separators of thousands",
        file("log.csv", csv(["1,2,1234"]), **IDS, rating="stars", click_threshold=1),
    ),
    "JSON of Latin-1": Case(
        file("log.jsonl", '{"user": "\xe9", "item": 2}\n'.encode("latin-1")), "line 1: .*UTF-8"
    ),
    "JSON of UTF-16": Case(
        file("log.jsonl", lines([]).encode("utf-16")),
        "UTF-16",
        file("log.jsonl", lines([]), **CLICKS),
    ),
    "JSON with NaN": Case(
        file("log.jsonl", '{"user": 1, "item": 2, "stars": NaN}\n', **READ),
        "line 1: .*null for NaN",
    ),
    "JSON with commas between lines": Case(
        file("log.jsonl", '{"user": 1, "item": 2},\n'), "line 1: .*no comma"
    ),
    "JSON whose ratings are words": Case(
        file("log.jsonl", '{"user": 1, "item": 2, "stars": "5 of 5"}\n', **READ),
        "line 1: expected a finite number",
    ),
    "a folder of tables": Case(
        lambda g: file("some/log.csv", GOOD)(g), "Give one file, for example .*log.csv"
    ),
    "an address": Case(lambda g: fedrec.Dataset.from_file("https://a.b/c.csv"), "Download it"),
    "a frame for a path": Case(
        lambda g: fedrec.Dataset.from_file(pl.DataFrame(made())), "is no path .*from_frame"
    ),
    "a header in the middle of items": Case(
        frame(made(), items={"item": ["0", "item"], "title": ["A", "title"]}),
        "item id that is new",
        frame(made(), items={"item": [*map(str, range(11))], "title": [*"ABCDEFGHIJK"]}),
    ),
    "no suffix": Case(file("log.xyz", GOOD), "in no known format", file("log.csv", GOOD, **READ)),
    "a spreadsheet": Case(file("log.xlsx", b"PK\x03\x04"), "which is not read"),
    "a pickle": Case(file("log.pkl", b"\x80\x04"), "which is not read"),
    "UTF-16": Case(file("log.csv", GOOD.encode("utf-16")), "UTF-16", file("log.csv", GOOD, **READ)),
    "Latin-1": Case(
        file("log.csv", csv(["\xe9,1,3"]).encode("latin-1"), **READ),
        "line 22",
        file("log.csv", csv(["\xe9,1,3"]), **READ),
    ),
    "decimals after a comma": Case(
        file("log.csv", csv(["1,1,3"]).replace(",", ";").replace(";3\n", ";3,5\n"), **READ),
        "a point before its decimals",
        file("log.csv", csv(["1,1,3"]).replace(",", ";").replace(";3\n", ";3.5\n"), **READ),
    ),
    "zero bytes": Case(file("log.csv", b"user,item\n1\x00,2\n"), "zero bytes"),
    "line ends of CR alone": Case(
        file("log.csv", GOOD.replace("\n", "\r").encode()),
        "CR alone",
        file("log.csv", GOOD, **READ),
    ),
    "a row too long": Case(
        file("log.csv", csv(["1,2,3,4"]), **READ),
        "line 22: expected 3 fields",
        file("log.csv", GOOD, **READ),
    ),
    "a row too short": Case(file("log.csv", csv(["1,2"]), **READ), "line 22: expected 3 fields"),
    "a rating that is a word": Case(
        file("log.csv", csv(["1,2,good"]), **READ), "line 22: expected a finite number"
    ),
    "a rating that is NaN": Case(file("log.csv", csv(["1,2,nan"]), **READ), "line 22"),
    "a comma for a point": Case(file("log.csv", csv(['1,2,"3,5"']), **READ), "line 22"),
    "a blank id": Case(
        file("log.csv", csv([",2,3"]), **READ),
        "1 user",
        file("log.csv", csv([",2,3"]), **READ, missing="drop"),
    ),
    "a stray quote": Case(file("log.csv", csv(['"1"x,2,3']), **READ), "line 22"),
    "a quote that is not closed": Case(file("log.csv", csv(['"1,2,3']), **READ), "line"),
    "ids that look the same": Case(file("log.csv", csv(["1 ,2,3"]), **READ), "but for blanks"),
    "a rating off the scale in a file": Case(
        file("log.csv", csv(["1,99,6"]), **READ),
        "line 22",
        file("log.csv", csv(["1,99,6"]), **READ, out_of_range="clip"),
    ),
    "a second rating in a file": Case(
        file("log.csv", csv(["99,99,1", "99,99,2"]), **RATED),
        "one row per user and item",
        file("log.csv", csv(["99,99,1", "99,99,2"]), **READ),
    ),
    "no scale in a file": Case(
        file("log.csv", GOOD, **IDS, rating="stars"),
        "no rating_range",
        file("log.csv", GOOD, **READ),
    ),
    "a separator that is none": Case(file("log.csv", GOOD, separator="ab"), "separates nothing"),
    "another separator": Case(
        file("log.csv", GOOD.replace(",", ";"), separator="tab", **READ),
        "no column",
        file("log.csv", GOOD.replace(",", ";"), **READ),
    ),
    "one column": Case(file("log.csv", "user\n1\n2\n"), "one column"),
    "a column that is not there": Case(
        file("log.csv", GOOD, user="reader"), "no column 'reader'", file("log.csv", GOOD, **READ)
    ),
    "an option that there is not": Case(file("log.csv", GOOD, sep=","), "sep"),
    "a role that there is not": Case(
        file("log.csv", GOOD, columns={"usr": "user"}),
        "no option 'usr'",
        file("log.csv", GOOD, **READ),
    ),
    "a damaged gzip": Case(
        file("log.csv.gz", gzip.compress(GOOD.encode())[:-20], **READ),
        "cannot be read",
        file("log.csv.gz", gzip.compress(GOOD.encode()), **READ),
    ),
    "no gzip at all": Case(file("log.csv.gz", GOOD, **READ), "cannot be read"),
    "a damaged Parquet file": Case(file("log.parquet", b"PAR1 and no more"), "cannot be read"),
    "a Parquet file without the column": Case(
        file(
            "log.parquet", lambda p: pl.DataFrame({"x": [1], "y": [2], "z": [3]}).write_parquet(p)
        ),
        "column",
    ),
    "a Parquet file of lists": Case(
        file("log.parquet", lambda p: pl.DataFrame({"user": [[1]], "item": [1]}).write_parquet(p)),
        "lists",
    ),
    "JSON lines of lists": Case(
        file("log.jsonl", lines([{"user": [1], "item": 2}]), **CLICKS), "one type|lists"
    ),
    "a null in a Parquet file": Case(
        file(
            "log.parquet",
            lambda p: pl.DataFrame({"user": [1, None], "item": [1, 2]}).write_parquet(p),
        ),
        "1 of 2 rows",
        file(
            "log.parquet",
            lambda p: pl.DataFrame({"user": [1, None], "item": [1, 2]}).write_parquet(p),
            missing="drop",
        ),
    ),
    "a folder of nothing": Case(lambda g: fedrec.Dataset.from_file(g.folder), "in no known format"),
    "an array of JSON": Case(
        file("log.json", json.dumps([{"user": 1, "item": 2}])),
        "one JSON array",
        file("log.json", '{"user": 1, "item": 2}\n'),
    ),
    "a line that is no JSON": Case(
        file("log.jsonl", lines(["{user: 1}"]), **CLICKS), "line 101: expected one JSON object"
    ),
    "a line that is a number": Case(
        file("log.jsonl", lines(["3"]), **CLICKS), "line 101: expected one JSON object"
    ),
    "a key that an object lacks": Case(
        file("log.jsonl", lines([{"user": 1}]), **CLICKS),
        "1 of 101 rows lack a value",
        file("log.jsonl", lines([{"user": 1}]), **CLICKS, missing="drop"),
    ),
    "a key that is not there": Case(
        file("log.jsonl", lines([]), user="reader", item="item"),
        "reader",
        file("log.jsonl", lines([]), **CLICKS),
    ),
    "an empty JSON file": Case(file("log.jsonl", ""), "empty"),
    "lists of words": Case(file("l/train.txt", "0 1 2\n1 a\n"), "line 2"),
    "lists with gaps": Case(file("l/train.txt", "0 1\n99999999 2\n"), "numbered from 0"),
    "an empty list": Case(file("l/train.txt", ""), "empty"),
    "no sparse matrix": Case(
        file("m/train.npz", b"no zip"),
        "not a SciPy sparse matrix",
        file("m/train.npz", lambda p: sparse.save_npz(p, sparse.csr_matrix(np.eye(4)))),
    ),
    "fields without types": Case(
        file("r/r.inter", "user_id\titem_id\n1\t2\n"),
        "typed fields",
        file("r/r.inter", "user_id:token\titem_id:token\n1\t2\n"),
    ),
    "RecBole without a scale": Case(
        file("r/r.inter", "user_id:token\titem_id:token\trating:float\n1\t2\t3\n"),
        "no rating_range",
        file(
            "r/r.inter",
            "user_id:token\titem_id:token\trating:float\n1\t2\t3\n",
            rating_range=(1, 5),
        ),
    ),
    "MovieLens rows of three fields": Case(
        file("ml-1m/ratings.dat", "1::2::3\n"), "line 1|missing|movies"
    ),
}

ASKED: dict[str, Case] = {
    "nothing asked": Case(
        lambda g: g.clicks.recommend(), "found nothing", lambda g: g.clicks.recommend("3")
    ),
    "two things asked": Case(
        lambda g: g.clicks.recommend("3", history=["3"]),
        "history and users",
        lambda g: g.clicks.recommend(history=["3"]),
    ),
    "a user that is not there": Case(
        lambda g: g.clicks.recommend("nobody"),
        "no user 'nobody'",
        lambda g: g.clicks.recommend(history=["3"]),
    ),
    "users that are not there": Case(
        lambda g: g.clicks.recommend(["3", "nobody"]), "no user 'nobody'"
    ),
    "users of a loaded model": Case(
        lambda g: g.loaded.recommend("3"),
        "nobody's history",
        lambda g: g.loaded.recommend(history=["3"]),
    ),
    "users in a frame": Case(
        lambda g: g.clicks.recommend(pl.DataFrame({"user": ["3"]})),
        "users is a DataFrame",
        lambda g: g.clicks.recommend(["3"]),
    ),
    "a user that is a float": Case(lambda g: g.clicks.recommend(3.0), "users is a float"),
    "no length": Case(
        lambda g: g.clicks.recommend("3", k=0),
        "k must be a whole number",
        lambda g: g.clicks.recommend("3", k=1),
    ),
    "a length below 0": Case(lambda g: g.clicks.recommend("3", k=-1), "k must be a whole number"),
    "a length of a half": Case(
        lambda g: g.clicks.recommend("3", k=2.5), "k must be a whole number"
    ),
    "a length of words": Case(
        lambda g: g.clicks.recommend("3", k="ten"), "k must be a whole number"
    ),
    "a length that is true": Case(
        lambda g: g.clicks.recommend("3", k=True), "k must be a whole number"
    ),
    "a history of one text": Case(
        lambda g: g.clicks.recommend(history="3"),
        "is one text",
        lambda g: g.clicks.recommend(history=["3"]),
    ),
    "a history that is a number": Case(
        lambda g: g.clicks.recommend(history=3),
        "is a int",
        lambda g: g.clicks.recommend(history=[3]),
    ),
    "a Series of ratings alone": Case(
        lambda g: g.ratings.recommend(history=pl.Series("stars", [5, 3])),
        "without items",
        lambda g: g.ratings.recommend(history=dict(zip(["3", "4"], [5, 3], strict=True))),
    ),
    "a pair for a history": Case(
        lambda g: g.ratings.recommend(history=("3", 5)),
        "a text and a number",
        lambda g: g.ratings.recommend(history={"3": 5}),
    ),
    "marks of all items": Case(
        lambda g: g.clicks.recommend(history=np.eye(120)[3]),
        "marks, 0 or 1",
        lambda g: g.clicks.recommend(history=[g.clicks.item_ids[3]]),
    ),
    "rows for a history": Case(
        lambda g: g.ratings.recommend(history=[{"item": "3", "rating": 5}]),
        "give a frame",
        lambda g: g.ratings.recommend(history=pl.DataFrame([{"item": "3", "rating": 5}])),
    ),
    "a record array": Case(
        lambda g: g.ratings.recommend(history=np.array([("3", 5)], [("item", "U9"), ("r", "f8")])),
        "an id is a tuple",
        lambda g: g.ratings.recommend(
            history=dict(np.array([("3", 5)], [("item", "U9"), ("r", "f8")]).tolist())
        ),
    ),
    "times for ratings": Case(
        lambda g: g.ratings.recommend(history={"3": 1_600_000_000}), "outside 1 to 5"
    ),
    "times beside clicks": Case(
        lambda g: g.clicks.recommend(history={"3": 1_600_000_000}), "are not used"
    ),
    "a missing id of pandas": Case(
        lambda g: g.clicks.recommend(history=["3", pandas.NA]), "in the place of an id"
    ),
    "an id with a mark of no width": Case(
        lambda g: g.clicks.recommend(history=["3\u200b", "4"]), "it has '3'"
    ),
    "an id written as 3.0": Case(lambda g: g.clicks.recommend(history=["3.0", "4"]), "it has '3'"),
    "a history's rating_x": Case(
        lambda g: g.ratings.recommend(history=pl.DataFrame({"item": ["3"], "rating_x": [1]})),
        "'rating_x' of the history is not used",
    ),
    "many histories as one": Case(
        lambda g: g.clicks.recommend(history={"ann": ["3", "4"], "bob": ["5"]}),
        "many people have histories=",
        lambda g: g.clicks.recommend(histories={"ann": ["3", "4"], "bob": ["5"]}),
    ),
    "a history of no user": Case(
        lambda g: g.clicks.recommend(histories=pl.DataFrame({"user": [None], "item": ["3"]})),
        "has no user",
    ),
    "histories for users": Case(
        lambda g: g.clicks.recommend({"3": ["4"]}),
        "as histories=",
        lambda g: g.clicks.recommend(histories={"3": ["4"]}),
    ),
    "a user that became a float": Case(lambda g: g.clicks.recommend([3.0]), "it has '3'"),
    "a filter of marks": Case(
        lambda g: g.clicks.recommend("3", filter=np.ones(120, bool)), "marks, 0 or 1"
    ),
    "similar to a float": Case(lambda g: g.clicks.similar_items(3.0), "it has '3'"),
    "model and test exchanged": Case(
        lambda g: fedrec.evaluate(g.test, g.ratings),
        "needs a test set",
        lambda g: fedrec.evaluate(g.ratings, g.test, controls=False, ranking=False),
    ),
    "ids that are unknown": Case(
        lambda g: g.clicks.recommend(history=["x", "y"]),
        "2 of the 2 ids",
        lambda g: g.clicks.recommend(history=g.clicks.item_ids[:2]),
    ),
    "ids of which some are unknown": Case(
        lambda g: g.clicks.recommend(history=["3", "y"]), "1 of the 2 ids"
    ),
    "ids with zeros in front": Case(lambda g: g.clicks.recommend(history=["003"]), "no '003'"),
    "ids that became floats": Case(
        lambda g: g.clicks.recommend(history=[3.0]),
        "it has '3'",
        lambda g: g.clicks.recommend(history=["3"]),
    ),
    "ids with blanks": Case(
        lambda g: g.clicks.recommend(history=[" 3"]),
        "it has '3'",
        lambda g: g.clicks.recommend(history=["3"]),
    ),
    "an id that is missing": Case(
        lambda g: g.clicks.recommend(history=["3", math.nan]),
        "in the place of an id",
        lambda g: g.clicks.recommend(history=["3"]),
    ),
    "pairs": Case(
        lambda g: g.ratings.recommend(history=[("3", 5)]),
        "an id is a tuple",
        lambda g: g.ratings.recommend(history={"3": 5}),
    ),
    "a rating off the scale of the model": Case(
        lambda g: g.ratings.recommend(history={"3": 99}), "outside"
    ),
    "a rating that is true": Case(lambda g: g.ratings.recommend(history={"3": True}), "outside"),
    "a rating that is a text": Case(
        lambda g: g.ratings.recommend(history={"3": "5"}),
        "is no number",
        lambda g: g.ratings.recommend(history={"3": 5}),
    ),
    "a dislike to a model of clicks": Case(
        lambda g: g.clicks.recommend(history={"3": 0}),
        "knows clicks",
        lambda g: g.clicks.recommend(history=["3"]),
    ),
    "ratings to a model of clicks": Case(
        lambda g: g.clicks.recommend(history={"3": 2}), "are not used"
    ),
    "plays to a model of ratings": Case(
        lambda g: g.ratings.recommend(history=pl.DataFrame({"item": ["3"], "plays": [9]})),
        "'plays' of the history is not used",
    ),
    "two ratings of one item": Case(
        lambda g: g.ratings.recommend(history=pl.DataFrame({"item": ["3", "3"], "rating": [1, 5]})),
        "1 and 5",
    ),
    "a frame without items": Case(
        lambda g: g.clicks.recommend(history=pl.DataFrame({"x": [1]})),
        "no columns of items",
        lambda g: g.clicks.recommend(history=pl.DataFrame({"item": [3]})),
    ),
    "a frame of two users": Case(
        lambda g: g.clicks.recommend(history=pl.DataFrame({"user": [1, 2], "item": [3, 3]})),
        "holds 2 users",
        lambda g: g.clicks.recommend(histories=pl.DataFrame({"user": [1, 2], "item": [3, 3]})),
    ),
    "histories that are a list": Case(
        lambda g: g.clicks.recommend(histories=[["3"]]),
        "not a mapping by user id",
        lambda g: g.clicks.recommend(histories={"ann": ["3"]}),
    ),
    "histories without users": Case(
        lambda g: g.clicks.recommend(histories=pl.DataFrame({"item": [3]})), "columns of users"
    ),
    "a sparse row": Case(
        lambda g: g.clicks.recommend(history=sparse.csr_matrix(np.eye(3))), "is a csr_matrix"
    ),
    "an array of two dimensions": Case(lambda g: g.clicks.recommend(history=np.eye(2)), "shape"),
    "unknown items to leave out": Case(
        lambda g: g.clicks.recommend("3", exclude=["x"]),
        "argument exclude",
        lambda g: g.clicks.recommend("3", exclude=["7"]),
    ),
    "one text to leave out": Case(
        lambda g: g.clicks.recommend("3", exclude="7"),
        "is one text",
        lambda g: g.clicks.recommend("3", exclude=["7"]),
    ),
    "an unknown filter": Case(lambda g: g.clicks.recommend("3", filter=["x"]), "argument filter"),
    "a filter that is a number": Case(lambda g: g.clicks.recommend("3", filter=7), "is a int"),
    "factors of nobody": Case(lambda g: g.clicks.user_factors(), "user_factors needs history"),
    "factors of unknown items": Case(
        lambda g: g.clicks.user_factors(["x"]),
        "1 of the 1 ids",
        lambda g: g.clicks.user_factors(["3"]),
    ),
    "items like an unknown one": Case(
        lambda g: g.clicks.similar_items("x"), "no item 'x'", lambda g: g.clicks.similar_items("3")
    ),
    "no pairs": Case(
        lambda g: g.ratings.predict(),
        "needs pairs",
        lambda g: g.ratings.predict(history={"3": 5}, items=["7"]),
    ),
    "pairs without items": Case(lambda g: g.ratings.predict({"user": ["1"]}), "columns of items"),
    "pairs that are a list": Case(
        lambda g: g.ratings.predict([("1", "3")]),
        "a list is no frame",
        lambda g: g.ratings.predict({"user": ["1"], "item": ["3"]}),
    ),
    "pairs of an unknown user": Case(
        lambda g: g.ratings.predict({"user": ["x"], "item": ["3"]}), "no user 'x'"
    ),
    "pairs of an unknown item": Case(
        lambda g: g.ratings.predict({"user": ["1"], "item": ["x"]}), "no item 'x'"
    ),
    "a pair without an item": Case(
        lambda g: g.ratings.predict(BAD_PAIR), "None in the place of an id"
    ),
    "a test set of other data": Case(
        lambda g: g.ratings.predict(fedrec.Dataset.from_frame(LOG, **READ).split()[1]),
        "other items",
    ),
}

TRAINED: dict[str, Case] = {
    "a frame to fit": Case(
        lambda g: fedrec.ItemItem().fit(pl.DataFrame(made())),
        "found a DataFrame",
        lambda g: fedrec.Popularity(noise="seeded").fit(fedrec.Dataset.from_frame(made())),
    ),
    "a test set to fit": Case(
        lambda g: fedrec.ItemItem().fit(g.test),
        "found a TestSet",
        lambda g: fedrec.ItemBias(noise="seeded").fit(g.train),
    ),
    "the pair of a split to fit": Case(
        lambda g: fedrec.ItemBias().fit((g.train, g.test)), "found a tuple"
    ),
    "clicks to a model of ratings": Case(
        lambda g: fedrec.ItemBias().fit(fedrec.Dataset.from_frame(made())), "ratings"
    ),
    "ratings to a model of clicks": Case(lambda g: fedrec.Popularity().fit(g.train), "clicks"),
    "an epsilon of 0": Case(
        lambda g: fedrec.ItemBias(epsilon=0).fit(g.train),
        "epsilon",
        lambda g: fedrec.ItemBias(epsilon=1, noise="seeded").fit(g.train),
    ),
    "an epsilon below 0": Case(lambda g: fedrec.ItemBias(epsilon=-1).fit(g.train), "epsilon"),
    "an epsilon that is no number": Case(
        lambda g: fedrec.ItemBias(epsilon=math.nan).fit(g.train), "epsilon"
    ),
    "a delta of 1": Case(lambda g: fedrec.ItemBias(delta=1).fit(g.train), "delta"),
    "a noise that there is not": Case(
        lambda g: fedrec.ItemBias(noise="none").fit(g.train), "noise"
    ),
    "a method that there is not": Case(
        lambda g: fedrec.MatrixFactorization(method="als").fit(g.train), "recipe"
    ),
    "a key that there is not": Case(
        lambda g: fedrec.ItemBias(settings={"model.dim": 3}).fit(g.train), "dim"
    ),
    "a split that there is not": Case(
        lambda g: fedrec.Dataset.from_frame(made()).split("by-user"),
        "kind",
        lambda g: fedrec.Dataset.from_frame(made()).split("random"),
    ),
    "a split by time without times": Case(
        lambda g: fedrec.Dataset.from_frame(made()).split("temporal"), "time"
    ),
    "a training set to evaluate": Case(
        lambda g: fedrec.evaluate(g.ratings, g.train),
        "found a TrainingSet",
        lambda g: fedrec.evaluate(g.ratings, g.test, controls=False, ranking=False),
    ),
    "a model that is not trained": Case(
        lambda g: fedrec.ItemBias().predict(g.test),
        "not trained",
        lambda g: fedrec.ItemBias(noise="seeded").fit(g.train).predict(g.test),
    ),
    "another model's test set": Case(
        lambda g: fedrec.evaluate(g.clicks, g.test), "predicts no ratings"
    ),
    "a test set that was trained on": Case(
        lambda g: fedrec.evaluate(
            fedrec.ItemBias(noise="seeded").fit(fedrec.Dataset.planted("small")), g.test
        ),
        "train",
    ),
    "lists of no length": Case(
        lambda g: fedrec.evaluate(g.ratings, g.test, k=()), "no length of a list"
    ),
    "a curve of no epsilon": Case(
        lambda g: fedrec.privacy_curve(fedrec.ItemBias(), g.train, g.test, epsilons=[]),
        "needs a list of epsilons",
    ),
    "a folder that holds no model": Case(
        lambda g: fedrec.load(g.folder),
        "holds no model",
        lambda g: fedrec.load(g.ratings.save(g.folder / "model")),
    ),
    "a model saved among other things": Case(
        lambda g: ((g.folder / "x").write_text("x"), g.ratings.save(g.folder)),
        "holds files of something else",
        lambda g: g.ratings.save(g.folder / "new"),
    ),
    "a parameter that there is not": Case(
        lambda g: fedrec.ItemBias().set_params(eps=1),
        "no parameter 'eps'",
        lambda g: fedrec.ItemBias().set_params(epsilon=1),
    ),
}

CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "frame": FRAMES,
        "file": FILES,
        "asked": ASKED,
        "trained": TRAINED,
    }.items()
    for name, case in cases.items()
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    train, test = fedrec.Dataset.planted("small").split()
    clicks = fedrec.ItemItem(noise="seeded").fit(fedrec.Dataset.planted("small", kind="clicks"))
    return {
        "train": train,
        "test": test,
        "ratings": fedrec.ItemBias(noise="seeded").fit(train),
        "clicks": clicks,
        "loaded": fedrec.load(clicks.save(tmp_path_factory.mktemp("odd") / "model")),
    }


def said_of(act: Act, ground: Ground) -> str:
    """What an error says and what it advises, or what a warning says; empty for silence."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", DataWarning)
        try:
            act(ground)
        except FedRecError as failure:
            return f"{failure.cause} {failure.remedy}" if failure.remedy else ""
    return " ".join(str(one.message) for one in heard)


def test_there_are_over_120_cases_of_every_group() -> None:
    assert len(CASES) > 120
    assert all(len(cases) > 20 for cases in (FRAMES, FILES, ASKED, TRAINED))


@pytest.mark.parametrize("name", CASES)
def test_an_odd_input_is_answered_with_cause_and_remedy_and_the_remedy_works(
    name: str, models: dict[str, Any], tmp_path: Path
) -> None:
    case = CASES[name]
    (tmp_path / "odd").mkdir()
    (tmp_path / "mended").mkdir()
    assert re.search(case.said, said_of(case.act, Ground(tmp_path / "odd", **models)))
    if case.followed is not None:
        case.followed(Ground(tmp_path / "mended", **models))
