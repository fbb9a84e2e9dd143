"""The paper's tables and figures: every run once, and figures that are those of the rows."""

from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import SettingsError
from fedrec_simulations.experiments import news_paper
from fedrec_simulations.report.news_published import published_rows

pytestmark = pytest.mark.slow

Row = dict[str, Any]


def made(auc: float, *, established: bool = True) -> Row:
    metrics = {"auc": auc, "mrr": 0.2, "ndcg@5": 0.21, "ndcg@10": 0.22}
    served = {f"{e}": metrics for e in news_paper.SERVED}
    return {
        "guarantee": {"established": established},
        "served": served,
        "auc_stderr": 0.002,
        "history_swap_auc": 0.5,
        "seconds": 9.0,
        "baselines": {"popularity": 0.51},
    }


def test_every_run_of_tables_and_figures_is_listed_once_and_named_apart() -> None:
    listed = news_paper.methods()
    drawn = (news_paper.FIGURE_5, news_paper.FIGURE_6, news_paper.FIGURE_7)
    figures = [
        *news_paper.FIGURE_4,
        *(m for figure in drawn for line in figure.values() for m in line),
    ]
    wanted = [*figures, *(m for model in news_paper.MODELS for m in news_paper.tables_of(model))]
    assert {m.name for m in wanted} <= set(listed)
    assert all(listed[m.name] == m for m in wanted)


def test_orderings_of_the_paper_get_figures_and_no_verdict_on_other_data() -> None:
    rows = {name: made(0.6 if "local" in name else 0.55) for name in news_paper.methods()}
    rows["dp-fedrec, epsilon 5"], rows["fedrec, epsilon inf"] = made(0.7), made(0.65)
    text = news_paper.markdown({"methods": rows})
    assert "NRMS at ε = 5: 60.0 and 70.0" in text
    assert "Here, `local` and FedRec: NRMS 60.0 and 65.0; NAML 60.0 and 55.0;" in text
    assert "No verdict on either: one seed, other data than the paper's" in text
    assert "NOT found" not in text
    assert "found NOT" not in text


def test_a_row_that_exchanged_histories_do_not_change_is_marked() -> None:
    rows = {"local, epsilon 10": made(0.5015), "printed, epsilon 10": made(0.65, established=False)}
    text = news_paper.markdown({"methods": rows})
    assert "| NRMS, local, 10, IGNORES THE HISTORY |" in text
    assert "| NRMS, printed, 10, NOT ESTABLISHED |" in text


def test_published_figures_stand_beside_ours_and_a_missing_run_is_a_dash() -> None:
    rows = {"local, epsilon 10": made(0.6412), "printed, epsilon 10": made(0.65, established=False)}
    text = news_paper.markdown({"methods": rows})
    assert "| NRMS, local, 10 | 64.1 / 20.0 / 21.0 / 22.0 | 58.3 / 26.6 / 27.9 / 33.7 |" in text
    assert "NRMS, printed, 10, NOT ESTABLISHED" in text
    assert "| dp-fedrec | – | – | – | – |" in text


def test_the_papers_figures_stand_beside_its_own_variants_on_any_data_and_beside_ours_on_mind_only() -> None:  # fmt: skip
    assert len(published_rows("click log of ml-1m", "local", "nrms")) == 7
    assert published_rows("click log of ml-1m", "additive", "nrms") == ()
    assert len(published_rows("MIND", "additive", "naml")) == 7


def test_rows_are_runs_of_the_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = news_paper.run("planted", quick=True, folder=tmp_path / "rows")
    assert set(result["methods"]) == {"local, epsilon 10"}
    assert set(result["methods"]["local, epsilon 10"]["served"]) == {
        f"{e}" for e in news_paper.SERVED
    }


def test_without_data_it_says_what_to_give() -> None:
    with pytest.raises(SettingsError, match="data folder"):
        news_paper.run("")
