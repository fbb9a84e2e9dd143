"""Checks of hostile clients, their bounds, grid and cost: public arithmetic of a question and its
plan; and the grid of a checked question, the finest on which checks are cheap.

Where three aggregate, nobody sees a report, so nobody can clip it. `fedrec.sharing.servers` opens
two things of every user instead. The first is a public constant and costs nothing. The second are
`ROWS` numbers y = C x + e, where x are the user's shared integers, C is drawn after the users are
fixed, with entries -1, 0, 1 of probabilities 1/4, 1/2, 1/4, and e is the client's own noise:
integers, discrete Gaussian of std B / `MARGIN`. Here is what y costs.

Bounds. Of every release the sum of squares of all coefficients, each block's in units of the finest
grid, is at most radius^2, and every vector has norm at most 1. With four slack squares every bound
is an equation (`NormBound.square`), which implies that the report is within the release's radius:
|sum of rows|^2 = sum c_j^2 |v|^2 <= radius^2. Honest reports obey it (`reports.bounded`), since
vectors are scaled to at most 1 and cutting towards zero shortens. A matrix c v v' has a coefficient
c that the question fixes, and shares v alone.

Guarantee, unit user (report replaced by the empty one), against the server, one aggregator and any
clients: an opening of y is mu_c-GDP, mu_c = sqrt(SPREAD) D / sqrt(std^2 - 4), with D^2 = 2 sum of
the bounds' squares, except with probability 2^-100 over C.

Proof. Let x, x' be the two rows without e, z = x - x'. Both obey the equations, with weights of at
least 1, so |x|^2 and |x'|^2 are at most Q = the sum of the bounds' squares. The empty report has
only slack, and slack is never negative, so <x, x'> >= 0 and |z|^2 <= 2 Q. A row c of C has E exp(t
<c, z>) = prod (1 + cosh(t z_j)) / 2 = prod cosh^2(t z_j / 2) <= exp(t^2 |z|^2 / 4): sub-Gaussian
with variance |z|^2 / 2. So E exp(s <c, z>^2 / |z|^2) <= (1 - s)^(-1/2) for 0 <= s < 1, and by
Markov's inequality with s = 1 - ROWS / (2 a) the probability of |C z|^2 > a |z|^2 is at most
exp(ROWS / 2 - a) (2 a / ROWS)^(ROWS / 2), below 2^-100 at a = SPREAD. C does not depend on x, x' or
e: it is a pseudo-random function of hashes under a key that the adversary lacks. Given C, y is a
discrete Gaussian mechanism of sensitivity |C z| (`privacy.gaussian`, step 1); reduction modulo 2^64
and the verdict are post-processing.

A crash may open the checks of one round again in another attempt, with fresh noise. A client shares
in at most `ATTEMPTS` attempts at a round, and all of them are priced: mu of a release, as planned
and charged, is that of its noise and of its part of ATTEMPTS openings together, mu^2 = mu_noise^2 +
ATTEMPTS mu_c^2. So plans and ledgers are as without checks, and the noise is a little wider.

What checks cost on a grid is counted where releases are noised (`releases.noise_mu`), so no
promise rests on the grid that `on_checked_grid` chooses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedrec.errors import PrivacyError
from fedrec.federation.messages import BlockSpec, Question, ReleaseSpec
from fedrec.privacy.calibration import Plan

ROWS = 40
"""Projections of a user that are opened.

A wrap-around passes all of them with probability at most 2^-40."""
MARGIN = 7
"""The limit B of a projection over its noise's std: an honest user is refused with probability
below 2 * 10^-10 in an attempt."""
SPREAD = 126.5
"""|C z|^2 <= SPREAD |z|^2 except with probability 2^-100."""
ATTEMPTS = 5
"""At a round, in which a client shares: as many as a server begins (`round_driver.Patience`)."""
SLACKS = 4
"""Squares that any number that is not negative is the sum of."""
SHARE = 0.02
"""The most that checks take of a release's mu^2: decides the grid."""
_LEAST_BITS = 7
"""Of a vector's entry; below, a grid is no use."""


@dataclass(frozen=True)
class NormBound:
    """The sum of weight * (number)^2 over what is named is at most `square`, in whole numbers.

    coefficients: of blocks, by name, with their weights. vector: a block's name and which of its
    folds, where it bounds a vector.
    """

    release: str
    coefficients: tuple[tuple[str, int], ...]
    vector: tuple[str, int] | None
    square: int


