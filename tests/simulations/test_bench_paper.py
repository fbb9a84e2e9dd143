"""`fedrec bench paper`: any figure by name, from its own scenario, beside what its paper says, with
progress and a page."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

from fedrec.cli.main import app
from fedrec.data.dataset import Provenance as Source
from fedrec.data.dataset import ReadReport
from fedrec.errors import RunError, SettingsError
from fedrec.settings import load
from fedrec_simulations.experiments import news_paper, rows, workers
from fedrec_simulations.experiments.papers import figures, page, paper_data, privaterec
from fedrec_simulations.experiments.papers.figures import PAPERS
from fedrec_simulations.experiments.papers.paper import Work
from fedrec_simulations.experiments.papers.paper_data import provenance
from fedrec_simulations.experiments.papers.starts import Start, heading, path_of
from fedrec_simulations.experiments.progress import Progress
from fedrec_simulations.experiments.row_queue import Choices, Plan, RowQueue, of_one_stage, rows_of
from fedrec_simulations.experiments.trials import RowFiles, Trial
from tests.simulations.paper_rows import paper_rows
from tests.waiting import HANG_S

SCENARIOS = Path(__file__).parents[2] / "simulations"
NAMED = [(paper, figure) for paper in PAPERS for figure in figures.paper(paper).figures]
AGAINST_EPSILON = {
    *(("ada-dpals", f"figure{n}") for n in (1, 2)),
    *(("am-ssp", f"figure{n}") for n in (1, 2)),
    *(("dp-cmf", f"figure{n}") for n in (1, 3, 4, 5)),
    *(("convex-ssp", name) for name in ("yelp2018", "amazon_book")),
    ("fast-dpmf", "figure5"),
}
SECONDS_FREE = [
    ("ada-dpals", "figure3"),
    ("dp-cmf", "figure4"),
    ("fast-dpmf", "figure5"),
    ("convex-ssp", "yelp2018"),
]


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
        "bench",
        "paper",
        "ada-dpals/figure7",
        "--data",
        "planted",
        "--quick",
        "--json",
        "--output",
        "a.json",
        "--html",
        "a.html",
    ]
    shown = CliRunner().invoke(app, asked)
    told = json.loads(shown.stdout)
    assert shown.stderr == ""
    assert told == json.loads(Path("a.json").read_text())
    assert list(told["figures"]) == ["figure7"]
    assert (
        told["figures"]["figure7"]["published"]["share of events of the most frequent tenth"]
        == 0.86
    )
    assert told["figures"]["figure7"]["rows"] == paper_rows("ada-dpals/figure7", tmp_path)
    assert (
        "fedrec bench paper ada-dpals/figure7 --data planted --quick" in Path("a.html").read_text()
    )


def test_unknown_papers_figures_keys_and_missing_names_are_refused_with_what_there_is(
    tmp_path: Path,
) -> None:
    for name, words in (("alphafold", "ada-dpals"), ("dp-cmf/figure9", "figure1")):
        with pytest.raises(SettingsError) as caught:
            figures.run(name, "planted", folder=tmp_path)
        assert words in caught.value.remedy
    wrong = {
        "bench paper": "dp-cmf/figure1",
        "bench kernels dp-cmf": "dp-cmf/figure1",
        "bench kernels --set seed=1": "It is for: paper, simple.",
        "bench als --html x": "It is for: paper.",
        "bench news --jobs 2": "It is for: paper, study, search, sizes, simple, plan, runtimes.",
        "bench paper dp-cmf --only default": "It is for: study, search, news-paper.",
    }
    for arguments, words in wrong.items():
        with pytest.raises(SettingsError) as caught:
            CliRunner().invoke(
                app, arguments.split(), standalone_mode=False, catch_exceptions=False
            )
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


@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_has_figures_and_says_how_it_was_read(name: str) -> None:
    paper = figures.paper(name)
    assert paper.figures
    assert set(paper.published) <= set(paper.figures)
    assert all("how" in said for said in paper.published.values())


@pytest.mark.parametrize(("paper", "figure"), NAMED)
def test_every_figure_has_a_scenario_of_its_own_that_says_its_command_and_x_axis_and_loads(
    paper: str, figure: str
) -> None:
    name = f"{figures.paper(paper).prefix}_{figure}"
    path = SCENARIOS / f"{name}.toml"
    assert path_of(name) == path
    assert load(path).figure.seeds
    assert f"fedrec bench paper {paper}/{figure}" in path.read_text()
    assert heading(name)
    assert (load(path).figure.x == "epsilon") == ((paper, figure) in AGAINST_EPSILON)


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
        mean, error = (one + other) / 2, abs(one - other) / 2
        reach = stats.t.ppf(0.975, 1) * error
        assert row["interval"] == pytest.approx([mean - reach, mean + reach])


def test_an_epsilon_keeps_its_unit_and_neighbours_and_seeds_say_what_they_change(
    made: dict[str, Any],
) -> None:
    shown = page.render(made, command="fedrec bench paper")
    assert shown.count("per user (add/remove, number of users public)") >= len(
        made["figures"]["figure3"]["rows"]
    )
    assert "Seeds 1, 2; each divides the data and draws the noise" in shown


def test_the_page_stands_alone_and_has_every_value_a_chart_and_the_warning(
    made: dict[str, Any],
) -> None:
    shown = page.render(made, command="fedrec bench paper <script>")
    assert "<script" not in shown
    assert not re.search(r"(?:src|href)=", shown)
    for row in made["figures"]["figure3"]["rows"]:
        assert f"{row['value']:.4f}" in shown
        assert f"{row['interval'][0]:.4f} to {row['interval'][1]:.4f}" in shown
    assert shown.count("<svg ") == 2  # one chart, for an endpoint and for a phone
    assert shown.count('class="error') == 2 * 8
    assert "NOT the paper&#39;s data (ML-10M): this is planted data" in shown
    assert "figure.points=[0,0.25]" in shown


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
    drawn = list(page._charts("rmse", "bucket", some))
    assert [chart.title for chart in drawn] == [
        "rmse against bucket, epsilon 1",
        "rmse against bucket, epsilon 5",
    ]
    assert [len(chart.lines) for chart in drawn] == [6, 6]
    assert next(iter(drawn[0].lines)) == "method 0"


def test_what_is_not_established_is_marked_on_the_page() -> None:
    row = {
        "metric": "rmse",
        "series": "SGLD",
        "x": 5.0,
        "value": 1.0,
        "guarantee": "epsilon 5 per user (add/remove, number of users public): NOT ESTABLISHED",
    }
    content = {
        "heading": "Figure",
        "scenario": "x.toml",
        "x": "epsilon",
        "each_seed": "draws",
        "rows": [row],
        "published": {},
        "data": {"same": True, "words": "the paper's"},
    }
    result = {"paper": "p", "quick": False, "overrides": [], "figures": {"figure5": content}}
    assert re.search(
        (
            r'class="under warn">epsilon 5 per user \(add/remove, number of users public\): NOT '
            r"ESTABLISHED"
        ),
        page.render(result, command="x"),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "figure"), SECONDS_FREE)
def test_every_row_is_counted_and_a_second_run_finds_all(
    paper: str, figure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many there are is known as soon as no row decides which others are asked for."""
    monkeypatch.setattr("fedrec_simulations.experiments.papers.fast_dpmf.PASSES", 2)
    told = list[Progress]()
    figures.run(f"{paper}/{figure}", "planted", quick=True, folder=tmp_path, tell=told.append)
    kept = list(tmp_path.rglob("*.json"))
    assert {progress.total for progress in told if progress.complete} == {len(kept)}
    assert [progress.done for progress in told] == list(range(len(kept) + 1))
    figures.run(f"{paper}/{figure}", "planted", quick=True, folder=tmp_path, tell=told.append)
    assert (told[-1].done, told[-1].total, told[-1].complete) == (len(kept), len(kept), True)
    assert len(told) == len(kept) + 2
    assert math.isnan(told[-1].left_s)


