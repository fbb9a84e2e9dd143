"""The grid of a question whose clients are checked: the finest on which checks are cheap.

What checks cost on a grid is counted where releases are noised (`hostile_clients.noise_mu`), so no
promise rests on what is chosen here.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fedrec.errors import PrivacyError
from fedrec.federation.hostile_clients import checks, matrix_coefficient, opening_mu
from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.privacy.calibration import Plan

SHARE = 0.02
"""The most that checks take of a release's mu^2: decides the grid."""
_LEAST_BITS = 7
"""Of a vector's entry; below, a grid is no use."""


def on_checked_grid(question: Question, plan: Plan) -> Question:
    """The question on the finest grid on which checks take at most `SHARE` of every release's mu^2;
    as it is where nothing is checked.

    Raises PrivacyError where no grid of `_LEAST_BITS` or more does.
    """
    if not checks(plan):
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
