"""Released models of clicks: item vectors that a device finds its own vector by, item-item weights,
the two blended, and either beside public sides of items.

Vectors beside weights. On the items of the weights a score is (1 - w) s + w (mean s + f e): s of
the vectors, e of the weights, each centred over those items for the user at hand, f what gives e
the spread of s. Other items keep s, so that nothing is gained or lost against them. w grows with
the part of all clicks that the weights see.

Public sides: what is alike by features, links or vectors that everybody may know, as the prior of
item-item weights.

    S = (P P')^1/2, P (m, f) the leading directions of what is public: the prior of the weight of a
        click on i for item j, of all items; counts b make it (b_j / b_i)^`POPULAR` S_ij, since of
        equally similar items the popular one is clicked, and a rare click tells more of a taste
    score = (1 - w) x B / |x B| + w x S / |x S|, x B by the private model, lengths of a user's
        scores being their root mean square over all items

Here w, and which source it belongs to, follows from a charged release (`worth`).

All of it is linear in what the user holds, and stays an inner product, of few numbers.

Guarantee: post-processing of releases, and public data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks import client as clicks_client
from fedrec.factorization.default_clicks.item_item import ItemItem, weighed

Arrays = Mapping[str, npt.NDArray[np.generic]]

FALLBACK = 1e-6
"""Scale of the popularity column, beside scores of root mean square 1: the order of items of which
nothing else tells, and of all items for who has clicked nothing; no similarity notices it."""
BLEND = 0.65
"""w over the part of all clicks that weights see.

Validation NDCG@20, one draw, was best at w over that part of .6 on yelp2018 at epsilon 5, 20 and
without noise (weights see 25, 33 and 45%; .0518 at 20 with .6, .0509 with 1), of .6 to .8 on
amazon-book at 5 and 20 (34, 58%), 1 or more at 1 (24%), .5 to 1 on its 1,000 most clicked items, .2
to .5 on those of yelp2018, and flat from .4 to 1 on MovieLens 1M (45 to 97%).
"""
POPULAR = 0.25
"""Exponent of counts. Validation NDCG@20 of tags alone on 1,892 listeners x 17,632 artists, with
counts released at epsilon 1, 5 and 20, to the power of 0, 1/4, 1/2 and 1: .106, .157, .146, .132;
.106, .171, .165, .152; .106, .176, .170, .155. A click on i that counts b_i^-1/4 gains 0 to 5%
(planted citations, and those tags); MovieLens stays the same."""
BITS = 1
"""Of directions, as `coding.rounded_rows` has them: devices download them. Validation NDCG@20 on
the same data with 3, 1, 0 and -1 of them, at epsilon 1: .1589, .1589, .1581, .1581; at 5: .1794,
.1796, .1800, .1775; in 2.7, 1.7, 1.2 and 0.7 MB."""


def blend_weight(*, part: float, rank: int, width: int) -> float:
    """w of item-item weights of `rank` that see `part` of all clicks, beside vectors of `width`
    numbers.

    Vectors of few numbers, as small catalogues have, know less than weights of high rank: of the
    100 films of MovieLens 1M .37 against .40.
    """
    # noise may leave no direction at all
    return part * max(BLEND, 1 - (2 * width / max(rank, 1)) ** 2)


@dataclass(frozen=True)
class ClickModel:
    """V (m, d), counts (m,), and the local solve's choices: what a device needs to find its own
    vector and to score.

    similar: item-item weights of some items. blend: w.

    A user without a vector, having clicked nothing or nothing that V knows, is served by
    popularity.
    """

    vectors: Float32s
    counts: Float64s
    ridge: float
    confidence: float
    similar: ItemItem | None = None
    blend: float = 0.0
    offset: float = 0.0

    @staticmethod
    def of_arrays(arrays: Arrays) -> ClickModel:
        """The model of a released file."""
        vectors = np.asarray(arrays["vectors"], np.float32)
        counts = np.asarray(arrays["counts"], np.float64)
        similar = ItemItem.of_arrays(arrays) if "head" in arrays else None
        return ClickModel(
            vectors,
            counts,
            float(arrays["ridge"]),
            float(arrays["confidence"]),
            similar,
            float(arrays["blend"]) if similar else 0.0,
        )

    @property
    def item_vectors(self) -> Float32s:
        """(m, d + r + 1): V, the weights' right side, and popularity."""
        V = self.vectors.astype(np.float64)
        popular = _popularity(self.counts)
        if self.similar is None:
            return np.column_stack([V, popular]).astype(np.float32)
        return np.column_stack([self.similar.blended(V, self.blend), popular]).astype(np.float32)

    def user_vectors(self, history: Interactions) -> Float64s:
        """(n, d + r + 1): each user folded in from its own history, and a one where that gives
        nothing."""
        U = clicks_client.user_vectors(
            history, self.vectors, ridge=self.ridge, confidence=self.confidence
        )
        nothing = ~U.any(axis=1)
        if self.similar is None:
            return np.column_stack([U, nothing])
        return np.column_stack(
            [
                U,
                self.similar.beside(U, self.vectors.astype(np.float64), history),
                nothing.astype(np.float64),
            ]
        )

    def parts(self, history: Interactions) -> Float64s:
        """(n, d + r + 1): what each of one user's clicks adds to `user_vectors`: as Hu, Koren and
        Volinsky 2008, sec. 5, given what the others make of the matrix."""
        V = self.vectors.astype(np.float64)
        mine = V[history.items]
        A = V.T @ V + self.confidence * mine.T @ mine + self.ridge * np.eye(V.shape[1])
        solved = (1 + self.confidence) * np.linalg.solve(A, mine.T).T
        columns = [solved]
        if self.similar is not None:
            U = self.user_vectors(history)[:, : V.shape[1]]
            columns.append(
                _scaled(self.similar.parts(history), self.similar.beside(U, V, history)[0])
            )
        return np.column_stack([*columns, np.zeros(len(history))])

    def own_parts(self, history: Interactions) -> Float64s:
        """(n, d): what each of one user's clicks adds to `own_vectors`."""
        if not self.vectors.any():
            return np.zeros((len(history), 1))
        return self.parts(history)[:, :-1]

    @property
    def own_items(self) -> Float64s:
        """(m, d): the items' side of scores beside others'; popularity alone where
        there are no vectors."""
        if not self.vectors.any():
            return _popularity(self.counts)[:, None]
        return np.asarray(self.item_vectors[:, :-1], np.float64)

    def own_vectors(self, history: Interactions) -> Float64s:
        """(n, d): the users' side of `own_items`."""
        if not self.vectors.any():
            return np.ones((history.num_users, 1))
        return self.user_vectors(history)[:, :-1]

    def arrays(self) -> Arrays:
        """Everything a device needs, for the released file."""
        scalars = {"ridge": np.array(self.ridge), "confidence": np.array(self.confidence)}
        weights = (
            {} if self.similar is None else {**self.similar.arrays(), "blend": np.array(self.blend)}
        )
        return {"vectors": self.vectors, "counts": self.counts, **scalars, **weights}


