"""Departures from the papers, walked over the variants by code: each stands in
research/docs/papers.md."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

from fedrec.news import local_update, reports_training
from fedrec.news.variant import LEARNING_RATE, NEGATIVES, THETA, VARIANTS, find
from fedrec.settings_tables.news import NewsSettings

PAGE = (Path(__file__).parents[1] / "docs" / "papers.md").read_text()
LISTED = {
    name: (theirs, ours)
    for name, theirs, ours in re.findall(
        r"^\| (.+?) \| (.+?) \| (.+?) \|$",
        PAGE.split("## Where we depart")[1].split("\n## ")[0],
        re.MULTILINE,
    )
}


def _code(variant: str) -> str:
    return inspect.getsource(import_module(f"fedrec.news.variants.{variant.replace('-', '_')}"))


def test_dropout_is_left_out_on_devices_and_the_page_says_where_there_is_some() -> None:
    with_it = {name for name in VARIANTS if "dropout" in _code(name)}
    if "dropout" in inspect.getsource(reports_training):
        with_it |= {name for name in VARIANTS if "reports_training" in _code(name)}
    assert "dropout" not in inspect.getsource(local_update)
    assert set(re.findall(r"`([a-z-]+)`", LISTED["–, devices"][1])) == with_it


def test_open_categories_are_a_choice_of_the_variants_that_the_page_names() -> None:
    specs = {name: find(name) for name in VARIANTS}
    own = {name for name, spec in specs.items() if spec and "open_categories" in spec.keys}
    assert set(re.findall(r"`([a-z-]+)` alone", LISTED["–, categories"][1])) == own


def test_constants_that_the_paper_does_not_say_are_named() -> None:
    ours = LISTED["–, unsaid"][1]
    for value in (NEGATIVES, THETA, LEARNING_RATE):
        assert re.search(rf"(?<![\d.]){re.escape(f'{value:g}')}(?![\d])", ours), value


def test_every_key_of_the_list_is_one_of_the_news_table() -> None:
    named = {key for row in LISTED.values() for key in re.findall(r"`news\.(\w+)`", " ".join(row))}
    assert named <= set(NewsSettings.model_fields)
    assert {"sizes", "attention_noise", "serving_noise", "accounting"} <= named
