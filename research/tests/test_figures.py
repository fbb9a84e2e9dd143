"""`fedrec research figures`: any figure by name, from its own scenario, beside what its paper says, with
progress and a page."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

from fedrec.data.interactions import Provenance as Source
from fedrec.data.interactions import ReadReport
from fedrec.errors import SettingsError
from fedrec_research import news_paper, trials
from fedrec_research.command import app
from fedrec_research.papers import charts, fast_dpmf, figures, paper_data, privaterec
from fedrec_research.papers.figures import PAPERS
from fedrec_research.papers.paper import Work
from fedrec_research.papers.paper_data import provenance
from fedrec_research.papers.starts import Start, heading, path_of
from research.tests.paper_rows import paper_rows

SCENARIOS = Path(__file__).parents[1] / "scenarios"
NAMED = [(paper, figure) for paper in PAPERS for figure in figures.paper(paper).figures]
AGAINST_EPSILON = {
    *(("ada-dpals", f"figure{n}") for n in (1, 2)),
    *(("am-ssp", f"figure{n}") for n in (1, 2)),
    *(("dp-cmf", f"figure{n}") for n in (1, 3, 4, 5)),
    *(("convex-ssp", name) for name in ("yelp2018", "amazon_book")),
    ("fast-dpmf", "figure5"),
}


RECIPES = {"am-ssp": "published", "dp-cmf": "dp-cmf"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Figure 3 of Ada-DPALS with two seeds, at two epsilons and two mu."""
    few = ["figure.seeds=[1,2]", "figure.epsilons=[5,20]", "figure.points=[0,0.25]"]
    return figures.run(
        "ada-dpals/figure3", "planted", overrides=few, folder=tmp_path_factory.mktemp("rows")
    )


def test_a_figure_comes_with_what_the_paper_says_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [
        "figures",
        "ada-dpals/figure7",
        "--data",
        "planted",
        "--quick",
        "--json",
        "--output",
        "a.json",
    ]
    shown = CliRunner().invoke(app, asked)
    told = json.loads(shown.stdout)
    assert shown.stderr == ""
    assert told == json.loads(Path("a.json").read_text())
    assert list(told["figures"]) == ["figure7"]
    assert list(told["figures"]["figure7"]["published"].values()) == ["0.86"]
    assert told["figures"]["figure7"]["rows"] == paper_rows("ada-dpals/figure7", tmp_path)


TRAINED = [f"{paper}/{figure}" for paper, figure in NAMED if paper != "privaterec"]
FAST = {"ada-dpals/figure1", "am-ssp/figure9", "convex-ssp/yelp2018", "dp-cmf/figure5"}
FAST |= {f"fast-dpmf/figure{n}" for n in (2, 3, 4)}
UNTRAINED = {"ada-dpals/figure7", "am-ssp/figure5", "am-ssp/figure6", "dp-cmf/figure2"}
UNTRAINED |= {"fast-dpmf/figure3"}
"""Of data, costs and seconds alone."""
PER_USER = "per user (add/remove, number of users public)"


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TRAINED],
)
def test_a_figure_is_finite_rows_with_their_guarantees_and_is_not_made_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_dpmf, "PASSES", 2)
    data = "" if name == "ada-dpals/figure5" else "planted"
    rows = paper_rows(name, tmp_path, data=data)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert len({(row["metric"], row["series"], row["x"]) for row in rows}) == len(rows) > 0
    for row in rows:
        assert row["figure"] == name.partition("/")[2]
        assert len(row["each"]) == len(row["seeds"]) == 1
        assert math.isfinite(row["value"])
        free = row["guarantee"] in {"no privacy", "nothing private is used"}
        assert free or PER_USER in row["guarantee"] or name in UNTRAINED
    monkeypatch.setattr(trials, "_made", lambda missing, _: map(pytest.fail, map(str, missing)))
    assert paper_rows(name, tmp_path, data=data) == rows


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("ada-dpals/figure77", "planted", "has no 'figure77'"),
        ("am-ssp/figure7", "planted", "has no 'figure7'"),
        ("convex-ssp/figure1", "planted", "has no 'figure1'"),
        ("dp-cmf/figure9", "planted", "has no 'figure9'"),
        ("fast-dpmf/figure9", "planted", "has no 'figure9'"),
        *(
            (f"{paper}/figure1", "", "needs a data folder")
            for paper in ("ada-dpals", "am-ssp", "dp-cmf")
        ),
        ("convex-ssp/yelp2018", "/nowhere", "needs a data folder"),
        ("fast-dpmf/figure5", "", "needs a data folder"),
    ],
)
def test_an_unknown_figure_and_missing_data_are_refused(
    name: str, data: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=words):
        paper_rows(name, tmp_path, data=data)


