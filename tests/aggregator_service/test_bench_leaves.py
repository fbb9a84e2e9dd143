import pytest

from fedrec_simulations.bench import leaves

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_leaves_release_what_one_releases_with_a_leaf_and_the_root_killed() -> None:
    rows = leaves.run(quick=True)["rows"]
    assert [(row["leaves"], row["killed"], row["attempt"]) for row in rows] == [(1, "", 1), (2, "", 1), (2, "leaf-1", 2), (2, "root", 2)]
    assert all(row["same_release"] for row in rows)
