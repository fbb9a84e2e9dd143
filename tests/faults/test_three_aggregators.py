"""Three aggregators under seeded faults; 1,000 seeds are run with `fedrec faults --three-party`,
each moment with `--each-moment`."""

import pytest

from fedrec.errors import ProtocolError
from fedrec_client import participant
from fedrec_simulations.faults import three_aggregators, three_party_verdict
from fedrec_simulations.faults.three_aggregators import at_each_moment, run
from fedrec_simulations.faults.three_trees import TreesWorld


@pytest.mark.parametrize("seed", [0, 3])
def test_under_faults_every_round_is_released_once_as_the_exact_sum_of_its_users(seed: int) -> None:
    assert "3 runs with three aggregators" in run(runs=3, seed=seed)


@pytest.mark.parametrize("seed", [3, 6])
def test_three_trees_release_every_round_once_as_the_exact_sum_of_its_users(seed: int) -> None:
    told = run(runs=1, seed=seed, kind=TreesWorld)
    assert "1 runs with three roots of two leaves each" in told
    assert "each released once, as the exact sum of its users and three noises" in told


def test_a_checked_training_goes_on_after_a_crash_at_any_moment_of_an_aggregator() -> None:
    assert "each released once, as the exact sum of its users and three noises" in at_each_moment(
        every=97, first=48
    )


def test_a_training_that_stops_is_told_and_its_last_round_is_counted_as_no_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(three_aggregators, "_TRIES", 12)
    for module in (three_aggregators, three_party_verdict, participant):
        monkeypatch.setattr(module, "ATTEMPTS", 2)
    told = run(runs=1, seed=3)
    assert "1 stopped at a round in which clients had shared 2 times" in told
    assert "0 rounds: each released once" in told
    monkeypatch.setattr(participant, "ATTEMPTS", 1)
    with pytest.raises(ProtocolError, match="refused round 0 after 1 attempts of 2"):
        run(runs=1, seed=3)
