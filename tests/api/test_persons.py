"""What one person paid in trainings, answers and news together, as second code has it."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import fedrec
from fedrec.cli.main import guarded
from fedrec.errors import RunError, SettingsError
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee, Neighbours
from fedrec.privacy.selection import PureEvent
from fedrec.run.data.budget import DataBudget
from fedrec_client.click_ledger import ClickLedger, RunBinding
from fedrec_client.ledger import ClientLedger
from fedrec_client.serving_ledger import Drawn, ServingLedger, ServingQuestion, event_of

DELTA = 1e-5
MU = mu_for(2.0, DELTA)
STD = 4.0


def trained(folder: Path, *, runs: int) -> Path:
    plan = calibrate(Guarantee(2.0, DELTA), {"counts": 1.0, "step": 3.0})
    path = folder / "training" / "ledger.sqlite"
    with closing(ClientLedger(path, limit=Guarantee(9.0, DELTA))) as ledger:
        for run in range(runs):
            for round, name in enumerate(("counts", "step")):
                ledger.charge(f"run{run}", round, f"{round:064x}", plan, [name])
    return path


def answered(folder: Path, *, times: int) -> Path:
    asked = Guarantee(1.0, DELTA, "click", "replace")
    path = folder / "serving" / "ledger.sqlite"
    with closing(ServingLedger(path, limit=Guarantee(90.0, DELTA, "click", "replace"))) as ledger:
        price = event_of(mu_for(1.0, DELTA))
        for time in range(times):
            question = ServingQuestion("0" * 16, "rows", f"{time}", asked, price, STD)
            ledger.answer(question, lambda: Drawn(np.ones(4), np.ones(4, np.float32), STD, price))
    return path


def clicked(folder: Path) -> Path:
    path = folder / "news" / "clicks.sqlite"
    with closing(ClickLedger(path, limit=Guarantee(9.0, DELTA, "click", "replace"))) as ledger:
        costs = Costs((GaussianEvent("report", 0.01, "click", "replace"),), ())
        ledger.charge("run", costs, RunBinding(users=1, history=20, labels=0))
    return path


def test_trainings_answers_and_news_are_one_sum_of_one_unit(tmp_path: Path) -> None:
    """Trainings: an exchange is two steps. Answers: whatever a history holds, 2 / std each, or 3
    clicks. News: a full history of 20 clicks."""
    files = [trained(tmp_path, runs=2), answered(tmp_path, times=3), clicked(tmp_path)]
    found = fedrec.account_of_person(*files)
    squares = [2 * (2 * MU) ** 2, 3 * (2 / STD) ** 2, (20 * 0.01) ** 2]
    for part, square in zip(found.parts, squares, strict=True):
        assert part.epsilon == pytest.approx(epsilon_of(math.sqrt(square), DELTA))
    assert found.epsilon == pytest.approx(epsilon_of(math.sqrt(sum(squares)), DELTA))
    assert found.epsilon < sum(part.epsilon for part in found.parts)
    assert [part.sort for part in found.parts] == ["trainings", "answers", "news"]
    few = fedrec.account_of_person(*files, clicks=1)
    squares[1] = 3 * mu_for(1.0, DELTA) ** 2
    assert few.epsilon == pytest.approx(epsilon_of(math.sqrt(sum(squares)), DELTA))
    assert fedrec.account_of_person(files[1], clicks=0).epsilon == 0


def test_a_budget_of_runs_on_one_machine_is_a_person_s_too_without_its_experiments(
    tmp_path: Path,
) -> None:
    budget = DataBudget(tmp_path / "people.jsonl", Guarantee(math.inf, DELTA))
    for run in "ab":
        budget.charge(run, "system", [GaussianEvent("counts", MU)])
    budget.charge("c", "seeded", [GaussianEvent("counts", MU)])
    found = fedrec.account_of_person(budget.path)
    assert found.epsilon == pytest.approx(epsilon_of(math.sqrt(2) * 2 * MU, DELTA))
    open_one = DataBudget(tmp_path / "open.jsonl", Guarantee(math.inf, DELTA))
    open_one.charge("a", "system", [GaussianEvent("counts", math.inf)])
    assert fedrec.account_of_person(budget.path, open_one.path).epsilon == math.inf
    budget.charge("d", "system", [GaussianEvent("report", 0.5, "click", "replace")])
    with pytest.raises(RunError, match="charged per click"):
        fedrec.account_of_person(budget.path)


@pytest.mark.parametrize(("neighbours", "epsilon"), [("add/remove", math.inf), ("replace", 1.5)])
def test_a_release_per_user_that_is_not_gaussian_is_not_left_out(
    neighbours: Neighbours, epsilon: float, tmp_path: Path
) -> None:
    budget = DataBudget(tmp_path / "people.jsonl", Guarantee(math.inf, DELTA))
    budget.charge("a", "system", [PureEvent("chosen", 1.5, None, "user", neighbours)])
    assert fedrec.account_of_person(budget.path).epsilon == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.0, -1.0, math.nan])
def test_a_delta_that_is_no_probability_is_refused(delta: float, tmp_path: Path) -> None:
    """No release is private at 0, and every one is at 1."""
    with pytest.raises(SettingsError, match="no probability"):
        fedrec.account_of_person(trained(tmp_path, runs=1), delta=delta)


def test_the_command_prints_the_sum_and_refuses_what_is_no_ledger_of_a_person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [trained(tmp_path, runs=1), answered(tmp_path, times=1)]
    words = [word for file in files for word in ("--person", str(file))]
    assert guarded(["account", *words]) == 0
    assert "one person" in capsys.readouterr().out
    assert guarded(["account", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == pytest.approx(
        fedrec.account_of_person(*files).epsilon
    )
    (tmp_path / "nothing").write_text("")
    for wrong in (tmp_path / "nothing", tmp_path / "absent"):
        assert guarded(["account", "--person", str(wrong)]) == 6
