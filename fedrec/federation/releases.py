"""What the aggregator does once with the exact sums of a round: noise them, and say what it cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedrec.errors import PrivacyError
from fedrec.federation.messages import BlockSpec, Question, Release, ReleaseSpec
from fedrec.privacy import discrete_gaussian, gaussian
from fedrec.privacy.calibration import Plan
from fedrec.privacy.ledger import Ledger
from fedrec.streams import Streams, SystemStreams

Int64s = npt.NDArray[np.int64]


def noise_stds(question: Question, plan: Plan) -> dict[str, float]:
    """Real noise std of every release of the question, by release name. Raises PrivacyError where the grid cannot hold it."""
    return {r.name: _noise_std(r, plan) for r in question.releases}


def release(
    question: Question, sums: Sequence[Int64s], plan: Plan, ledger: Ledger, *, noise: Streams | SystemStreams
) -> tuple[Release, Ledger]:
    """Charge the ledger, then noise exact sums (one int64 array (rows, columns) per block) once.

    Guarantee: each `ReleaseSpec` is mu-GDP for the plan's unit and neighbours, mu as planned, if every unit's report is
    within the spec's radius (`reports.within_radius`). Proof: `fedrec.privacy.gaussian`. Raises BudgetExceededError
    before any noise is drawn where the ledger's limit would be passed.
    """
    for spec in question.releases:
        ledger = ledger.add(plan.event(spec.name))
    stds, parts = noise_stds(question, plan), iter(sums)
    values, by_block = dict[str, npt.NDArray[np.float64]](), dict[str, float]()
    for spec in question.releases:
        for block in spec.blocks:
            key = noise.key(f"noise/{spec.name}/{block.name}", round=question.round)
            by_block[block.name] = stds[spec.name]
            values[block.name] = _noised(next(parts), block, std=stds[spec.name], key=key, isometric=spec.isometric)
    return Release(values, by_block), ledger


def _noise_std(spec: ReleaseSpec, plan: Plan) -> float:
    steps = [block.step for block in spec.blocks]
    std = gaussian.noise_std(radius=spec.radius, mu=plan[spec.name].mu, coarsest_step=max(steps))
    if std / min(steps) > discrete_gaussian.LARGEST_STD:
        raise PrivacyError(
            f"release {spec.name!r} of {plan.guarantee} needs noise of std {std:.4g}, more than its integer grid holds",
            "Nothing useful is learnt under so much noise: use a larger epsilon, fewer steps or fewer resamples.",
        )
    return std


def _noised(sums: Int64s, block: BlockSpec, *, std: float, key: bytes, isometric: bool) -> npt.NDArray[np.float64]:
    if block.kind == "outer":
        return gaussian.add_to_symmetric(sums, step=block.step, std=std, key=key, isometric=isometric)
    return gaussian.add_to_rows(sums, step=block.step, std=std, key=key)
