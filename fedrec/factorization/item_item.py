"""Item-item weights from one noised Gram: what different items share is told apart from the noise
and from what is each item's own, then EASE in closed form, of low rank.

    gram = Z'Z + noise, Z the users' unit vectors over K items; the noise symmetric, of std s on the
        diagonal, s / sqrt 2 off it
    pairs = gram without its diagonal, less l p p': what popularity p alone makes of a pair. p is
        told by counts and by the Gram's diagonal, each with noise of its own
    common = the diagonal of what pairs say, as principal factors have it: from a first estimate,
        found with 0 there (`shared`)
    content: what public features F (K, f) explain of pairs, first in few directions of p F, then
        in more: eigenvalues of f x f numbers, of which noise hides less (`content_directions`).
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
    EASE (Steck 2019): B_ij = -P_ij / P_jj for P = (Q Q' + single + D)^-1, D what Q Q' leaves of the
        diagonal and a ridge; B_ii = 0

Without noise too this is better than EASE of the Gram itself: its diagonal says nothing of pairs,
but makes eigenvectors of popular items one by one, and brings in the sampling noise of their pairs.
Without single pairs P is a diagonal less a matrix of low rank (Woodbury), so is B, and a user's
scores x B are inner products of few numbers; with them B is cut to the `RANK` directions that make
most of people's scores. B's own diagonal is left as it comes out: it scores only what the user has
already.

Popularity and content say something of items outside of the Gram, too: `beyond`.

How many directions a Gram tells is asked of all of it (`denoised`): eigenvalues v of the Gram
become sqrt(max(v^2 - e^2, 0)), e = s sqrt(2 K) the edge of the noise's spectrum (Gavish and Donoho
2017, Frobenius loss).

Guarantee: post-processing. Everything here sees releases and their known noise, so it costs
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh

from fedrec.arrays import Float32s, Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.content_directions import public_part, subspaces, tells
from fedrec.factorization.empirical_bayes import sparse_means

MOST, RANK = 2000, 512
"""Most items of a Gram, whose eigenvectors cost the cube of their number; most numbers an item is
scored by."""
REACH = (3.5, 2.3, 12.0)
"""The noise's edge over the mean diagonal at which one more item adds more noise than it tells:
where all clicks weigh the same, the least of it, and how much less per unit of the exponent that
raises rare items.

Validation NDCG@20 of the default with K at .5, .7 and 1 times what 3.5 gives, one draw (MovieLens
two): yelp2018 at epsilon 5 (exponent .14) .0393, .0396, .0382; at 20 (.25) .0516, .0515, .0497; at
1 (0), K from 294 to 784, .0239 to .0244; with the Gram again, budget and all, 1,000 of its items at
1 .0940, .0978, .0953; MovieLens 1M as likes at 5 and 20 (.21, .25) .2056, .2135, .2110 and .2269,
.2284, .2264; 100K at 20 .2347, .2369, .2332.
"""
RIDGE = 0.7
"""Over the mean diagonal.

Validation NDCG@20 of the default, two draws (MovieLens 1M: one), with EASE of the whole Gram's
`denoised` spectrum and a ridge of 2, with this, of popularity: 100K as likes at epsilon 5 .198,
.201, .123, at 20 .226, .231, .125, without noise .217, .252, .125; 1M as likes at 1 .161, .164, at
5 .199, .202, at 20 .219, .219, without noise .235, .240; 2,000 planted users x 1,000 items, 20
clicks each, at 1 .208, .218, .224, at 5 .204, .222, .224, without noise .196, .225, .224. Over the
head of yelp2018 at 5 it is worse, .1268 and .1257 (one draw).
"""
NEGLIGIBLE = 1e-4
"""Of the noise's energy, what single pairs must have in all to be kept.

Validation NDCG@20 without single pairs and with them, one draw: amazon-book at epsilon 5 .0726,
.0770; yelp2018 at 5 and 20 .0387, .0392 and .0500, .0510; MovieLens 1M as likes .2019, .2030 and
.2191, .2198. MovieLens 100K and 2,000 planted users x 1,000 items have none. Every component of the
mixture, not those of a variance of 1 on alone, is better on yelp2018 (.0410 and .0404 at 5, a fifth
of its people), and 1 to 3% worse on MovieLens 100K, 10% on 20,000 planted users x 10,000 items.
"""
MOST_WEIGHED = 4000
"""Items that weights know, where features tell something of those outside of the Gram: a row each
of at most 2 `RANK` numbers.

