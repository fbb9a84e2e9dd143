from pathlib import Path

import pytest

from fedrec_research.quality import cohorts
from fedrec_research.trials import Asked

pytestmark = pytest.mark.slow


def test_a_share_of_the_users_in_every_round_is_measured_beside_everybody(tmp_path: Path) -> None:
    """A quarter of the users costs .022 RMSE, with a standard deviation of .004 over six seeds: the
    mean of two is 7 of its own above 0."""
    table = cohorts.run(Asked(quick=True, folder=tmp_path))
    (cell,) = table["cells"]
    assert set(cell["rmse"]) == {"1", "0.5", "0.25"}
    assert 0 < cell["rmse"]["1"]["mean"] < cell["rmse"]["0.25"]["mean"] < 2
