"""Directions of public content, links and vectors, and how they share the energy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from fedrec.arrays import Float64s
from fedrec.data.features import METADATA_WEIGHTS, PublicFeatures, svd_embedding
from fedrec.data.public_sources import ITEM_VECTORS, SIMILAR_ITEMS
from fedrec.factorization.empirical_bayes import USUAL_BIASES
from fedrec.factorization.facts import PublicFacts
from fedrec.numerics.segments import leading_eigenvectors
from fedrec.randomness import Streams

LINKS = 300
"""Most directions of links or of vectors."""
BESIDE = 0.25
"""Energy of links and vectors over that of features, or of the second over the first, as long as
nothing is known of what they say of people (`told_shares`).

Validation RMSE of 1,000 people of MovieLens 1M at epsilon 1 and 5, two draws: without public sides
1.0025, .9458; features .9377, .8955; their leading 100 directions as vectors .9414, .8985; links of
the ten nearest of these .9743, .9178; features and links with as much energy .9426, .8984.
"""
GRID = 20
"""Steps of what shares and energies are tried, from nothing to all."""


def public_content(facts: PublicFacts, *, dimension: int) -> Float64s | None:
    """(m, dimension) leading directions of the features, mean squared row norm 1; None without
    features that tell an item from another."""
    if facts.features is None or not any(bag.tells for bag in facts.features.bags.values()):
        return None
    F = svd_embedding(facts.features, dimension=dimension, seed=0, weights=METADATA_WEIGHTS).astype(
        np.float64
    )
    return F / math.sqrt(float(np.mean(np.sum(F**2, axis=1))))


def link_directions(features: PublicFeatures | None) -> Float64s | None:
    """(m, f) P of the bag `SIMILAR_ITEMS`: S = D^-1/2 A D^-1/2, A the pairs' weights > 0 in both
    directions, D what they add up to for each item, cut to its largest positive eigenvalues.

    None without such a bag, or where no item is linked with another."""
    bag = None if features is None else features.bags.get(SIMILAR_ITEMS)
    if bag is None:
        return None
    given = sparse.csr_matrix(bag.counts, dtype=np.float64).maximum(0)
    A = sparse.csr_matrix(given + given.T)
    A.setdiag(0)
    sums = np.asarray(A.sum(axis=1)).ravel()
    if not sums.any():
        return None
    unit = sparse.diags(np.divide(1, np.sqrt(sums), out=np.zeros_like(sums), where=sums > 0))
    S = sparse.csr_matrix(unit @ A @ unit)
    # S's eigenvalues are in [-1, 1]: of S + 1 the largest are the largest, and none is negative
    vectors, values = leading_eigenvectors(
        lambda block: np.asarray(S @ block) + block,
        size=len(sums),
        rank=min(LINKS, len(sums)),
        rng=Streams(0).numpy("links"),
    )
    kept = values > 1 + 1e-9  # of S, only above 0: a root is taken, and rounding is not
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept] - 1), np.float64)


def vector_directions(features: PublicFeatures | None) -> Float64s | None:
    """(m, f) P of the bag `ITEM_VECTORS`: rows of length 1, less their mean over items that have
    one; f no more than `LINKS`, the leading directions where there are more.

    None without such a bag, or where all vectors are alike."""
    bag = None if features is None else features.bags.get(ITEM_VECTORS)
    if bag is None:
        return None
    rows = bag.counts.toarray().astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    known = lengths > 0
    if not known.any():
        return None
    rows[known] /= lengths[known][:, None]
    rows[known] -= rows[known].mean(axis=0)
    values, E = np.linalg.eigh(rows.T @ rows)
    # the trace is the number of rows: what is a billionth of it is rounding
    kept = np.flatnonzero(values > 1e-9 * max(float(np.count_nonzero(known)), 1))[-LINKS:]
    return np.asarray(rows @ E[:, kept]) if len(kept) else None


def together(
    sides: Sequence[Float64s | None], *, dimension: int, shares: Float64s | None = None
) -> Float64s | None:
    """(m, dimension) leading directions of several public sides (m, f_q), mean squared row norm 1;
    None where none says anything. shares: of the energy, of those that are not None; where None,
    sides after the first have `BESIDE` of its energy."""
    known = [_unit(P) for P in sides if P is not None]
    if not known:
        return None
    if shares is None:
        shares = np.array([1.0] + [BESIDE] * (len(known) - 1))
    X = np.column_stack([math.sqrt(w) * P for w, P in zip(shares, known, strict=True)])
    _, E = np.linalg.eigh(X.T @ X)
    return _unit(X @ E[:, ::-1][:, :dimension])


def _unit(P: Float64s) -> Float64s:
    """P (m, f) at a mean squared row norm of 1."""
    return np.asarray(P / math.sqrt(float(np.mean(np.sum(P**2, axis=1)))), np.float64)


def told_shares(
    observed: Float64s, variance: Float64s, plain: Float64s, sides: Sequence[Float64s]
) -> Float64s:
    """(q,) shares of the energy of public sides (m, f_q), by what they tell of item biases.

    observed, variance: (m,) biases with their noise. plain: (m, p) what else tells them. Variance
    components by Haseman and Elston (1972): products y_i y_j of different items, whose noises are
    independent, are sum_q tau w_q S_q,ij, S_q = P_q P_q'. Posterior means of shares w under a
    Dirichlet prior that has `BESIDE` as its mean, of an energy tau up to `USUAL_BIASES`.

    Validation RMSE of 1,000 people of MovieLens 1M at epsilon 1 and 5, two draws, with `BESIDE` and
    with this: features (.9377, .8955 alone) and random vectors .9419, .9402; .8989, .8953; random
    features and real ones as vectors .9731, .9563; .9192, .8968; features and links of the ten
    nearest .9381, .9373; .8949, .8948; features twice .9381, .9381; .8957, .8956. Components
    themselves, without a prior, are any at .5: from 0 to 1 for random vectors.
    """
    root = 1 / np.sqrt(variance + USUAL_BIASES)
    basis, _ = np.linalg.qr(plain * root[:, None])

    def left(X: Float64s) -> Float64s:
        weighted = X * root[:, None]
        return np.asarray(weighted - basis @ (basis.T @ weighted), np.float64)

    u = left(observed[:, None])[:, 0]
    parts = [left(_unit(P)) for P in sides]
    own = np.array([np.sum(F**2, axis=1) for F in parts])
    t = np.array([np.sum((F.T @ u) ** 2) for F in parts]) - own @ u**2
    M = np.array([[np.sum((F.T @ G) ** 2) for G in parts] for F in parts]) - own @ own.T
    tried = np.array([w for w in np.ndindex(*[GRID + 1] * len(sides)) if w[0] and sum(w) == GRID])
    tried = tried / GRID
    tau = np.linspace(0, USUAL_BIASES, GRID + 1)[:, None]
    # t has about the variance 2 (mean u^2)^2 M; without noise all biases may be alike
    spread = max(float(np.mean(u**2)), 1e-9)
    fit = tau**2 * np.einsum("nq,qr,nr->n", tried, M, tried) - 2 * tau * (tried @ t)
    likely = -fit / (4 * spread**2) + (1 / BESIDE - 1) * np.log(tried[:, 0])
    weights = np.exp(likely - likely.max()).sum(axis=0)
    return np.asarray(weights @ tried / weights.sum(), np.float64)
