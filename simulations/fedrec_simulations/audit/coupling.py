"""The coupling test: what was released stays the same and the history is another; whatever else leaves must be the same, bit for bit.

It checks the one step of a proof that no noise can mend, "the rest is post-processing". It proves no epsilon; a difference refutes the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedrec.data.impressions import Impressions
from fedrec.evaluation.impressions import with_swapped_histories
from fedrec.privacy.guarantee import Guarantee
from fedrec.privaterec.additive import TopicTable
from fedrec.privaterec.reports_training import Collected, collect
from fedrec.privaterec.spending import plan_training
from fedrec.streams import Streams
from fedrec_simulations.audit.finding import Finding
from fedrec_simulations.audit.recovery import Target
from fedrec_simulations.audit.uploads import Labels, Pupil, Upload


def gradient_finding(
    variant: str, claim: Guarantee, pupil: Pupil, upload: Upload, told: Labels, aims: Sequence[Target], *, streams: Streams
) -> Finding:
    """Gradients of each target with its own history and with its stand-ins; noise, labels and released weights alike."""
    different = 0
    for number, aim in enumerate(aims):
        fresh = Streams(int(streams.numpy("audit/coupling", round=number).integers(2**62)))
        one, other = (upload(pupil, told(lesson, fresh), fresh) for lesson in (aim.lesson, aim.decoy))
        different += any(one[name].tobytes() != other[name].tobytes() for name in one)
    return _finding(variant, claim, different, len(aims))


def report_finding(variant: str, claim: Guarantee, data: Impressions, topics: TopicTable, *, history: int, streams: Streams) -> Finding:
    """All that the clients send for training, collected twice: but for the noised coefficients themselves it must not differ."""
    swapped = with_swapped_histories(data, rng=streams.numpy("audit/swap"))
    plan = plan_training(claim)
    one, other = (collect(part, topics, plan, history=history, noise=streams) for part in (data, swapped))
    alike = replace(other, coefficients=one.coefficients)  # the same released values
    return _finding(variant, claim, int(_bytes(one) != _bytes(alike)), data.num_users)


def _bytes(sent: Collected) -> tuple[object, ...]:
    arrays = (sent.coefficients.values, sent.labels.reported, sent.labels.null, sent.labels.candidate_ptr, sent.users, sent.candidates)
    return (*(np.ascontiguousarray(array).tobytes() for array in arrays), sent.coefficients.noise_std, sent.labels.epsilon, sent.ledger)


def _finding(variant: str, claim: Guarantee, different: int, tried: int) -> Finding:
    note = f"{different} of {tried} uploads changed with the history" if different else f"{tried} uploads bit-identical"
    return Finding("coupling", variant, claim, 0.0, "none", 1.0, tried, refuted=different > 0, note=note)
