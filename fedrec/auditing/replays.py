"""A release seen again and again: the same exact sums with and without one unit, and fresh noise
from the aggregator's own code.

The best attack on Gaussian sums knows everything but the noise: what everybody else sent, what the
unit would send (r), and the noise std. By Neyman and Pearson no score tells "in" from "out" better
than

    sum over releases of <noised sum - sum without, r> / std^2,    normal with mean mu^2 or 0, and
        variance mu^2 = sum ||r||^2 / std^2

Numbers in which the unit has no part say nothing and are left out; many runs of a release are one
longer release, whose noise is as independent. What draws the noise is
`federation.releases.release`, as in a run.

Where three aggregators check clients, each sees projections y = C x + e of every user's row x under
the user's own noise, once in each attempt at a round (`sharing.servers`). With the unit's row z
apart from the empty report's, the server together with one of them adds sum over attempts <y - C
x', C z> / std(e)^2 to its score, and |C z|^2 / std(e)^2 to mu^2.

Questions are those of one run. That later questions depend on earlier releases changes nothing:
given any question, the score of its round has the law above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedrec.arrays import Float64s, Int64s
from fedrec.auditing.bounds import lower_bound
from fedrec.auditing.finding import Finding
from fedrec.federation.messages import BlockSpec, Question, Release
from fedrec.federation.releases import noise_mu, noise_stds, parties, party_noise, release
from fedrec.privacy.accounting import Ledger, epsilon_of
from fedrec.privacy.calibration import PARTIES, Plan
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec.sharing.layout import CheckedRow, own_noise

_PIECE = 1 << 21  # numbers noised at once
_MOST_NUMBERS = 1 << 27  # noised in all on each side: some ten seconds
_LEAST_DRAWS = 500  # of all runs on one side: some seconds


@dataclass(frozen=True)
class Opened:
    """What the unit changes in its user's projections: `direction` (attempts, `ROWS`) in whole
    numbers, under noise as `checked` says."""

    checked: CheckedRow
    direction: Float64s

    @property
    def squared_mu(self) -> float:
        """Squared mu of all attempts together."""
        return float(((self.direction / self.checked.noise_std) ** 2).sum())

    def scores(self, runs: int, *, member: bool, key: bytes) -> Float64s:
        """(runs,) of openings with the unit (`member`) or without it."""
        attempts, rows = self.direction.shape
        noise = own_noise(self.checked, key, attempts=runs * attempts).reshape(runs, attempts, rows)
        seen = noise + self.direction if member else noise
        return np.asarray(
            (seen * self.direction).sum(axis=(1, 2)) / self.checked.noise_std**2, np.float64
        )


@dataclass(frozen=True)
class Exposure:
    """One round: exact sums (rows, columns) of every block of `question`, without the unit and with
    it; what checks open of its user."""

    question: Question
    without: tuple[Int64s, ...]
    inside: tuple[Int64s, ...]
    opened: Opened | None = None


@dataclass(frozen=True)
class View:
    """What an adversary knows of a release's noise, and what is claimed against it. known: the
    aggregator of three whose noise it has."""

    name: str
    claim: Guarantee
    known: int | None = None

    def unknown_std(self, declared: float, plan: Plan) -> float:
        """Return the std of the part of the declared noise that the adversary does not know."""
        return declared if self.known is None else declared / plan.noise_excess


def views(plan: Plan) -> tuple[View, ...]:
    """Everybody's, and where three aggregate, that of the server together with each of them."""
    if plan.aggregation == "trusted":
        return (View("", plan.guarantee),)
    with_one = (View(f", server and aggregator {i}", plan.guarantee, i) for i in range(PARTIES))
    return View(", outsiders", plan.for_outsiders), *with_one


def exact_mu(exposures: Sequence[Exposure], plan: Plan, view: View | None = None) -> float:
    """mu of this unit by the noise that the plan declares: what its reports are long. view: of the
    first that `views` names."""
    seen = view or views(plan)[0]
    sums = (
        float(((part.direction / part.std) ** 2).sum())
        for e in exposures
        for part in _parts(e, plan, seen)
    )
    opened = (
        e.opened.squared_mu for e in exposures if e.opened is not None and seen.known is not None
    )
    return math.sqrt(math.fsum(sums) + math.fsum(opened))


def exact_finding(
    attack: str, variant: str, exposures: Sequence[Exposure], plan: Plan, view: View
) -> Finding:
    """The length of the unit's reports against the noise that the plan declares: nothing is
    drawn."""
    measured = epsilon_of(exact_mu(exposures, plan, view), plan.guarantee.delta)
    return Finding(
        attack,
        variant,
        view.claim,
        measured,
        "exact",
        1.0,
        note=f"{len(exposures)} rounds, the reports of one unit",
    )


def drawn_finding(
    attack: str,
    variant: str,
    exposures: Sequence[Exposure],
    plan: Plan,
    view: View,
    *,
    draws: int,
    streams: Streams,
) -> Finding:
    """At most `draws` runs with the unit and as many without it, told apart by the likelihood
    ratio."""
    runs = min(
        draws,
        max(
            _LEAST_DRAWS,
            _MOST_NUMBERS
            // max(sum(p.direction.size for e in exposures for p in _parts(e, plan, view)), 1),
        ),
    )
    inside, outside = (
        scores(exposures, plan, view, member=member, draws=runs, streams=streams)
        for member in (True, False)
    )
    bound = lower_bound(inside, outside, delta=plan.guarantee.delta, gaussian=True)
    return Finding(
        attack,
        variant,
        view.claim,
        bound.epsilon,
        bound.by,
        bound.confidence,
        bound.draws,
        note="likelihood ratio",
    )


