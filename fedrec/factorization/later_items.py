"""Items that came after training: their vectors follow from what everybody may know of them.

    V = 1 mean' + X B,    X (m, f) leading directions of features, links and vectors of the items

B is the ridge regression of the released item vectors on the public side of the same items. Its
ridge minimises generalised cross-validation (Golub, Heath, Wahba 1979) over all coordinates
together: where public knowledge tells nothing of the vectors, a new item has their mean. Scores are
inner products with item vectors, so that this is the regression of every person's scores too.

Guarantee: post-processing of a release, and public data. Nothing is trained, and nobody is asked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s, Floats
from fedrec.data.features import METADATA_WEIGHTS, PublicFeatures, svd_embedding
from fedrec.data.public_sources import SOURCES
from fedrec.errors import DataError
from fedrec.factorization.default_ratings.public_directions import (
    link_directions,
    together,
    vector_directions,
)
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.factorization.released import ExtendedModel
from fedrec.numerics.segments import regressed

DIRECTIONS = 300
"""Of public sides. NDCG@20 among a tenth of the films of MovieLens 1M that training did not have,
epsilon 5, one split: with 100 and 300 directions .372 and .419 as likes, .378 and .399 as ratings;
random order .044."""


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
