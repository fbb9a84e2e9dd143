"""The formula that predicts an error: its ends, its fit, and that it is the one of the kept runs."""

from __future__ import annotations

import json
import math
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plan import fitted, left_out
from fedrec.errors import SettingsError
from fedrec.privacy.accounting import mu_for
from fedrec.run.planning import LAW, OFF, Law, expected, plan
from fedrec.settings import load

KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "plan.json"
COMMON = {"delta": 1e-5, "value_range": (1.0, 5.0), "spread": 1.1}


def test_an_error_lies_between_that_without_privacy_and_the_spread_and_falls_with_epsilon() -> None:
    errors = [
        expected(users=6_000, epsilon=epsilon, without_privacy=0.84, **COMMON).rmse  # type: ignore[arg-type]
        for epsilon in (1e-6, 0.1, 1.0, 5.0, 20.0, 1e3, math.inf)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] == pytest.approx(1.1)
    assert errors[-1] == 0.84
    more = expected(users=60_000, epsilon=1.0, without_privacy=0.84, **COMMON)  # type: ignore[arg-type]
    assert more.rmse < errors[2]


def test_what_is_guessed_widens_the_interval_and_is_said() -> None:
    known = expected(users=6_000, epsilon=5.0, without_privacy=0.84, **COMMON)  # type: ignore[arg-type]
    guessed = expected(users=6_000, epsilon=5.0, **COMMON)  # type: ignore[arg-type]
    assert known.off == OFF
    assert guessed.off > 2 * OFF
    assert "guessed from the spread" in guessed.from_what
    with pytest.raises(ValueError, match="not below the spread"):
        expected(users=6_000, epsilon=5.0, without_privacy=1.2, **COMMON)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="not below the spread"):
        plan(load(None, []), users=100, items=100, events=2_000, without_privacy=3.0)


def made_up(law: Law, source: str, *, floor: float) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for users in (300, 1_000, 6_000):
        for epsilon in (0.5, 1.0, 5.0, 20.0):
            asked: dict[str, Any] = {
                "users": users,
                "mu": mu_for(epsilon, 1e-5),
                "spread": 1.1,
                "without_privacy": floor,
            }
            rows.append(asked | {"source": source, "rmse": law.rmse(**asked)})
    return rows


def test_a_formula_is_found_again_and_predicts_a_source_that_it_has_not_seen() -> None:
    law = Law(0.2, 2.5, 0.4)
    rows = made_up(law, "one", floor=0.85) + made_up(law, "other", floor=0.9)
    assert astuple(fitted(rows)) == pytest.approx(astuple(law), rel=1e-4)
    assert max(map(abs, left_out(rows))) < 1e-6


@pytest.mark.skipif(not KEPT.exists(), reason="no run is kept")
def test_the_formula_is_that_of_the_kept_runs_and_its_width_what_they_say() -> None:
    kept = json.loads(KEPT.read_text())
    runs = kept["tables"]["Runs"]
    films = [run for run in runs if run["source"] != "planted" and run["features"]]
    assert astuple(fitted(films)) == pytest.approx(astuple(LAW), rel=2e-2)
    off = [abs(each) for each in left_out(films)]
    assert max(off) == pytest.approx(OFF, abs=0.002)
