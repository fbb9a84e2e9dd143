"""Noisy gradient descent on clicks: Ada-DPALS Alg. 2 (Krichene et al. 2023) on free item vectors,
AM-SSP Alg. 6 (Krichene et al. 2024) on an item encoder, with the loss that both papers take for
clicks (Hu, Koren, Volinsky 2008, eq. 3), made sound.

Confidence is 1 + alpha on clicks and 1 on everything else. Minus half the gradient of user k's loss
in v_j is e_kj u_k - (u_k u_k') v_j, with e_kj = 1 + alpha - alpha u_k.v_j on its clicks and 0
elsewhere. The first part is of its own items; the second is of all items, and needs the Gramian
sum_k u_k u_k' alone. Item vectors are V = X E: X is a row of public features an item, or the
identity, where rows of E are free. omega weighs items (tasks) by their noisy counts (eq. 11), and
is 1 on an encoder.

Guarantee (user, add/remove). Round 0 releases sums of 1/sqrt(n_k) on each item, norm 1 a user. Of
step s a user sends c_k X' (omega e)_k u_k', with c_k such that its norm is exactly 1, and
sqrt(c_k) u_k, clipped to the public radius Gamma and divided by it, of which the Gramian is summed:
its outer product has norm at most 1. A device computes from earlier releases and its own clicks, so
removing a user removes those reports and nothing else. Each release has sensitivity 1, and the run
is the adaptive composition of Gaussian releases that its plan lists, priced exactly.

Where we leave the papers: as `dp_gd.recipe` and `am_dpsgd`. Scaling by c_k weighs a user's
whole loss, what it did not click included. Alpha is 10, as in `ssp`, so that both fit one model.
Negative eigenvalues of the noisy Gramian are cut, and a step is divided by its curvature up to a
constant: omega_j (count_j + largest eigenvalue) and the ridge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization import empirical_bayes, weights
from fedrec.factorization.am_ssp.client import PublishedModel
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.least_squares import solve_clicks
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, Reports, State
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.numerics import segments
from fedrec.privacy.calibration import Plan
from fedrec.privacy.clipping import clip_rows
from fedrec_research.feature_rows import padded_rows, rows_of_question, sorted_rows

CLICK_WEIGHT = 10.0
"""alpha."""
_COUNT_SHARE = 0.06
_GRAMIAN_SHARE = 0.3
"""Of mu^2, and of each step's: by judgement. Counts only weigh items; a Gramian is d^2 numbers that
every item's step shares, a gradient d numbers of each item."""


@dataclass(frozen=True)
class ClickDescentSettings:
    """`rate` is relative to the curvature; `item_ridge` is in units of one user's report, plus the
    noise's std.

    steps: gradients in all. gradients: of them between two solves of users. radius: Gamma.
    exponent: mu of n_j^-mu; 0 where items weigh alike.
    """

    dimension: int
    steps: int
    rate: float
    user_ridge: float
    item_ridge: float
    radius: float
    gradients: int = 1
    exponent: float = 0.0


def shares(settings: ClickDescentSettings) -> dict[str, float]:
    """Shares of mu^2: counts, then the steps equally, their Gramians `_GRAMIAN_SHARE` of each."""
    step = (1 - _COUNT_SHARE) / settings.steps
    return {"counts": _COUNT_SHARE} | {
        f"{part}/{s}": step * share
        for s in range(settings.steps)
        for part, share in (("gradient", 1 - _GRAMIAN_SHARE), ("gramian", _GRAMIAN_SHARE))
    }


