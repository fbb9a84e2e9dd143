"""A server that chooses the page's model to learn of its titles: whether a question leaves depends
on no title."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedrec.errors import RunError
from fedrec.serving.bundle import Texts, read
from tests.page.conftest import NASTY, planted_parts

ABOUT, ARRAYS = planted_parts()
M, B = ARRAYS["rows"].shape
X = 17


def texts(name: str, strings: list[str]) -> dict[str, Any]:
    made = Texts.of(strings)
    return {f"{name}.content": made.content, f"{name}.ptr": made.ptr}


def with_(name: str, place: Any, number: float) -> dict[str, Any]:
    array = ARRAYS[name].copy()
    array[place] = number
    return {name: array}


IDS = [f"i{row}" for row in range(M)]
REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "rows of fractions": lambda: {
        "rows": np.where(np.arange(M)[:, None] == X, 0.5, ARRAYS["rows"])
    },
    "rows of long integers": lambda: {"rows": ARRAYS["rows"].astype(np.int64)},
    "rows longer than 1": lambda: {
        "rows": np.full((M, B), 2**30, np.int32),
        "about": {"sensitivity": 9e5},
    },
    "more ids than items": lambda: texts("ids", [*IDS, "one more"]),
    "fewer titles than items": lambda: texts("titles", IDS[:-1]),
    "ids that overlap": lambda: {"ids.ptr": ARRAYS["ids.ptr"][::-1].copy()},
    "ids at places that are no whole numbers": lambda: {
        "ids.ptr": ARRAYS["ids.ptr"].astype(np.float64)
    },
    "an item that is not finite": lambda: with_("items", X, np.nan),
    "a bias that is not finite": lambda: with_("bias", X, np.inf),
    "a mean of 1e300": lambda: with_("mean", 0, 1e300),
    "a covariance that is none": lambda: {"covariance": -np.eye(B)},
    "a short mean": lambda: {"mean": ARRAYS["mean"][:-1]},
    "a short user map": lambda: {"users.offset": ARRAYS["users.offset"][:-1]},
    "categories of another type": lambda: {"categories": ARRAYS["categories"].astype(np.float32)},
    "two hundred million places": lambda: {"about": {"history": 200_000_000}},
    "half a place": lambda: {"about": {"history": 0.5}},
    "places in a string": lambda: {"about": {"history": "10"}},
    "a negative delta": lambda: {"about": {"delta": -1.0}},
    "a scale of 0": lambda: {"about": {"scale": 0.0}},
    "a sensitivity in a string": lambda: {"about": {"sensitivity": "1"}},
    "less sensitivity than its rows have": lambda: {
        "about": {"sensitivity": ABOUT.sensitivity / 2}
    },
    "an unknown unit": lambda: {"about": {"unit": "history"}},
    "no word on its noise": lambda: {"about": {"noise": "?"}},
}


def written(path: Path, change: dict[str, Any]) -> str:
    about = ABOUT.model_dump(mode="json") | change.get("about", {})
    arrays = ARRAYS | {name: array for name, array in change.items() if name != "about"}
    save_file(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        path,
        metadata={"about": json.dumps(about)},
    )
    return str(path)


def test_a_model_that_could_fail_for_some_titles_alone_is_refused_for_all(
    node: Any, tmp_path: Path
) -> None:
    bundles = [
        written(tmp_path / f"{number}", make()) for number, make in enumerate(REFUSED.values())
    ]
    said = dict(
        zip(
            ["the honest one", *REFUSED],
            node("refusals", bundles=[written(tmp_path / "honest", {}), *bundles]),
            strict=True,
        )
    )
    assert said.pop("the honest one") is None
    assert [name for name, why in said.items() if why is None] == []


def test_python_and_the_browser_refuse_every_odd_value_of_what_a_model_says_of_itself(
    node: Any, tmp_path: Path
) -> None:
    """By the list that devices in a training have (`tests/device/test_odd_values.py`)."""
    odd = json.loads(Path(__file__).with_name("odd_values.json").read_text())
    about = ABOUT.model_dump(mode="json")
    deep, long = "[" * 3000 + "]" * 3000, "1" + "0" * 400
    cases = [
        (field, value) for field, kind in odd["about"].items() for value in (*odd[kind], deep, long)
    ]
    paths = [str(tmp_path / f"{number}") for number in range(len(cases))]
    taken = list[tuple[str, str]]()
    for path, (field, value) in zip(paths, cases, strict=True):
        text = json.dumps(about | {field: "@@"}).replace('"@@"', value)
        save_file(ARRAYS, path, metadata={"about": text})
        try:
            read(Path(path))
        except RunError:
            continue
        taken.append((field, value))
    assert taken == []
    said = node("refusals", bundles=paths)
    assert [case for case, why in zip(cases, said, strict=True) if why is None] == []


@pytest.mark.parametrize("history", [[X], [3, X, 5], [3, 4, 5], []])
def test_a_history_that_alone_fails_is_asked_for_as_an_empty_one(
    node: Any, bundle_path: Path, history: list[int]
) -> None:
    (sent,) = node(
        "whatever", bundle=str(bundle_path), version="00", bad=X, mu=1.0, histories=[history]
    )
    assert len(sent) == B
    assert np.isfinite(sent).all()


def test_titles_that_the_model_lacks_are_empty_places(node: Any, bundle_path: Path) -> None:
    cases = [
        {"history": h, "noised": [0.0] * B, "noiseStd": 0, "mu": 1.0}
        for h in ([3, -1, 5], [3, 5], [-1, -1, NASTY], [NASTY])
    ]
    exact = [
        found["exact"]
        for found in node("answers", bundle=str(bundle_path), version="00", cases=cases)
    ]
    assert exact[0] == exact[1]
    assert exact[2] == exact[3]
