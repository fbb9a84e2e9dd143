"""Item-item weights by EASE in closed form, of what a noised Gram says that items share
(`gram_pairs`): Q Q' + single, of low rank but for single pairs.

    EASE (Steck 2019): B_ij = -P_ij / P_jj for P = (Q Q' + single + D)^-1, D what Q Q' leaves of the
        diagonal and a ridge; B_ii = 0

Without noise too this is better than EASE of the Gram itself: its diagonal says nothing of pairs,
but makes eigenvectors of popular items one by one, and brings in the sampling noise of their pairs.
Without single pairs P is a diagonal less a matrix of low rank (Woodbury), so is B, and a user's
scores x B are inner products of few numbers; with them B is cut to the `RANK` directions that make
most of people's scores. B's own diagonal is left as it comes out: it scores only what the user has
already.

Guarantee: post-processing, as of `gram_pairs`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from fedrec.arrays import Float32s, Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks.gram_pairs import RANK, Pairs, beyond, beyond_one
from fedrec.numerics import segments

MOST = 2000
"""Most items of a Gram, whose eigenvectors cost the cube of their number."""
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
    decay: float = 0.0

    def user_vectors(self, history: Interactions) -> Float64s:
        """(num_users, r): sums over each user's clicks on the head, in their order; other clicks
        say nothing."""
        rows = np.zeros((history.num_items, self.left.shape[1]))
        rows[self.head] = self.left
        # row after row: a user's sum does not depend on the batch
        return np.asarray(weighed(history, self.decay) @ rows, np.float64)

    def parts(self, history: Interactions) -> Float64s:
        """(n, r): what each of one user's clicks adds to `user_vectors`."""
        rows = np.zeros((history.num_items, self.left.shape[1]))
        rows[self.head] = self.left
        return np.asarray(rows[history.items], np.float64)

    def blended(self, V: Float64s, weight: float) -> Float64s:
        """(m, d + r) item vectors of scores s by V (m, d) and e by these weights: on the head (1 -
        w) s + w (mean s + e), s elsewhere.

        s and e are centred over the head for the user at hand, so that nothing is gained or lost
        against items outside of it.
        """
        vectors = V.copy()
        right = np.zeros((len(V), self.right.shape[1]))
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
        weight = recency_weights(history, self.decay)
        squares = segments.squares(history.user_ptr, weight)
        expected = self.spread * np.sqrt(np.where(squares > 0, squares, 1))
        # weights that are all alike tell items apart by rounding alone
        scale = spread / expected if self.spread > 1e-12 else np.zeros(len(spread))
        return np.asarray(self.user_vectors(history) * scale[:, None], np.float64)

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays for a released file."""
        return {
            "head": self.head,
            "left": self.left,
            "right": self.right,
            "spread": np.array(self.spread),
            **({"age_power": np.array(self.decay)} if self.decay else {}),
        }

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> ItemItem:
        """The weights of a released file."""
        left = np.asarray(arrays["left"], np.float32)
        right = np.asarray(arrays["right"], np.float32)
        head = np.asarray(arrays["head"], np.int64)
        # the version before kept the base of a power under another name: its clicks count alike
        decay = float(arrays.get("age_power", np.array(0.0)))
        return ItemItem(head, left, right, float(arrays["spread"]), decay)


def recency_weights(history: Interactions, decay: float) -> Float64s:
    """(n,) (1 + age)^-decay of each click, at most 1: its age is how many clicks its user has made
    since, those of the same time having their mean; 1 where there are no times."""
    if decay == 0 or history.times is None:
        return np.ones(len(history))
    users = history.users
    order = np.lexsort((history.times, users))
    since = np.repeat(history.user_ptr[1:], np.diff(history.user_ptr)) - 1 - np.arange(len(history))
    who, when = users[order], history.times[order]
    begins = np.flatnonzero(np.diff(who, prepend=-1) | (np.diff(when, prepend=-1) != 0))
    alike = np.diff(np.append(begins, len(who)))
    ages = np.empty(len(history))
    ages[order] = np.repeat(since[begins] - (alike - 1) / 2, alike)
    return np.asarray((1 + ages) ** -decay, np.float64)


def weighed(history: Interactions, decay: float) -> scipy.sparse.csr_matrix:
    """(num_users, num_items) clicks by `recency_weights`."""
    return scipy.sparse.csr_matrix(
        (recency_weights(history, decay), history.items, history.user_ptr),
        shape=(history.num_users, history.num_items),
    )


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
    """How many items a Gram's pairs tell, of `most` that it reaches and of which people hold so
    many on average.

    The diagonal of a user's unit, which says nothing of pairs, is one over the h items that it
    holds: K solves edge = REACH users (1 - 1 / h) / K, h the mean over who holds any, if Poisson.
    """
    return int(max(LEAST_HEAD, min(most, 1e9) * beyond_one(held) ** (2 / 3)))


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
    Q = pairs.Q
    ridge = RIDGE * max(float(diagonal[:measured].mean()), 1e-9)
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
        scipy.linalg.cho_factor(gram - least * unit)
    except np.linalg.LinAlgError:
        lowest = float(scipy.linalg.eigh(gram, eigvals_only=True, subset_by_index=(0, 0))[0])
        gram = gram + (least - lowest) * unit
    P = scipy.linalg.cho_solve(scipy.linalg.cho_factor(gram), unit)
    B = -P / np.diag(P)
    np.fill_diagonal(B, 0)
    often = np.sqrt(weights)[:, None]
    scores = (B - B.mean(axis=1, keepdims=True)) * often
    K = len(gram)
    _, E = scipy.linalg.eigh(scores @ scores.T, subset_by_index=(K - min(rank, K), K - 1))
    return E / often, scores.T @ E
