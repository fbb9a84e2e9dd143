"""Estimate of what different items share, from one noised Gram: apart from the noise, and from what
is each item's own.

    gram = Z'Z + noise, Z the users' unit vectors over K items; the noise symmetric, of std s on the
        diagonal, s / sqrt 2 off it
    pairs = gram without its diagonal, less l p p': what popularity p alone makes of a pair. p is
        told by counts and by the Gram's diagonal, each with noise of its own
    common = the diagonal of what pairs say, as principal factors have it: from a first estimate,
        found with 0 there (`shared`)
    content: what public features F (K, f) explain of pairs, first in few directions of p F, then
        in more: eigenvalues of f x f numbers, of which noise hides less.
        Cleaned as the others are, and taken off before them
    eigenvalues v of pairs + common -> v - 2 K n h(v), n the variance of a pair, h(v) the mean of
        1 / (v - w) over all eigenvalues w: of all estimates with the released eigenvectors the
        closest to what is without noise, as K grows (Bun, Allez, Bouchaud and Potters 2016, for
        additive noise); then those inside the noise's edge by S / (S + e) r / (r + `FEW`), S their
        squares beyond the noise's, e its standard error, r how many are outside: little is left of
        them where they say little. Those outside, but inside the edge that chance gives so few
        users (`Chance`), are kept by r / (r + `FEW`). They, content and l p p' add up to a matrix
        of low rank, whose positive part is Q Q'
    single = posterior means of what Q Q' leaves of each pair, where single pairs stand out of the
        noise (`empirical_bayes.sparse_means`): two shops of one street are no direction

Popularity and content say something of items outside of the Gram, too: `beyond`.

How many directions a Gram tells is asked of all of it (`denoised`): eigenvalues v of the Gram
become sqrt(max(v^2 - e^2, 0)), e = s sqrt(2 K) the edge of the noise's spectrum (Gavish and Donoho
2017, Frobenius loss).

Directions of a noised Gram that public features name say something of items outside of it
(`tells`).

Guarantee: post-processing. Everything here sees public features, releases and their known noise, so
it costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from fedrec.arrays import Float64s
from fedrec.factorization.sparse_means import sparse_means

CONTENT = (0.05, 0.2)
"""Over K: how many leading directions of public features are asked first, and next.

Validation NDCG@20 (one draw) without features, with K / 10 directions, with K / 20 and then K / 5:
MovieLens 1M as likes at epsilon 1 and 5 .1636, .1717, .1723 and .2028, .2092, .2113; 100K at 1, 5
and 20 .1404, .1402, .1444; .2051, .2047, .2048; .2296, .2340, .2356. From K / 40 to K / 5 in four
steps the last of these were .1721, .2108, .1454, .2058, .2351.
"""
LEAST_CONTENT = 0.15
"""Of what pairs say beyond noise, how much directions of features must hold to be looked at first.

Those of MovieLens hold .22 to .58 (whole, 300 and 1,000 people, epsilon 1 to 5), features of other
items, at random, .05 to .10; these cost 1 to 4% of NDCG@20. Planted clicks .11 and .24, random ones
there .06 to .21, where neither changes lists by more than draws of noise do.

Where noise hides how much they hold, lists of ratings take them: those of MovieLens 100K at epsilon
.5 and 1 (three and four draws), of which features seem to hold -.12 to .21, 1.3 or fewer and 2.5 or
fewer standard errors, have validation NDCG@20 .1028 and .1400 without, .1191 and .1545 with them;
random features there .1062 and .1335 without, .1055 and .1299 with them. Clicks do not: planted
ones at epsilon 1 lose 1% by it (.0848, .0838 of 2,000 x 5,000; .2207, .2187 of 2,000 x 1,000).
"""
SMALLEST = 1e-3
"""Of the largest singular value of p F: directions below are not told apart from rounding."""
RANK = 512
"""Most directions, and most numbers that an item is scored by."""
NEGLIGIBLE = 1e-4
"""Of the noise's energy, what single pairs must have in all to be kept.

