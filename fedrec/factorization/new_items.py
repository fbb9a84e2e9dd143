"""Items that came after training: their vectors follow from what everybody may know of them.

    V = 1 mean' + X B,    X (m, f) leading directions of features, links and vectors of the items

B is the ridge regression of the released item vectors on the public side of the same items. Its
ridge minimises generalised cross-validation (Golub, Heath, Wahba 1979) over all coordinates
together: where public knowledge tells nothing of the vectors, a new item has their mean. Scores are
inner products with item vectors, so that this is the regression of every person's scores too.

Guarantee: post-processing of a release, and public data. Nothing is trained, and nobody is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s, Floats
from fedrec.data.features import METADATA_WEIGHTS, PublicFeatures, svd_embedding
from fedrec.data.interactions import Interactions
from fedrec.data.public_sources import SOURCES
from fedrec.errors import DataError
from fedrec.factorization.default_clicks.public_part import link_directions, vector_directions
from fedrec.factorization.default_ratings.directions import together
from fedrec.factorization.model import Model, ranker_of
from fedrec.numerics.segments import regressed

DIRECTIONS = 300
"""Of public sides. NDCG@20 among a tenth of the films of MovieLens 1M that training did not have,
epsilon 5, one split: with 100 and 300 directions .372 and .419 as likes, .378 and .399 as ratings;
random order .044."""
NEW = "new.vectors"
NEW_RANKED = "new.ranked"
"""Arrays of a released file."""


@dataclass(frozen=True)
class ExtendedModel:
    """A released model with more items after its own.

    new: (n, D) rows of item vectors; new_ranked: those of its ranker, None where it has none. A
    history is read by the known items alone.
    """

    known: Model
    new: Float32s
    new_ranked: Float32s | None

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]], known: Model) -> ExtendedModel:
        """Around a known model, the rows of a released file."""
        ranked = np.asarray(arrays[NEW_RANKED], np.float32) if NEW_RANKED in arrays else None
        return ExtendedModel(known, np.asarray(arrays[NEW], np.float32), ranked)

    @property
    def ranker(self) -> ExtendedModel | None:
        """What makes its lists (`model.ranker_of`)."""
        if self.new_ranked is None:
            return None
        return ExtendedModel(ranker_of(self.known), self.new_ranked, None)

    @property
    def item_vectors(self) -> Floats:
        """(m + n, D)."""
        return np.concatenate([np.asarray(self.known.item_vectors, np.float32), self.new])

    @property
    def offset(self) -> float:
        """That of the known model."""
        return self.known.offset

    def user_vectors(self, history: Interactions) -> Floats:
        """(users, D) by events on known items."""
        m = history.num_items - len(self.new)
        events = history.select(history.items < m)
        return self.known.user_vectors(replace(events, num_items=m, item_words=None))

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """What the known model's own arrays do not hold."""
        ranked = {} if self.new_ranked is None else {NEW_RANKED: self.new_ranked}
        return {NEW: self.new, **ranked}


def trained_items(model: Model, items: int) -> int:
    """How many of its items training knew."""
    return items - len(model.new) if isinstance(model, ExtendedModel) else items


def extended(model: Model, X: Float64s, described: npt.NDArray[np.bool_]) -> ExtendedModel:
    """The model with the items of the last rows of X (m + n, f). described: (m,) the known items
    that the public side names, which alone teach the regression."""
    known = model.known if isinstance(model, ExtendedModel) else model

    def new_rows(of: Model) -> Float32s:
        return expected(of.item_vectors, X, described).astype(np.float32)

    ranker = ranker_of(known)
    return ExtendedModel(known, new_rows(known), None if ranker is known else new_rows(ranker))


def expected(Y: Floats, X: Float64s, described: npt.NDArray[np.bool_]) -> Float64s:
    """(n, D) what rows of Y (m, D) would be for new items; X and described as in `extended`."""
    m = len(described)
    return regressed(np.asarray(Y, np.float64)[described], X[:m][described], X[m:])


def public_directions(features: PublicFeatures) -> Float64s:
    """(items, f) X of features, links and vectors.

    Raises DataError where nothing public tells one item from another."""
    said = features.only(name for name in features.bags if name not in SOURCES)
    content = None
    if any(bag.tells for bag in said.bags.values()):
        content = np.asarray(
            svd_embedding(said, dimension=DIRECTIONS, seed=0, weights=METADATA_WEIGHTS), np.float64
        )
    sides = (content, link_directions(features), vector_directions(features))
    if (X := together(sides, dimension=DIRECTIONS)) is None:
        raise DataError(
            "nothing that is known of the items tells one from another",
            "Give columns beside ids and titles, item vectors or similar items.",
        )
    return X
