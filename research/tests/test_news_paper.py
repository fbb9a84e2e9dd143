"""The paper's tables and figures: every run once, and figures that are those of the rows."""

from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import SettingsError
from fedrec.report.news import published_rows
from fedrec_research import news_paper
from fedrec_research.trials import Asked

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


def test_a_row_that_exchanged_histories_do_not_change_is_marked() -> None:
    rows = {"local, epsilon 10": made(0.5015), "printed, epsilon 10": made(0.65, established=False)}
    assert [news_paper.ignores_history(row) for row in rows.values()] == [True, False]


def test_the_papers_figures_stand_beside_its_own_variants_on_any_data_and_beside_ours_on_mind_only() -> None:  # fmt: skip
    assert len(published_rows("click log of ml-1m", "local", "nrms")) == 7
    assert published_rows("click log of ml-1m", "additive", "nrms") == ()
    assert len(published_rows("MIND", "additive", "naml")) == 7


def test_rows_are_runs_of_the_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = news_paper.run(Asked(("planted",), quick=True, folder=tmp_path / "rows"))
    assert set(result["methods"]) == {"local, epsilon 10"}
    assert set(result["methods"]["local, epsilon 10"]["served"]) == {
        f"{e}" for e in news_paper.SERVED
    }


def test_runs_are_chosen_by_variant_encoder_point_or_whole_name() -> None:
    listed = list(news_paper.methods())
    chosen = news_paper.chosen
    assert list(chosen([])) == listed
    naml = list(chosen(["naml"]))
    assert [name.split(", ")[0] for name in naml] == [
        "centralized",
        "fedrec",
        "local",
        "printed",
        "dp-fedrec",
    ]
    assert all("naml" in name for name in naml)
    assert list(chosen(["local, naml", "centralized, nrms"])) == [
        "centralized, epsilon inf",
        "local, naml, epsilon 10",
    ]
    assert list(chosen(["local, epsilon 5"])) == ["local, epsilon 5"]
    assert list(chosen(["local,epsilon 5"])) == ["local, epsilon 5", "local, plm-nr, epsilon 5"]
    assert set(chosen(["padding 0.2"])) == {
        "local, padding 0.2, epsilon 10",
        "local, basis 3, padding 0.2, epsilon 10",
    }
    with pytest.raises(SettingsError, match="no run of news-paper is 'bert'"):
        chosen(["naml", "bert"])


def test_chosen_runs_have_all_seeds_and_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[int]()

    def counted(data: str, method: Any, served: Any, seed: int) -> Row:
        made.append(seed)
        return of_seed(seed)

    monkeypatch.setattr(news_paper, "news_row", counted)
    asked = Asked(("planted",), only=("local, naml",), seeds=3, folder=tmp_path / "rows")
    for _ in range(2):
        result = news_paper.run(asked)
        assert made == [1, 2, 3]
    found = result["methods"]["local, naml, epsilon 10"]
    assert found["seeds"] == [1, 2, 3]
    assert found["each"]["10.0"]["auc"] == [0.61, 0.62, 0.63]
    assert found["served"]["10.0"]["auc"] == pytest.approx(0.62)


def of_seed(seed: int) -> Row:
    metrics = dict.fromkeys(("auc", "mrr", "ndcg@5", "ndcg@10"), 0.6 + seed / 100)
    return {
        "guarantee": {"established": True},
        "serving": {"answers": [{"epsilon": e, "metrics": metrics} for e in news_paper.SERVED]},
        "metrics": {"auc_stderr": 0.002},
        "controls": {"history_swap_auc": 0.5},
        "rounds": 3,
        "training_seconds": 1.0,
        "bytes_up_per_client": 10,
        "baselines": {"popularity": {"auc": 0.54}, "popularity, served at 10": {"auc": 0.5}},
    }
