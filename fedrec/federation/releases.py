"""What the aggregator does once with the exact sums of a round: noise them, and say what it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedrec.errors import PrivacyError
from fedrec.federation.messages import BlockSpec, Question, Release, ReleaseSpec
from fedrec.privacy import discrete_gaussian, gaussian
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.ledger import Ledger
from fedrec.streams import Streams, SystemStreams

Int64s = npt.NDArray[np.int64]
Charge = Callable[[Sequence[GaussianEvent]], None]
"""Told of releases before their noise is drawn. Raises BudgetExceededError where they must not be made."""


def noise_stds(question: Question, plan: Plan) -> dict[str, float]:
    """Real noise std of every release of the question, by release name. Raises PrivacyError where the grid cannot hold it."""
    return {r.name: _noise_std(r, plan) for r in question.releases}


def priced(question: Question, noise_std: Mapping[str, float], promised: Guarantee) -> tuple[GaussianEvent, ...]:
    """What the releases of a question cost with noise of these stds, by block: nothing here looks at what a plan says of them.

    The sensitivity is the radius that every report is checked against (`reports.within_radius`); it is joint over a release's blocks,
    so the block that costs most bounds them all.
    """
    return tuple(
        GaussianEvent(spec.name, max(_block_mu(spec, block, noise_std) for block in spec.blocks), promised.unit, promised.neighbours)
        for spec in question.releases
    )


def _block_mu(spec: ReleaseSpec, block: BlockSpec, noise_std: Mapping[str, float]) -> float:
    return gaussian.mu_of(radius=spec.radius, std=noise_std[block.name], coarsest_step=block.step)


def release(
    question: Question, sums: Sequence[Int64s], plan: Plan, ledger: Ledger, *, noise: Streams | SystemStreams, charge: Charge | None = None
) -> tuple[Release, Ledger]:
    """Charge the ledger, then noise exact sums (one int64 array (rows, columns) per block) once.

    Guarantee: each `ReleaseSpec` is mu-GDP for the plan's unit and neighbours, mu as planned, if every unit's report is
    within the spec's radius (`reports.within_radius`). Proof: `fedrec.privacy.gaussian`. The ledger is charged for the noise that
    will be drawn, not for what the plan calls it; then `charge` is told, which may keep it durably. Raises BudgetExceededError before
    any is drawn where a limit would be passed.
    """
    stds, parts = noise_stds(question, plan), iter(sums)
    by_block = {block.name: stds[spec.name] for spec in question.releases for block in spec.blocks}
    events = priced(question, by_block, plan.guarantee)
    for event in events:
        ledger = ledger.add(event)
    if charge is not None:
        charge(events)
    values = dict[str, npt.NDArray[np.float64]]()
    for spec in question.releases:
        for block in spec.blocks:
            key = noise.key(f"noise/{spec.name}/{block.name}", round=question.round)
            values[block.name] = _noised(next(parts), block, std=by_block[block.name], key=key, isometric=spec.isometric)
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
