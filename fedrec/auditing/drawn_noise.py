"""Noise as it is drawn: what the devices of a variant really add to what they send, against what
its ledger charges for it.

Every upload is made twice by the registered variant's own code, with its noise and without; the
difference is the noise, many numbers of it over many rounds and users. Its standard deviation, at
most so large with the stated confidence (chi-squared, Lehmann & Romano 2005, Example 5.1.1), gives
the least mu of one answer for the sensitivity that the proofs use; as many answers as the schedule
has compose exactly. Noise that is alike in two rounds, or at two users, is no noise against whoever
sees both: infinite.

The claim is the smaller of what the variant promises and what it charges, for the clicks of a
history or for labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedrec.arrays import Float64s, Int64s
from fedrec.auditing.bounds import CONFIDENCE
from fedrec.auditing.finding import Finding
from fedrec.auditing.label_table import ratio_finding
from fedrec.auditing.uploads import Clients
from fedrec.data.impressions import Impressions
from fedrec.news.attention import LaplaceAttention
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.local_update import Behind, NoisedGradients
from fedrec.news.reports_training import collect
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.click_accounting import plan_training
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event, PaddedEvent, epsilon_of_events
from fedrec.privacy.selection import PureEvent
from fedrec.randomness import Streams

# a correlation of two vectors of independent noise is past this with 20 numbers by 1e-8, with more
# never
_ALIKE = 0.9


def charged(claim: Guarantee, events: Sequence[Event]) -> Guarantee:
    """The smaller of a promise and of what is charged to a click for it."""
    return replace(claim, epsilon=min(claim.epsilon, epsilon_of_events(events, claim.delta)))


def finding(variant: str, clients: Clients, users: Int64s, *, rounds: int) -> Finding:
    """Check the noise that noised attention (`local`) or whole gradients (`dp-fedrec`) draw in so
    many rounds of these users."""
    claim = charged(clients.claim, clients.costs.history)
    update = clients.update
    if isinstance(update, Behind):
        bare: Behind | NoisedGradients = replace(update, plan=replace(update.plan, step=0.0))
    else:
        assert isinstance(update, NoisedGradients)
        bare = replace(update, noise_std=0.0)
    noise = []
    radius = 0.0
    for round in range(1, rounds + 1):
        sent, exact = (_sent(clients, each, users, round) for each in (update, bare))
        noise += list((sent - exact).reshape(len(users), -1))
        radius = max(radius, _sensitivity(bare, exact))
    if isinstance(update, Behind) and isinstance(update.plan, LaplaceAttention):
        return _laplace_finding(
            variant, claim, noise, 2 * min(update.plan.theta, 1.0), clients.passes
        )
    padding = update.plan.padding if isinstance(update, Behind) else 0.0
    return _finding("noise as drawn", variant, claim, noise, radius, padding, clients.passes)


def report_finding(
    claim: Guarantee, data: Impressions, topics: TopicTable, *, history: int, streams: Streams
) -> Finding:
    """Check the noise in the reports of `additive`: every user's one."""
    plan = plan_training(claim)
    got = collect(
        data, topics, plan, history=history, noise=DeviceNoise.numbered(streams, data.num_users)
    )
    noised = topics.topics - topics.told
    noise = (
        got.coefficients.values - bounded_mean.coefficients(data.last_clicks(history), topics)
    )[:, :noised]
    return _finding(
        "noise as drawn",
        "additive",
        charged(claim, plan.costs.history),
        list(noise),
        topics.diameter / history,
        0.0,
        1,
    )


def label_finding(variant: str, clients: Clients, told: Sequence[npt.NDArray[np.bool_]]) -> Finding:
    """From the answers (n, C) of the variant's own devices to a click on candidate 0, and to one on
    candidate 1."""
    return ratio_finding(variant, charged(clients.claim, clients.costs.labels), told)


def _sent(
    clients: Clients, update: Behind | NoisedGradients, users: Int64s, round: int
) -> Float64s:
    """(users, numbers) what each of them releases in a round."""
    if isinstance(update, Behind):
        return update.released(clients.model, users, round)
    return np.stack(
        [
            update(clients.model, users[k : k + 1], round)[0].astype(np.float64)
            for k in range(len(users))
        ]
    )


def _sensitivity(bare: Behind | NoisedGradients, exact: Float64s) -> float:
    """How far two answers without noise can be apart: by the proof, or more where an answer is
    longer than it may be."""
    longest = float(np.linalg.norm(exact, axis=1).max())
    if isinstance(bare, Behind):
        return math.sqrt(2) * max(min(bare.plan.theta, 1.0), longest)
    return 2 * max(bare.clip, longest)


def _finding(
    attack: str,
    variant: str,
    claim: Guarantee,
    noise: list[Float64s],
    radius: float,
    padding: float,
    answers: int,
) -> Finding:
    values = np.stack(noise)
    size = values.size
    ratio = float(np.sqrt((values**2).mean()))
    if ratio == 0 or _some_alike(values):
        note = "no noise" if ratio == 0 else "the same noise twice"
        return Finding(attack, variant, claim, math.inf, "exact", 1.0, size, note=note)
    most = ratio * math.sqrt(size / stats.chi2.ppf(1 - CONFIDENCE, size))
    event = (
        PaddedEvent("answer", radius / most, padding)
        if padding
        else GaussianEvent("answer", radius / most, claim.unit, claim.neighbours)
    )
    measured = epsilon_of_events([event] * answers, claim.delta)
    note = f"std {ratio:.4g} for a sensitivity of {radius:.4g}, {answers} answers"
    return Finding(attack, variant, claim, measured, "gaussian", CONFIDENCE, size, note=note)


def _laplace_finding(
    variant: str, claim: Guarantee, noise: list[Float64s], distance: float, answers: int
) -> Finding:
    """Check the noise of pure answers whose weights are at most `distance` apart in L1: 2 sum
    |noise| / parameter is chi squared."""
    values = np.stack(noise)
    attack = "noise as drawn"
    total = float(np.abs(values).sum())
    if total == 0 or _some_alike(values):
        return Finding(
            attack,
            variant,
            claim,
            math.inf,
            "exact",
            1.0,
            values.size,
            note="no noise" if total == 0 else "the same noise twice",
        )
    most = 2 * total / float(stats.chi2.ppf(1 - CONFIDENCE, 2 * values.size))
    measured = epsilon_of_events([PureEvent("answer", distance / most)] * answers, claim.delta)
    note = f"parameter {total / values.size:.4g} for {distance:.4g} in L1, {answers} answers"
    return Finding(attack, variant, claim, measured, "laplace", CONFIDENCE, values.size, note=note)


def _some_alike(values: Float64s) -> bool:
    """Whether two rows are multiples of each other, or nearly so: of short ones, whether two are
    equal."""
    if values.shape[1] < 20:
        return len(np.unique(values, axis=0)) < len(values)
    unit = values[:, :4096] / np.maximum(
        np.linalg.norm(values[:, :4096], axis=1, keepdims=True), 1e-300
    )
    return bool((np.abs(unit @ unit.T) - np.eye(len(unit)) > _ALIKE).any())
