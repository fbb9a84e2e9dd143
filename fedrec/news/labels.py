"""Labels, what a user clicked among what it was shown, told with a randomised answer: over the
whole impression first.

Each impression of C candidates is one question with C symbols, or C + 1 where "no click" is
possible: the null symbol. The answer is randomised response or subset selection
(`privacy.selection`). Everything after it, negatives too, is post-processing.

Guarantee: (epsilon, 0)-DP; unit "click", neighbours "replace", the click on one candidate exchanged
for one on another of the same impression. What was shown is known to the server already, and every
impression answers, clicked or not, on a public schedule. Several clicks: one is drawn uniformly on
the device. The answer's law is then a mixture of the mechanism's rows, and mixtures stay within a
factor e^epsilon whatever their weights (`privacy.selection`): exchanging, adding or removing one
click, or all clicks of the impression, is covered. Impressions are disjoint sets of clicks, so all
answers of a user together cost each click epsilon once.

Training maximises log P(S): log(1 + (e^epsilon - 1) sum_{j in S} pi_j) up to a constant, pi the
model's softmax over the impression.

As printed (Alg. 3 l. 16-18) the k + 1 candidates sent are the clicked one and k others, and only
the label among them is random: who never appears was not clicked, so epsilon is infinite for k < C
- 1. `table_as_printed` shows it by its support.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Bools, Float64s, Int64s
from fedrec.data.impressions import Impressions
from fedrec.news.checkpoints import DeviceNoise
from fedrec.privacy import keystream
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.keystream import derive
from fedrec.privacy.selection import PureEvent, Selection, draw, randomised_response

Mechanism = Callable[[int, float], Selection]
"""`randomised_response` or `subset_selection`: what to do with so many symbols at this epsilon."""


@dataclass(frozen=True)
class LabelReports:
    """Answers of n impressions. reported: bool, aligned with the candidates; null: (n,) bool,
    whether "no click" is reported.

    `event` is the price of one answer to each click of its impression, the dearest of all sizes.
    """

    candidate_ptr: Int64s
    reported: Bools
    null: Bools
    epsilon: float
    event: PureEvent

    @property
    def weight(self) -> float:
        """e^epsilon - 1, infinite at infinite epsilon (and beyond 709, where nothing is random)."""
        return math.expm1(self.epsilon) if self.epsilon < 709 else math.inf

    @property
    def single(self) -> Int64s:
        """(n,) the reported place in each impression, -1 for "no click"; the first where a set is
        reported."""
        places = np.flatnonzero(np.concatenate([self.reported, [True]]))
        first = places[np.searchsorted(places, self.candidate_ptr[:-1])]
        return np.where(first < self.candidate_ptr[1:], first - self.candidate_ptr[:-1], -1)


def report_clicks(
    impressions: Impressions,
    *,
    epsilon: float,
    key: bytes,
    mechanism: Mechanism = randomised_response,
) -> LabelReports:
    """Answers where every impression has a click, publicly.

    Raises ValueError where one has none: it needs the null symbol."""
    truth = drawn_clicks(impressions, key=derive(key, "drawn"))
    if (truth < 0).any():
        raise ValueError(
            f"impression {int(np.argmin(truth))} has no click: use report_impressions, which "
            "has a symbol for it"
        )
    return _report(impressions.candidate_ptr, truth, epsilon, mechanism, nulls=0, key=key)


def report_impressions(
    impressions: Impressions,
    *,
    epsilon: float,
    key: bytes,
    mechanism: Mechanism = randomised_response,
) -> LabelReports:
    """Answers where an impression may have no click: one symbol more, "no click"."""
    truth = drawn_clicks(impressions, key=derive(key, "drawn"))
    nothing = np.where(truth < 0, np.diff(impressions.candidate_ptr), truth)
    return _report(impressions.candidate_ptr, nothing, epsilon, mechanism, nulls=1, key=key)


Answer = Callable[[Impressions, bytes], LabelReports]
"""What some impressions answer under a key: `report_clicks` or `report_impressions` at an
epsilon."""


def reports_by_user(
    impressions: Impressions, answer: Answer, noise: DeviceNoise, *, epsilon: float
) -> LabelReports:
    """`answer` of each user's impressions alone, under that user's own key: nobody's draw depends
    on who else is there."""
    ptr = impressions.candidate_ptr
    reported = np.zeros(ptr[-1], np.bool_)
    null = np.zeros(len(impressions), np.bool_)
    dearest = PureEvent("label", epsilon, told=0.0)
    for user, rows, mine in impressions.by_user():
        told = answer(mine, noise.key(user, "news-labels"))
        sizes = np.diff(mine.candidate_ptr)
        reported[
            np.repeat(ptr[rows] - mine.candidate_ptr[:-1], sizes)
            + np.arange(mine.candidate_ptr[-1])
        ] = told.reported
        null[rows] = told.null
        dearest = max(dearest, told.event, key=lambda e: e.told or 0.0)
    return LabelReports(ptr, reported, null, epsilon, dearest)


def drawn_clicks(impressions: Impressions, *, key: bytes) -> Int64s:
    """(n,) the place of one click of each impression, drawn uniformly on the device; -1 where there
    is none."""
    places = np.flatnonzero(impressions.clicked)
    starts = np.searchsorted(places, impressions.candidate_ptr)
    clicks = np.diff(starts)
    first = starts[:-1]
    drawn = np.full(len(impressions), -1, np.int64)
    for number in np.unique(clicks[clicks > 0]).tolist():
        those = np.flatnonzero(clicks == number)
        pick = first[those] + keystream.integers(
            len(those), below=number, key=derive(key, f"{number}")
        )
        drawn[those] = places[pick] - impressions.candidate_ptr[those]
    return drawn


def share_without_click(reports: LabelReports, *, mechanism: Mechanism) -> float:
    """The share of impressions without a click, by its likelihood equation's first moment; in
    [1e-3, 1 - 1e-3]. A function of reports.

    "No click" is reported with probability a where it is the truth and b elsewhere, by size of the
    impression.
    """
    gained = 0.0
    possible = 0.0
    for C, those in _by_size(reports.candidate_ptr):
        made = mechanism(C + 1, reports.epsilon)
        a = made.keep
        b = (made.size - made.keep) / C
        gained += float((reports.null[those] - b).sum())
        possible += len(those) * (a - b)
    return min(max(gained / possible, 1e-3), 1 - 1e-3)


def as_printed(
    impressions: Impressions, *, epsilon: float, negatives: int, key: bytes
) -> tuple[Int64s, Guarantee]:
    """(n, 1 + k) places, the labelled one first, by Alg. 3 l. 16-18 to the letter; for
    reproduction. NOT ESTABLISHED.

    All impressions need a click and more than k candidates, or ValueError.
    """
    C = np.diff(impressions.candidate_ptr)
    k = negatives
    truth = drawn_clicks(impressions, key=derive(key, "drawn"))
    if (truth < 0).any() or (k >= C).any():
        raise ValueError(
            f"the printed permutation needs a click and more than {k} candidates in every "
            "impression"
        )
    table = np.empty((len(C), 1 + k), np.int64)
    for size, those in _by_size(impressions.candidate_ptr):  # l. 16
        others = keystream.subsets(len(those), members=k, of=size - 1, key=derive(key, f"{size}"))
        table[those] = np.column_stack([truth[those], others + (others >= truth[those, None])])
        beta = printed_beta(size, k, epsilon)
        # l. 17-18
        lies = keystream.coins(
            len(those),
            probability=k / (k + math.exp(min(beta, 700.0))),
            key=derive(key, f"lies/{size}"),
        )
        liar = those[lies]
        swap = 1 + keystream.integers(int(lies.sum()), below=k, key=derive(key, f"swap/{size}"))
        table[liar, 0], table[liar, swap] = table[liar, swap], table[liar, 0].copy()
    return table, printed_guarantee(int(C.max()), k, epsilon)


def printed_beta(candidates: int, negatives: int, epsilon: float) -> float:
    """beta = max(0, log(k / (C - 1) e^epsilon)), Alg. 3 l. 17: no epsilon below log((C - 1) / k) is
    reached."""
    return max(0.0, math.log(negatives / (candidates - 1)) + epsilon)


def printed_guarantee(candidates: int, negatives: int, epsilon: float) -> Guarantee:
    """The printed promise; infinite in truth, unless the whole impression is sent."""
    note = (
        f"the {negatives + 1} candidates sent always hold the clicked one of {candidates}: the "
        "true epsilon is infinite"
    )
    if negatives == candidates - 1:
        note = (
            "with the whole impression sent, epsilon is "
            f"{printed_beta(candidates, negatives, epsilon):.4g}"
        )
    return Guarantee(epsilon, 1e-12, "click", "replace", established=False, note=note)


def table_as_printed(candidates: int, negatives: int, epsilon: float) -> Float64s:
    """(C, outputs) exact probabilities of every (set of k + 1, labelled member) for every true
    click: small C only."""
    C = candidates
    k = negatives
    beta = printed_beta(candidates, negatives, epsilon)
    outputs = [(S, label) for S in itertools.combinations(range(C), k + 1) for label in S]
    keep = math.exp(beta) / (k + math.exp(beta))
    lie = 1 / (k + math.exp(beta))
    sets = math.comb(C - 1, k)
    return np.array(
        [
            [(keep if label == x else lie) / sets if x in S else 0.0 for S, label in outputs]
            for x in range(C)
        ]
    )


def _report(
    ptr: Int64s, truth: Int64s, epsilon: float, mechanism: Mechanism, *, nulls: int, key: bytes
) -> LabelReports:
    reported = np.zeros(ptr[-1], np.bool_)
    null = np.zeros(len(truth), np.bool_)
    dearest = PureEvent("label", epsilon, told=0.0)
    for C, those in _by_size(ptr):
        chosen, event = draw(
            truth[those], mechanism(C + nulls, epsilon), name="label", key=derive(key, f"size/{C}")
        )
        dearest = max(dearest, event, key=lambda e: e.told or 0.0)
        shown = chosen < C
        reported[(ptr[those, None] + chosen)[shown]] = True
        null[those] = ~shown.all(1)
    return LabelReports(ptr, reported, null, epsilon, dearest)


def _by_size(ptr: Int64s) -> Iterator[tuple[int, Int64s]]:
    sizes = np.diff(ptr)
    if len(sizes) and sizes.min() < 1:
        raise ValueError(f"impression {int(np.argmin(sizes))} shows nothing")
    for size in np.unique(sizes).tolist():
        yield size, np.flatnonzero(sizes == size)
