"""The coupling test: what was released stays the same and the history is another; whatever else
leaves must be the same, bit for bit.

It checks the one step of a proof that no noise can mend, "the rest is post-processing". It proves
no epsilon; a difference refutes the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedrec.arrays import Float32s
from fedrec.auditing.finding import Finding
from fedrec.auditing.recovery import Target
from fedrec.auditing.uploads import Clients
from fedrec.data.impressions import Impressions
from fedrec.evaluation.impressions import with_swapped_histories
from fedrec.news.attention import renormalise_relu
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.local_update import Behind, released_gradient
from fedrec.news.reports_training import Collected, collect
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.click_accounting import plan_training
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams


def gradient_finding(variant: str, clients: Clients, aims: Sequence[Target]) -> Finding:
    """Each target's upload, and the same with its stand-ins for a history and the released values
    of the first."""
    different = 0
    for draw, aim in enumerate(aims, start=1):
        first = clients.update(clients.model, np.array([aim.user]), draw)[0]
        different += first.tobytes() != _recomputed(clients, aim, draw).tobytes()
    return _finding(variant, clients.claim, different, len(aims))


def _recomputed(clients: Clients, aim: Target, draw: int) -> Float32s:
    """From the released values where there are some, from the same noise where there are none."""
    other = clients.with_history(aim.user, aim.decoy)
    user = np.array([aim.user])
    update = clients.update
    if not isinstance(update, Behind):
        return other.update(other.model, user, draw)[0]
    released = renormalise_relu(update.released(clients.model, user, draw)).astype(np.float32)
    return released_gradient(other.model, other.update.devices, user, released)[0]


def report_finding(
    variant: str,
    claim: Guarantee,
    data: Impressions,
    topics: TopicTable,
    *,
    history: int,
    streams: Streams,
) -> Finding:
    """All that the clients send for training, collected twice: but for the noised coefficients
    themselves it must not differ."""
    swapped = with_swapped_histories(data, rng=streams.numpy("audit/swap"))
    plan = plan_training(claim)
    noise = DeviceNoise.numbered(streams, data.num_users)
    one, other = (
        collect(part, topics, plan, history=history, noise=noise) for part in (data, swapped)
    )
    alike = replace(other, coefficients=one.coefficients)  # the same released values
    return _finding(variant, claim, int(_bytes(one) != _bytes(alike)), data.num_users)


def _bytes(sent: Collected) -> tuple[object, ...]:
    arrays = (
        sent.coefficients.values,
        sent.labels.reported,
        sent.labels.null,
        sent.labels.candidate_ptr,
        sent.users,
        sent.candidates,
    )
    return (
        *(np.ascontiguousarray(array).tobytes() for array in arrays),
        sent.coefficients.noise_std,
        sent.labels.epsilon,
        sent.ledger,
    )


def _finding(variant: str, claim: Guarantee, different: int, tried: int) -> Finding:
    note = (
        f"{different} of {tried} uploads changed with the history"
        if different
        else f"{tried} uploads bit-identical"
    )
    return Finding(
        "coupling", variant, claim, 0.0, "none", 1.0, tried, refuted=different > 0, note=note
    )
