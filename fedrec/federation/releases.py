"""Release of the exact sums of a round, which the aggregator makes once: noise, and its price."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np

from fedrec.arrays import Int64s
from fedrec.errors import PrivacyError
from fedrec.federation.hostile_clients import checks, noise_mu, opening_mu
from fedrec.federation.messages import BlockSpec, Question, Release, ReleaseSpec
from fedrec.privacy import calibration, gaussian
from fedrec.privacy.accounting import GaussianEvent, Ledger
from fedrec.privacy.calibration import PARTIES, Plan
from fedrec.randomness import Streams, SystemStreams

Charge = Callable[[Sequence[GaussianEvent]], None]
"""Told of releases before their noise is drawn.

Raises BudgetExceededError where they must not be made."""
Source = Union[Streams, SystemStreams, "PartyStreams"]
"""Where one aggregator's noise comes from."""


def noise_stds(question: Question, plan: Plan) -> dict[str, float]:
    """Real std of all noise that every release of the question carries, by release name; what
    checks of clients cost is taken off its mu.

    Raises PrivacyError where the grid cannot hold it.
    """
    left = noise_mu(question, plan)
    return {r.name: _noise_std(r, plan, left[r.name]) for r in question.releases}


def priced(
    question: Question, noise_std: Mapping[str, float], plan: Plan
) -> tuple[GaussianEvent, ...]:
    """What the releases of a question cost with noise of these stds, by block: nothing here looks
    at what the plan says of them.

    The sensitivity is the radius that every report is checked against (`reports.within_radius`); it
    is joint over a release's blocks, so the block that costs most bounds them all. Where three
    aggregate, counted is the noise that two of them leave, and what is opened to check clients.
    """
    left = {name: std / plan.noise_excess for name, std in noise_std.items()}
    promised = plan.guarantee
    opened = (
        opening_mu(question)
        if checks(plan)
        else dict.fromkeys((spec.name for spec in question.releases), 0.0)
    )
    mus = {
        spec.name: max(_block_mu(spec, block, left) for block in spec.blocks)
        for spec in question.releases
    }
    return tuple(
        GaussianEvent(name, math.hypot(mu, opened[name]), promised.unit, promised.neighbours)
        for name, mu in mus.items()
    )


def _block_mu(spec: ReleaseSpec, block: BlockSpec, noise_std: Mapping[str, float]) -> float:
    return gaussian.mu_of(radius=spec.radius, std=noise_std[block.name], coarsest_step=block.step)


def release(
    question: Question,
    sums: Sequence[Int64s],
    plan: Plan,
    ledger: Ledger,
    *,
    noise: Streams | SystemStreams,
    charge: Charge | None = None,
) -> tuple[Release, Ledger]:
    """Charge the ledger, then noise exact sums (one int64 array (rows, columns) per block) once;
    three times where three aggregate.

    Guarantee: each `ReleaseSpec` is mu-GDP for the plan's unit and neighbours, mu as planned, if
    every unit's report is within the spec's radius (`reports.within_radius`). Proof:
    `fedrec.privacy.gaussian`, for three `fedrec.privacy.calibration`. The ledger is charged for
    the noise that will be drawn, not for what the plan calls it; then `charge` is told, which may
    keep it durably. Raises BudgetExceededError before any is drawn where a limit would be passed.
    """
    ledger = charged(question, plan, ledger, charge=charge)
    totals = [np.array(block) for block in sums]
    for streams in parties(noise, plan):
        for total, drawn in zip(
            totals, party_noise(question, plan, streams, [t.shape for t in totals]), strict=True
        ):
            total += drawn
    return in_real_units(question, totals, plan), ledger


def charged(
    question: Question, plan: Plan, ledger: Ledger, *, charge: Charge | None = None
) -> Ledger:
    """The ledger with what the question's releases cost.

    Raises BudgetExceededError; nothing may be drawn then."""
    events = priced(question, _by_block(question, plan), plan)
    for event in events:
        ledger = ledger.add(event)
    if charge is not None:
        charge(events)
    return ledger


@dataclass(frozen=True)
class PartyStreams:
    """One of several aggregators' randomness out of one source, where all are played in one
    process."""

    source: Streams | SystemStreams
    party: int

    def key(self, name: str, *, round: int = 0) -> bytes:
        """The source's key for a name that is this aggregator's alone."""
        return self.source.key(f"aggregator-{self.party}/{name}", round=round)


def parties(noise: Streams | SystemStreams, plan: Plan) -> tuple[Source, ...]:
    """The randomness of every aggregator of the plan."""
    return (
        (noise,)
        if plan.aggregation == "trusted"
        else tuple(PartyStreams(noise, i) for i in range(PARTIES))
    )


def party_noise(
    question: Question, plan: Plan, noise: Source, shapes: Sequence[tuple[int, ...]] = ()
) -> Iterator[Int64s]:
    """What one of the plan's aggregators adds to the sums, block by block, in units of each block's
    grid.

    shapes: of the sums, where some columns of a linear block are wanted alone.
    """
    sizes = iter(shapes or [(block.rows, block.columns) for block in question.blocks])
    share = 1.0 if plan.aggregation == "trusted" else 1 / math.sqrt(PARTIES)
    by_block = {name: share * std for name, std in _by_block(question, plan).items()}
    for spec in question.releases:
        for block in spec.blocks:
            key = noise.key(f"noise/{spec.name}/{block.name}", round=question.round)
            yield _integers(
                block, next(sizes), std=by_block[block.name], key=key, isometric=spec.isometric
            )


def _integers(
    block: BlockSpec, shape: tuple[int, ...], *, std: float, key: bytes, isometric: bool
) -> Int64s:
    if block.form.matrix:
        return gaussian.symmetric_noise(
            shape, step=block.step, std=std, key=key, isometric=isometric
        )
    return gaussian.row_noise(shape, step=block.step, std=std, key=key)


def in_real_units(question: Question, totals: Sequence[Int64s], plan: Plan) -> Release:
    """What the server is told: noised integers times their steps, and how much noise they carry."""
    values = {
        block.name: np.asarray(total * block.step, np.float64)
        for block, total in zip(question.blocks, totals, strict=True)
    }
    return Release(values, _by_block(question, plan))


def _by_block(question: Question, plan: Plan) -> dict[str, float]:
    stds = noise_stds(question, plan)
    return {block.name: stds[spec.name] for spec in question.releases for block in spec.blocks}


def _noise_std(spec: ReleaseSpec, plan: Plan, mu: float) -> float:
    steps = [block.step for block in spec.blocks]
    std = gaussian.noise_std(radius=spec.radius, mu=mu, coarsest_step=max(steps))
    if plan.aggregation == "three-party":
        std = calibration.total_std(std, coarsest_step=max(steps))
    if std / min(steps) > gaussian.LARGEST_STD:
        raise PrivacyError(
            (
                f"release {spec.name!r} of {plan.guarantee} needs noise of std {std:.4g}, more "
                "than its integer grid holds"
            ),
            (
                "Nothing useful is learnt under so much noise: use a larger epsilon, fewer steps "
                "or fewer resamples."
            ),
        )
    return std
