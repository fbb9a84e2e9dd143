import pytest

pytest.importorskip("implicit")
from fedrec_simulations.bench import als


def test_one_iteration_equals_that_of_implicit_with_its_cholesky_solver() -> None:
    found = als.run(quick=True)
    assert found["largest_difference_to_implicit_cholesky"] < 1e-4
    assert all(seconds > 0 for seconds in found["seconds_per_iteration"].values())
