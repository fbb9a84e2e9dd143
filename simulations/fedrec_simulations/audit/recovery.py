"""Which news did a client click? Read off one upload, by somebody who knows the catalogue and what was shown.

From a gradient: the rows of word embeddings that are not zero are the words of the news it touched, candidates (which the server
knows) and history; a news all of whose words are there was clicked. Where the news encoder begins with a dense layer over public
vectors, the layer's gradient is a sum of products v_j d_j', so its column space is spanned by the vectors of those news.

From a report of topic coefficients there is nothing of the kind to read: the attack names the news nearest to them in topics.

For every user as many news are named as it clicked. `rate` is the share that is right. `chance` is what the same attack gets right
of the same clicks when each was exchanged, before the upload, for the news next to it in topics: how far taste alone leads.

A bound of epsilon, "support": with some click, a row that no other news touches is not zero; without it, it is zero whatever the
noise, for nothing leads there. (Likewise a direction that no other news has.) An event of probability 0 on one side and not on the
other is an infinite epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.encoders.tokens import PADDING
from fedrec.privacy.guarantee import Guarantee
from fedrec.privaterec import additive
from fedrec.privaterec.additive import TopicTable
from fedrec.privaterec.labels import drawn_clicks
from fedrec.streams import Streams
from fedrec_simulations.audit.bounds import CONFIDENCE, Counts, limits
from fedrec_simulations.audit.finding import Finding, Recovery
from fedrec_simulations.audit.uploads import Gradient, Labels, Lesson, Pupil, Upload

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

_IMPRESSIONS = 2
_DEPENDENT = 1e-5  # of the largest singular value: below, a direction is float32 rounding
_APART = 0.2  # how far a vector of length 1 must lie outside the span of others to tell the two apart in float32


@dataclass(frozen=True)
class Target:
    """A user under attack: what it learns from, its clicks, and the same with every click exchanged for its neighbour in topics."""

    lesson: Lesson
    clicks: Int64s
    decoy: Lesson


def targets(data: Impressions, topics: TopicTable, *, history: int, users: int, streams: Streams) -> list[Target]:
    """At most so many users with clicks and impressions, drawn at random."""
    places = drawn_clicks(data, key=streams.key("audit/labels"))
    told = np.flatnonzero(places >= 0)
    owners = np.unique(data.users[told])
    chosen = streams.numpy("audit/targets").permutation(owners[np.diff(data.history_ptr)[owners] > 0])[:users]
    shown = [told[data.users[told] == user][:_IMPRESSIONS] for user in chosen]
    return [_target(data, topics, user, mine, places[mine], history) for user, mine in zip(chosen, shown, strict=True)]


def _target(data: Impressions, topics: TopicTable, user: np.integer, impressions: Int64s, places: Int64s, history: int) -> Target:
    clicks = data.history[data.history_ptr[user] : data.history_ptr[user + 1]][-history:].astype(np.int64)
    sizes = np.diff(data.candidate_ptr)[impressions]
    candidates = np.full((len(impressions), int(sizes.max())), -1, np.int64)
    for row, impression in zip(candidates, impressions, strict=True):
        shown = data.candidates[data.candidate_ptr[impression] : data.candidate_ptr[impression + 1]]
        row[: len(shown)] = shown
    lesson = Lesson(clicks, candidates, places)
    taken = np.concatenate([clicks, candidates[candidates >= 0]])
    return Target(lesson, np.unique(clicks), Lesson(neighbours(clicks, taken, topics), candidates, places))


def neighbours(clicks: Int64s, taken: Int64s, topics: TopicTable) -> Int64s:
    """(H,) the nearest news in topics to each click that is not among `taken`, each named once."""
    free = np.ones(len(topics.rows), bool)
    free[taken] = False
    rows, found = topics.weights, np.empty_like(clicks)
    for place, click in enumerate(clicks):
        distances = ((rows - rows[click]) ** 2).sum(1)
        distances[~free] = np.inf
        found[place] = int(distances.argmin())
        free[found[place]] = len(clicks) > free.sum()
    return found


def gradient_finding(
    variant: str, claim: Guarantee, pupil: Pupil, upload: Upload, told: Labels, aims: Sequence[Target], *, draws: int, streams: Streams
) -> Finding:
    """Name the clicks of all targets from one gradient each; then the support of one click, over `draws` uploads with and without it."""

    def rate(lesson: Lesson, target: Target, number: int) -> float:
        fresh = Streams(int(streams.numpy("audit/upload", round=number).integers(2**62)))
        sent = told(lesson, fresh)
        return named(_evidence(pupil, upload(pupil, sent, fresh)), target.clicks, lesson.candidates)

    rates = [(rate(aim.lesson, aim, k), rate(aim.decoy, aim, k)) for k, aim in enumerate(aims)]
    recovery = Recovery(*(float(np.mean(column)) for column in zip(*rates, strict=True)))
    measured = support_bound(pupil, upload, told, aims, claim, draws=draws, streams=streams)
    by, note = ("support", "a row that only one click touches") if measured else ("none", "no row of a click is touched")
    return Finding("clicked news", variant, claim, measured, by, CONFIDENCE, 2 * draws, recovery, note=note)  # type: ignore[arg-type]


def report_finding(
    variant: str, claim: Guarantee, topics: TopicTable, aims: Sequence[Target], *, mu: float, history: int, streams: Streams
) -> Finding:
    """The same from topic coefficients: the news nearest in topics."""
    rates = []
    for column, lessons in enumerate(([aim.lesson for aim in aims], [aim.decoy for aim in aims])):
        table = np.full((len(aims), history), -1, np.int64)
        for row, lesson in zip(table, lessons, strict=True):
            row[: len(lesson.history)] = lesson.history
        values = additive.report(table, topics, mu=mu, name="audit", key=streams.key(f"audit/coefficients/{column}")).values
        rates.append([named(topics.weights @ a, aim.clicks, aim.lesson.candidates) for a, aim in zip(values, aims, strict=True)])
    recovery = Recovery(float(np.mean(rates[0])), float(np.mean(rates[1])))
    return Finding("clicked news", variant, claim, 0.0, "none", CONFIDENCE, len(aims), recovery, note="from topics: no gradient is sent")


def named(evidence: Floats, clicks: Int64s, shown: Int64s) -> float:
    """Share of `clicks` among as many news of the largest evidence, those shown left out; ties are counted at their average."""
    scores = evidence.copy()
    scores[shown[shown >= 0]] = -np.inf
    least = np.partition(scores, -len(clicks))[-len(clicks)]
    above, ties = scores > least, scores == least
    share = (len(clicks) - above.sum()) / ties.sum()
    return float((above[clicks].sum() + share * ties[clicks].sum()) / len(clicks))


def _evidence(pupil: Pupil, gradient: Gradient) -> Floats:
    first = gradient[pupil.first_layer]
    if pupil.texts is not None:
        return word_evidence((first != 0).any(1), pupil.texts)
    return row_space_evidence(first, pupil.vectors)  # type: ignore[arg-type]


def word_evidence(touched: npt.NDArray[np.bool_], texts: npt.NDArray[np.int32]) -> Floats:
    """(m,) the share of a news' words that were touched; among news with all of theirs, the rarer their words are there, the more."""
    real = texts != PADDING
    shares = (touched[texts] & real).sum(1) / np.maximum(real.sum(1), 1)
    possible = shares == 1
    carriers = np.bincount(texts[possible][real[possible]], minlength=len(touched))
    rarity = (real / np.maximum(carriers[texts], 1)).sum(1)
    return np.where(possible, 1 + rarity, shares)