def test_unknown_papers_figures_keys_and_missing_names_are_refused_with_what_there_is(
    tmp_path: Path,
) -> None:
    for name, words in (("alphafold", "ada-dpals"), ("dp-cmf/figure9", "figure1")):
        with pytest.raises(SettingsError) as caught:
            figures.run(name, "planted", folder=tmp_path)
        assert words in caught.value.remedy


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("figure.seed=[1]", "figure.seed"),
        ("figure.epsilons=[0]", "figure.epsilons.0"),
        ("figure.settings=[{epsilon=1, model={width=2}}]", "figure.settings.0.model.width"),
        ("modell.steps=2", "modell"),
    ],
)
def test_a_wrong_key_of_a_figure_is_refused_by_name(said: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=re.escape(named)):
        figures.run("ada-dpals/figure1", "planted", overrides=[said], folder=tmp_path)


@pytest.mark.parametrize(("paper", "figure"), NAMED)
def test_every_figure_has_a_scenario_of_its_own_that_says_its_command_and_x_axis_and_loads(
    paper: str, figure: str
) -> None:
    name = f"{figures.paper(paper).prefix}_{figure}"
    path = SCENARIOS / f"{name}.toml"
    assert path_of(name) == path
    start = Start(name)
    assert start.figure.seeds
    assert start.scenario.recipe == RECIPES.get(paper, start.scenario.recipe)
    if paper == "am-ssp":
        clicks = figure in {"figure2", "figure8", "figure9b"}
        assert start.scenario.data.kind == ("clicks" if clicks else "auto")
    assert f"fedrec research figures {paper}/{figure}" in path.read_text()
    assert heading(name)
    assert (start.figure.x == "epsilon") == ((paper, figure) in AGAINST_EPSILON)


def test_every_scenario_with_a_figure_table_is_a_figure() -> None:
    written = {path.stem for path in SCENARIOS.glob("*.toml") if "[figure]" in path.read_text()}
    assert written == {f"{figures.paper(paper).prefix}_{figure}" for paper, figure in NAMED}


def test_seeds_epsilons_and_points_are_those_of_the_scenario(made: dict[str, Any]) -> None:
    found = made["figures"]["figure3"]["rows"]
    assert {(row["series"], row["x"]) for row in found} == {
        (f"{panel}epsilon = {e}", mu)
        for panel in ("", "DPSGD, ")
        for e in (5, 20)
        for mu in (0, 0.25)
    }
    assert all(row["seeds"] == [1, 2] and len(row["each"]) == 2 for row in found)


def test_the_interval_is_student_s_t_over_the_seeds(made: dict[str, Any]) -> None:
    for row in made["figures"]["figure3"]["rows"]:
        one, other = row["each"]
        mean = (one + other) / 2
        error = abs(one - other) / 2
        reach = stats.t.ppf(0.975, 1) * error
        assert row["interval"] == pytest.approx([mean - reach, mean + reach])


def test_more_lines_than_can_be_told_apart_become_a_chart_for_each_epsilon() -> None:
    some = [
        {
            "metric": "rmse",
            "series": f"method {m}, epsilon = {e}",
            "x": x,
            "value": 1.0 + m + x,
            "guarantee": "",
        }
        for m in range(6)
        for e in (1, 5)
        for x in (0, 1)
    ]
    drawn = list(charts._charts("rmse", "bucket", some))
    assert [chart.title for chart in drawn] == [
        "rmse against bucket, epsilon 1",
        "rmse against bucket, epsilon 5",
    ]
    assert [len(chart.lines) for chart in drawn] == [6, 6]
    assert next(iter(drawn[0].lines)) == "method 0"


