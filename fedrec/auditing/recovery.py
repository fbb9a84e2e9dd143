"""Recovery of the news that a client clicked from one upload, by somebody who knows the catalogue
and what was shown.

From a gradient: the rows of word embeddings that are not zero are the words of the news it touched,
candidates (which the server knows) and history; a news all of whose words are there was clicked.
Where the news encoder begins with a dense layer over public vectors, the layer's gradient is a sum
of products v_j d_j', so its column space is spanned by the vectors of those news.

From a report of topic coefficients there is nothing of the kind to read: the attack names the news
nearest to them in topics.

For every user as many news are named as it clicked. `rate` is the share that is right. `chance` is
what the same attack gets right of the same clicks when each was exchanged, before the upload, for
the news next to it in topics: how far taste alone leads.

A bound of epsilon, "support": with some click, a row that no other news touches is not zero;
without it, it is zero whatever the noise, for nothing leads there. (Likewise a direction that no
other news has.) An event of probability 0 on one side and not on the other is an infinite epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.auditing.bounds import CONFIDENCE, Counts, limits
from fedrec.auditing.finding import Finding, Recovery
from fedrec.auditing.uploads import Clients, Gradient
from fedrec.data.impressions import Impressions
from fedrec.encoders.tokens import PADDING
from fedrec.privacy import bounded_mean
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams

_DEPENDENT = 1e-6  # of the largest singular value: below, a direction is float32 rounding
# how far a vector of length 1 must lie outside the span of others to tell the two apart in float32
_APART = 0.2
_SEARCHED = 20  # users looked through for a click with a mark of its own


@dataclass(frozen=True)
class Target:
    """A user under attack. history: (H,) as its device holds it, -1 in front; decoy: every click
    exchanged for its neighbour in topics.

    clicks: the distinct news of the history. shown: the candidates of all its impressions, which
    the server knows.
    """

    user: int
    history: Int64s
    decoy: Int64s
    clicks: Int64s
    shown: Int64s


def targets(
    data: Impressions, topics: TopicTable, *, history: int, users: int, streams: Streams
) -> list[Target]:
    """At most so many users with clicks and impressions, drawn at random."""
    owners = np.unique(data.users[np.add.reduceat(data.clicked, data.candidate_ptr[:-1]) > 0])
    chosen = streams.numpy("audit/targets").permutation(
        owners[np.diff(data.history_ptr)[owners] > 0]
    )[:users]
    table = data.last_clicks(history).astype(np.int64)
    owner = np.repeat(data.users, np.diff(data.candidate_ptr))
    return [
        _target(int(user), table[user], np.unique(data.candidates[owner == user]), topics)
        for user in chosen
    ]


def _target(user: int, history: Int64s, shown: Int64s, topics: TopicTable) -> Target:
    real = history >= 0
    decoy = history.copy()
    decoy[real] = neighbours(history[real], np.concatenate([history[real], shown]), topics)
    return Target(user, history, decoy, np.unique(history[real]), shown)


def neighbours(clicks: Int64s, taken: Int64s, topics: TopicTable) -> Int64s:
    """(H,) the nearest news in topics to each click that is not among `taken`, each named once
    while there are enough."""
    free = np.ones(len(topics.rows), bool)
    free[taken] = False
    rows = topics.weights
    found = np.empty_like(clicks)
    for place, click in enumerate(clicks):
        distances = np.where(free, ((rows - rows[click]) ** 2).sum(1), np.inf)
        found[place] = int(distances.argmin())
        free[found[place]] = free.sum() == 1
    return found


def gradient_finding(
    variant: str, clients: Clients, aims: Sequence[Target], *, draws: int
) -> Finding:
    """Name the clicks of all targets from one gradient each; then the mark of one click, over
    `draws` uploads with and without it."""
    rates = [
        (_rate(clients, aim, aim.history, k + 1), _rate(clients, aim, aim.decoy, k + 1))
        for k, aim in enumerate(aims)
    ]
    recovery = Recovery(*(float(np.mean(column)) for column in zip(*rates, strict=True)))
    marked = _own_direction if clients.texts is None else _own_word
    mark = next((found for aim in aims[:_SEARCHED] if (found := marked(clients, aim))), None)
    if mark is None or not shown_by_support(clients, mark, draws=draws):
        note = (
            "no click leaves a mark of its own" if mark else "no click with a mark of its own found"
        )
        return Finding(
            "clicked news",
            variant,
            clients.claim,
            0.0,
            "none",
            CONFIDENCE,
            2 * draws,
            recovery,
            note=note,
        )
    note = "a mark that only this click can leave"
    return Finding(
        "clicked news",
        variant,
        clients.claim,
        math.inf,
        "support",
        CONFIDENCE,
        2 * draws,
        recovery,
        note=note,
    )


def _rate(clients: Clients, aim: Target, history: Int64s, draw: int) -> float:
    gradient = clients.with_history(aim.user, history).upload(aim.user, draw)
    return named(evidence(clients, gradient), aim.clicks, aim.shown)


def report_finding(
    variant: str,
    claim: Guarantee,
    topics: TopicTable,
    aims: Sequence[Target],
    *,
    mu: float,
    streams: Streams,
) -> Finding:
    """Name the clicks of all targets from topic coefficients: the news nearest in topics."""
    rates = []
    for column, table in enumerate(
        (np.stack([aim.history for aim in aims]), np.stack([aim.decoy for aim in aims]))
    ):
        values = bounded_mean.report(
            table, topics, mu=mu, name="audit", key=streams.key(f"audit/coefficients/{column}")
        ).values
        rates.append(
            [
                named(topics.weights @ a, aim.clicks, aim.shown)
                for a, aim in zip(values, aims, strict=True)
            ]
        )
    recovery = Recovery(float(np.mean(rates[0])), float(np.mean(rates[1])))
    return Finding(
        "clicked news",
        variant,
        claim,
        0.0,
        "none",
        CONFIDENCE,
        len(aims),
        recovery,
        note="from topics: no gradient is sent",
    )


def named(evidence: Float64s, clicks: Int64s, shown: Int64s) -> float:
    """Share of `clicks` among as many news of the largest evidence, those shown left out; ties are
    counted at their average."""
    scores = evidence.copy()
    scores[np.setdiff1d(shown, clicks)] = -np.inf
    least = np.partition(scores, -len(clicks))[-len(clicks)]
    above = scores > least
    ties = scores == least
    share = (len(clicks) - above.sum()) / ties.sum()
    return float((above[clicks].sum() + share * ties[clicks].sum()) / len(clicks))


def evidence(clients: Clients, gradient: Gradient) -> Float64s:
    """(m,) how strongly a gradient speaks for each news."""
    first = gradient[clients.first_layer]
    texts = clients.texts
    return (
        row_space_evidence(first, clients.vectors)
        if texts is None
        else word_evidence((first != 0).any(1), texts)
    )


def word_evidence(touched: npt.NDArray[np.bool_], texts: npt.NDArray[np.integer]) -> Float64s:
    """(m,) the share of a news' words that were touched; among news with all of theirs, the rarer
    their words are there, the more."""
    real = texts != PADDING
    shares = (touched[texts] & real).sum(1) / np.maximum(real.sum(1), 1)
    possible = shares == 1
    carriers = np.bincount(texts[possible][real[possible]], minlength=len(touched))
    rarity = (real / np.maximum(carriers[texts], 1)).sum(1)
    return np.asarray(np.where(possible, 1 + rarity, shares), np.float64)


def row_space_evidence(
    gradient: npt.NDArray[np.floating], vectors: npt.NDArray[np.floating]
) -> Float64s:
    """(m,) minus how far each public vector, at length 1, lies outside the column space of the
    first dense layer's gradient (p, width)."""
    Q, s, _ = np.linalg.svd(np.asarray(gradient, np.float64), full_matrices=False)
    kept = Q[:, s > _DEPENDENT * max(float(s[0]), 1e-300)]  # a gradient of zeros has no directions
    V = np.asarray(vectors, np.float64)
    V = V / np.maximum(np.linalg.norm(V, axis=1, keepdims=True), 1e-12)
    return np.asarray(-np.linalg.norm(V - V @ kept @ kept.T, axis=1))