Validation NDCG@20 on MovieLens 1M as likes, with features on the Gram's 239 items, on twice and
four times as many, on all: .1723, .1771, .1790, .1799 at epsilon 1; at 5 (643) .2113, .2134, .2135,
.2131; 100K at 1 .1444, .1460, .1477, .1483, at 20 .2356, .2383, .2378, .2378. Lists of the ratings
of MovieLens 1M on the Gram's items and on all: .1545 and .1745 at 1, .1974 and .2086 at 5; of 100K
at 5 and 20 .2046, .2138 and .2416, .2456. Without features the rest is popularity alone: 1 to 2%
worse than leaving it out.
"""
LEAST_HEAD = 60
"""Items of a Gram of clicks, whatever it tells: MovieLens 100K as likes at epsilon 1 had validation
NDCG@20 .131 with 38 items, .145 with 60 (two draws)."""
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


@dataclass(frozen=True)
class Spectrum:
    """Leading eigenvectors (K, r) of a noised Gram, their eigenvalues (r,) as released, and shrunk:
    0 inside the noise's edge."""

    vectors: Float64s
    values: Float64s
    shrunk: Float64s


@dataclass(frozen=True)
class Pairs:
    """What different items share: Q Q' + single, Q (K, r), single (K, K) symmetric with 0 on its
    diagonal; None where nothing was looked for pair by pair.

    public: (1 + f, r), by which popularity p and features F (f,) of an item outside of the Gram
    make a row of Q, p [1, F] public; None without features that tell anything."""

    Q: Float64s
    single: Float64s | None = None
    public: Float64s | None = None


@dataclass(frozen=True)
class ItemItem:
    """Scores x left right' of a user's clicks x on the items `head` (K,); left, right: (K, r), the
    columns of right centred over items.

    spread: the std over items of one click's scores, root mean square over clicks: n of them spread
    by about sqrt(n) as much.
    """

    head: Int64s
    left: Float32s
    right: Float32s
    spread: float

    def user_vectors(self, history: Interactions) -> Float64s:
        """(num_users, r): sums over each user's clicks on the head, in their order; other clicks
        say nothing."""
        rows = np.zeros((history.num_items, self.left.shape[1]))
        rows[self.head] = self.left
        ones = np.ones(len(history))
        clicks = sparse.csr_matrix(
            (ones, history.items, history.user_ptr), shape=(history.num_users, history.num_items)
        )
        # row after row: a user's sum does not depend on the batch
        return np.asarray(clicks @ rows, np.float64)

    def blended(self, V: Float64s, weight: float) -> Float64s:
        """(m, d + r) item vectors of scores s by V (m, d) and e by these weights: on the head (1 -
        w) s + w (mean s + e), s elsewhere.

        s and e are centred over the head for the user at hand, so that nothing is gained or lost
        against items outside of it.
        """
        vectors, right = V.copy(), np.zeros((len(V), self.right.shape[1]))
        vectors[self.head] = (1 - weight) * V[self.head] + weight * V[self.head].mean(axis=0)
        right[self.head] = weight * self.right
        return np.column_stack([vectors, right])

    def beside(self, U: Float64s, V: Float64s, history: Interactions) -> Float64s:
        """(n, r) user vectors of e, with the spread over the head that each user's scores U V' have
        there."""
        head = V[self.head].astype(np.float64)
        centred = head - head.mean(axis=0)
        spread = np.sqrt(
            np.maximum(np.einsum("kd,de,ke->k", U, centred.T @ centred / len(head), U), 0)
        )
        expected = self.spread * np.sqrt(np.maximum(np.diff(history.user_ptr), 1))
        return np.asarray(
            self.user_vectors(history) * (spread / np.maximum(expected, 1e-300))[:, None],
            np.float64,
        )

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """For a released file."""
        return {
            "head": self.head,
            "left": self.left,
            "right": self.right,
            "spread": np.array(self.spread),
        }

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> ItemItem:
        """The weights of a released file."""
        left, right = (
            np.asarray(arrays["left"], np.float32),
            np.asarray(arrays["right"], np.float32),
        )
        return ItemItem(np.asarray(arrays["head"], np.int64), left, right, float(arrays["spread"]))


def head_size(*, users: int, items: int, noise_std: float, most: int = MOST) -> int:
    """`reached`, of a catalogue of so many items, and at most `most`."""
    return int(
        np.clip(
            min(reached(users=users, noise_std=noise_std), most),
            min(items, 20),
            min(items, most),
        )
    )