def test_figures_of_seconds_have_the_machine_to_themselves() -> None:
    for name in PAPERS:
        paper = figures.paper(name)
        assert {
            figure
            for figure in paper.figures
            if Start(f"{paper.prefix}_{figure}").figure.x == "processor seconds"
        } <= set(paper.timed)


@pytest.mark.parametrize(
    ("format_", "count", "paper", "figure", "said", "same"),
    [
        ("ml-10m", 10_000_054, "ada-dpals", "figure1", "The paper's data: ML-10M.", True),
        ("ml-20m", 20_000_263, "ada-dpals", "figure2", "The paper's data: ML-20M.", True),
        (
            "ml-20m",
            20_000_263,
            "am-ssp",
            "figure1",
            "NOT the paper's data (ML-10M): this is ML-20M.",
            False,
        ),
        ("ml-10m", 10_000_053, "ada-dpals", "figure1", "10,000,053 events", False),
        (
            "ml-1m",
            1_000_209,
            "fast-dpmf",
            "figure5",
            "NOT the paper's data (Netflix and Yahoo)",
            False,
        ),
        ("ml-10m", 10_000_054, "dp-cmf", "figure1", "50% of its own people are public", False),
        ("ml-10m", 10_000_054, "dp-cmf", "figure3", "The paper's data: ML-10M.", True),
        (
            "clicks-lists",
            1_561_406,
            "convex-ssp",
            "yelp2018",
            "Nobody has published this figure",
            False,
        ),
        ("ml-1m", 1_000_209, "ada-dpals", "figure5", "made up as the paper says", True),
    ],
)
def test_the_official_files_are_known_and_others_are_said_to_be_others(
    format_: str,
    count: int,
    paper: str,
    figure: str,
    said: str,
    same: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Read:
        provenance = Source(format_, (), ReadReport(count, count))

    paper_data._described.cache_clear()
    monkeypatch.setattr(paper_data, "read", lambda path: Read)
    found = provenance(
        paper, figure, Start(f"{figures.paper(paper).prefix}_{figure}", f"somewhere/{format_}")
    )
    paper_data._described.cache_clear()
    assert said in found.words
    assert found.same == same


def test_privaterec_s_runs_are_fixed_but_for_seeds(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"privacy\.epsilon changes no figure"):
        paper_rows("privaterec/table1", tmp_path, overrides=["privacy.epsilon=5"])
    asked = dict[str, set[str]]()

    def count(name: str) -> Any:
        def rows(trials: Any) -> Any:
            asked[name] = {trial.key for trial in trials.values()}
            raise KeyboardInterrupt

        return rows

    for name, make in privaterec.PAPER.figures.items():
        start = Start(f"privaterec_{name}", "planted", ("figure.seeds=[1,2]",))
        with pytest.raises(KeyboardInterrupt):
            make(Work(start, False, count(name)))
    assert len(asked["table1"]) == 2 * 15
    assert len(set().union(*asked.values())) == 2 * len(news_paper.methods())


def test_a_run_of_privaterec_is_one_point_with_its_promise_per_click(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [
        {"epsilon": e, "metrics": {"auc": 0.6, "mrr": 0.3, "ndcg@5": 0.3, "ndcg@10": 0.4}}
        for e in ("inf", 10.0)
    ]
    promise = {
        "epsilon": 10.0,
        "delta": 1e-5,
        "unit": "click",
        "neighbours": "replace",
        "established": True,
        "note": "",
    }
    made = {
        "serving": {"answers": answers},
        "guarantee": promise,
        "metrics": {"auc_stderr": 0.1},
        "controls": {"history_swap_auc": 0.5},
        "rounds": 1,
        "training_seconds": 1.0,
        "bytes_up_per_client": 1,
        "baselines": {},
    }
    monkeypatch.setattr(privaterec, "news_row", lambda *_: made)
    found = paper_rows("privaterec/table2", tmp_path)
    assert [(row["metric"], row["value"]) for row in found] == [
        ("auc", 0.6),
        ("mrr", 0.3),
        ("ndcg@5", 0.3),
        ("ndcg@10", 0.4),
    ]
    assert all("per click (replace)" in row["guarantee"] for row in found)