@dataclass(frozen=True)
class Mark:
    """What only one click leaves in a gradient: `shows` cannot be true of an upload without it,
    whatever the noise."""

    aim: Target
    place: int
    shows: Callable[[Gradient], bool]


def shown_by_support(clients: Clients, mark: Mark, *, draws: int) -> bool:
    """Whether the mark shows in uploads with the click, by Clopper-Pearson more often than delta,
    and in none without it."""
    exchanged = mark.aim.history.copy()
    exchanged[exchanged == exchanged[mark.place]] = mark.aim.decoy[mark.place]
    user = mark.aim.user
    both = clients, clients.with_history(user, exchanged)
    hits = [sum(mark.shows(each.upload(user, draw + 1)) for draw in range(draws)) for each in both]
    least, _ = limits(Counts(hits[0], draws, hits[1], draws), CONFIDENCE)
    return hits[1] == 0 and float(least[0]) > clients.claim.delta


def _own_word(clients: Clients, aim: Target) -> Mark | None:
    """A word that no other news of the user has, nor the click's stand-in: no other gradient
    reaches its row."""
    texts = clients.texts
    first = clients.first_layer
    assert texts is not None
    for place in np.flatnonzero(aim.history >= 0).tolist():
        own = np.setdiff1d(
            texts[aim.history[place]], np.append(texts[_others(aim, place)].ravel(), PADDING)
        )
        if len(own):
            return Mark(aim, place, _row_touched(first, int(own[0])))
    return None


def _own_direction(clients: Clients, aim: Target) -> Mark | None:
    """A public vector outside the span of all others of the user, which holds the column space of
    any gradient without the click."""
    V = clients.vectors
    first = clients.first_layer
    for place in np.flatnonzero(aim.history >= 0).tolist():
        mine = V[[aim.history[place]]]
        distance = -float(row_space_evidence(V[_others(aim, place)].T, mine)[0])
        if distance > _APART:
            return Mark(aim, place, _nearer_than(distance / 2, first, mine))
    return None


def _row_touched(parameter: str, row: int) -> Callable[[Gradient], bool]:
    return lambda gradient: bool((gradient[parameter][row] != 0).any())


def _nearer_than(
    distance: float, parameter: str, vector: npt.NDArray[np.floating]
) -> Callable[[Gradient], bool]:
    return lambda gradient: -float(row_space_evidence(gradient[parameter], vector)[0]) < distance


def _others(aim: Target, place: int) -> Int64s:
    return np.concatenate(
        [aim.clicks[aim.clicks != aim.history[place]], aim.shown, aim.decoy[[place]]]
    )
