"""Public tables whose ids are the data's only in part: how many match is said, few are warned of,
none are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrec
from fedrec.data.ids import require_named
from fedrec.data.tables import TableOptions, read_table

M = 12
LOG = {"user": [n // 4 for n in range(48)], "item": [(n + n // 4) % M for n in range(48)]}


def _vectors(ids: list[Any]) -> dict[str, Any]:
    return {"item_vectors": {"item": ids, "x": np.arange(len(ids)) / 7.0}}


def _links(ids: list[Any]) -> dict[str, Any]:
    return {"similar_items": {"item": ids, "similar": [*ids[1:], ids[0]]}}


def _features(ids: list[Any]) -> dict[str, Any]:
    return {"items": {"item": ids, "kind": ["even", "odd"] * (len(ids) // 2)}}


TABLES: dict[str, Callable[[list[Any]], dict[str, Any]]] = {
    "vectors": _vectors,
    "links": _links,
    "features": _features,
}


def _read(table: str, ids: list[Any]) -> fedrec.Dataset:
    return fedrec.Dataset.from_frame(LOG, **TABLES[table](ids))


def _today(ids: list[Any]) -> fedrec.MatrixFactorization:
    data = _read("features", [*range(M)])
    model = fedrec.MatrixFactorization(noise="seeded").fit(data)
    return model.with_items(_features(ids)["items"])


@pytest.mark.parametrize("table", TABLES)
def test_a_table_of_other_ids_is_refused_with_one_of_each_side(table: str) -> None:
    with pytest.raises(fedrec.DataError, match=r"(?s)names none of the 12 items.*'film-0'.*'0'"):
        _read(table, [f"film-{n}" for n in range(M)])


@pytest.mark.parametrize("form", ["7.0 ", " 7", "7.0", "+7"])
@pytest.mark.parametrize("table", TABLES)
def test_an_id_in_another_form_is_named_though_the_others_match(table: str, form: str) -> None:
    ids = [str(n) if n != 7 else form for n in range(M)]
    other = "" if form == "7.0" else ".*'7'"  # which went through a float, whatever it meets
    with pytest.raises(fedrec.DataError, match=f"{form!r}{other}".replace("+", r"\+")):
        _read(table, ids)


@pytest.mark.parametrize("table", TABLES)
def test_few_that_match_are_warned_of_with_their_number(table: str) -> None:
    ids = [n if n < 2 else 100 + n for n in range(M)]
    with pytest.warns(fedrec.UnknownIdsWarning, match="names 2 of the 12 items: it lacks '2'"):
        _read(table, ids)


def test_todays_items_may_be_others_but_not_the_same_in_another_form() -> None:
    assert len(_today([n if n < 1 else 100 + n for n in range(M)]).item_ids) == 2 * M - 1
    with pytest.raises(fedrec.DataError, match=r"found '7\.0'"):
        _today([str(n) if n != 7 else "7.0" for n in range(M)])
    with pytest.raises(fedrec.DataError, match="names none of the 12 items"):
        _today([100 + n for n in range(M)])


@pytest.mark.parametrize("table", TABLES)
def test_most_that_match_are_warned_of_but_for_links_which_some_items_lack(table: str) -> None:
    ids = [n if n < 8 else 100 + n for n in range(M)]
    if table == "links":
        _read(table, ids)
        return
    with pytest.warns(fedrec.UnknownIdsWarning, match="names 8 of the 12 items: it lacks '8'"):
        _read(table, ids)


@pytest.mark.parametrize("table", TABLES)
def test_ids_that_a_gap_made_floats_are_the_numbers_they_were(table: str) -> None:
    _read(table, [float(n) for n in range(M)])


def test_a_file_of_features_says_how_many_items_it_names(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,a\n1,b\n2,b\n2,c\n")
    (tmp_path / "items.csv").write_text("item,kind\na,x\nb,y\n")
    told = TableOptions(item_features=str(tmp_path / "items.csv"))
    with pytest.warns(fedrec.UnknownIdsWarning, match="it lacks 'c', and has ids such as 'a'"):
        data = read_table(tmp_path / "log.csv", told)
    assert "items.csv names 2 of the 3 items" in str(data.provenance.report.notes)


def test_vectors_of_words_and_entities_go_the_same_way() -> None:
    with pytest.raises(fedrec.DataError, match="'ann' and 'ann '"):
        require_named(["ann ", "bob"], ["ann", "bob"], "people.csv")  # the data's form is odd
    with pytest.raises(fedrec.DataError, match="names none of the 2 words"):
        require_named(["sun", "rain"], [], "glove.txt", what="words")
    with pytest.warns(fedrec.UnknownIdsWarning, match="names 1 of the 3 words: it lacks 'rain'"):
        require_named(["sun", "rain", "snow"], ["sun"], "glove.txt", what="words")
