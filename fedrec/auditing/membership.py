"""Membership in factorisation: did this user (or this rating, where that is the unit) take part?
Against all releases of a run.

The recipe is trained once, which gives the questions of its rounds. Everybody's reports are summed
twice, with and without the unit, end to end from the interactions: whatever the unit changes, in
anyone's report, is in the difference. `replays` does the rest. The unit is the user with the
longest reports among those tried, or one of its ratings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedrec.auditing.finding import Finding
from fedrec.auditing.replays import (
    Exposure,
    Opened,
    drawn_finding,
    exact_finding,
    exact_mu,
    opened_finding,
    views,
)
from fedrec.data.interactions import Interactions
from fedrec.federation.hostile_clients import ATTEMPTS
from fedrec.federation.messages import Question, train
from fedrec.federation.releases import noise_stds
from fedrec.federation.reports import ExactSums, squared_norms
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.guarantee import non_private
from fedrec.randomness import Streams
from fedrec.recipes import Prepared
from fedrec.sharing.layout import plain_numbers, plan_layout
from fedrec.sharing.servers import projection

_TRIED_USERS = 256
_TRIED_EVENTS = 12
"""Users, and events of one of them, that are tried, spread evenly: each takes a client's whole
report, and the longest of so many is close to the longest of all."""


def membership(
    prepared: Prepared, data: Interactions, *, variant: str, draws: int, streams: Streams
) -> tuple[Finding, ...]:
    """The unit's reports against the declared noise, and `draws` runs with and without it."""
    if not prepared.plan.guarantee.private:
        return (
            Finding(
                "membership",
                variant,
                prepared.plan.guarantee,
                math.inf,
                "exact",
                1.0,
                note="no noise",
            ),
        )
    questions = asked(prepared, data, streams)
    exposures = most_exposed(prepared, data, questions)
    name = "membership" if prepared.plan.guarantee.unit == "user" else "one rating"
    found = list[Finding]()
    plan = prepared.plan
    for view in views(plan):
        found.append(exact_finding(f"{name}: length{view.name}", variant, exposures, plan, view))
        found.append(
            drawn_finding(
                f"{name}: ratio test{view.name}",
                variant,
                exposures,
                plan,
                view,
                draws=draws,
                streams=streams,
            )
        )
    if any(exposure.opened for exposure in exposures):
        attack = f"{name}: openings of checks, any one aggregator"
        found.append(opened_finding(attack, variant, exposures, plan, draws=draws, streams=streams))
    return tuple(found)


def asked(prepared: Prepared, data: Interactions, streams: Streams) -> list[Question]:
    """The questions of one run on all of the data."""
    link = _loopback(prepared, data, streams)
    return [done.question for done in train(prepared.recipe, link, prepared.recipe.begin())]


def most_exposed(
    prepared: Prepared, data: Interactions, questions: Sequence[Question]
) -> list[Exposure]:
    """Sums with and without the unit that the plan protects least, of those tried."""
    user = _longest_reports(prepared, data, questions)
    if prepared.plan.guarantee.unit == "user":
        return exposed(prepared, data, questions, data.users == user)
    mine = np.flatnonzero(data.users == user)
    tried = mine[np.linspace(0, len(mine) - 1, min(len(mine), _TRIED_EVENTS)).astype(np.int64)]
    each = [exposed(prepared, data, questions, np.arange(len(data)) == event) for event in tried]
    return max(each, key=lambda found: exact_mu(found, prepared.plan))


def exposed(
    prepared: Prepared,
    data: Interactions,
    questions: Sequence[Question],
    unit: npt.NDArray[np.bool_],
) -> list[Exposure]:
    """Sums of every round over all `data`, and over the data without the events of `unit` (n,)."""
    rest = data.select(~unit)
    streams = Streams(0)
    both = [_loopback(prepared, part, streams) for part in (rest, data)]
    found = list[Exposure]()
    for question in questions:
        without, inside = (_sums(link, question) for link in both)
        found.append(
            Exposure(question, without, inside, _opened(prepared, (rest, data), question, unit))
        )
    return found


def _opened(
    prepared: Prepared,
    both: tuple[Interactions, Interactions],
    question: Question,
    unit: npt.NDArray[np.bool_],
) -> Opened | None:
    """What checks open of the unit's user, whose row is one of `both`, in all attempts that are
    charged; None where nothing is checked."""
    checked = plan_layout(question, prepared.plan).checked if prepared.plan.checked else None
    if checked is None:
        return None
    layout = plan_layout(question, prepared.plan)
    user = np.unique(both[1].users[unit])
    reports = (prepared.steps[question.step](question, part.users_subset(user)) for part in both)
    without, inside = (
        plain_numbers(report, layout)[0, checked.data].view(np.int64) for report in reports
    )
    numbers = checked.data.stop
    coins = [
        projection([f"{question.round}/{attempt}".encode()], numbers).view(np.int64)
        for attempt in range(ATTEMPTS)
    ]
    return Opened(checked, np.stack([(inside - without) @ C for C in coins]).astype(np.float64))


def _sums(link: Loopback, question: Question) -> tuple[npt.NDArray[np.int64], ...]:
    sums = ExactSums(question.blocks)
    for reports in link.reports(question):
        sums.add(reports)
    return sums.blocks


def _longest_reports(prepared: Prepared, data: Interactions, questions: Sequence[Question]) -> int:
    """The user with the largest mu, among users with events evenly spaced by number; the first of
    those alike."""
    busy = np.flatnonzero(np.diff(data.user_ptr))
    tried = busy[np.linspace(0, len(busy) - 1, min(len(busy), _TRIED_USERS)).astype(np.int64)]
    squares = np.array([_squared_mu(prepared, data, questions, user) for user in tried])
    sizes = np.diff(data.user_ptr)[tried]
    # alike but for rounding in sums, whose order depends on how many events a user has
    best = squares >= squares.max() * (1 - 1e-6)
    return int(tried[best][np.argmin(sizes[best])])  # the fewest numbers to noise


def _squared_mu(
    prepared: Prepared, data: Interactions, questions: Sequence[Question], user: np.intp
) -> float:
    total = 0.0
    mine = data.users_subset(np.array([user]))
    for question in questions:
        norms = squared_norms(prepared.steps[question.step](question, mine), question.releases)[
            :, 0
        ]
        stds = noise_stds(question, prepared.plan)
        total += math.fsum(
            norm / stds[r.name] ** 2 for norm, r in zip(norms, question.releases, strict=True)
        )
    return total


def _loopback(prepared: Prepared, data: Interactions, streams: Streams) -> Loopback:
    limit = replace(non_private(prepared.plan.guarantee.delta), unit=prepared.plan.guarantee.unit)
    return Loopback(data, prepared.steps, prepared.plan, streams, Ledger(limit))
