"""Released models of clicks: item vectors that a device finds its own vector by, item-item weights,
and the two blended.

On the items of the weights a score is (1 - w) s + w (mean s + f e): s of the vectors, e of the
weights, each centred over those items for the user at hand, f what gives e the spread of s. Other
items keep s, so that nothing is gained or lost against them. All of it is linear in what the user
holds, and stays an inner product. w grows with the part of all clicks that the weights see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks import client as clicks_client
from fedrec.factorization.default_clicks.item_item import ItemItem

Arrays = Mapping[str, npt.NDArray[np.generic]]

FALLBACK = 1e-6
"""Scale of the popularity column, which only users without a vector of their own see: no similarity
of items notices it."""
BLEND = 0.65
"""w over the part of all clicks that weights see.

Validation NDCG@20, one draw, was best at w over that part of .6 on yelp2018 at epsilon 5, 20 and
without noise (weights see 25, 33 and 45%; .0518 at 20 with .6, .0509 with 1), of .6 to .8 on
amazon-book at 5 and 20 (34, 58%), 1 or more at 1 (24%), .5 to 1 on its 1,000 most clicked items, .2
to .5 on those of yelp2018, and flat from .4 to 1 on MovieLens 1M (45 to 97%).
"""


def blend_weight(*, part: float, rank: int, width: int) -> float:
    """w of item-item weights of `rank` that see `part` of all clicks, beside vectors of `width`
    numbers.

    Vectors of few numbers, as small catalogues have, know less than weights of high rank: of the
    100 films of MovieLens 1M .37 against .40.
    """
    return part * max(BLEND, 1 - (2 * width / rank) ** 2)


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

    @property
    def own_items(self) -> Float64s:
        """(m, d): the items' side of scores beside others' (`public_part`); popularity alone where
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


def _popularity(counts: Float64s) -> Float64s:
    return np.asarray(FALLBACK * counts / max(float(counts.max()), 1e-9), np.float64)
