"""A planted news model through a real server is worth what evaluation says it is."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedrec_simulations.bench import serving_news

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform == "win32", reason="stops a process by a signal")
def test_through_the_server_is_the_same_as_in_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = serving_news.run("planted", quick=True, folder=tmp_path)
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
    assert "through the server" in serving_news.markdown(result)