def opened_finding(
    attack: str,
    variant: str,
    exposures: Sequence[Exposure],
    plan: Plan,
    *,
    draws: int,
    streams: Streams,
) -> Finding:
    """What checks open of the unit's user and nothing else: their noise is the client's own, and
    far wider than what they cost."""
    opened = [(e.question.round, e.opened) for e in exposures if e.opened is not None]
    runs = min(
        draws,
        max(_LEAST_DRAWS, _MOST_NUMBERS // max(sum(one.direction.size for _, one in opened), 1)),
    )
    inside, outside = (
        np.sum(
            [
                o.scores(runs, member=member, key=streams.key(f"audit-checks/{member}", round=r))
                for r, o in opened
            ],
            axis=0,
        )
        for member in (True, False)
    )
    bound = lower_bound(inside, outside, delta=plan.guarantee.delta, gaussian=True)
    return Finding(
        attack,
        variant,
        plan.guarantee,
        bound.epsilon,
        bound.by,
        bound.confidence,
        bound.draws,
        note="likelihood ratio",
    )


def scores(
    exposures: Sequence[Exposure],
    plan: Plan,
    view: View | None = None,
    *,
    member: bool,
    draws: int,
    streams: Streams,
) -> Float64s:
    """(draws,) likelihood ratio scores of runs with (`member`) or without the unit."""
    total = np.zeros(draws)
    seen = view or views(plan)[0]
    for exposure in exposures:
        parts = _parts(exposure, plan, seen)
        size = max(1, _PIECE // max(sum(part.direction.size for part in parts), 1))
        for start in range(0, draws, size):
            runs = min(size, draws - start)
            noise = Streams(
                int(
                    streams.numpy(
                        f"audit/{member}/{start}", round=exposure.question.round
                    ).integers(2**62)
                )
            )
            total[start : start + runs] += _one_round(
                exposure.question, parts, plan, seen, runs, member, noise
            )
            if exposure.opened is not None and seen.known is not None:
                key = noise.key("check-noise", round=exposure.question.round)
                total[start : start + runs] += exposure.opened.scores(runs, member=member, key=key)
    return total


@dataclass(frozen=True)
class _Part:
    """The numbers of one block in which the unit has a part: sums without it, what it adds in
    integers and in real units, noise std."""

    spec: BlockSpec
    without: Int64s
    added: Int64s
    direction: Float64s
    std: Float64s


def _parts(exposure: Exposure, plan: Plan, view: View) -> list[_Part]:
    stds = noise_stds(exposure.question, plan)
    sums = zip(exposure.without, exposure.inside, strict=True)
    parts = []
    for spec in exposure.question.releases:
        for block in spec.blocks:
            without, inside = next(sums)
            parts.append(
                _part(
                    block,
                    without,
                    inside,
                    (
                        view.unknown_std(stds[spec.name], plan)
                        * block.form.relative_std(block.width, isometric=spec.isometric)
                    ),
                )
            )
    return parts


def _part(block: BlockSpec, without: Int64s, inside: Int64s, std: Float64s) -> _Part:
    """Rows and, where noise is drawn number by number, columns that the unit touches."""
    changed = without != inside
    columns = np.arange(block.columns) if block.form.matrix else np.flatnonzero(changed.any(0))
    where = np.ix_(np.flatnonzero(changed.any(1)), columns)
    added = inside[where] - without[where]
    return _Part(
        block,
        without[where],
        added,
        np.asarray(added * block.step, np.float64),
        np.broadcast_to(std[columns], added.shape),
    )


def _one_round(
    question: Question,
    parts: list[_Part],
    plan: Plan,
    view: View,
    runs: int,
    member: bool,
    noise: Streams,
) -> Float64s:
    """(runs,) the round's share of the score."""
    specs = iter(parts)
    longer = []
    for spec in question.releases:
        blocks = tuple(replace(block, rows=runs * len(next(specs).added)) for block in spec.blocks)
        longer.append(replace(spec, blocks=blocks))
    sums = [
        np.tile(part.without + part.added if member else part.without, (runs, 1)) for part in parts
    ]
    asked = replace(question, releases=tuple(longer))
    plan = _of_its_noise(question, plan)
    noised, _ = release(asked, sums, plan, _open(plan), noise=noise)
    if view.known is not None:
        own = party_noise(
            asked, plan, parties(noise, plan)[view.known], [block.shape for block in sums]
        )
        values = {
            b.name: noised.values[b.name] - drawn * b.step
            for b, drawn in zip(asked.blocks, own, strict=True)
        }
        noised = replace(noised, values=values)
    return np.asarray(sum(_score(noised, part, runs) for part in parts), np.float64)


def _of_its_noise(question: Question, plan: Plan) -> Plan:
    """A plan without checks whose noise is that of this one's for the question: what checks take of
    mu depends on how long a row is, and many runs of a release are longer."""
    left = noise_mu(question, plan)
    releases = tuple(
        replace(release, mu=left.get(release.name, release.mu)) for release in plan.releases
    )
    return (
        replace(plan, releases=releases, hostile_clients="trusted-sites") if plan.checked else plan
    )


def _score(noised: Release, part: _Part, runs: int) -> Float64s:
    excess = (
        noised.values[part.spec.name].reshape(runs, *part.added.shape)
        - part.without * part.spec.step
    )
    return np.asarray((excess * (part.direction / part.std**2)).sum((1, 2)))


def _open(plan: Plan) -> Ledger:
    """A ledger that lets an auditor draw as often as it likes: these runs are rehearsals on one
    machine."""
    return Ledger(non_private(plan.guarantee.delta, plan.guarantee.unit, plan.guarantee.neighbours))
