"""Fields of a plan, of terms and of a question that are of another JSON type than they should be:
the light device refuses them in Python and in JavaScript, by one list of values."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import RefusedError
from fedrec_client.device.questions import read_header, read_plan, read_terms
from tests.page.conftest import Node, node

__all__ = ["node"]

ODD = json.loads((Path(__file__).parents[1] / "page" / "odd_values.json").read_text())
_PLACE = "@@"

PLAN = {
    "guarantee": {
        "epsilon": 5.0,
        "delta": 1e-5,
        "unit": "user",
        "neighbours": "add/remove",
        "established": True,
    },
    "aggregation": "trusted",
    "releases": [{"name": "counts", "share": 1, "mu": 0.5}],
}
TERMS = {"run": "run", "kind": "ratings", "value_range": [1.0, 5.0], "items": ["a", "b"]}
BLOCK = {
    "name": "counts",
    "kind": "linear",
    "rows": 2,
    "width": 1,
    "folds": 1,
    "coefficient_step": 0.5,
    "vector_step": 0.5,
}
QUESTION = {
    "run": "run",
    "plan": "digest",
    "round": 0,
    "step": "default/counts",
    "releases": [{"name": "counts", "radius": 1.0, "isometric": False, "blocks": [BLOCK]}],
    "public": {"array": {"dtype": "<f4", "shape": [2], "sha256": "digest"}},
}
ANYWHERE = ("[" * 3000 + "]" * 3000, "1" + "0" * 400)
"""Nested past what Python reads, and a whole number past every float."""
WHOLE = {"plan": PLAN, "terms": TERMS, "question": QUESTION}


def read(what: str, text: str) -> None:
    content = text.encode()
    if what == "plan":
        digest = "of no plan"
        with suppress(ValueError, RecursionError):
            told = json.loads(content)
            digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        read_plan(content, digest)
    elif what == "terms":
        read_terms(content)
    else:
        read_header(content)


def changed(what: str, field: str, value: str) -> str:
    """The text with `value`, as it stands, in the place of a field."""
    whole: Any = copy.deepcopy(WHOLE[what])
    *path, last = [int(part) if part.isdigit() else part for part in field.split(".")]
    place = whole
    for part in path:
        place = place[part]
    place[last] = _PLACE
    return json.dumps(whole).replace(f'"{_PLACE}"', value)


def odd() -> Iterator[tuple[str, str, str]]:
    for what in WHOLE:
        for field, kind in ODD[what].items():
            yield from ((what, field, value) for value in (*ODD[kind], *ANYWHERE))


@pytest.mark.parametrize("what", WHOLE)
def test_a_byte_order_mark_is_refused(what: str, node: Node) -> None:
    text = f"\ufeff{json.dumps(WHOLE[what])}"
    with pytest.raises(RefusedError):
        read(what, text)
    assert node("odd", contents=[{"what": what, "text": text}]) == [True]


@pytest.mark.parametrize("what", WHOLE)
def test_what_is_changed_below_is_taken_as_it_stands(what: str, node: Node) -> None:
    text = json.dumps(WHOLE[what])
    read(what, text)
    assert node("odd", contents=[{"what": what, "text": text}]) == [False]


def test_python_refuses_every_odd_value() -> None:
    taken = []
    for what, field, value in odd():
        try:
            read(what, changed(what, field, value))
        except RefusedError:
            continue
        taken.append((what, field, value))
    assert taken == []


def test_the_browser_refuses_every_odd_value(node: Node) -> None:
    cases = list(odd())
    contents = [{"what": what, "text": changed(what, field, value)} for what, field, value in cases]
    refused = node("odd", contents=contents)
    assert [case for case, told in zip(cases, refused, strict=True) if told is not True] == []
