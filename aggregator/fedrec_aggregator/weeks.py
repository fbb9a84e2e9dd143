"""Weeks of a stream at its aggregator: in their order, on one grid, each with noise of its own.

The noise of week t is correlated with that of all weeks before it (`fedrec.privacy.correlated`), so
their noise must be drawn again. The ledger keeps 32 random bytes for each week and release, made
durable before the week's noise is drawn. A crash before the release is published draws other ones:
nobody has seen the sum with the first. Nor do two sums of one week ever have one noise where an
older ledger is put back. Weeks without their bytes end the stream. Who reads the ledger or a backup
of it can take the noise off, as whoever sees the reports.
"""

from __future__ import annotations

from dataclasses import replace

from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.protocol import Refusal
from fedrec.federation.wire import refused
from fedrec.randomness import WeekStreams
from fedrec_aggregator.ledger import ReleaseLedger

_NEW_STREAM = "Begin a new stream, which is charged anew, or bring back the newest ledger."


def require_week_after(question: Question, run: str, ledger: ReleaseLedger) -> None:
    """That the round before is released, and that the noise of all weeks before can be drawn again,
    on the same grid.

    Raises RefusedError (`WRONG_QUESTION`, `LOST_SHARE`)."""
    (spec,) = question.releases
    if question.round and ledger.released(run, question.round - 1) is None:
        raise refused(
            Refusal.WRONG_QUESTION,
            f"round {question.round} of run {run!r} follows a round that is not released",
            "Weeks of a stream are asked in their order.",
        )
    kept = ledger.weeks(run, spec.name)
    before = range(1, spec.week)
    if lost := [week for week in before if week not in kept]:
        raise refused(
            Refusal.LOST_SHARE,
            f"what the noise of week {lost[0]} of run {run!r} was derived from is lost: the stream "
            "has ended",
            _NEW_STREAM,
        )
    if any(kept[week][0] != _grid(spec) for week in before):
        raise refused(
            Refusal.WRONG_QUESTION,
            f"week {spec.week} of run {run!r} is on another grid than the weeks before",
            "A stream keeps its blocks from its first week.",
        )


def noise_of_week(question: Question, run: str, ledger: ReleaseLedger) -> WeekStreams:
    """Where the noise of the week and of all before it comes from; the week's own is new, and
    durable when this returns. Raises RunError where the ledger cannot be written."""
    (spec,) = question.releases
    ledger.keep_week(run, spec.name, spec.week, _grid(spec))
    return WeekStreams({week: kept[1] for week, kept in ledger.weeks(run, spec.name).items()})


def _grid(spec: ReleaseSpec) -> str:
    """All that decides the noise of a week but the week."""
    return repr(replace(spec, week=0))
