import json

import pytest

from fedrec_simulations.bench import cohorts

pytestmark = pytest.mark.slow


def test_a_share_of_the_users_in_every_round_is_measured_beside_everybody() -> None:
    """A quarter of the users costs .022 RMSE, with a standard deviation of .004 over six seeds: the
    mean of two is 7 of its own above 0."""
    table = cohorts.run(quick=True)
    (cell,) = table["cells"]
    assert set(cell["rmse"]) == {"1", "0.5", "0.25"}
    assert 0 < cell["rmse"]["1"]["mean"] < cell["rmse"]["0.25"]["mean"] < 2
    kept = json.loads(json.dumps(table, sort_keys=True))
    assert cohorts.markdown(kept) == cohorts.markdown(table)
    *_, row = cohorts.markdown(kept).strip().splitlines()
    *_, half, quarter = (column for column in row.split("|") if "±" in column)
    assert [
        f"{cell['cost'][share]['mean']:+.4f}" in column
        for share, column in (("0.5", half), ("0.25", quarter))
    ] == [True, True]
