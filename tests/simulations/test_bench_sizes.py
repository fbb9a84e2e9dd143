import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedrec.numerics import threads
from fedrec.storage import finite
from fedrec_simulations.bench import sizes
from fedrec_simulations.bench.sizes import Cell
from fedrec_simulations.experiments import rows, trials
from fedrec_simulations.experiments.progress import Progress
from fedrec_simulations.experiments.row_queue import result_of
from fedrec_simulations.experiments.trials import ResultFile, Trial


def _quiet(_: Progress) -> None:
    pass


def _row(rmse: float, biases: float = 0.9, *, error: float = 0.01) -> rows.Row:
    return {"rmse": rmse, "rmse_stderr": error, "biases": biases, "above_biases_stderr": error / 10}


def _judged(
    errors: dict[tuple[int, float], list[float]], biases: float = 0.9
) -> dict[tuple[int, float], Any]:
    """What is above what, of cells (users, epsilon) with errors by seed."""
    made = {
        Cell(n, 100, e, seed): _row(x, biases)
        for (n, e), found in errors.items()
        for seed, x in enumerate(found, 1)
    }
    result = sizes.summary(list(made), {cell.name: row for cell, row in made.items()})
    return {(cell["users"], cell["epsilon"]): cell["above"] for cell in result["cells"]}


def test_a_cell_is_held_against_biases_smaller_epsilons_and_fewer_users() -> None:
    found = _judged(
        {
            (10, 1.0): [0.8, 0.81],
            (10, 5.0): [0.79, 0.8],
            (20, 1.0): [0.82, 0.83],
            (20, 5.0): [0.95, 0.97],
        }
    )
    assert found[10, 1.0] == found[10, 5.0] == {"a": 0, "b": 0, "c": 0}
    assert found[20, 1.0] == pytest.approx({"a": 0, "b": 0, "c": 0.02})
    assert found[20, 5.0] == pytest.approx({"a": 0.06, "b": 0.135, "c": 0.165})


def test_a_rise_within_two_standard_errors_is_none() -> None:
    """Paired by seed: rises of .00 and .02 have a mean of .01 and a standard error of .01."""
    assert _judged({(10, 1.0): [0.80, 0.80], (10, 5.0): [0.80, 0.82]})[10, 5.0]["b"] == 0
    assert _judged({(10, 1.0): [0.80, 0.80], (10, 5.0): [0.815, 0.82]})[10, 5.0][
        "b"
    ] == pytest.approx(0.0175)


def test_one_seed_takes_the_errors_over_users() -> None:
    # two standard errors are .0283
    assert _judged({(10, 1.0): [0.80], (10, 5.0): [0.827]})[10, 5.0]["b"] == 0
    assert _judged({(10, 1.0): [0.80], (10, 5.0): [0.83]})[10, 5.0]["b"] == pytest.approx(0.03)


def test_the_table_marks_what_is_above_what() -> None:
    made = {Cell(10, 100, e, 1): _row(x) for e, x in ((1.0, 0.8), (math.inf, 0.95))}
    result = sizes.summary(list(made), {cell.name: row for cell, row in made.items()})
    told = sizes.markdown(json.loads(json.dumps(finite(result), allow_nan=False)))
    assert "| 100 | 10 | 0.8000 (0.9000) | 0.9500 (0.9000) **a, b** |" in told
    assert "1 of 2 cells" in told


@pytest.mark.slow
def test_the_default_is_never_above_biases_a_smaller_epsilon_or_fewer_users() -> None:
    """The reduced grid. 80 users an item, as 160,000 users have with 2,000 items."""
    grid = [
        Cell(n, m, e, 1)
        for n in sizes.QUICK_USERS
        for m in sizes.QUICK_ITEMS
        for e in sizes.QUICK_EPSILONS
    ]
    result = sizes.summary(grid, {cell.name: sizes.size_row(cell) for cell in grid})
    assert result["sound"] == len(grid), sizes.markdown(result)


def _squared(number: int) -> rows.Row:
    return {"squared": number**2, "cores": threads.cores()}


def _summed(found: Any) -> dict[str, int]:
    return {"sum": sum(row["squared"] for row in found.values())}


@pytest.mark.slow
def test_rows_are_kept_in_the_result_file_and_made_once(tmp_path: Path) -> None:
    output, told = tmp_path / "result.json", list[Progress]()
    asked = [Trial.of(str(number), _squared, number) for number in (2, 3)]
    first = result_of(asked, output=output, jobs=2, summary=_summed, tell=told.append)
    assert (first["sum"], first["missing"], told[-1].done) == (13, 0, 2)
    assert json.loads(output.read_text()) == first
    # workers share the cores
    assert all(row["cores"] == max(threads.cores() // 2, 1) for row in first["rows"].values())
    kept = json.loads(output.read_text())
    kept["rows"]["2"]["squared"] = 7  # made once: what the file says stays
    output.write_text(json.dumps(kept))
    again = result_of(
        [*asked, Trial.of("4", _squared, 4)], output=output, jobs=1, summary=_summed, tell=_quiet
    )
    assert again["sum"] == 7 + 9 + 16
    assert json.loads(output.read_text()) == again


def test_rows_of_other_code_or_of_another_question_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "result.json"
    result_of([Trial.of("a", _squared, 2)], output=output, jobs=1, summary=_summed, tell=_quiet)
    assert _kept(output, 2)
    assert not _kept(output, 3)
    monkeypatch.setattr(trials, "source_digest", lambda *_, **_known: "other")
    assert not _kept(output, 2)


def _kept(output: Path, number: int) -> rows.Row | None:
    trial = Trial.of("a", _squared, number)
    return ResultFile(output, [trial], _summed).find(trial)


@pytest.mark.parametrize("content", ["", "[1]", '{"rows": 3}', "{}"])
def test_a_file_of_something_else_holds_no_rows(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    assert _kept(tmp_path / "result.json", 2) is None
