"""A planted news model through a real server is worth what evaluation says it is."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedrec_research.quality import serving_attention, serving_news
from fedrec_research.trials import Asked

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform == "win32", reason="stops a process by a signal")
def test_through_the_server_is_the_same_as_in_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = serving_news.run(Asked(("planted",), quick=True, folder=tmp_path))
    (found,) = result["methods"].values()
    both = [
        (row["server"]["mean"], row["evaluation"]["mean"])
        for row in found["served"].values()
        if row["evaluation"]
    ]
    assert len(both) == 4
    np.testing.assert_allclose(
        [server for server, _ in both], [evaluation for _, evaluation in both], atol=1e-9
    )
    assert result["most_score_difference"] < 1e-4


@pytest.mark.skipif(sys.platform == "win32", reason="stops a process by a signal")
def test_padded_attention_through_the_server_is_the_same_as_in_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = serving_attention.run(Asked(("planted",), quick=True, folder=tmp_path))
    (point,) = result["points"]
    assert (point["coefficients"], point["padding"]) == (3, 0.2)
    both = [(row["server"], row["evaluation"]) for row in point["served"].values()]
    assert sum(evaluated is not None for _, evaluated in both) == 4
    for server, evaluated in both:
        if evaluated:
            assert server["mean"] == pytest.approx(evaluated["mean"], abs=1e-4)
    assert result["most_score_difference"] < 1e-4


def test_points_are_those_of_the_papers_figures_once() -> None:
    points = serving_attention.POINTS
    assert len(points) == len(set(points)) == 15
    assert {(B, p) for B in (3, 5) for p in (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)} < set(points)
    assert {(B, 0.0) for B in (1, 3, 5, 10, 32)} < set(points)
