"""Device's part of the default recipe for clicks: three reports, each of L2 norm exactly 1, and the
local solve.

Guarantee (user, add/remove): `federation.reports.bounded` scales one user's whole report of a
release to norm 1, whatever the data (one click or three thousand), and cuts it to the grid towards
zero; removing the user removes that report and nothing else, since a device computes from released
arrays and its own clicks alone. Sensitivity 1 for every release.

A click has no value, so that what a user sends is a direction: which items, weighed by public
numbers omega, and, in a step, the direction of the user's vector u under the current public item
vectors V. u never leaves the device but inside a report.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import below
from fedrec.factorization.default_ratings.client import report_pairs
from fedrec.factorization.least_squares import solve_clicks
from fedrec.federation.messages import Question, Reports
from fedrec.federation.reports import RealBlock, bounded
from fedrec.numerics import segments

_JUDGES = b"who leaves a click out"
_LEFT_OUT = b"which click is left out"


def user_vectors(
    mine: Interactions, V: npt.NDArray[np.floating], *, ridge: float, confidence: float
) -> Float64s:
    """(num_users, d) of V (m, d): Hu, Koren and Volinsky 2008, eq.

    4; in float64, user by user; 0 for users without clicks."""
    return np.asarray(
        solve_clicks(
            mine.user_ptr, mine.items, np.asarray(V, np.float64), ridge=ridge, alpha=confidence
        ),
        np.float64,
    )


def report_counts(question: Question, mine: Interactions) -> Reports:
    """Block "counts": 1 / sqrt(n) on each of the user's n items."""
    mine = _shown(question, mine)
    blocks = [RealBlock(np.ones(len(mine)), np.ones((mine.num_users, 1)))]
    return bounded(mine.user_ptr, mine.items, blocks, question.releases)


def report_tastes(question: Question, mine: Interactions) -> Reports:
    """Block "tastes": `report_pairs` of what the user shows."""
    return report_pairs(question, _shown(question, mine))


def report_steps(question: Question, mine: Interactions) -> Reports:
    """Blocks "gramian", h h' of the direction h = u / |u|, and "directions", omega for each item,
    times h: of squared norms q, 1 - q."""
    omega = np.asarray(question.public["omega"], np.float64)
    V = np.asarray(question.public["V"], np.float64)
    ridge, confidence, q = (
        float(question.public[name]) for name in ("ridge", "confidence", "gramian_energy")
    )
    mine = _shown(question, mine)
    U = user_vectors(mine, V, ridge=ridge, confidence=confidence)
    H = U / np.maximum(np.sqrt(segments.row_squares(U)), 1e-300)[:, None]
    w = omega[mine.items]
    w = w / np.repeat(np.sqrt(segments.squares(mine.user_ptr, w)), np.diff(mine.user_ptr))
    blocks = [RealBlock(np.full(mine.num_users, np.sqrt(q)), H), RealBlock(np.sqrt(1 - q) * w, H)]
    return bounded(mine.user_ptr, mine.items, blocks, question.releases)


def left_out(mine: Interactions, *, judges: float) -> npt.NDArray[np.bool_]:
    """(n,) which events judges leave out of every report but the one of worth: one of each of about
    this share of users, drawn by a hash of their ids and the items'.

    Who has clicked one item leaves none out."""
    who = below(mine.user_draws(_JUDGES), judges) & (np.diff(mine.user_ptr) > 1)
    draws = mine.draws(_LEFT_OUT)
    chosen = np.zeros(len(mine), np.bool_)
    for k in np.flatnonzero(who):
        start, stop = mine.user_ptr[k : k + 2]
        chosen[start + int(np.argmin(draws[start:stop]))] = True
    return chosen


def _shown(question: Question, mine: Interactions) -> Interactions:
    """All clicks where nothing is asked of any that is left out."""
    judges = float(question.public.get("judges", 0.0))
    return mine.select(~left_out(mine, judges=judges)) if judges else mine
