"""`fedrec faults`: many seeded runs, and the smallest script of the first one in which a rule did
not hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedrec.errors import ProtocolError
from fedrec_simulations.faults.script import Script, script, shortened
from fedrec_simulations.faults.simulator import Outcome, simulate


@dataclass
class Tally:
    """What came of many runs. trainings: each run has one or two. endings: "model", or the first
    words of a refusal."""

    runs: int = 0
    restarts: int = 0
    released: int = 0
    trainings: int = 0
    complete: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one run."""
        self.runs, self.restarts, self.released = (
            self.runs + 1,
            self.restarts + outcome.restarts,
            self.released + outcome.released,
        )
        self.trainings, self.complete = (
            self.trainings + len(outcome.endings),
            self.complete + len(outcome.complete),
        )
        self.struck.update(operation.kind.value for operation in outcome.struck)
        self.endings.update(
            "model" if ending == "model" else "words" for ending in outcome.endings.values()
        )


def run(*, runs: int, seed: int, show: bool) -> str:
    """Simulate the scripts of `runs` seeds from `seed` on; a summary in words. With `show`, the
    first script and its trace too.

    Raises ProtocolError where a rule does not hold, with the smallest script in which it does not;
    not for a run that is shown.
    """
    tally, started, shown = Tally(), time.perf_counter(), ""
    for number in range(seed, seed + runs):
        outcome = simulate(script(number))
        tally.add(outcome)
        if show and number == seed:
            shown = text(outcome) + "\n\n"
            if outcome.broken:
                return shown.rstrip()
        if outcome.broken:
            raise ProtocolError(*_words(number, outcome))
    return shown + _summary(tally, seed, time.perf_counter() - started)


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


def _words(seed: int, outcome: Outcome) -> tuple[str, str]:
    least = smallest(outcome.script, [one.rule for one in outcome.broken])
    operations = "; ".join(str(operation) for operation in least.operations) or "nothing at all"
    cause = f"seed {seed}: {outcome.broken[0]}"
    return (
        cause,
        (
            f"See it with: fedrec faults --runs 1 --seed {seed} --show. It takes no more than: "
            f"{operations} in {least.setup}"
        ),
    )


def _summary(tally: Tally, seed: int, took_s: float) -> str:
    struck = ", ".join(f"{count:,} {kind}" for kind, count in tally.struck.most_common())
    return "\n".join(
        [
            (
                f"{tally.runs:,} runs (seeds {seed} to {seed + tally.runs - 1}) in {took_s:.0f} "
                "s: every rule held in each"
            ),
            f"what struck: {struck or 'nothing'}; {tally.restarts:,} restarts",
            f"{tally.released:,} rounds released; of {tally.trainings:,} trainings "
            f"{tally.endings['model']:,} ended in a model and "
            f"{tally.endings['words']:,} in words; {tally.complete:,} counted everybody in every "
            "round: the loopback's, byte for byte",
        ]
    )