def norm_bounds(question: Question) -> tuple[NormBound, ...]:
    """In the order of the releases: vectors first, then coefficients.

    Raises PrivacyError where a step is no power of two: its bound would not be a whole number.
    """
    found = list[NormBound]()
    for release in question.releases:
        steps = (s for b in release.blocks for s in (b.coefficient_step, b.vector_step))
        if any(math.frexp(step)[0] != 0.5 for step in steps):
            raise PrivacyError(
                f"the grid of release {release.name!r} cannot be checked",
                "Ask on steps that are powers of two.",
            )
        for block in release.blocks:
            square = round(1 / block.vector_step**2)
            found += [
                NormBound(release.name, (), (block.name, fold), square)
                for fold in range(block.folds)
            ]
        linear = [block for block in release.blocks if not block.form.matrix]
        if linear:
            finest = min(block.coefficient_step for block in linear)
            weighted = tuple(
                (block.name, round((block.coefficient_step / finest) ** 2)) for block in linear
            )
            found.append(
                NormBound(release.name, weighted, None, int((release.radius / finest) ** 2))
            )
    return tuple(found)


def matrix_coefficient(release: ReleaseSpec, block: BlockSpec) -> int:
    """The one coefficient that all users who are not silent have in a matrix block.

    Raises PrivacyError where the question fixes none."""
    if len(release.blocks) > 1 or block.rows > 1:
        raise uncheckable(f"block {block.name!r} of release {release.name!r}")
    return int(release.radius * (1 - 1e-12) / block.coefficient_step)


def uncheckable(what: str) -> PrivacyError:
    """Error for a matrix block whose coefficient is not the question's alone.

    Says nothing of any user's numbers."""
    cause = (
        f"{what} has matrices with a coefficient for each user, which checks of hostile clients "
        "cannot bound"
    )
    return PrivacyError(cause, 'Use privacy.hostile_clients = "trusted-sites", or another recipe.')


def projection_limit(question: Question) -> int:
    """B = floor(sqrt((2^64 - 1) / (4 W))), W the largest sum of a bound's weights: numbers up to 2
    B cannot make an equation wrap around.

    Raises PrivacyError where honest projections come near it.
    """
    specs = {block.name: block for block in question.blocks}
    bounds = norm_bounds(question)
    sizes = [
        sum(weight * specs[name].rows for name, weight in bound.coefficients)
        if bound.vector is None
        else specs[bound.vector[0]].width
        for bound in bounds
    ]
    limit = math.isqrt((2**64 - 1) // (4 * (max(sizes) + SLACKS)))
    if 800 * math.sqrt(sum(bound.square for bound in bounds)) > limit:
        raise too_fine(question)
    return limit


def too_fine(question: Question) -> PrivacyError:
    """Error for a question whose numbers leave checks no room."""
    return PrivacyError(
        f"the grid of round {question.round} is too fine to be checked", "Ask on a coarser grid."
    )


def opening_mu(question: Question) -> Mapping[str, float]:
    """What `ATTEMPTS` openings cost, by release: their squares add up to the cost of the whole
    rows."""
    variance = (projection_limit(question) / MARGIN) ** 2 - 4
    squares = {release.name: 0 for release in question.releases}
    for bound in norm_bounds(question):
        squares[bound.release] += 2 * bound.square
    return {
        name: math.sqrt(ATTEMPTS * SPREAD * square / variance) for name, square in squares.items()
    }


def on_checked_grid(question: Question, plan: Plan) -> Question:
    """The question on the finest grid on which checks take at most `SHARE` of every release's mu^2;
    as it is where nothing is checked.

    Raises PrivacyError where no grid of `_LEAST_BITS` or more does.
    """
    if not plan.checked:
        return question
    asked = question
    for release in question.releases:
        for block in release.blocks:
            if block.form.matrix:
                matrix_coefficient(release, block)
    while not _cheap(asked, plan):
        if min(-math.log2(block.vector_step) for block in asked.blocks) <= _LEAST_BITS:
            cause = (
                f"no grid of round {question.round} is fine enough for its model and coarse "
                f"enough to be checked at {plan.guarantee}"
            )
            raise PrivacyError(
                cause, 'Use privacy.hostile_clients = "trusted-sites", or a larger epsilon.'
            )
        asked = replace(asked, releases=tuple(_coarser(release) for release in asked.releases))
    return asked


def _cheap(question: Question, plan: Plan) -> bool:
    try:
        opened = opening_mu(question)
    except PrivacyError:
        return False
    return all(mu**2 <= SHARE * plan[name].mu ** 2 for name, mu in opened.items())


def _coarser(release: ReleaseSpec) -> ReleaseSpec:
    blocks = (
        replace(b, coefficient_step=2 * b.coefficient_step, vector_step=2 * b.vector_step)
        for b in release.blocks
    )
    return replace(release, blocks=tuple(blocks))
