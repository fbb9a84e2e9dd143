"""Release of the exact sums of a round, which the aggregator makes once: noise, its price, and what
it costs people with limits of their own.

Personal epsilons: a user's own limit decides how much its report counts (each user at most the
run's epsilon, many below it).

A user with limit epsilon_k sends a_k times its report, a_k = mu(epsilon_k) / mu(epsilon) at the
run's delta. All blocks of all releases are shrunk alike, and every release is linear in reports:
what is released is that of a population in which user k counts a_k times. Counts, sums and Gram
matrices are weighted alike, so that a ratio of two of them, or a solve of one by the other, is a
weighted estimate. What a recipe divides by the number of users it divides by the sum of a_k instead
(`mean_weight`).

Guarantee (user k, add/remove, number of users and shares of limits public). A release whose reports
have norm at most D and whose noise makes it mu-GDP moves by at most a_k D when user k leaves, so
that it is (a_k mu)-GDP for that user. mu adds up in squares over releases, so the run is a_k
mu(epsilon) = mu(epsilon_k)-GDP, hence (epsilon_k, delta)-DP, for user k. Coefficients are cut
towards zero on the report's own grid, which lengthens nothing. It needs a_k to be no function of
the user's data: a device takes the largest announced limit that is not above its own, which whoever
holds the device chose, and nobody is told which. The shares are announced, not counted.

Alaggan, Gambs and Kermarrec 2016 call this heterogeneous differential privacy, and stretch data in
the same way; Jorgensen, Yu and Cormode 2015 sample users instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Union

import numpy as np

from fedrec.arrays import Float64s, Int64s
from fedrec.errors import PrivacyError
from fedrec.federation.hostile_clients import opening_mu
from fedrec.federation.messages import (
    BlockReports,
    BlockSpec,
    ClientStep,
    Question,
    Release,
    ReleaseSpec,
    Reports,
)
from fedrec.privacy import calibration, correlated, discrete_gaussian, gaussian
from fedrec.privacy.accounting import GaussianEvent, Ledger, mu_for
from fedrec.privacy.calibration import PARTIES, Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Noise, Streams, SystemStreams

if TYPE_CHECKING:
    from fedrec.data.interactions import Interactions

Charge = Callable[[Sequence[GaussianEvent]], None]
"""Told of releases before their noise is drawn.

Raises BudgetExceededError where they must not be made."""
Source = Union[Noise, "PartyStreams"]
"""Where one aggregator's noise comes from."""
Limits = Mapping[float, float]
"""By epsilon, the announced share of all users whose limit it is; shares sum to 1."""


def noise_stds(question: Question, plan: Plan) -> dict[str, float]:
    """Real std of all noise that every release of the question carries, by release name; what
    checks of clients cost is taken off its mu.

    Raises PrivacyError where the grid cannot hold it.
    """
    left = noise_mu(question, plan)
    return {r.name: _noise_std(r, plan, left[r.name]) for r in question.releases}


def noise_mu(question: Question, plan: Plan) -> Mapping[str, float]:
    """mu that is left for each release's noise.

    Raises PrivacyError where the checks alone cost more than was planned."""
    planned = {release.name: plan[release.name].mu for release in question.releases}
    if not plan.checked:
        return planned
    opened = opening_mu(question)
    if name := next((name for name, mu in planned.items() if opened[name] >= mu), ""):
        raise PrivacyError(
            f"checks of release {name!r} on this grid cost more than was planned for it",
            "Ask on a coarser grid.",
        )
    return {name: math.sqrt(mu**2 - opened[name] ** 2) for name, mu in planned.items()}


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
        if plan.checked
        else dict.fromkeys((spec.name for spec in question.releases), 0.0)
    )
    mus = {
        spec.name: max(
            _block_mu(spec, block, left[block.name], plan.horizon) for block in spec.blocks
        )
        for spec in question.releases
        if spec.charged
    }
    return tuple(
        GaussianEvent(name, math.hypot(mu, opened[name]), promised.unit, promised.neighbours)
        for name, mu in mus.items()
    )


def _block_mu(spec: ReleaseSpec, block: BlockSpec, std: float, horizon: int) -> float:
    norm, lattice = correlated.widened(horizon)
    return gaussian.mu_of(radius=norm * spec.radius, std=std, coarsest_step=lattice * block.step)


