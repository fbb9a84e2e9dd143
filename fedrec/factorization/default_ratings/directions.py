"""Directions of the default recipe before its steps: public content, links and vectors, and what
counts, biases and a Gram of tastes add to them; and posterior means and variances of items' biases
and deviations, given what the steps observed.

Guarantee: post-processing of releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Float64s, Int64s
from fedrec.data.features import METADATA_WEIGHTS, PublicFeatures, svd_embedding
from fedrec.data.public_sources import ITEM_VECTORS, SIMILAR_ITEMS
from fedrec.factorization.empirical_bayes import USUAL_BIASES, ItemPosterior
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import State
from fedrec.numerics.segments import leading_eigenvectors
from fedrec.randomness import Streams

OWN_MEANS = 0.2
"""Variance of users' own means about the items' biases."""
COUNT_SLOPES = 0.03
"""Variance of users' slopes over items' log counts, per standard deviation of these over items or
over ratings, whichever is larger.

Over items alone it would be too large where noise hides most counts: they are alike then, and the
items that people rate lie up to nine deviations above. Over ratings alone it would be too large for
items that nobody rated. Validation RMSE, over items and over ratings (means of two draws or three;
one split of MovieLens 1M): planted, 1,000 users x 3,000 items at epsilon 1 .8582, .8496, 2,000 x
1,000 at .5 .8416, .8335; MovieLens 100K at .5 .9782, .9772; MovieLens 1M at .5 .9042, .9041.
"""
DIRECTIONS_TOLD = 2.0
FOR_BIASES = 2.0
"""Directions that carry deviations, for each square root of an item's ratings beyond so many, on
average.

A deviation's standard error falls as one over that root, and its prior is not wider the more of
them there are: with too many a step learns who happened to rate. The first ratings of an item tell
its bias. Validation RMSE without noise, with as many directions as `settings_for` says (23), and
with this (two draws; MovieLens 1M one): planted, 500 users x 5,000 items, 40 each, .8561, .8184;
2,000 x 10,000, 25 each, .8117, .8033; 1,000 x 3,000 .8094, .8016 (at epsilon 20 .8039, .8052);
2,000 x 5,000 .7860, .7750; 3,000 x 1,000 .7751, .7727; MovieLens 100K .8978, .8968, 1M .8388,
.8390; 300 and 1,000 people of it .8972, .8854 and .8660, .8601. With all ratings instead of those
beyond two the first three were .8262, .8086 and .7991. With 2.7 instead of 2, planted 2,000 x 2,000
at epsilon 20 had .7898, not .7934, and without noise .7859, not .7864 (three draws).
"""

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
    kept = values > 1 + 1e-9
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


def directions(
    bias: Float64s,
    log_count: Float64s,
    counts: Float64s,
    *,
    content: Float64s | None,
    energy: float,
    tastes: Float64s | None,
) -> Float64s:
    """(m, D) phi at its prior standard deviations: a user's own mean, then the others rotated to
    falling importance under the counts.

    bias, log_count, counts: (m,). content: (m, f) of mean squared row norm 1, energy: what it gets.
    tastes: (m, d).
    """
    level = np.average(log_count, weights=counts)
    spread = max(math.sqrt(float(np.average((log_count - level) ** 2, weights=counts))), 1.0)
    columns = [
        math.sqrt(0.24) * bias[:, None],
        math.sqrt(COUNT_SLOPES) / spread * log_count[:, None],
    ]
    if content is not None:
        columns.append(math.sqrt(energy) * content)
    if tastes is not None:
        columns.append(tastes)
    own = np.full((len(bias), 1), math.sqrt(OWN_MEANS))
    return np.column_stack([own, _rotated(np.column_stack(columns), counts)])


def taste_directions(
    packed: Float64s,
    counts: Float64s,
    *,
    omega: Float64s,
    std: float,
    width: int,
    energy: float,
    users: int,
) -> tuple[Float64s, float]:
    """(m, d) leading eigenvectors of a noised Gram above the edge of the noise's spectrum, per
    rating, d <= width; and how many effective parameters they are.

    The edge is of the noise and of what so few users, of unit vectors, make of pairs that tell
    nothing: such a pair has a variance of users / K^2.

    packed: (K (K + 1) / 2,) its upper triangle, of the K items that are rated most, each weighing
    omega (K,); std: of the noise. counts: (m,). energy: mean square of all directions together,
    of which they have the part that stands out of the noise.

    Validation RMSE with all of it and with this part (290 planted users x 300 items, 840 x 1,000,
    means of three; 300 people of MovieLens 100K, and all, without features): at epsilon 5 .844,
    .837; .810, .809; 1.007, 1.007; .961, .955; at 20 .835, .829; .798, .794; .981, .975; .929,
    .926. Biases alone have .838 and .828 with 290 users. Without noise nothing changes.
    """
    popular = most_rated(counts, len(omega))
    K = len(popular)
    d = min(width, len(popular))
    gram = np.zeros((K, K))
    gram[np.triu_indices(K)] = packed
    gram = np.triu(gram, 1) + np.triu(gram, 1).T  # the diagonal is each item's own noise
    values, vectors = np.linalg.eigh(gram)
    values = values[::-1][:d]
    vectors = vectors[:, ::-1][:, :d]
    edge = math.sqrt(2 * K * std**2 + 4 * users / K) + 1e-9
    gain = np.maximum(values - edge**2 / np.maximum(values, edge), 0) + 1e-3 * edge
    hidden = math.sqrt(2 * K) * std  # the noise's own edge: what stays below it is of nobody
    told = np.maximum(values - hidden**2 / np.maximum(values, hidden + 1e-9), 0) + 1e-3 * hidden
    energy *= float(told.sum() / np.maximum(values, hidden + 1e-9).sum())
    tastes = np.zeros((len(counts), d))
    tastes[popular] = vectors / (omega * (counts[popular] + 1))[:, None]
    tastes /= np.sqrt(counts / counts.sum() @ tastes**2) + 1e-12
    fitted = K * float(np.sum(gain / np.maximum(values, edge)))
    return np.asarray(tastes * np.sqrt(energy * gain / gain.sum()), np.float64), fitted


def most_rated(counts: Float64s, most: int) -> Int64s:
    """At most so many items, by falling count."""
    return np.argsort(-counts, kind="stable")[:most]


def directions_told(ratings: Float64s) -> int:
    """How many directions items that have so many ratings (m,) can carry deviations in."""
    beyond = np.maximum(ratings - FOR_BIASES, 0)
    return max(round(DIRECTIONS_TOLD * float(np.mean(np.sqrt(beyond)))), 1)


def _rotated(columns: Float64s, counts: Float64s) -> Float64s:
    """The columns less their means under the counts, rotated so that second moments are diagonal
    and falling; directions without any are dropped. A constant direction is another one already, a
    user's own mean."""
    weights = counts / counts.sum()
    columns = columns - weights @ columns
    moments, Q = np.linalg.eigh((columns * weights[:, None]).T @ columns)
    kept = moments > 1e-9 * moments[-1]
    return np.ascontiguousarray((columns @ Q)[:, kept][:, ::-1])


