"""A year of weekly models: the wiring, and what is kept of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedrec_research.quality import year
from fedrec_research.trials import Asked

RESULTS = Path(__file__).parents[1] / "results"


def kept(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / f"{name}.json").read_text()))


@pytest.mark.slow
def test_a_small_year_has_a_model_of_every_method_in_every_week(tmp_path: Path) -> None:
    found = year.run(Asked(("planted",), quick=True, seeds=1, folder=tmp_path))
    assert found["weeks"] == [1, 2, 4, 7]
    for method in year.METHODS:
        assert len(found[method]["mean"]) == 4
        assert all(0 < told < 1 for told in found[method]["mean"])


@pytest.mark.parametrize(("name", "first"), [("year-planted", 1), ("year-ml100k", 22)])
def test_the_stream_is_ahead_of_an_equal_split_from_this_week_on(name: str, first: int) -> None:
    found = kept(name)
    ahead = [
        ours > split
        for ours, split in zip(found["stream"]["mean"], found["equal split"]["mean"], strict=True)
    ]
    assert found["seeds"] == 3
    weeks = found["weeks"]
    assert all(better for week, better in zip(weeks, ahead, strict=True) if week >= first)
    assert first == 1 or not ahead[weeks.index(first) - 1]
