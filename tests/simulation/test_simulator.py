"""Seeded runs of every topology; thousands by `python -m tests.simulation`."""

from __future__ import annotations

from typing import Any

import pytest

from fedrec_client import participant
from tests.simulation import three_party_verdict
from tests.simulation.many import at_each_step
from tests.simulation.script import (
    ONE,
    THREE,
    Kind,
    Operation,
    Script,
    Setup,
    Topology,
    script,
)
from tests.simulation.simulator import simulate

pytestmark = pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")


def chunks(**seeds: tuple[int, int, int]) -> list[Any]:
    """By topology: from which seed to which, and how many a test."""
    named = {"one": ONE, "three": THREE}
    return [
        pytest.param(named[name], range(at, min(at + step, last)), id=f"{name}-{at}")
        for name, (first, last, step) in seeds.items()
        for at in range(first, last, step)
    ]


def broken(topology: Topology, seeds: range) -> dict[int, list[str]]:
    found = {seed: simulate(script(seed, topology)).broken for seed in seeds}
    return {seed: [str(one) for one in rules] for seed, rules in found.items() if rules}


@pytest.mark.parametrize(
    ("topology", "seeds"),
    chunks(one=(0, 10, 10), three=(0, 4, 4)),
)
def test_every_rule_holds(topology: Topology, seeds: range) -> None:
    assert broken(topology, seeds) == {}, "python -m tests.simulation --runs 1 --seed SEED --show"


@pytest.mark.slow
def test_every_rule_holds_in_more_seeds() -> None:
    assert broken(ONE, range(10, 50)) == {}


# two workers share the seeds class by class; these are left to `make test-all`
@pytest.mark.slow
@pytest.mark.rare
class TestMoreSeeds:
    @pytest.mark.parametrize(("topology", "seeds"), chunks(one=(50, 400, 35)))
    def test_every_rule_holds(self, topology: Topology, seeds: range) -> None:
        assert broken(topology, seeds) == {}


@pytest.mark.slow
@pytest.mark.rare
class TestMoreSeedsOfSeveral:
    @pytest.mark.parametrize(("topology", "seeds"), chunks(three=(4, 40, 9)))
    def test_every_rule_holds(self, topology: Topology, seeds: range) -> None:
        assert broken(topology, seeds) == {}


@pytest.mark.slow
def test_a_checked_training_goes_on_after_a_crash_at_any_step_of_an_aggregator() -> None:
    setup = Setup(min_cohort=2, topology=THREE, checked=True)
    assert "every rule held in each" in at_each_step(setup, every=157, first=48)


def test_a_training_stops_where_clients_have_shared_as_often_as_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(min_cohort=2, topology=THREE, checked=True, min_share=1.0)
    # in each of two attempts, after clients have shared
    twice = Script(setup, tuple(Operation("aggregator-1", at, Kind.CRASH) for at in (150, 250)))
    for module in (three_party_verdict, participant):
        monkeypatch.setattr(module, "ATTEMPTS", 2)
    stopped = simulate(twice)
    assert "too few to release" in stopped.endings["run-0"]
    assert (stopped.broken, stopped.released) == ((), 0)
    monkeypatch.setattr(participant, "ATTEMPTS", 1)
    assert {one.rule for one in simulate(twice).broken} == {three_party_verdict.STOPS}
