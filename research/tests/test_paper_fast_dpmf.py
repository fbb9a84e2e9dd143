"""Figures of fast DP matrix factorisation and its speed, on small planted data: their rows, their
claims, and when test is read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedrec.privacy.guarantee import Guarantee
from fedrec_research.fast_dpmf.recipe import PosteriorSettings
from fedrec_research.papers import fast_dpmf
from fedrec_research.papers.starts import Start
from research.tests.paper_rows import paper_rows


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_dpmf, "PASSES", 2)


def test_the_sampler_is_never_called_established_and_its_sibling_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_dpmf, "trained_row", _trained)
    found = {(row["series"], row["x"]): row for row in paper_rows("fast-dpmf/figure5", tmp_path)}
    assert len(found) == 6
    for (series, _), row in found.items():
        assert ("NOT ESTABLISHED" in row["guarantee"]) == ("SGLD" in series)


def _trained(start: Start, epsilon: float, seed: int) -> dict[str, Any]:
    return {"rmse": 1.0, "guarantee": str(Guarantee(epsilon, 1e-5))}


def test_choosing_settings_reads_validation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[str]()
    monkeypatch.setattr(fast_dpmf.SealedSplit, "open", lambda self, model: opened.append("test"))
    start = Start("fast_dpmf_figure5", "planted")
    fast_dpmf.tuning_row(start, {"passes": 2}, 5.0, 1)
    fast_dpmf.watched_row(start, PosteriorSettings(dimension=2, passes=2), math.inf, 1)
    assert not opened


def test_the_scenario_of_figure_5_is_the_paper_s() -> None:
    start = Start("fast_dpmf_figure5")
    assert start.scenario.recipe == "dpmf"
    assert set(start.figure.epsilons) == {1, 5, 20, 50, 100, 250, math.inf}
