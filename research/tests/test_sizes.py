from pathlib import Path
from typing import Any

import pytest

from fedrec_research.quality import sizes
from fedrec_research.trials import Asked, Row


def _row(rmse: float, biases: float = 0.9, *, error: float = 0.01) -> Row:
    return {"rmse": rmse, "rmse_stderr": error, "biases": biases, "above_biases_stderr": error / 10}


def _judged(
    errors: dict[tuple[int, float], list[float]], biases: float = 0.9
) -> dict[tuple[int, float], Any]:
    """What is above what, of cells (users, epsilon) with errors by seed."""
    made = {
        (n, 100, e): {seed: _row(x, biases) for seed, x in enumerate(found, 1)}
        for (n, e), found in errors.items()
    }
    result = sizes.summary(made)
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


@pytest.mark.slow
def test_the_default_is_never_above_biases_a_smaller_epsilon_or_fewer_users(tmp_path: Path) -> None:
    """The reduced grid. 80 users an item, as 160,000 users have with 2,000 items."""
    result = sizes.run(Asked(quick=True, folder=tmp_path))
    assert result["sound"] == len(result["cells"]) == 6, result["cells"]
