import math
from pathlib import Path

import pytest

from fedrec_research.quality import sharing
from fedrec_research.trials import Asked

pytestmark = pytest.mark.slow


def test_three_aggregators_are_measured_beside_one_that_is_trusted(tmp_path: Path) -> None:
    result = sharing.run(Asked(quick=True, folder=tmp_path))
    (cost,), (cell,) = result["costs"], result["errors"]
    assert cost["upload_bytes"] == 8 * (200 + 8 * 9) + 5 * 32 + 3 * 128
    trusted, one, outsiders = (
        cell["modes"][name] for name in ("trusted", "one-corrupt", "outsiders")
    )
    assert (trusted["outsiders"], trusted["one_aggregator"]) == (5.0, "inf")
    assert (one["one_aggregator"], round(one["outsiders"], 2)) == (5.0, 3.95)
    assert (round(outsiders["one_aggregator"], 2), round(outsiders["outsiders"], 6)) == (6.35, 5.0)
    # the Gram of pairs is of fewer items under more noise
    assert outsiders["upload_bytes"] >= one["upload_bytes"] > trusted["upload_bytes"]
    assert all(math.isfinite(mode["rmse"]["mean"]) for mode in cell["modes"].values())
