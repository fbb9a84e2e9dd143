"""The serving bundle of a factorisation model, ratings or clicks: scores are linear in B
coefficients, so items need B numbers too.

    score_j = directions_j . query + prior_j = items_j . q + bias_j,    q = query / scale

items = scale directions (m, B), bias = prior (`factorization_basis`), and the server's user map is
the identity. Scores are those of the model's ranker. The released model goes along, for devices
that rank by their own exact solve and spend nothing.
"""

from __future__ import annotations

import math

import numpy as np

from fedrec.factorization.released import arrays_of
from fedrec.randomness import Streams
from fedrec.serving.exporting import Asking, Export, Origin, PublicItems, Ranking, additive_bundle
from fedrec.serving.factorization_basis import BasisSettings, factorization_basis
from fedrec.serving.synthetic import Released, SyntheticSettings
from fedrec.serving.user_map import UserMap


def factorization_bundle(
    released: Released,
    catalogue: PublicItems,
    origin: Origin,
    *,
    liked: float = 0.0,
    settings: BasisSettings | None = None,
    synthetic: SyntheticSettings | None = None,
    streams: Streams,
) -> Export:
    """About and arrays; no event is an argument.

    Raises SettingsError where item vectors are all alike, so that none can be ranked."""
    settings = settings or BasisSettings()
    rng = streams.numpy("serving-basis")
    basis = factorization_basis(
        released, settings, synthetic or SyntheticSettings(), liked=liked, rng=rng
    )
    sizes = basis.sizes
    B = basis.table.topics
    scale = math.sqrt(sizes.explained(noise_std=0.0) / B) or 1.0
    ranking = Ranking(
        users=UserMap.of_linear(np.eye(B), np.zeros(B)),
        items=scale * basis.directions,
        bias=basis.prior,
    )
    asking = Asking(basis.table, basis.population, basis.history, scale, liked)
    model = {
        f"model.{name}": np.asarray(array) for name, array in arrays_of(released.model).items()
    }
    return additive_bundle(
        released.like.kind, origin, catalogue, asking, ranking, more={**sizes.arrays(), **model}
    )