@dataclass(frozen=True)
class ItemItemModel:
    """Item-item weights alone: the items they know by their scores, the others below, by
    popularity; counts (m,)."""

    similar: ItemItem
    counts: Float64s
    offset: float = 0.0

    @staticmethod
    def of_arrays(arrays: Arrays) -> ItemItemModel:
        """The model of a released file."""
        return ItemItemModel(ItemItem.of_arrays(arrays), np.asarray(arrays["counts"], np.float64))

    @property
    def item_vectors(self) -> Float32s:
        """(m, r + 2): the weights' right side, -1 for items they do not know, popularity."""
        vectors = np.zeros((len(self.counts), self.similar.right.shape[1] + 2))
        vectors[:, -2] = -1
        vectors[self.similar.head, -2] = 0
        vectors[self.similar.head, :-2] = self.similar.right
        vectors[:, -1] = _popularity(self.counts)
        return vectors.astype(np.float32)

    def user_vectors(self, history: Interactions) -> Float64s:
        """(n, r + 2): the sum over the user's clicks, of length 1 where it is anything; what no
        score is below; and a one."""
        mine = self.similar.user_vectors(history)
        lengths = np.sqrt(np.sum(mine**2, axis=1, keepdims=True))
        longest = float(np.sqrt(np.max(np.sum(self.similar.right.astype(np.float64) ** 2, axis=1))))
        return np.column_stack(
            [
                mine / np.where(lengths > 0, lengths, 1),
                np.full(len(mine), longest),
                np.ones(len(mine)),
            ]
        )

    def parts(self, history: Interactions) -> Float64s:
        """(n, r + 2): what each of one user's clicks adds to `user_vectors`."""
        own = _scaled(self.similar.parts(history), self.user_vectors(history)[0, :-2])
        return np.column_stack([own, np.zeros((len(history), 2))])

    def own_parts(self, history: Interactions) -> Float64s:
        """(n, r): what each of one user's clicks adds to `own_vectors`."""
        return self.similar.parts(history)

    @property
    def own_items(self) -> Float64s:
        """(m, r): the weights' right side, 0 for items that they do not know."""
        vectors = np.zeros((len(self.counts), self.similar.right.shape[1]))
        vectors[self.similar.head] = self.similar.right
        return vectors

    def own_vectors(self, history: Interactions) -> Float64s:
        """(n, r): the users' side of `own_items`."""
        return self.similar.user_vectors(history)

    def arrays(self) -> Arrays:
        """Everything a device needs, for the released file."""
        return {"counts": self.counts, **self.similar.arrays()}


def _scaled(parts: Float64s, vector: Float64s) -> Float64s:
    """Parts (n, d) of a vector (d,), up to the factor that makes them add up to it."""
    total = parts.sum(axis=0)
    square = float(total @ total)
    return parts * (float(total @ vector) / square if square > 0 else 0.0)


def _popularity(counts: Float64s) -> Float64s:
    return np.asarray(FALLBACK * counts / max(float(counts.max()), 1e-9), np.float64)