def test_the_time_left_is_the_mean_of_the_rows_made_times_those_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = [0.0], list[Progress]()

    def make() -> rows.Row:
        clock[0] += 60.0
        return {"value": 1}

    monkeypatch.setattr(
        "fedrec_simulations.experiments.row_queue.time.perf_counter", lambda: clock[0]
    )
    trials = {f"row-{number}": Trial.of(f"row-{number}", make) for number in range(4)}
    rows_of({"row-3": trials["row-3"]}, RowFiles(tmp_path))
    RowQueue[dict[Any, rows.Row]](RowFiles(tmp_path), tell=told.append).results(
        {"figure1": of_one_stage(trials)}
    )
    assert [(p.done, p.total, p.left_s) for p in told[1:3]] == [(2, 4, 120.0), (3, 4, 60.0)]
    assert math.isnan(told[0].left_s)
    said = [p.words.removeprefix("figure1: ") for p in (told[0], told[1], told[-1])]
    assert said == ["rows: 1 of 4 rows", "2 of 4 rows, about 2 min left", "4 of 4 rows"]


def test_while_rows_decide_which_others_come_the_count_is_from_below() -> None:
    assert (
        Progress("figure1", 1, 2, 7200.0, complete=False).words
        == "figure1: 1 of at least 2 rows, at least 2 h 0 min left"
    )


def candidate(number: int) -> rows.Row:
    return {"error": 5.0 - number, "rate": float(number)}


def trained(rate: float) -> rows.Row:
    return {"value": 10 * rate}


