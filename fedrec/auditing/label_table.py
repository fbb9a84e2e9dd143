"""Labels: every answer's probability for every click, the answers of the code itself, and how often
they tell the truth.

The exhaustive table has one row per possible click and one column per possible answer; its largest
log ratio is epsilon, with nothing drawn. Where there are too many answers, they are put in classes
that hold the one click, the other, both or neither: within a class all are equally likely. The
drawn attack runs the code of the devices: it accuses where the answer holds the click.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedrec.auditing.bounds import CONFIDENCE, lower_bound
from fedrec.auditing.finding import Finding, Recovery
from fedrec.data.impressions import Impressions
from fedrec.news import labels
from fedrec.news.labels import Mechanism
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import largest_log_ratio
from fedrec.randomness import Streams

_MOST_PRINTED = 12  # more columns do not fit a terminal's line


def drawn_finding(
    variant: str,
    mechanism: Mechanism,
    claim: Guarantee,
    *,
    candidates: int,
    draws: int,
    streams: Streams,
) -> Finding:
    """`draws` answers of the devices' own code to each of two clicks."""
    told = [_told(side, mechanism, claim, candidates, draws, streams) for side in (0, 1)]
    return ratio_finding(variant, claim, told)


def ratio_finding(variant: str, claim: Guarantee, told: Sequence[npt.NDArray[np.bool_]]) -> Finding:
    """From answers (n, C) to a click on candidate 0, and to one on candidate 1."""
    inside, outside = (answers[:, 0].astype(np.float64) - answers[:, 1] for answers in told)
    bound = lower_bound(inside, outside, delta=claim.delta, gaussian=False)
    named = np.where(told[0].any(1), told[0][:, 0] / np.maximum(told[0].sum(1), 1), 0.0)
    recovery = Recovery(float(named.mean()), 1 / told[0].shape[1])
    return Finding(
        "label: ratio test",
        variant,
        claim,
        bound.epsilon,
        bound.by,
        bound.confidence,
        bound.draws,
        recovery,
    )


def _told(
    click: int,
    mechanism: Mechanism,
    claim: Guarantee,
    candidates: int,
    draws: int,
    streams: Streams,
) -> npt.NDArray[np.bool_]:
    """(draws, candidates) which candidates the answer to a click at `click` holds."""
    shown = repeated_impression(click, candidates, draws)
    key = streams.key(f"audit/label/{click}")
    return labels.report_clicks(
        shown, epsilon=claim.epsilon, key=key, mechanism=mechanism
    ).reported.reshape(draws, candidates)


def repeated_impression(click: int, candidates: int, times: int) -> Impressions:
    """Return one impression of items 0 .. candidates - 1 with the click at `click`, repeated for so
    many users without history."""
    shown = np.tile(np.arange(candidates, dtype=np.int32), times)
    ptr = np.arange(times + 1, dtype=np.int64) * candidates
    nothing = np.zeros(times + 1, np.int64)
    return Impressions(
        candidates,
        nothing,
        np.empty(0, np.int32),
        np.arange(times, dtype=np.int32),
        ptr,
        shown,
        shown == click,
    )


def printed_findings(
    variant: str, claim: Guarantee, *, candidates: int, negatives: int, draws: int, streams: Streams
) -> tuple[Finding, ...]:
    """The permutation as printed: its table, and its code."""
    shown = min(candidates, _MOST_PRINTED)
    k = min(negatives, shown - 1)
    measured = (
        largest_log_ratio(labels.table_as_printed(shown, k, claim.epsilon))
        if claim.private
        else math.inf
    )
    words = f"{k + 1} of {shown} candidates sent" + (
        ", the click among them always" if k < shown - 1 else ""
    )
    exact = Finding("label: table", variant, claim, measured, "exact", 1.0, note=words)
    sent = [
        _sent_as_printed(click, claim, candidates, min(negatives, candidates - 1), draws, streams)
        for click in (0, 1)
    ]
    inside, outside = (
        (table == 0).any(1).astype(np.float64) - (table == 1).any(1) for table in sent
    )
    bound = lower_bound(inside, outside, delta=claim.delta, gaussian=False)
    recovery = Recovery(float((sent[0][:, 0] == 0).mean()), 1 / candidates)
    note = "who is sent at all"
    return exact, Finding(
        "label: ratio test",
        variant,
        claim,
        bound.epsilon,
        bound.by,
        CONFIDENCE,
        2 * draws,
        recovery,
        note=note,
    )


def _sent_as_printed(
    click: int, claim: Guarantee, candidates: int, negatives: int, draws: int, streams: Streams
) -> npt.NDArray[np.int64]:
    shown = repeated_impression(click, candidates, draws)
    epsilon = min(claim.epsilon, 700.0)
    return labels.as_printed(
        shown, epsilon=epsilon, negatives=negatives, key=streams.key(f"audit/printed/{click}")
    )[0]
