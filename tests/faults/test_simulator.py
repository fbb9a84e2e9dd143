"""Seeded runs through lost, late, repeated and damaged messages, crashes, full disks and jumping
clocks; a thousand by `fedrec faults`."""

from __future__ import annotations

import pytest

from fedrec_simulations.faults.script import script
from fedrec_simulations.faults.simulator import simulate

CHUNK = 25


def every_rule_holds(first: int) -> None:
    broken = {
        seed: [str(one) for one in simulate(script(seed)).broken]
        for seed in range(first, first + CHUNK)
    }
    assert not {seed: rules for seed, rules in broken.items() if rules}, (
        "see it with: fedrec faults --runs 1 --seed SEED --show"
    )


# two workers share the seeds class by class; the rest of them is left to `make test-all`
@pytest.mark.parametrize("first", [0, CHUNK])
class TestSeedsBelow50:
    def test_every_rule_holds(self, first: int) -> None:
        every_rule_holds(first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2 * CHUNK, 200, CHUNK))
class TestSeedsBelow200:
    def test_every_rule_holds(self, first: int) -> None:
        every_rule_holds(first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(200, 400, CHUNK))
class TestSeedsFrom200:
    def test_every_rule_holds(self, first: int) -> None:
        every_rule_holds(first)