def refused() -> rows.Row:
    raise SettingsError("this cannot be", "Do that.")


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in this process."""
    monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda jobs, **_: ThreadPoolExecutor(jobs))


def chosen_of_four() -> Plan[list[float]]:
    tried = yield Choices(
        {number: Trial.of(f"candidate-{number}", candidate, number) for number in range(4)}
    )
    rate = min(tried.values(), key=lambda row: row["error"])["rate"]
    found = yield {
        "trained": Trial.of("trained", trained, rate),
        "free": Trial.of("free", trained, 7.0),
    }
    return [found["trained"]["value"], found["free"]["value"]]


def one_row() -> Plan[list[float]]:
    """Another figure that wants a row of the first."""
    found = yield {"free": Trial.of("free", trained, 7.0)}
    return [found["free"]["value"]]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_row_whose_settings_another_decides_waits_for_it_and_a_shared_one_is_made_once(
    jobs: int, tmp_path: Path
) -> None:
    told, store = list[Progress](), RowFiles(tmp_path)
    # nothing is chosen from a part of the candidates
    rows_of({1: Trial.of("candidate-1", candidate, 1)}, store)
    found = RowQueue[list[float]](store, jobs=jobs, tell=told.append).results(
        {"one": chosen_of_four(), "two": one_row()}
    )
    assert found == {"one": [30.0, 70.0], "two": [70.0]}
    assert len(list(tmp_path.iterdir())) == 6
    assert [progress.done for progress in told] == [1, 2, 3, 4, 5, 6]
    assert [progress.complete for progress in told] == sorted(
        progress.complete for progress in told
    )
    assert told[0].complete is False
    assert told[-1].complete


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_goes_wrong_in_a_worker_is_said_as_it_is_without_one(
    jobs: int, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="this cannot be") as caught:
        rows_of({"refused": Trial.of("refused", refused)}, RowFiles(tmp_path), jobs=jobs)
    assert caught.value.remedy == "Do that."


@pytest.mark.slow
def test_two_processes_give_the_rows_that_one_gives(tmp_path: Path) -> None:
    found = [
        figures.run("dp-cmf/figure4", "planted", quick=True, jobs=jobs, folder=tmp_path / str(jobs))
        for jobs in (1, 2)
    ]
    assert found[0] == found[1]
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / str(jobs)).rglob("*.json")}
        for jobs in (1, 2)
    )
    assert one == two


def test_a_worker_that_was_ended_is_said_to_be() -> None:
    with pytest.raises(RunError, match="ended from outside"), workers.workers(1) as pool:
        pool.submit(os._exit, 9).result()


@pytest.mark.parametrize(
    ("end", "said"), [(signal.SIGINT, "left: []\n"), (signal.SIGKILL, "")], ids=["ctrl-c", "killed"]
)
def test_workers_end_with_the_process_that_gave_them_work(end: signal.Signals, said: str) -> None:
    """polars has a handler of its own, after which a wait without end hears no Ctrl-C.

    A worker that lived on would hold stdout open."""
    script = (
        "import multiprocessing, time, polars\n"
        "from fedrec_simulations.experiments.workers import first_done, workers\n"
        "try:\n"
        "    with workers(2) as pool:\n"
        "        pool.submit(int).result()\n"
        "        print('started', flush=True)\n"
        "        first_done([pool.submit(time.sleep, 600), pool.submit(time.sleep, 600)])\n"
        "except KeyboardInterrupt:\n"
        "    print('left:', multiprocessing.active_children())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(0.2)  # into the wait
        process.send_signal(end)
        assert process.communicate(timeout=HANG_S)[0] == said


def test_figures_of_seconds_have_the_machine_to_themselves() -> None:
    for name in PAPERS:
        paper = figures.paper(name)
        assert {
            figure
            for figure in paper.figures
            if load(path_of(f"{paper.prefix}_{figure}")).figure.x == "processor seconds"
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
            "clicks-npz",
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
    with pytest.raises(SettingsError, match=r"privacy\.epsilon=5 changes no figure"):
        paper_rows("privaterec/table1", tmp_path, overrides=["privacy.epsilon=5"])
    asked = {
        name: next(
            make(
                Work(
                    Start(f"privaterec_{name}", "planted", ("figure.seeds=[1,2]",)), False, tmp_path
                )
            )
        )
        for name, make in privaterec.PAPER.figures.items()
    }
    assert len(asked["table1"]) == 2 * 15
    assert len({trial.name for stage in asked.values() for trial in stage.values()}) == 2 * len(
        news_paper.methods()
    )


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
    made = Trial.of("one", lambda: {"serving": {"answers": answers}, "guarantee": promise})
    monkeypatch.setattr(privaterec, "news_trial", lambda *_: made)
    found = paper_rows("privaterec/table2", tmp_path)
    assert [(row["metric"], row["value"]) for row in found] == [
        ("auc", 0.6),
        ("mrr", 0.3),
        ("ndcg@5", 0.3),
        ("ndcg@10", 0.4),
    ]
    assert all("per click (replace)" in row["guarantee"] for row in found)