def flattened(P: Float64s) -> Float64s:
    """(m, f) of P (m, f): its products are (P P')^1/2, half way from the similarity P P', of which
    a few large directions are most, to all directions alike.

    Validation NDCG@20 of tags with P P', with this and with all directions alike, on 1,892
    listeners x 17,632 artists, one draw: .157, .174, .156 at epsilon 1, with a weight of .8 at 5
    .180, .199, .197. Links, whose eigenvalues are much the same, lose nothing by it."""
    values, E = np.linalg.eigh(P.T @ P)
    known = values > 1e-9 * max(float(values[-1]), 1e-300)  # below: rounding of float64
    factors = np.where(known, np.where(known, values, 1.0) ** -0.25, 0.0)
    return np.asarray((P @ E) * factors, np.float64)


def public_alone(directions: tuple[Float32s, ...]) -> PublicPriorModel:
    """What public sides say without any release, at epsilon 0: all sources alike, counts as if all
    items were clicked as often."""
    items = len(directions[0])
    private = ClickModel(np.zeros((items, 1), np.float32), np.ones(items), 1.0, 1.0)
    weights = np.full(1 + len(directions), 1 / len(directions))
    weights[0] = 0
    return PublicPriorModel(private, directions, weights)


@dataclass(frozen=True)
class Part:
    """One part's scores, left right': `left` (n, d) of users, `right` (m, d) of items."""

    left: Float64s
    right: Float64s

    @property
    def unit(self) -> Part:
        """With scores of root mean square 1 over items; of users without any, zeros."""
        gram = self.right.T @ self.right / len(self.right)
        # row after row: a user's length does not depend on the batch
        squares = np.array([max(float(u @ gram @ u), 0.0) for u in self.left])
        found = squares > 0
        factors = np.divide(1, np.sqrt(squares), out=np.zeros_like(squares), where=found)
        return Part(self.left * factors[:, None], self.right)


@dataclass(frozen=True)
class PublicPriorModel:
    """A private model of clicks beside public directions of items.

    private: as without public sides. directions: (m, f_q) P of each source. weights: (1 + sources,)
    of the blend."""

    private: ClickModel | ItemItemModel
    directions: tuple[Float32s, ...]
    weights: Float64s
    offset: float = 0.0

    @staticmethod
    def of_arrays(arrays: Arrays) -> PublicPriorModel:
        """The model of a released file."""
        kind = ClickModel if "ridge" in arrays else ItemItemModel
        names = sorted(name for name in arrays if name.startswith("public."))
        directions = tuple(np.asarray(arrays[name], np.float32) for name in names)
        return PublicPriorModel(
            kind.of_arrays(arrays), directions, np.asarray(arrays["weights"], np.float64)
        )

    def arrays(self) -> Arrays:
        """Everything a device needs, for the released file."""
        public = {f"public.{q}": P for q, P in enumerate(self.directions)}
        return {**self.private.arrays(), **public, "weights": self.weights}

    @property
    def item_vectors(self) -> Float32s:
        """(m, D): the items' side of every part with a weight, and popularity."""
        columns = [part for part, w in zip(self.items_of_parts, self.weights, strict=True) if w]
        columns.append(_popularity(self.private.counts))
        return np.column_stack(columns).astype(np.float32)

    def user_vectors(self, history: Interactions) -> Float64s:
        """(n, D): sums over the user's clicks, scaled as the module says, and a one."""
        users = self.users_of_parts(history)
        parts = [
            w * Part(left, right).unit.left
            for left, right, w in zip(users, self.items_of_parts, self.weights, strict=True)
            if w
        ]
        return np.column_stack([*parts, np.ones(history.num_users)])

    def parts(self, history: Interactions) -> Float64s:
        """(n, D): what each of one user's clicks adds to `user_vectors`."""
        clicks = [P[history.items] / self._popular[history.items] for P in self.directions]
        own = [self.private.own_parts(history), *clicks]
        whole = zip(self.users_of_parts(history), self.items_of_parts, self.weights, strict=True)
        vectors = [w * Part(left, right).unit.left[0] for left, right, w in whole]
        scaled = [_scaled(p, u) for p, u, w in zip(own, vectors, self.weights, strict=True) if w]
        return np.column_stack([*scaled, np.zeros(len(history))])

    @property
    def items_of_parts(self) -> list[Float64s]:
        """The items' side (m, d) of each part's scores."""
        popular = self._popular
        return [self.private.own_items, *(P.astype(np.float64) * popular for P in self.directions)]

    def users_of_parts(self, history: Interactions) -> list[Float64s]:
        """The users' side (n, d) of each part's scores."""
        popular = self._popular
        decay = 0.0 if self.private.similar is None else self.private.similar.decay
        public = [clicked_sums(P / popular, history, decay) for P in self.directions]
        return [self.private.own_vectors(history), *public]

    @property
    def _popular(self) -> Float64s:
        counts = np.maximum(self.private.counts, FALLBACK)
        return np.asarray(counts[:, None] ** POPULAR, np.float64)


def clicked_sums(
    P: npt.NDArray[np.floating], history: Interactions, decay: float = 0.0
) -> Float64s:
    """(n, f) sums of directions P (m, f) over each user's clicks, in their order."""
    return np.asarray(weighed(history, decay) @ P.astype(np.float64), np.float64)
