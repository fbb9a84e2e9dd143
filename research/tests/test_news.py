"""The news benchmark on planted data: its rows are runs of the simulation, its table states the
unit of every epsilon."""

from pathlib import Path

import pytest

from fedrec.storage import read_json
from fedrec_research import news
from fedrec_research.trials import Asked

pytestmark = pytest.mark.slow


def test_rows_are_kept_and_the_table_holds_their_figures_with_unit_and_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = news.run(Asked(("planted",), quick=True, folder=tmp_path / "rows"))
    (kept,) = (tmp_path / "rows").rglob("*.json")
    row = read_json(kept)["row"]
    found = result["methods"]["additive, epsilon 5"]
    assert (row["guarantee"]["unit"], row["guarantee"]["neighbours"]) == ("click", "replace")
    assert [
        found["served"][f"{a['epsilon']}"]["auc"]["mean"] for a in row["serving"]["answers"]
    ] == [a["metrics"]["auc"] for a in row["serving"]["answers"]]
    monkeypatch.setattr(news, "_simulated", None)  # whatever is made again would fail
    assert news.run(Asked(("planted",), quick=True, folder=tmp_path / "rows")) == result