Validation NDCG@20 without single pairs and with them, one draw: amazon-book at epsilon 5 .0726,
.0770; yelp2018 at 5 and 20 .0387, .0392 and .0500, .0510; MovieLens 1M as likes .2019, .2030 and
.2191, .2198. MovieLens 100K and 2,000 planted users x 1,000 items have none. Every component of the
mixture, not those of a variance of 1 on alone, is better on yelp2018 (.0410 and .0404 at 5, a fifth
of its people), and 1 to 3% worse on MovieLens 100K, 10% on 20,000 planted users x 10,000 items.
"""
FEW = 4.0
"""Directions that stand out, with which half is kept of what the others say.

Validation NDCG@20, two draws, with all of it, with this, of popularity: planted clicks of 2,000
users x 5,000 items at epsilon 5 and 20 .0810, .0843, .0846 and .0796, .0844, .0852; of 3,000 x
1,000 at 20 .2369, .2372, .2344; MovieLens 1M as likes at 1, 5 and 20 .1793, .1785; .2137, .2130;
.2292, .2292; 100K .1466, .1455; .2128, .2142; .2352, .2356; 1,000 items of yelp2018 at 5 and 20,
one draw, .1337, .1333; .1552, .1550. What public features explain is kept: with as much of it left
out, MovieLens 1M at 1 had .1774.
"""
RARE = 2.0
"""Clicks that an item is taken to have more, where what happened to be clicked decides how its
pairs vary: by its own clicks alone one user of many rare items makes a direction that stands out.

