"""Meaning of a news run for a person: user-level epsilon at the run's own numbers of clicks and
labels, and measured linkage.

Linkage is measured with the run's bundle and the client's code: every test person makes two queries
on the same history, each with noise of its own, and `linkage` says how many of the second are
matched to their first. Nothing here is private: it reads histories.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from fedrec.arrays import Float64s
from fedrec.data.impressions import Impressions
from fedrec.news.person import training_costs
from fedrec.news.variant import of
from fedrec.privacy import person
from fedrec.randomness import Streams
from fedrec.report.content import TextTable
from fedrec.report.wording import power
from fedrec.run.account import served_person
from fedrec.run.news_run import serving_guarantee
from fedrec.serving.asking import ask
from fedrec.serving.bundle import Bundle
from fedrec.settings import NewsScenario

_BLOCK = 512  # people whose distances to all others are held at once
MOST_PEOPLE = 5_000
"""More would take long: the matcher looks at every pair."""


@dataclass(frozen=True)
class Answers:
    """values (n, B) of n people, each entry with noise of std `noise_std`."""

    values: Float64s
    noise_std: float


@dataclass(frozen=True)
class Linkage:
    """How many of `people` answers are `linked`, their own person coming first; `median_rank`: of
    the own person among all, 1 for the first."""

    people: int
    linked: int
    median_rank: float

    @property
    def rate(self) -> float:
        """Share that is linked."""
        return self.linked / self.people

    @property
    def chance(self) -> float:
        """Share that guessing links."""
        return 1 / self.people

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Clopper-Pearson, both sides.

        Answers are matched one by one, but on one list of people: read it as of these people."""
        found = stats.binomtest(self.linked, self.people).proportion_ci(confidence, method="exact")
        return float(found.low), float(found.high)

    def as_dict(self) -> dict[str, float]:
        """These numbers for JSON."""
        low, high = self.interval()
        return {
            "people": self.people,
            "linked": self.linked,
            "rate": self.rate,
            "low": low,
            "high": high,
            "chance": self.chance,
            "median_rank": self.median_rank,
        }


