"""Many simulated runs, and the smallest script of the first one in which a rule did not hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from fedrec.errors import ProtocolError
from tests.simulation.script import ONE, Kind, Operation, Script, Setup, Topology, script, shortened
from tests.simulation.simulator import Outcome, simulate

NAMES = {1: "one aggregator", 3: "three aggregators"}


def run(*, runs: int, seed: int, topology: Topology = ONE, show: bool = False) -> str:
    """Simulate the scripts of `runs` seeds from `seed` on; a summary in words. With `show`, the
    first script and its trace too.

    Raises ProtocolError where a rule does not hold, with the smallest script in which it does not;
    not for a run that is shown.
    """
    started = time.perf_counter()
    shown = ""
    outcomes = list[Outcome]()
    for number in range(seed, seed + runs):
        outcomes.append(outcome := simulate(script(number, topology)))
        if show and number == seed:
            shown = text(outcome) + "\n\n"
            if outcome.broken:
                return shown.rstrip()
        if outcome.broken:
            raise ProtocolError(*_words(f"seed {number}", outcome))
    said = f"{runs:,} runs with {NAMES[topology.parties]}"
    said += f" (seeds {seed} to {seed + runs - 1}) in {time.perf_counter() - started:.0f} s"
    return f"{shown}{said}: every rule held in each\n{_summary(outcomes)}"


def at_each_step(setup: Setup, *, every: int = 1, first: int = 0) -> str:
    """One aggregator's process ends at one step of a training, at each in turn; a summary in words.
    Raises ProtocolError where a rule does not hold, or where such a training does not end in a
    model. every, first: steps `first`, `first + every`, ... alone, as a sample."""
    started = time.perf_counter()
    steps = simulate(Script(setup, ())).steps
    outcomes = list[Outcome]()
    for party in setup.topology.aggregators:
        for at in range(first, steps[party], every):
            crash = Operation(party, at, Kind.CRASH)
            outcomes.append(outcome := simulate(Script(setup, (crash,))))
            if outcome.broken or set(outcome.endings.values()) != {"model"}:
                raise ProtocolError(f"{crash}: {text(outcome)}", "A training must go on after it.")
    said = f"{len(outcomes):,} ends of one aggregator in {time.perf_counter() - started:.0f} s"
    return f"{said}: every rule held in each\n{_summary(outcomes)}"


def text(outcome: Outcome) -> str:
    """A script, what happened, how it ended, and the rules that did not hold."""
    endings = [f"{run}: {ending}" for run, ending in outcome.endings.items()]
    broken = [f"BROKEN: {one}" for one in outcome.broken] or ["every rule held"]
    return "\n".join([str(outcome.script), "", *outcome.trace, "", *endings, *broken])


def smallest(failing: Script, rules: Iterable[str]) -> Script:
    """The script with as few operations as one of these rules needs to be broken again."""
    wanted = set(rules)
    return shortened(
        failing, lambda fewer: bool(wanted & {one.rule for one in simulate(fewer).broken})
    )


def _words(where: str, outcome: Outcome) -> tuple[str, str]:
    least = smallest(outcome.script, [one.rule for one in outcome.broken])
    operations = "; ".join(str(operation) for operation in least.operations) or "nothing at all"
    see = f"See it with --runs 1 --{where} --show."
    return (
        f"{where}: {outcome.broken[0]}",
        f"{see} It takes no more than: {operations} in {least.setup}",
    )


def _summary(outcomes: list[Outcome]) -> str:
    struck = Counter(one.kind.value for outcome in outcomes for one in outcome.struck)
    endings = [ending == "model" for outcome in outcomes for ending in outcome.endings.values()]
    told = ", ".join(f"{count:,} {kind}" for kind, count in struck.most_common())
    return (
        f"what struck: {told or 'nothing'}; {sum(one.restarts for one in outcomes):,} restarts\n"
        f"{sum(one.released for one in outcomes):,} rounds released; of {len(endings):,} trainings "
        f"{sum(endings):,} ended in a model and {len(endings) - sum(endings):,} in words; "
        f"{sum(len(one.complete) for one in outcomes):,} counted everybody in every round: the "
        "loopback's, byte for byte"
    )