Validation NDCG@20 without noise, one draw, with neither these nor the edge of so few users
(`Chance`), with both, of popularity: lists of planted ratings of 1,000 users x 3,000 items .0729,
.0897, .0918, of 2,000 x 5,000 .0434, .0543, .0547; of MovieLens 100K .2997, .2987, .1458; likes of
it .2500, .2508, .1296; 1,000 items of yelp2018 .1536, .1536, .0319; of amazon-book at epsilon 20
.2123, .2123, .0365. With a tenth of the mean number of clicks instead, the last two had about .1518
and .2090.
"""
_FIRST = 64
"""Most directions of the first estimate, whose diagonal is all that is kept of it."""


def subspaces(popular: Float64s, content: Float64s) -> list[tuple[Float64s, Float64s]]:
    """Orthonormal bases (K, k) of the leading `CONTENT` directions of p F, and how they are made,
    (f, k): p F made."""
    K, f = content.shape
    found = list[tuple[Float64s, Float64s]]()
    for first in sorted({min(int(part * K), f) for part in CONTENT} - {0}):
        left, values, right = np.linalg.svd(popular[:, None] * content[:, :first], False)
        told = values > SMALLEST * max(float(values[0]), 1e-300)  # none of zeros
        made = np.zeros((f, int(np.count_nonzero(told))))
        made[:first] = right[told].T / values[told]
        found.append((left[:, told], made))
    return found


def tells(basis: Float64s, pairs: Float64s, variance: float, *, if_hidden: bool = False) -> bool:
    """Whether directions (K, k) hold `LEAST_CONTENT` of what pairs (K, K) say beyond noise of this
    variance, and hold it surely; if_hidden: or may hold it, two standard errors more than is seen
    being as much."""
    K, k = basis.shape
    beyond_noise = float(np.sum(pairs**2)) - K * (K - 1) * variance
    held = float(np.sum((basis.T @ pairs @ basis) ** 2)) - k * k * variance
    # the sum of k^2 squares of noise, each pair of which is there twice, has std 2 k variance
    least = LEAST_CONTENT * beyond_noise
    error = 2 * k * variance
    return bool(held + 2 * error >= least if if_hidden else held > max(least, 4 * error))


def public_part(
    bases: Sequence[tuple[Float64s, Float64s]], columns: Sequence[Float64s], made: Float64s
) -> Float64s:
    """(1 + f, r): what makes Q of [p, p F], as far as popularity and content make it.

    bases: as `subspaces` gives them. columns: of popularity, then of each of them. made: (n, r),
    what makes Q of all columns.
    """
    parts = [np.eye(1 + len(bases[0][1]), 1)]
    for (basis, of_content), column in zip(bases, columns[1:], strict=True):
        parts.append(np.vstack([np.zeros(column.shape[1]), of_content @ (basis.T @ column)]))
    known = np.column_stack(parts)
    return np.asarray(known @ made[: known.shape[1]], np.float64)


@dataclass(frozen=True)
class Pairs:
    """What different items share: Q Q' + single, Q (K, r), single (K, K) symmetric with 0 on its
    diagonal; None where nothing was looked for pair by pair.

    public: (1 + f, r), by which popularity p and features F (f,) of an item outside of the Gram
    make a row of Q, p [1, F] public; None without features that tell anything."""

    Q: Float64s
    single: Float64s | None = None
    public: Float64s | None = None


def shared(
    gram: Float64s,
    diagonal: Float64s,
    popular: Float64s,
    *,
    noise_std: float,
    clicks: float,
    users: float = math.inf,
    content: Float64s | None = None,
    content_if_hidden: bool = False,
    rank: int = RANK,
) -> Pairs:
    """What a symmetric noised (K, K) Gram says of different items, as the module says, r <= `rank`.

    diagonal: (K,) of the Gram, denoised; no item shares more than that. popular: (K,) p. content:
    (K, f) F, leading directions first. content_if_hidden: see `tells`.
    clicks: of a user on these items, on average; users: how many. A pair varies by the noise, and
    by who happened to click (`_sampled`). The larger of the two on average is taken for all its
    variance, and pairs are brought to the same variance by it, as if items had `RARE` more clicks:
    eigenvalues cleaned of the sum of both cost 1 to 2% on MovieLens where the noise is the larger.
    What stands out (`_told`) stands out of the sum. Single pairs are looked for beyond the sum, and
    only where the noise is the larger: of who happened to click EASE's ridge takes care, so that
    what little noise is left changes nothing. Test NDCG@20 of likes of 300 people of MovieLens 100K
    at epsilon 2,000 and 10,000, mean of two draws, with single pairs .180 and .170, without .199
    and .218; without noise .211.
    """
    pairs, (expected, level) = gram - np.diag(np.diag(gram)), _popular_part(gram, popular)
    Q = math.sqrt(level) * popular[:, None]
    common = np.zeros(len(gram))
    for most in (min(_FIRST, rank), rank):
        own = np.maximum(diagonal - np.sum(Q**2, axis=1), 0)
        sampled = _sampled(own, clicks=clicks, users=users)
        unit, chance = _compared(sampled, noise_std**2 / 2, clicks=clicks, users=users)
        likely = popular / unit
        rest = (pairs - level * expected) / np.outer(unit, unit)
        bases = [] if content is None else subspaces(likely, content)
        if bases and not tells(bases[-1][0], rest, chance.variance, if_hidden=content_if_hidden):
            bases = []
        rest = rest + np.diag(common / unit**2)
        columns = [likely[:, None]]
        weights = [np.array([level])]
        for basis, _ in bases:
            values, vectors = np.linalg.eigh(basis.T @ rest @ basis)
            weights.append(_shrunk(values, chance))
            columns.append(basis @ vectors)
            rest = rest - (columns[-1] * weights[-1]) @ columns[-1].T
        values, vectors = scipy.linalg.eigh(rest, driver="evd")
        cleaned = _shrunk(values, chance, few=FEW)
        # of all directions together the largest stay: what features were asked for first takes no
        # place from what they do not tell
        room = rank if most == rank else max(most - sum(map(len, weights)), 0)
        kept = np.argsort(-np.abs(cleaned))[:room]
        Q, made = _positive(
            np.column_stack([*columns, vectors[:, kept]]),
            np.concatenate([*weights, cleaned[kept]]),
            rank=rank,
        )
        Q = Q * unit[:, None]
        common = np.minimum(np.sum(Q**2, axis=1), diagonal) - level * popular**2
    public = public_part(bases, columns, made) if bases else None
    if float(np.mean(sampled)) ** 2 >= noise_std**2 / 2:
        return Pairs(Q, public=public)
    variances = noise_std**2 / 2 + np.outer(sampled, sampled)
    return Pairs(Q, _single(gram - Q @ Q.T, variances), public)


def _sampled(own: Float64s, *, clicks: float, users: float) -> Float64s:
    """(K,) s, s_i s_j the variance of a pair by who happened to click, of what each item does not
    share, `own` (K,) of the diagonal.

    As in factor analysis, an item's own part is drawn apart from all others: the sum of the
    products of two of them over U users has variance own_i own_j / U, were each to be drawn alone.
    But a unit vector of n clicks has squares of 1 / n: those of different items add up to 1 - 1 / n
    of the 1 of all (`beyond_one`).

    Validation NDCG@20 of the weights without noise, one draw, with s in proportion to popularity
    and with this: likes of MovieLens 100K .2422, .2532; 1,000 items of
    yelp2018 .1551, .1625, of amazon-book .1431, .1609; planted clicks of 2,000 users x 1,000 items
    .2115, .2118, of 1,000 x 3,000 on 1,500 of them .1007, .1003; likes of 1,000 people of
    MovieLens 1M, on as many, .2117, .2052.
    """
    return np.asarray(own * math.sqrt(beyond_one(clicks) / users), np.float64)


def beyond_one(held: float) -> float:
    """1 - 1 / n, n how many of some items people hold who hold any; `held` on average over all, if
    Poisson."""
    some = held / max(-math.expm1(-held), 1e-9)
    return max(1 - 1 / max(some, 1e-9), 0.0)


def _compared(
    sampled: Float64s, variance: float, *, clicks: float, users: float
) -> tuple[Float64s, Chance]:
    """(K,) units by which pairs have one variance, and what they are made of then."""
    drawn = float(np.mean(sampled))
    if drawn**2 <= variance:
        every = variance + drawn**2
        return np.ones(len(sampled)), Chance(variance, every, drawn / math.sqrt(users))
    click = math.sqrt(beyond_one(clicks) / users) / clicks
    unit = np.sqrt(sampled + RARE * click)
    every = 1 + variance * float(np.mean(1 / unit**2)) ** 2
    return unit, Chance(1.0, every, 1 / math.sqrt(users))


def beyond_popularity(gram: Float64s, popular: Float64s, *, noise_std: float) -> float:
    """The energy of what pairs of a symmetric noised (K, K) Gram say beyond its noise and beyond
    what popularity p (K,) makes of them, over that of l p p'; infinite where that is nothing."""
    expected, level = _popular_part(gram, popular)
    rest = gram - np.diag(np.diag(gram)) - level * expected
    K = len(gram)
    energy = float(np.sum(rest**2)) - K * (K - 1) * noise_std**2 / 2
    told = level**2 * float(np.sum(expected**2))
    return energy / told if told else math.inf


