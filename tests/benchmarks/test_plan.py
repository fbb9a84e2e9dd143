"""Predictions of errors in the benchmark of plans: by a law that has not seen the run's source."""

from __future__ import annotations

import pytest

from benchmarks.plan import summary
from fedrec.run.planning import Law
from tests.partitions.test_planned_error import made_up


def test_each_run_is_predicted_without_its_own_source() -> None:
    law = Law(0.2, 2.5, 0.4)
    ratios = {"sent_over_found": 1.1, "received_over_found": 1.3, "minutes_over_found": 1.9}
    runs = [
        {
            **row,
            "run": f"{source} {number}",
            "features": True,
            "rmse": row["rmse"] + shift,
            **ratios,
        }
        for source, shift in (("one", 0.0), ("other", 0.05), ("planted", 0.2))
        for number, row in enumerate(made_up(law, source, floor=0.85))
    ]
    found = summary(runs)
    folders, planted = found["Within the bars"]
    assert (folders["sent"], folders["minutes"], folders["runs"]) == ("24 of 24", "24 of 24", 24)
    assert folders["received"] == "0 of 24"
    assert int(folders["rmse"].split()[0]) < 24
    assert planted["runs"] == 12
    assert {run["source"] for run in found["Runs"]} == {"one", "other", "planted"}
    assert folders["worst_sent"] == pytest.approx(1.1)
