"""Simple private recipes stand beside a run's model: what the user could choose instead."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import fedrec
from fedrec.run import ratings, simulate
from fedrec.settings import load

SMALL = ["data.planted={users=60, items=40, events=900}", "data.preset=", "run.examples=0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "beside"), [("ratings", {"dp-bias"}), ("clicks", {"dp-item-item"})]
)
def test_a_run_is_set_beside_simple_private_methods_at_its_epsilon(
    kind: str, beside: set[str], tmp_path: Path
) -> None:
    chosen = [*SMALL, f"data.kind={kind}", "compare.epsilons=[1]", f"run.directory={tmp_path}"]
    result = simulate.run(load(None, chosen), name="run", quiet=True)
    assert beside <= {verdict["control"] for verdict in result["verdicts"]}
    other = next(point for point in result["curve"] if point["epsilon"] == 1)
    assert not beside & {verdict["control"] for verdict in other["verdicts"]}
    page = (Path(result["run_dir"]) / "report.html").read_text()
    assert all(f"fedrec {name}" in page for name in beside)


@pytest.mark.slow
def test_simple_methods_that_are_measured_are_not_charged(tmp_path: Path) -> None:
    rows = [f"u{i % 50},i{(i * 7) % 30},{i % 5 + 1}" for i in range(900)]
    table = tmp_path / "rated.csv"
    table.write_text("user,item,rating\n" + "\n".join(dict.fromkeys(rows)) + "\n")
    chosen = [
        "data.preset=",
        f"data.path={table}",
        "data.format=table",
        "data.columns={user='user', item='item', rating='rating'}",
        "data.rating_range=[1, 5]",
        "privacy.noise=system",
        f"run.directory={tmp_path}",
        f"privacy.budget_file={tmp_path / 'budget.jsonl'}",  # other tests have such ids, too
    ]
    result = simulate.run(load(None, chosen), name="run", quiet=True)
    assert "dp-bias" in {verdict["control"] for verdict in result["verdicts"]}
    budget = result["budget"]
    assert len(budget["spent"]) == 1
    charged = Path(budget["file"]).read_text()
    assert "dp-bias" not in charged
    assert budget["spent"][0]["epsilon"] == pytest.approx(5.0), budget


@pytest.mark.slow
def test_a_verdict_says_once_that_a_simple_private_method_is_as_good() -> None:
    train, test = fedrec.Dataset.planted("small").split()
    model = fedrec.MatrixFactorization(epsilon=5, noise="seeded").fit(train)
    found = fedrec.evaluate(model, test)
    assert found.answer.count("dp-bias") == 1
    assert "no better than item + user bias and dp-bias" in found.answer
    row = found.frame.row(by_predicate=pl.col("method") == "dp-bias", named=True)
    assert row["epsilon"] == 5
    assert "dp-bias" in repr(found)


def test_large_data_and_a_model_without_privacy_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = fedrec.Dataset.planted("small", kind="clicks").split()
    free = fedrec.Popularity(epsilon=float("inf")).fit(train)
    assert fedrec.evaluate(free, test).simple == {}
    monkeypatch.setattr(ratings, "MOST_SIMPLE", 100)
    priced = fedrec.Popularity(epsilon=5, noise="seeded").fit(train)
    assert fedrec.evaluate(priced, test).simple == {}