def reached(*, users: int, noise_std: float, exponent: float = 0.0) -> float:
    """K: as many of the most clicked items as a Gram of so many unit vectors can tell from noise of
    std `noise_std`; infinite without noise.

    The edge s sqrt(2 K) grows with K while a user's unit is spread over more items: K solves edge =
    REACH users / K. It is spread the more where a click weighs count^-exponent.
    """
    if noise_std == 0:
        return math.inf
    most, least, slope = REACH
    reach = max(most - slope * exponent, least)
    return float((reach * users / (math.sqrt(2) * noise_std)) ** (2 / 3))


def told(most: float, *, held: float) -> int:
    """Of `most` items that a Gram reaches, of which people hold so many on average: those that its
    pairs tell.

    The diagonal of a user's unit, which says nothing of pairs, is one over the h items that it
    holds: K solves edge = REACH users (1 - 1 / h) / K, h the mean over who holds any, if Poisson.
    """
    some = held / max(-math.expm1(-held), 1e-9)
    return int(max(LEAST_HEAD, min(most, 1e9) * max(1 - 1 / max(some, 1e-9), 0) ** (2 / 3)))


def denoised(gram: Float64s, *, noise_std: float, rank: int) -> Spectrum:
    """The `rank` leading eigenvectors of a symmetric (K, K) Gram, largest first, their eigenvalues
    shrunk as the module says."""
    K = len(gram)
    values, vectors = eigh(gram, subset_by_index=(K - min(rank, K), K - 1))
    values, vectors, edge = (
        values[::-1],
        np.ascontiguousarray(vectors[:, ::-1]),
        noise_std * math.sqrt(2 * K),
    )
    return Spectrum(vectors, values, np.sqrt(np.maximum(np.maximum(values, 0) ** 2 - edge**2, 0)))


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
    (K, f) F, leading directions first. content_if_hidden: see `content_directions.tells`.
    clicks: of a user, on average; users: how many. A pair varies by the noise, and by who happened
    to click: one over `clicks` of what is expected of it. The larger of the two on average is taken
    for all its variance, and pairs are brought to the same variance by it, as if items had
    `RARE` more clicks: eigenvalues cleaned of the sum of both cost 1 to 2% on MovieLens where the
    noise is the larger. What stands out (`_told`) stands out of the sum. Single pairs are looked
    for beyond the sum, and only where there is noise: without it EASE's ridge does as well.
    """
    pairs, (expected, level) = gram - np.diag(np.diag(gram)), _popular_part(gram, popular)
    sampled = math.sqrt(level / clicks) * popular
    unit, variance, drawn = np.ones(len(gram)), noise_std**2 / 2, float(np.mean(sampled))
    every = variance + drawn**2
    if drawn**2 > variance:
        unit = np.sqrt(sampled + RARE * float(np.sum(sampled)) / (users * clicks))
        every = 1 + variance * float(np.mean(1 / unit**2)) ** 2
        variance = drawn = 1.0
    chance = Chance(variance, every, drawn / math.sqrt(users))
    popular = popular / unit
    pairs = (pairs - level * expected) / np.outer(unit, unit)
    bases = [] if content is None else subspaces(popular, content)
    if bases and not tells(bases[-1][0], pairs, variance, if_hidden=content_if_hidden):
        bases = []
    common = np.zeros(len(gram))
    for most in (min(_FIRST, rank), rank):
        rest, columns, weights = pairs + np.diag(common), [popular[:, None]], [np.array([level])]
        for basis, _ in bases:
            values, vectors = np.linalg.eigh(basis.T @ rest @ basis)
            weights.append(_shrunk(values, chance))
            columns.append(basis @ vectors)
            rest = rest - (columns[-1] * weights[-1]) @ columns[-1].T
        values, vectors = eigh(rest, driver="evd")
        cleaned = _shrunk(values, chance, few=FEW)
        kept = np.argsort(-np.abs(cleaned))[: max(most - sum(map(len, weights)), 0)]
        Q, made = _positive(
            np.column_stack([*columns, vectors[:, kept]]), np.concatenate([*weights, cleaned[kept]])
        )
        common = np.minimum(np.sum(Q**2, axis=1), diagonal / unit**2) - level * popular**2
    Q = Q * unit[:, None]
    public = public_part(bases, columns, made) if bases else None
    if noise_std == 0:
        return Pairs(Q, public=public)
    variances = noise_std**2 / 2 + np.outer(sampled, sampled)
    return Pairs(Q, _single(gram - Q @ Q.T, variances), public)


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


def _positive(columns: Float64s, weights: Float64s) -> tuple[Float64s, Float64s]:
    """(K, r) Q: Q Q' is the positive part of columns (K, n) diag(weights) columns'; and what makes
    it of the columns, (n, r): Q = columns made."""
    basis, triangle = np.linalg.qr(columns)
    values, vectors = np.linalg.eigh((triangle * weights) @ triangle.T)
    found = values > 1e-12 * max(float(values[-1]), 1e-300)
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
        """Of the spectrum of K items: with many users, and with these."""
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
    K, variance = len(values), chance.variance
    if not variance:
        return np.ones(K)
    inner, outer = chance.edges(K)
    within, out = np.abs(values) <= inner, np.abs(values) > outer
    n, r = int(np.count_nonzero(within)), int(np.count_nonzero(out))
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


def ease(
    pairs: Pairs,
    diagonal: Float64s,
    *,
    head: Int64s,
    weights: Float64s,
    measured: int | None = None,
) -> ItemItem:
    """EASE of the Gram Q Q' + single + what Q Q' leaves of `diagonal` (K,). weights: (K,) how often
    items are clicked. measured: of how many of them, the first, there was a Gram: the ridge is over
    their mean diagonal; all where None.

    With D the rest of the diagonal and the ridge, and without single pairs, P = D^-1 - D^-1 Q M Q'
    D^-1, M = (I + Q' D^-1 Q)^-1.
    """
    Q, ridge = pairs.Q, RIDGE * max(float(diagonal[:measured].mean()), 1e-9)
    D = np.maximum(diagonal - np.sum(Q**2, axis=1), 0) + ridge
    if pairs.single is None:
        A = Q / D[:, None]
        values, E = np.linalg.eigh(np.eye(Q.shape[1]) + Q.T @ A)
        left = A @ (E / np.sqrt(values))
        right = left / (1 / D - np.sum(left**2, axis=1))[:, None]
        right = right - right.mean(axis=0)
    else:
        left, right = _dense_ease(Q @ Q.T + pairs.single + np.diag(D), ridge / 2, weights)
    spreads = np.einsum("ir,rq,iq->i", left, right.T @ right / len(right), left)
    spread = math.sqrt(float(weights @ spreads) / float(weights.sum()))
    return ItemItem(head, left.astype(np.float32), right.astype(np.float32), spread)


def ease_of_all(
    pairs: Pairs,
    diagonal: Float64s,
    popular: Float64s,
    *,
    head: Int64s,
    counts: Float64s,
    exponent: float,
    content: Float64s | None,
) -> ItemItem:
    """Weights of a Gram's items `head` (K,), and where features tell (`Pairs.public`) of the
    `MOST_WEIGHED` most clicked items: what popularity and content share with the rest.

    popular: (K,) p, counts ** exponent up to a factor; counts: (m,) > 0. content: (m, f).
    """
    if content is None or pairs.public is None or pairs.single is not None:
        return ease(pairs, diagonal, head=head, weights=counts[head])
    order = np.argsort(-counts, kind="stable")[:MOST_WEIGHED]
    rest = order[~np.isin(order, head)]
    likely = counts**exponent
    likely *= float(popular.sum()) / float(likely[head].sum())
    every = np.concatenate([head, rest])
    return ease(
        Pairs(np.vstack([pairs.Q, beyond(pairs, likely[rest], content[rest])])),
        np.concatenate([diagonal, likely[rest]]),
        head=every,
        weights=counts[every],
        measured=len(head),
    )


def _dense_ease(
    gram: Float64s, least: float, weights: Float64s, rank: int = RANK
) -> tuple[Float64s, Float64s]:
    """left, right (K, r): left right' is B, centred over items, of a (K, K) Gram whose eigenvalues
    are lifted to `least` > 0; the closest of this rank to the scores of clicks, each item weighing
    as often as it is clicked (K,) > 0."""
    unit = np.eye(len(gram))
    try:
        cho_factor(gram - least * unit)
    except LinAlgError:
        lowest = float(eigh(gram, eigvals_only=True, subset_by_index=(0, 0))[0])
        gram = gram + (least - lowest) * unit
    P = cho_solve(cho_factor(gram), unit)
    B = -P / np.diag(P)
    np.fill_diagonal(B, 0)
    often = np.sqrt(weights)[:, None]
    scores = (B - B.mean(axis=1, keepdims=True)) * often
    K = len(gram)
    _, E = eigh(scores @ scores.T, subset_by_index=(K - min(rank, K), K - 1))
    return E / often, scores.T @ E
