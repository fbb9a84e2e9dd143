"""Exhaustive table of labels: every answer's probability for every click, with nothing drawn."""

from __future__ import annotations

import math

import numpy as np

from fedrec.arrays import Float64s
from fedrec.auditing.finding import Finding
from fedrec.news.labels import Mechanism
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import Selection, largest_log_ratio, output_table

_MOST_ANSWERS = 50_000
"""Of a table with a row for each: beyond, answers are joined in classes of the same probability, of
which there are four."""


def table_finding(
    variant: str, mechanism: Mechanism, claim: Guarantee, *, candidates: int
) -> Finding:
    """The largest ratio of the table of an impression of so many candidates."""
    selection = (
        mechanism(candidates, claim.epsilon)
        if claim.private
        else Selection(candidates, 1, claim.epsilon)
    )
    answers = math.comb(selection.symbols, selection.size)
    small = answers <= _MOST_ANSWERS
    measured = largest_log_ratio(output_table(selection) if small else class_table(selection))
    words = f"{candidates} candidates, {selection.size} reported: " + (
        f"{answers:,} answers" if small else "answers in 4 classes"
    )
    return Finding("label: table", variant, claim, measured, "exact", 1.0, note=words)


def class_table(selection: Selection) -> Float64s:
    """(2, 4) probability of one answer of each class, for two clicks x and x': answers that hold x
    alone, x' alone, both, none."""
    K = selection.symbols
    w = selection.size
    within = selection.keep / math.comb(K - 1, w - 1)
    without = selection.omit / max(math.comb(K - 1, w), 1)
    counts = np.array(
        [
            math.comb(K - 2, w - 1),
            math.comb(K - 2, w - 1),
            math.comb(K - 2, w - 2) if w > 1 else 0,
            math.comb(K - 2, w),
        ],
        object,
    )
    rows = np.array([[within, without, within, without], [without, within, within, without]])
    return np.asarray(rows[:, [count > 0 for count in counts]])