def _popular_part(gram: Float64s, popular: Float64s) -> tuple[Float64s, float]:
    """(K, K) p p' with 0 on its diagonal, and l >= 0 by least squares: what popularity p (K,) alone
    makes of pairs is l p p'."""
    expected = np.outer(popular, popular)
    np.fill_diagonal(expected, 0)
    level = float(np.vdot(gram, expected)) / max(float(np.vdot(expected, expected)), 1e-300)
    return expected, max(level, 0)


def _single(left: Float64s, variance: Float64s) -> Float64s | None:
    """(K, K) posterior means of pairs `left`, of this variance each; None where none stands out."""
    upper = np.triu_indices(len(left), 1)
    std = np.sqrt(variance[upper])
    means = std * sparse_means(left[upper] / std)
    # their energy beside what noise alone would have; below it changes no list
    if float(np.sum(means**2)) < NEGLIGIBLE * float(np.sum(variance[upper])):
        return None
    single = np.zeros_like(left)
    single[upper] = means
    return single + single.T


def beyond(pairs: Pairs, popular: Float64s, content: Float64s) -> Float64s:
    """(n, r) rows of Q of items outside of the Gram, by how popular they are (n,) and by their
    features (n, f); an item shares no more than it has."""
    assert pairs.public is not None
    rows = np.column_stack([popular, popular[:, None] * content]) @ pairs.public
    lengths = np.sum(rows**2, axis=1)
    return np.asarray(
        rows * np.sqrt(np.minimum(1, popular / np.maximum(lengths, 1e-300)))[:, None], np.float64
    )


