"""Ranker of a rating model: how probable it is that a person rates an item, and rates it highly.

    score = log count_j + slope x predicted rating,    slope = d log P(liked | r) / dr at the mean
        rating, P = Phi((r - LIKED) / std)

What is rated at all decides most of a list, and what is predicted decides only among things that
are rated: an order by predictions alone puts items first that nobody knows. Where item-item weights
of what people rate are there (`item_item`), they decide for the items that they know. All of it is
made of releases, so the ranker is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from fedrec.arrays import Float64s, Floats
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks.item_item import ItemItem
from fedrec.factorization.rankers import Model

LIKED = 0.625
"""Of the way up the scale: on 1 to 5, ratings that are nearer to 4 than to 3 are liked."""


@dataclass(frozen=True)
class LikedRanker:
    """Item vectors (m, D + 1): slope v_j, log count; user vectors (n, D + 1): those of the rating
    model `taste`, and a one.

    similar: item-item weights of what people rate, blended with weight `blend` on the items that
    they know; r more columns.
    """

    taste: Model
    log_counts: Float64s
    slope: float
    similar: ItemItem | None = None
    blend: float = 0.0
    offset: float = 0.0

    @staticmethod
    def of(
        taste: Model, counts: Float64s, *, std: float, value_range: tuple[float, float]
    ) -> LikedRanker:
        """From released counts (m,) > 0, in any unit, and what a prediction leaves open, in rating
        units."""
        low, high = value_range
        z = (taste.offset - low - LIKED * (high - low)) / std
        density = math.exp(-0.5 * z * z - float(scipy.special.log_ndtr(z))) / math.sqrt(2 * math.pi)
        return LikedRanker(taste, np.log(counts), density / std)

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]], taste: Model) -> LikedRanker:
        """The ranker of a released file, beside the model it was saved with."""
        similar = ItemItem.of_arrays(arrays) if "head" in arrays else None
        blend = float(arrays["blend"]) if similar else 0.0
        return LikedRanker(
            taste,
            np.asarray(arrays["log_counts"], np.float64),
            float(arrays["slope"]),
            similar,
            blend,
        )

    @property
    def item_vectors(self) -> Floats:
        """See the class."""
        vectors = np.column_stack([self.slope * self.taste.item_vectors, self.log_counts])
        return (
            vectors if self.similar is None else self.similar.blended(vectors, self.blend)
        ).astype(np.float32)

    def user_vectors(self, history: Interactions) -> Floats:
        """See the class."""
        return self.from_tastes(self.taste.user_vectors(history), history)

    def from_tastes(self, U: Floats, history: Interactions) -> Floats:
        """The user vectors where those of `taste`, U (n, D), are known."""
        users = np.column_stack([U, np.ones(history.num_users)])
        if self.similar is None:
            return users
        vectors = np.column_stack([self.slope * self.taste.item_vectors, self.log_counts])
        return np.column_stack([users, self.similar.beside(users, vectors, history)])

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """What the model's own arrays do not hold."""
        weights = (
            {} if self.similar is None else {**self.similar.arrays(), "blend": np.array(self.blend)}
        )
        return {"log_counts": self.log_counts, "slope": np.array(self.slope), **weights}