def row_space_evidence(gradient: npt.NDArray[np.floating], vectors: npt.NDArray[np.floating]) -> Floats:
    """(m,) minus how far each public vector, at length 1, lies outside the column space of the first dense layer's gradient (p, width)."""
    Q, s, _ = np.linalg.svd(np.asarray(gradient, np.float64), full_matrices=False)
    kept = Q[:, s > _DEPENDENT * max(float(s[0]), 1e-300)]
    V = np.asarray(vectors, np.float64)
    V = V / np.maximum(np.linalg.norm(V, axis=1, keepdims=True), 1e-12)
    return np.asarray(-np.linalg.norm(V - V @ kept @ kept.T, axis=1))


@dataclass(frozen=True)
class Mark:
    """What only one click of a lesson leaves in a gradient: whether `shows` it there cannot be true without the click, whatever the noise."""

    aim: Target
    place: int
    shows: Callable[[Gradient], bool]


def support_bound(
    pupil: Pupil, upload: Upload, told: Labels, aims: Sequence[Target], claim: Guarantee, *, draws: int, streams: Streams
) -> float:
    """Infinity where the mark of a click shows in uploads with it, by Clopper-Pearson more often than delta, and in none without it."""
    mark = next((found for aim in aims if (found := (_own_word if pupil.texts is not None else _own_direction)(pupil, aim))), None)
    if mark is None:
        return 0.0
    lesson = mark.aim.lesson
    exchanged = np.where(np.arange(len(lesson.history)) == mark.place, mark.aim.decoy.history, lesson.history)
    without = Lesson(exchanged, lesson.candidates, lesson.labels)
    hits = [_shown(pupil, upload, told, one, mark, draws, streams) for one in (lesson, without)]
    least, _ = limits(Counts(hits[0], draws, hits[1], draws), CONFIDENCE)
    return math.inf if hits[1] == 0 and least > claim.delta else 0.0


def _own_word(pupil: Pupil, aim: Target) -> Mark | None:
    """A word that no other news of the lesson has, nor the click's stand-in: no other gradient reaches its row."""
    texts: npt.NDArray[np.int32] = pupil.texts  # type: ignore[assignment]
    for place, click in enumerate(aim.lesson.history):
        own = np.setdiff1d(texts[click], np.append(texts[_others(aim, place)].ravel(), PADDING))
        if len(own):
            return Mark(aim, place, lambda gradient, word=int(own[0]): bool((gradient[pupil.first_layer][word] != 0).any()))  # type: ignore[misc]
    return None


def _own_direction(pupil: Pupil, aim: Target) -> Mark | None:
    """A public vector that lies outside the span of all others of the lesson, which holds the column space without the click."""
    V: npt.NDArray[np.float32] = pupil.vectors  # type: ignore[assignment]
    for place, click in enumerate(aim.lesson.history):
        distance = -float(row_space_evidence(V[_others(aim, place)].T, V[[click]])[0])
        if distance > _APART:
            half, mine = distance / 2, V[[click]]
            return Mark(aim, place, lambda g, half=half, mine=mine: -float(row_space_evidence(g[pupil.first_layer], mine)[0]) < half)  # type: ignore[misc]
    return None


def _others(aim: Target, place: int) -> Int64s:
    history, shown = aim.lesson.history, aim.lesson.candidates[aim.lesson.candidates >= 0]
    return np.concatenate([history[history != history[place]], shown, aim.decoy.history[[place]]])


def _shown(pupil: Pupil, upload: Upload, told: Labels, lesson: Lesson, mark: Mark, draws: int, streams: Streams) -> int:
    hits = 0
    for draw in range(draws):
        fresh = Streams(int(streams.numpy("audit/support", round=draw).integers(2**62)))
        hits += mark.shows(upload(pupil, told(lesson, fresh), fresh))
    return hits