def _positive(columns: Float64s, weights: Float64s, *, rank: int) -> tuple[Float64s, Float64s]:
    """(K, r) Q, r <= `rank`: Q Q' is the positive part of columns (K, n) diag(weights) columns', or
    the closest to it of that rank; and what makes it of the columns, (n, r): Q = columns made."""
    basis, triangle = np.linalg.qr(columns)
    values, vectors = np.linalg.eigh((triangle * weights) @ triangle.T)
    found = values > 1e-12 * max(float(values[-1]), 1e-300)  # below: rounding of float64
    found[: max(len(values) - rank, 0)] = False
    roots = np.sqrt(values[found])
    made = weights[:, None] * (triangle.T @ vectors[:, found]) / roots
    return np.asarray(basis @ vectors[:, found] * roots), made


@dataclass(frozen=True)
class Chance:
    """What pairs that tell nothing are made of. variance: of the noise; every: of a pair in all,
    with who happened to click; user: what one user adds to an eigenvalue of its own, on average.

    U users' unit vectors have a spectrum of Wishart's law, not of Wigner's: less their mean on the
    diagonal, that of K items ends K `user` further up (Marchenko and Pastur 1967), which is most
    of it where K is not small beside U.
    """

    variance: float
    every: float
    user: float

    def edges(self, K: int) -> tuple[float, float]:
        """Edges of the spectrum of K items: with many users, and with these."""
        inner = 2 * math.sqrt(K * self.every)
        return inner, inner + K * self.user


def _shrunk(values: Float64s, chance: Chance, *, few: float = 0.0) -> Float64s:
    """Eigenvalues (K,), rising, of which chance made a part: what is kept."""
    return _cleaned(values, chance.variance) * _told(values, chance, few)


def _cleaned(values: Float64s, variance: float) -> Float64s:
    """Eigenvalues (K,), rising, less what noise of this variance adds to each; h is smoothed over
    about an eigenvalue's distance from the next. None changes its sign."""
    if variance == 0:
        return values
    distance = values[:, None] - values
    h = np.mean(distance / (distance**2 + variance), axis=1)
    cleaned = values - 2 * len(values) * variance * h
    return np.where(cleaned * values > 0, cleaned, 0.0)


def _told(values: Float64s, chance: Chance, few: float) -> Float64s:
    """(K,) 1 for the r eigenvalues (K,) beyond both edges of what tells nothing, r / (r + few)
    between them, S / (S + e) times that within: S what squares add up to beyond noise, e the
    standard error of noise's own.

    r: S does not tell small directions from who happened to click, but where many stand out, many
    more are just below."""
    K = len(values)
    variance = chance.variance
    if not variance:
        return np.ones(K)
    inner, outer = chance.edges(K)
    within = np.abs(values) <= inner
    out = np.abs(values) > outer
    n = int(np.count_nonzero(within))
    r = int(np.count_nonzero(out))
    beyond = max(float(np.sum(values[within] ** 2)) - n * (n - 1) * variance, 0)
    told = np.where(within, beyond / (beyond + 2 * K * variance), 1.0)
    return np.where(out, 1.0, told * r / (r + few)) if few else told


def denoised_diagonal(diagonal: Float64s, *, noise_std: float, expected: Float64s) -> Float64s:
    """Posterior means of a Gram's noised diagonal (K,) around what counts expect of it, up to a
    factor: `expected` (K,) > 0.

    The variance of what counts leave open is in proportion to the square of what they expect, and
    is found from the diagonal itself.
    """
    prior = expected * (max(float(diagonal.sum()), 1e-9) / float(expected.sum()))
    if noise_std == 0:
        return np.maximum(diagonal, 0.05 * prior)
    open_part = (
        max(float(np.sum((diagonal - prior) ** 2 - noise_std**2)) / float(np.sum(prior**2)), 1e-4)
        * prior**2
    )
    kept = open_part / (open_part + noise_std**2)
    return np.asarray(np.maximum(prior + kept * (diagonal - prior), 0.05 * prior), np.float64)