def linkage(first: Answers, second: Answers) -> Linkage:
    """Row k of both is of one person.

    Raises ValueError on lists of different shapes, or fewer than two people.

    The share is what the best matcher known gets right.

    Two releases on the same histories with independent noise, as a report of training and a query,
    or two fresh answers. The matcher knows everything public, all answers, and the law of the
    noise; it takes true coefficients for Gaussian over people, with mean and covariance estimated
    from the answers themselves. Then the second answer b given the first a is Gaussian about the
    posterior mean m + G (a - m) with covariance C - G C + s_b^2 I, G = C (C + s_a^2 I)^-1, and
    every b goes to the person with the largest likelihood: no matcher is right more often where the
    prior is true. It is an attack: what it finds is a lower bound of what can be found, and no
    guarantee.
    """
    if first.values.shape != second.values.shape or len(first.values) < 2:
        raise ValueError(
            f"need two lists of the same 2 or more people, found shapes {first.values.shape} "
            f"and {second.values.shape}"
        )
    centres, precision = _predicted(first, second.noise_std)
    own_norms = ((centres @ precision) * centres).sum(1)
    ranks = np.empty(len(second.values))
    for start in range(0, len(second.values), _BLOCK):
        b = second.values[start : start + _BLOCK] @ precision
        # log likelihood of each person, up to what all have in common
        scores = b @ centres.T - own_norms / 2
        own = scores[np.arange(len(b)), np.arange(start, start + len(b))][:, None]
        ranks[start : start + len(b)] = 1 + (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2
    return Linkage(len(ranks), int((ranks < 1.5).sum()), float(np.median(ranks)))


def _predicted(first: Answers, second_std: float) -> tuple[Float64s, Float64s]:
    """(n, B) where each person's second answer is expected, and the inverse of its covariance (B,
    B)."""
    a = first.values
    B = first.values.shape[1]
    mean = a.mean(0)
    noise = first.noise_std**2 * np.eye(B)
    spread = np.cov(a, rowvar=False).reshape(B, B)
    eigenvalues, Q = np.linalg.eigh(spread - noise)
    C = (Q * np.maximum(eigenvalues, 0.0)) @ Q.T
    gain = C @ np.linalg.pinv(C + noise, hermitian=True)
    left = C - gain @ C + second_std**2 * np.eye(B)
    floor = 1e-12 * max(float(np.trace(C)), 1e-300) * np.eye(B)  # where neither answer has noise
    return mean + (a - mean) @ gain.T, np.asarray(
        np.linalg.inv((left + left.T) / 2 + floor), np.float64
    )


@dataclass(frozen=True)
class Extent:
    """One person's data in training: clicks of the history that count, and impressions that were
    answered."""

    clicks: int
    labels: int


@dataclass(frozen=True)
class ForAPerson:
    """training: (who, extent, epsilon per user), empty where it is promised per user; serving,
    linked: by epsilon of an answer.

    serving: see `served_person`.
    """

    delta: float
    training: tuple[tuple[str, Extent, float], ...]
    serving: dict[float, dict[str, dict[str, float]]]
    linked: dict[float, Linkage]

    def as_dict(self) -> dict[str, Any]:
        """Return the content as an object for JSON."""
        training = [
            {"who": who, "clicks": x.clicks, "labels": x.labels, "epsilon": epsilon}
            for who, x, epsilon in self.training
        ]
        serving = [{"epsilon": epsilon, "clicks": found} for epsilon, found in self.serving.items()]
        linked = [{"epsilon": epsilon, **found.as_dict()} for epsilon, found in self.linked.items()]
        return {"unit": person.UNIT, "neighbours": person.NEIGHBOURS, "delta": self.delta} | {
            "training": training,
            "serving": serving,
            "linkage": linked,
        }


def for_a_person(
    scenario: NewsScenario, train: Impressions, test: Impressions, bundle: Bundle | None
) -> ForAPerson:
    """Return what a finished run means for a person; without linkage where its model cannot be
    served."""
    served = [e for e in scenario.news.serving_epsilons if e < float("inf")]
    linked = (
        {}
        if bundle is None
        else {e: linked_queries(bundle, test, epsilon=e, seed=scenario.seed) for e in served}
    )
    return ForAPerson(
        scenario.privacy.delta,
        tuple(_training(scenario, train)),
        {e: served_person(scenario, e) for e in served},
        linked,
    )


def extents(data: Impressions, history: int) -> dict[str, Extent]:
    """Return the extent of the person in the middle, and of one with a full history and the most
    labels."""
    clicks = (data.last_clicks(history) >= 0).sum(1)
    labels = np.bincount(data.users, minlength=data.num_users)
    return {
        "the median": Extent(int(np.median(clicks)), int(np.median(labels))),
        "the most that this run asks": Extent(history, int(labels.max(initial=0))),
    }


def linked_queries(bundle: Bundle, asked: Impressions, *, epsilon: float, seed: int) -> Linkage:
    """Measure the linkage of two fresh answers at `epsilon` per click on each of at most
    `MOST_PEOPLE` histories."""
    streams = Streams(seed)
    history = asked.last_clicks(bundle.about.history)
    if len(history) > MOST_PEOPLE:
        history = history[
            np.sort(
                streams.numpy("linkage-people").choice(len(history), MOST_PEOPLE, replace=False)
            )
        ]
    guarantee = serving_guarantee(epsilon, bundle.about.delta)
    one, two = (
        ask(bundle, history, guarantee=guarantee, key=streams.key(f"linkage/{epsilon:g}", round=k))
        for k in (0, 1)
    )
    return linkage(Answers(one.raw, one.noise_std), Answers(two.raw, two.noise_std))


def _training(scenario: NewsScenario, train: Impressions) -> Iterator[tuple[str, Extent, float]]:
    if of(scenario).unit == person.UNIT:
        return
    costs = training_costs(scenario, users=train.num_users)
    for who, extent in extents(train, scenario.news.history).items():
        yield (
            who,
            extent,
            person.epsilon_of_person(
                costs, scenario.privacy.delta, clicks=extent.clicks, labels=extent.labels
            ),
        )


def _epsilon(value: float) -> str:
    """Four digits, and never an exponent."""
    return f"{value:.4g}" if value < 10_000 else f"{value:,.0f}"


def tables(found: ForAPerson) -> Iterator[TextTable]:
    """Yield the tables of the report."""
    rows = [
        (
            (
                f"training, {who}: {_count(x.clicks, 'click')} in the history, "
                f"{_count(x.labels, 'label')}"
            ),
            _epsilon(epsilon),
        )
        for who, x, epsilon in found.training
    ]
    for epsilon, by_clicks in found.serving.items():
        for answers, words in ((1, "one answer"), (10, "10 fresh answers")):
            clicks = max(by_clicks, key=int)
            rows.append(
                (
                    f"serving at ε = {epsilon:g} per click, {words} on {clicks} clicks",
                    _epsilon(by_clicks[clicks][str(answers)]),
                )
            )
    lead = (
        "A click is not a person. Had all of one person’s clicks been exchanged for others, no "
        "outcome would have become more than "
        f"e to the power of this ε times as likely, up to a probability of {power(found.delta)}. "
        "A large ε hides nobody."
    )
    if rows:
        yield TextTable(
            "What this means for a person",
            lead,
            ("all releases together", f"ε per {person.UNIT} ({person.NEIGHBOURS})"),
            tuple(rows),
        )
    if found.linked:
        lead = (
            "Measured, not promised: everybody in the test makes two queries on one history, "
            "each with fresh noise. "
            "Somebody who sees all of them says which two are of one person, by likelihood."
        )
        yield TextTable(
            "Who is known again",
            lead,
            ("two answers of one person", "matched", "95% interval", "by chance"),
            tuple(_linked(found)),
        )


def _linked(found: ForAPerson) -> Iterator[tuple[str, ...]]:
    for epsilon, one in found.linked.items():
        low, high = one.interval()
        among = f"served at ε = {epsilon:g} per click (replace), among {one.people:,} people"
        yield among, f"{one.rate:.1%}", f"{low:.1%} to {high:.1%}", f"{one.chance:.2%}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