def release(
    question: Question,
    sums: Sequence[Int64s],
    plan: Plan,
    ledger: Ledger,
    *,
    noise: Noise,
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

    Raises BudgetExceededError, and PrivacyError on a week of a stream that was not planned or paid
    for; nothing may be drawn then."""
    require_week(question, plan)
    paid = {event.name for event in ledger.events}
    if unpaid := [spec for spec in question.releases if not (spec.charged or spec.name in paid)]:
        raise PrivacyError(
            f"release {unpaid[0].name!r} goes on with week {unpaid[0].week}, and this ledger holds "
            "no charge for it",
            "Begin with week 1, or bring back the ledger of the stream.",
        )
    events = priced(question, _by_block(question, plan), plan)
    for event in events:
        ledger = ledger.add(event)
    if charge is not None:
        charge(events)
    return ledger


def require_week(question: Question, plan: Plan) -> None:
    """That a question is what the plan's weeks allow: none without a horizon; with one, round after
    round one of the plan's releases of one week, in the plan's order, of radius 1.

    A round thus has one release and one week, and a week one round of each release. A smaller
    radius would bound each week, and not the year, in which squared norms add up to 1. Raises
    PrivacyError."""
    names = [release.name for release in plan.releases]
    for place, spec in enumerate(question.releases):
        if not bool(plan.horizon) <= spec.week <= plan.horizon:
            raise PrivacyError(
                f"week {spec.week} of release {spec.name!r} is none of the {plan.horizon} planned",
                "Plan a new stream: it is a guarantee of its own.",
            )
        if not plan.horizon:
            continue
        now = (spec.week - 1) * len(names) + names.index(spec.name)
        matrix = any(block.form.matrix for block in spec.blocks)
        if (place, question.round, spec.radius, matrix) != (0, now, 1.0, False):
            raise PrivacyError(
                f"round {question.round} asks for week {spec.week} of {spec.name!r}: of a stream "
                "each round has one linear release, in the plan's order, of radius 1",
                "Use the same version of fedrec everywhere.",
            )


@dataclass(frozen=True)
class PartyStreams:
    """One of several aggregators' randomness out of one source, where all are played in one
    process."""

    source: Noise
    party: int

    def key(self, name: str, *, round: int = 0) -> bytes:
        """The source's key for a name that is this aggregator's alone."""
        return self.source.key(f"aggregator-{self.party}/{name}", round=round)


def parties(noise: Noise, plan: Plan) -> tuple[Source, ...]:
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
            if spec.week:
                yield _stream_integers(block, next(sizes), spec, plan, stds=by_block, noise=noise)
                continue
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


def _stream_integers(
    block: BlockSpec,
    shape: tuple[int, ...],
    spec: ReleaseSpec,
    plan: Plan,
    *,
    stds: Mapping[str, float],
    noise: Source,
) -> Int64s:
    """Noise of one week of a stream, derived from what earlier weeks were derived from."""
    if isinstance(noise, SystemStreams) or plan.aggregation != "trusted" or block.form.matrix:
        raise ValueError("a stream has linear blocks and one aggregator, whose noise is derived")
    name = f"stream/{plan.digest()}/{spec.name}/{block.name}"
    keys = [noise.key(name, round=week) for week in range(1, spec.week + 1)]
    return correlated.week_noise(
        shape, step=block.step, std=stds[block.name], horizon=plan.horizon, keys=keys
    )


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
    norm, lattice = correlated.widened(plan.horizon)
    steps = [lattice * block.step for block in spec.blocks]
    std = gaussian.noise_std(radius=norm * spec.radius, mu=mu, coarsest_step=max(steps))
    if plan.aggregation == "three-party":
        std = calibration.total_std(std, coarsest_step=max(steps))
    if std / min(steps) > discrete_gaussian.LARGEST_STD:
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


def weight(limit: float, promised: Guarantee) -> float:
    """a_k: how much a report counts that may cost `limit` in a run of this guarantee; at most 1."""
    if limit >= promised.epsilon:
        return 1.0
    return mu_for(limit, promised.delta) / mu_for(promised.epsilon, promised.delta)


def mean_weight(limits: Limits, promised: Guarantee) -> float:
    """Mean weight of all users, as announced: what sums are divided by, times the number of
    users."""
    return (
        math.fsum(share * weight(limit, promised) for limit, share in limits.items())
        if limits
        else 1.0
    )


def announced(own: float, limits: Limits) -> float:
    """The largest announced limit that is not above a user's own; 0 where there is none."""
    return max((limit for limit in limits if limit <= own), default=0.0)


def weighted(reports: Reports, weights: Float64s, blocks: Sequence[BlockSpec]) -> Reports:
    """Every user's coefficients times its weight (num_users,) in [0, 1], cut towards zero: no
    report gets longer.

    blocks: of the question; one of a single row has a coefficient for each user, the others one for
    each of its items.
    """
    if weights.shape != (reports.num_users,) or not bool(np.all((weights >= 0) & (weights <= 1))):
        raise ValueError(
            f"{reports.num_users} users need as many weights in [0, 1], found {weights.shape}"
        )
    if bool(np.all(weights == 1)):
        return reports
    by_event = np.repeat(weights, np.diff(reports.user_ptr))
    factors = [weights if spec.rows == 1 else by_event for spec in blocks]
    return replace(
        reports,
        blocks=tuple(_shrunk(part, by) for part, by in zip(reports.blocks, factors, strict=True)),
    )


def with_limits(step: ClientStep, limits: Limits, promised: Guarantee) -> ClientStep:
    """This step among people who chose among the limits, for a simulation."""

    def limited(question: Question, mine: Interactions) -> Reports:
        weights = np.array([weight(limit, promised) for limit in sorted(limits)])
        return weighted(step(question, mine), weights[_chosen(mine, limits)], question.blocks)

    return limited


def own_epsilons(mine: Interactions, limits: Limits) -> Float64s:
    """(num_users,) the limit of each user in a simulation."""
    return np.asarray(sorted(limits), np.float64)[_chosen(mine, limits)]


def _chosen(mine: Interactions, limits: Limits) -> Int64s:
    """(num_users,) the place of each user's limit among all in order: drawn by its id, in the
    announced shares."""
    edges = np.cumsum([limits[limit] for limit in sorted(limits)])
    drawn = mine.user_draws(Streams(0).key("personal-limits")).astype(np.float64) / 2.0**64
    return np.minimum(np.searchsorted(edges, drawn, side="right"), len(limits) - 1)


def _shrunk(block: BlockReports, factors: Float64s) -> BlockReports:
    # towards zero: a coefficient that grew would pass the clip
    return block.part(np.trunc(block.coefficients * factors).astype(block.coefficients.dtype))