USUAL_DEVIATIONS = 0.18
FEW_DIRECTIONS = 9
"""Mean square of an item's deviations in all directions together, as long as noise hides them,
shared by so many directions or more."""
OWN_MEAN_DEVIATIONS = 0.25
"""Of a direction's part of `USUAL_DEVIATIONS`, what items deviate by in how they follow a user's
own mean.

Validation RMSE with 1 and .25 (means of three draws, of one on MovieLens 1M, of eight on the
planted data): MovieLens 100K at epsilon 1 .9617, .9618, at 5 .9255, .9250, at 20 .9078, .9071;
MovieLens 1M at 1 .8887, .8884, at 5 .8620, .8615; 2,000 planted users x 2,000 items at 1 .8250,
.8235. A tenth, or a fiftieth, is within .0002 of a quarter.
"""


def bias_features(log_count: Float64s, content: Float64s | None) -> Float64s:
    """(m, p) what an item's bias is told by: its log count (m,), and content (m, f)."""
    plain = np.column_stack([0.5 * log_count, 0.2 * log_count**2, np.ones(len(log_count))])
    return plain if content is None else np.column_stack([content, plain])


def remembered(
    state: State, observed: Float64s, precision: Float64s, *, memory: float
) -> tuple[Float64s, Float64s]:
    """Average of a step's (m, d + 1) with what earlier rounds observed, which counts `memory` times
    as much; and the precision of it."""
    old = np.zeros_like(observed)
    weight = np.zeros_like(precision)
    if "observed" in state:
        old = _floats(state, "observed")
        weight = memory * _floats(state, "precision")
    elif "bias_observed" in state:  # the biases of round 1 are an observation too
        old[:, 0] = _floats(state, "bias_observed")
        weight[:, 0] = 1 / _floats(state, "bias_variance")
    return (weight * old + precision * observed) / (weight + precision), weight + precision


def shrunk(
    state: State,
    observed: Float64s,
    variance: Float64s,
    *,
    own: Float64s,
    slopes: Float64s,
    content: Float64s | None,
    read: Callable[..., ItemPosterior],
) -> dict[str, npt.NDArray[np.generic]]:
    """Posterior means and variances of b_j and phi_j, of what was observed (m, d + 1) with these
    variances; phi goes 1 / slopes (d,) of the way there. With them the parameters fitted
    to each (d + 1,).

    own: (m, d + 1) part of the observations' precision that is these people's own, of which no
    others were known. read: `empirical_bayes.regress`, or what stands in for it.
    """
    log_count = _floats(state, "log_count")
    start = _floats(state, "public_phi")
    features = np.column_stack([3 * start[:, :24], 0.3 * log_count, np.full(len(log_count), 0.3)])
    bias = read(
        observed[:, 0],
        variance[:, 0],
        bias_features(log_count, content),
        sweeps=8,
        start=USUAL_BIASES,
    )
    phi = _floats(state, "phi").copy()
    variances = np.zeros_like(observed)
    if "variances" in state:
        earlier = _floats(state, "variances")
        variances = np.zeros((len(earlier), max(earlier.shape[1], observed.shape[1])))
        variances[:, : earlier.shape[1]] = earlier
    variances[:, 0] = bias.variance
    usual = USUAL_DEVIATIONS / max(observed.shape[1] - 1, FEW_DIRECTIONS)
    fitted = [np.sum(own[:, 0] * bias.follows)]
    for k in range(1, observed.shape[1]):
        expected = usual * OWN_MEAN_DEVIATIONS if k == 1 else usual
        deviation = read(
            observed[:, k], variance[:, k], features, sweeps=8, start=expected, trust=1.0
        )
        phi[:, k - 1] += (start[:, k - 1] + deviation.mean - phi[:, k - 1]) / slopes[k - 1]
        variances[:, k] = deviation.variance
        fitted.append(np.sum(own[:, k] * deviation.follows))
    return {
        "bias": bias.mean,
        "variance": variances.sum(axis=1),
        "variances": variances,
        "phi": phi,
        "fitted": np.array(fitted),
    }


def _floats(state: Mapping[str, npt.NDArray[np.generic]], name: str) -> Float64s:
    return np.asarray(state[name], np.float64)
