"""Scripts of faults: what a seed gives, what single operations do, and how a failing script becomes
a short one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fedrec.errors import ProtocolError
from fedrec.federation.protocol import Receipt
from fedrec_aggregator.collection import Collection
from fedrec_aggregator.core import Aggregator
from tests.simulation import auditor, simulator
from tests.simulation.many import run, smallest
from tests.simulation.script import (
    AGGREGATOR,
    MESSAGES,
    ONE,
    STEPS,
    THREE,
    Kind,
    Operation,
    Script,
    Setup,
    Topology,
    role_of,
    script,
    shortened,
)
from tests.simulation.simulator import Outcome, simulate

pytestmark = pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")

PARTIES = (AGGREGATOR, "server-0", "client-0", "client-1")
TWO = Setup(clients=2)


def struck_by(*operations: Operation, setup: Setup = TWO) -> Outcome:
    return simulate(Script(setup, operations))


def steps_of(party: str) -> range:
    return range(struck_by().steps[party])


def test_a_seed_gives_the_same_script_and_the_same_trace() -> None:
    for seed, topology in ((17, ONE), (2, THREE)):
        assert script(seed, topology) == script(seed, topology)
        traces = [simulate(script(seed, topology)).trace for _ in range(2)]
        assert traces[0] == traces[1]
    assert len({script(seed) for seed in range(50)}) == 50


@pytest.mark.slow
def test_every_kind_of_fault_strikes_in_the_first_fifty_seeds() -> None:
    scripts = [script(seed, of) for of, seeds in ((ONE, 50), (THREE, 10)) for seed in range(seeds)]
    assert {one.kind for each in scripts for one in simulate(each).struck} == set(Kind)


def test_without_faults_the_model_is_the_loopbacks() -> None:
    outcome = struck_by()
    assert (outcome.endings, outcome.complete, outcome.broken, outcome.restarts) == (
        {"run-0": "model"},
        {"run-0"},
        (),
        0,
    )


def test_without_faults_a_further_training_is_a_run_of_its_own_and_is_served() -> None:
    outcome = struck_by(setup=replace(TWO, trainings=2))
    assert outcome.endings == {"run-0": "model", "run-0-2": "model"}
    assert (outcome.complete, outcome.broken, outcome.released) == ({"run-0", "run-0-2"}, (), 4)


def test_a_further_training_that_the_limit_does_not_leave_room_for_ends_in_words_and_asks_nobody() -> None:  # fmt: skip
    outcome = struck_by(setup=replace(TWO, trainings=2, max_epsilon=5.0))
    assert outcome.endings["run-0"] == "model"
    assert "does not fit" in outcome.endings["run-0-2"]
    assert (outcome.broken, outcome.released) == ((), 2)


@pytest.mark.slow
def test_a_crash_at_any_step_of_a_server_that_trains_again_ends_in_both_models() -> None:
    again = replace(TWO, trainings=2)
    # of each write, and of what stands between two
    for at in range(0, struck_by(setup=again).steps["server-0"], 5):
        outcome = struck_by(Operation("server-0", at, Kind.CRASH, at % 4), setup=again)
        assert (at, outcome.broken, set(outcome.endings.values())) == (at, (), {"model"})


@pytest.mark.slow
@pytest.mark.parametrize("party", PARTIES)
def test_a_crash_at_any_step_of_any_party_ends_in_the_loopbacks_model(party: str) -> None:
    for at in steps_of(party):
        outcome = struck_by(Operation(party, at, Kind.CRASH, at % 4))
        assert (at, outcome.broken, outcome.complete) == (at, (), {"run-0"})
        assert len(outcome.struck) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.FULL, Kind.DOUBT])
@pytest.mark.parametrize("party", [AGGREGATOR, "server-0"])
def test_a_disk_that_fails_once_at_the_aggregator_or_the_server_ends_in_the_loopbacks_model(
    party: str, kind: Kind
) -> None:
    # a write has a step before it and one after it: every write is met
    for at in steps_of(party)[::2]:
        outcome = struck_by(Operation(party, at, kind, 1))
        assert (at, outcome.broken, outcome.complete) == (at, (), {"run-0"})


@pytest.mark.parametrize("kind", [Kind.FULL, Kind.DOUBT])
def test_a_client_whose_disk_failed_once_takes_part_in_the_last_round_all_the_same(
    kind: Kind,
) -> None:
    # a write has a step before it and one after it: every write is met
    for at in range(0, 14, 2):
        outcome = struck_by(Operation("client-0", at, kind, 1))
        told = [line for line in outcome.trace if "server-0 > client-0: ask" in line]
        assert (at, outcome.broken) == (at, ())
        assert '"accepted":4' in told[-1], at


def test_two_runs_share_ledgers_and_both_end_in_their_loopbacks_models() -> None:
    before_it_closes = Operation(f"server-0 > {AGGREGATOR}", 3, Kind.TURN)
    outcome = struck_by(before_it_closes, setup=replace(TWO, runs=2))
    assert (outcome.complete, outcome.broken) == ({"run-0", "run-1"}, ())
    ended = [line.split()[2] for line in outcome.trace if "close: released" in line]
    assert ended == ["server-1", "server-0", "server-1", "server-0"]


def test_a_run_that_the_limit_has_no_room_for_asks_nobody() -> None:
    outcome = struck_by(setup=replace(TWO, runs=2, max_epsilon=5.0))
    assert (outcome.endings["run-0"], outcome.broken) == ("model", ())
    assert (
        "does not fit the aggregator's limit of epsilon 5 over all runs, of which 5 is spent"
        in outcome.endings["run-1"]
    )
    assert not any(way.startswith("server-1 > client") for way in outcome.steps)


def test_of_two_runs_that_fit_one_by_one_the_second_to_release_is_refused_in_words() -> None:
    both_have_looked = Operation(f"server-0 > {AGGREGATOR}", 2, Kind.TURN)
    outcome = struck_by(both_have_looked, setup=replace(TWO, runs=2, max_epsilon=5.0))
    assert (outcome.endings["run-1"], outcome.broken) == ("model", ())
    assert (
        "would bring the total to epsilon 5.398; the limit is epsilon 5" in outcome.endings["run-0"]
    )


def test_without_room_for_the_second_training_the_first_must_end_in_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Aggregator, "report", lambda *arguments, **named: Receipt(0, {}))
    outcome = struck_by(setup=replace(TWO, trainings=2, max_epsilon=5.0))
    assert simulator.ENDS in {one.rule for one in outcome.broken}


def test_a_defect_that_its_caller_takes_for_a_no_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Aggregator.report
    failures = [KeyError("planted")]

    def report(*arguments: Any, **named: Any) -> Receipt:
        if failures:
            raise failures.pop()
        return honest(*arguments, **named)

    monkeypatch.setattr(Aggregator, "report", report)
    outcome = struck_by()
    # the client said that it failed, and was asked again
    assert outcome.endings == {"run-0": "model"}
    assert {one.rule for one in outcome.broken} == {auditor.DEFECTS}


@pytest.mark.parametrize("topology", [ONE, THREE], ids=str)
def test_the_scripts_reach_every_message_and_step_of_a_training(topology: Topology) -> None:
    """Without this, what is added to the protocol is never struck."""
    setup = Setup(clients=2 if topology == ONE else 3, topology=topology, checked=True)
    most = Counter[Any]()
    for where, taken in simulate(Script(setup, ())).steps.items():
        key = tuple(map(role_of, where.split(" > "))) if ">" in where else role_of(where)
        most[key] = max(most[key], taken)
    for way, messages in MESSAGES[topology].items():
        assert most[way] <= messages <= 1.5 * most[way], way
    for role, steps in STEPS[topology].items():
        assert most[role] <= steps <= 1.2 * most[role], role


def test_a_client_that_hangs_past_the_deadline_costs_its_users_their_part_and_nothing_else() -> None:  # fmt: skip
    outcome = hung(min_share=0.5)
    assert (outcome.endings, outcome.complete, outcome.broken) == ({"run-0": "model"}, set(), ())
    assert any("close: released, attempt 1, 4 of 7 users" in line for line in outcome.trace)


def test_sums_of_those_who_took_part_stand_for_everybody() -> None:
    """The verdict replays the states from the releases with code of its own.

    Counts and means are scaled, of the first round."""
    outcome = hung(min_share=0.5)
    assert next(line for line in outcome.trace if "close: " in line).endswith(
        "close: released, attempt 1, 4 of 7 users"
    )
    assert outcome.broken == ()


def hung(*, min_share: float) -> Outcome:
    return struck_by(
        Operation("server-0 > client-1", 1, Kind.HANG, 200),
        setup=replace(TWO, absent_s=0.0, min_share=min_share),
    )


def test_below_its_quorum_a_round_is_short_and_tried_again_with_everybody() -> None:
    outcome = hung(min_share=0.8)
    assert (outcome.endings, outcome.complete, outcome.broken) == (
        {"run-0": "model"},
        {"run-0"},
        (),
    )
    assert any("short, attempt 1, 4 of 7 users" in line for line in outcome.trace)


def test_a_client_that_left_for_good_ends_the_run_until_its_operator_goes_on_without_it() -> None:
    outcome = struck_by(Operation("client-1", 20, Kind.LEAVE))
    assert (outcome.endings, outcome.complete, outcome.broken) == ({"run-0": "model"}, set(), ())
    short = [line for line in outcome.trace if "short, attempt" in line and "server-0" in line]
    assert len(short) >= 3


def test_a_script_is_shortened_to_what_it_needs() -> None:
    operations = tuple(Operation("client-0", at, Kind.CRASH) for at in range(12))
    needed = {operations[3], operations[8]}
    short = shortened(Script(TWO, operations), lambda some: needed <= set(some.operations))
    assert set(short.operations) == needed


@pytest.mark.slow
def test_a_broken_rule_is_told_with_the_smallest_script_that_breaks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Collection._new

    def forgetful(
        self: Collection, ids: list[bytes], tokens: list[bytes], counts: Counter[str]
    ) -> object:
        self._ids = set()
        self._users = set()
        return honest(self, ids, tokens, counts)

    monkeypatch.setattr(Collection, "_new", forgetful)
    harmless = Operation("server-0", 5, Kind.CRASH), Operation("client-1", 9, Kind.JUMP, 5.0)
    repeated = Operation(f"client-1 > {AGGREGATOR}", 4, Kind.REPEAT)  # its first report
    assert smallest(Script(TWO, (*harmless, repeated)), [auditor.COUNTED_ONCE]).operations == (
        repeated,
    )
    with pytest.raises(ProtocolError, match=r"^seed \d+: ") as caught:
        run(runs=60, seed=0, show=False)
    assert "--seed" in caught.value.remedy
    assert "It takes no more than" in caught.value.remedy


@pytest.mark.slow
def test_the_command_tells_what_struck_and_shows_a_run() -> None:
    said = run(runs=3, seed=1, show=True)
    assert str(script(1)) in said
    assert "3 runs with one aggregator (seeds 1 to 3)" in said
    assert "every rule held in each" in said
