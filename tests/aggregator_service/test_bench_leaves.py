import pytest

from fedrec_simulations.bench import leaves

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_leaves_release_what_one_releases_with_a_leaf_and_the_root_killed() -> None:
    rows = leaves.run(quick=True)["rows"]
    assert [(row["leaves"], row["killed"]) for row in rows] == [
        (1, ""),
        (2, ""),
        (2, "leaf-1"),
        (2, "root"),
    ]
    assert all(row["attempt"] >= (2 if row["killed"] else 1) for row in rows)
    assert all(row["same_release"] for row in rows)
