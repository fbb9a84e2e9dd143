"""The news benchmark on planted data: its rows are runs of the simulation, its table states the
unit of every epsilon."""

from pathlib import Path

import pytest

from fedrec.errors import SettingsError
from fedrec.storage import read_json
from fedrec_simulations.experiments import news

pytestmark = pytest.mark.slow


def test_rows_are_kept_and_the_table_holds_their_figures_with_unit_and_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = news.run("planted", quick=True, folder=tmp_path / "rows")
    (kept,) = (tmp_path / "rows").rglob("*.json")
    row, found = read_json(kept), result["methods"]["additive, epsilon 5"]
    assert (row["guarantee"]["unit"], row["guarantee"]["neighbours"]) == ("click", "replace")
    assert [
        found["served"][f"{a['epsilon']}"]["auc"]["mean"] for a in row["serving"]["answers"]
    ] == [a["metrics"]["auc"] for a in row["serving"]["answers"]]
    table = news.markdown(result)
    assert "| additive, epsilon 5 | click, replace |" in table
    assert f"{100 * row['controls']['history_swap_auc']:.1f} |" in table
    monkeypatch.setattr(news, "_made", None)  # whatever is made again would fail
    assert news.run("planted", quick=True, folder=tmp_path / "rows") == result


def test_without_data_it_says_what_to_give() -> None:
    with pytest.raises(SettingsError, match="data folder"):
        news.run("")