@dataclass(frozen=True)
class ClickDescent:
    """The server: post-processing of releases only. X is `rows` (m, P)."""

    plan: Plan
    settings: ClickDescentSettings
    facts: PublicFacts
    rows: sparse.csr_matrix

    def begin(self) -> State:
        """A random E from the run's seed; rows of X of norm 1 then have vectors of norm 1."""
        P = self.rows.shape[1]
        d = self.settings.dimension
        E = self.facts.streams.numpy("click-descent-init").standard_normal((P, d)) / math.sqrt(d)
        table = self.rows @ E
        return {"E": E, "table": table, "solved_on": table, "round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """Counts first, then one question per gradient."""
        t = int(state["round"])
        d = self.settings.dimension
        if t == 0:
            counts = block("counts", "linear", rows=self.facts.num_items, width=1)
            return Question(0, "click-descent/counts", {}, (ReleaseSpec("counts", (counts,)),))
        if t > self.settings.steps:
            return None
        own = f"gradient/{t - 1}"
        all_items = f"gramian/{t - 1}"
        releases = (
            ReleaseSpec(own, (block(own, "linear", rows=self.rows.shape[1], width=d),)),
            ReleaseSpec(all_items, (block(all_items, "outer", rows=1, width=d),), isometric=False),
        )
        public = {name: state[name] for name in ("table", "solved_on", "weights")}
        return Question(t, "click-descent/gradient", public | padded_rows(self.rows), releases)

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """omega from the counts; then E_p += rate g_p over the curvature of p. Every T gradients
        users are solved anew."""
        t = int(state["round"])
        chosen = self.settings
        if t == 0:
            counts = np.maximum(answer.values["counts"][:, 0], 0.0)
            omega = empirical_bayes.tail_weights(
                counts, noise_std=answer.noise_std["counts"], exponent=chosen.exponent
            )
            return {**state, "counts": counts, "weights": omega, "round": np.array(1)}
        omega = np.asarray(state["weights"], np.float64)
        own = f"gradient/{t - 1}"
        gramian = self._gramian(answer, t - 1)
        table = np.asarray(state["table"], np.float64)
        gradient = answer.values[own] - self.rows.T @ (omega[:, None] * (table @ gramian))
        of_items = omega * (
            np.asarray(state["counts"], np.float64) + float(np.linalg.norm(gramian, 2))
        )
        curvature = self.rows.power(2).T @ of_items + chosen.item_ridge + answer.noise_std[own]
        E = np.asarray(state["E"], np.float64) + chosen.rate * gradient / curvature[:, None]
        table = self.rows @ E
        anchor = table if t % chosen.gradients == 0 else state["solved_on"]
        return {**state, "E": E, "table": table, "solved_on": anchor, "round": np.array(t + 1)}

    def model(self, state: State) -> PublishedModel:
        """Item vectors, and what a device needs for its own solve."""
        table = np.asarray(state["table"], np.float32)
        return PublishedModel(table, 0.0, self.settings.user_ridge, CLICK_WEIGHT)

    def _gramian(self, answer: Release, s: int) -> Float64s:
        """(d, d) sum of c_k u u', without the directions that noise made negative."""
        d = self.settings.dimension
        full = np.zeros((d, d))
        rows, columns = np.triu_indices(d)
        full[rows, columns] = full[columns, rows] = answer.values[f"gramian/{s}"][0]
        values, vectors = np.linalg.eigh(full * self.settings.radius**2)
        return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T, np.float64)


def client_steps(settings: ClickDescentSettings) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives."""
    return {
        "click-descent/counts": _report_counts,
        "click-descent/gradient": lambda question, mine: _report_gradient(question, mine, settings),
    }


def _report_counts(question: Question, mine: Interactions) -> Reports:
    """1/sqrt(n_k) on each item."""
    ones = RealBlock(weights.uniform(mine, budget=1.0).values, np.ones((mine.num_users, 1)))
    return bounded(mine.user_ptr, mine.items, [ones], question.releases, scaling="clip")


def _report_gradient(
    question: Question, mine: Interactions, settings: ClickDescentSettings
) -> Reports:
    """c_k (X' (omega e))_p u_k of every feature p of the user's items; sqrt(c_k) u_k / Gamma."""
    public = question.public
    old, new = (np.asarray(public[name], np.float64) for name in ("solved_on", "table"))
    U = np.asarray(
        solve_clicks(mine.user_ptr, mine.items, old, ridge=settings.user_ridge, alpha=CLICK_WEIGHT),
        np.float64,
    )
    omega = np.asarray(public["weights"], np.float64)[mine.items]
    e = 1 + CLICK_WEIGHT - CLICK_WEIGHT * segments.row_products(U[mine.users], new[mine.items])
    gradient = sorted_rows(
        sparse.csr_matrix(
            (omega * e, mine.items, mine.user_ptr), shape=(mine.num_users, mine.num_items)
        )
        @ rows_of_question(question)
    )
    ptr = gradient.indptr.astype(np.int64)
    features = gradient.indices.astype(np.int32)
    norms = np.sqrt(segments.squares(ptr, gradient.data)) * np.sqrt(segments.row_squares(U))
    c = 1 / np.where(norms > 0, norms, np.inf)
    shared = clip_rows(np.sqrt(c)[:, None] * U, radius=settings.radius).rows / settings.radius
    blocks = [
        RealBlock(np.repeat(c, np.diff(ptr)) * gradient.data, U),
        RealBlock(np.ones(mine.num_users), shared),
    ]
    return bounded(ptr, features, blocks, question.releases, scaling="clip")
