"""Seeded runs of every topology; thousands by `python -m tests.simulation`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedrec.federation.leaves import PartialSums
from fedrec_client import participant
from tests.simulation import parties, three_party_verdict
from tests.simulation.many import at_each_step
from tests.simulation.script import (
    ONE,
    THREE,
    TREE,
    TREES,
    Kind,
    Operation,
    Script,
    Setup,
    Topology,
    script,
)
from tests.simulation.simulator import simulate
from tests.simulation.verdict import EXACT_PLUS_NOISE

pytestmark = pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")


def chunks(**seeds: tuple[int, int, int]) -> list[Any]:
    """By topology: from which seed to which, and how many a test."""
    named = {"one": ONE, "tree": TREE, "three": THREE, "trees": TREES}
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
    chunks(one=(0, 10, 10), tree=(0, 4, 4), three=(0, 4, 4), trees=(0, 3, 3)),
)
def test_every_rule_holds(topology: Topology, seeds: range) -> None:
    assert broken(topology, seeds) == {}, "python -m tests.simulation --runs 1 --seed SEED --show"


# two workers share the seeds class by class; these are left to `make test-all`
@pytest.mark.slow
class TestMoreSeeds:
    @pytest.mark.parametrize(("topology", "seeds"), chunks(one=(10, 400, 26)))
    def test_every_rule_holds(self, topology: Topology, seeds: range) -> None:
        assert broken(topology, seeds) == {}


@pytest.mark.slow
class TestMoreSeedsOfSeveral:
    @pytest.mark.parametrize(
        ("topology", "seeds"), chunks(tree=(4, 40, 9), three=(4, 40, 9), trees=(3, 30, 9))
    )
    def test_every_rule_holds(self, topology: Topology, seeds: range) -> None:
        assert broken(topology, seeds) == {}


def test_a_lie_that_no_root_can_see_is_found_by_the_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the comparison is known to find what gets through."""

    def one_less(sums: PartialSums) -> PartialSums:
        return replace(sums, blocks=tuple(b - (b > 0) for b in sums.blocks))

    lie = Script(Setup(topology=TREE, min_share=1.0), (Operation("leaf-0-1", 20, Kind.LIE),))
    assert simulate(lie).broken == ()
    monkeypatch.setattr(parties, "LIES", (one_less,))
    assert EXACT_PLUS_NOISE in {one.rule for one in simulate(lie).broken}


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
