"""The serving bundle of a factorisation model, ratings or clicks: scores are linear in B coefficients, so items need B numbers too.

    score_j = v_j . (u0 + A (a - mean)) + offset = items_j . q + bias_j,    q = (a - mean) / scale

items = scale V A' (m, B), bias = V u0 + offset, and the server's user map is the identity. v_j, u0 and offset are of the model's
ranker. The released model goes along, for devices that rank by their own exact solve and spend nothing.
"""

from __future__ import annotations

import numpy as np

from fedrec.factorization.released import arrays_of
from fedrec.serving.exporting import Asking, Export, Origin, PublicItems, Ranking, additive_bundle
from fedrec.serving.factorization_basis import BasisSettings, factorization_basis, scale_of
from fedrec.serving.synthetic import Released, SyntheticSettings
from fedrec.serving.user_map import UserMap
from fedrec.streams import Streams


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
    """About and arrays; no event is an argument. Raises SettingsError where item vectors are all alike, so that none can be ranked."""
    settings = settings or BasisSettings()
    rng = streams.numpy("serving-basis")
    basis = factorization_basis(released, settings, synthetic or SyntheticSettings(), liked=liked, rng=rng)
    scale, B = scale_of(basis.population), basis.table.topics
    V = np.asarray(released.ranker.item_vectors, np.float64)
    ranking = Ranking(
        users=UserMap.of_linear(np.eye(B), np.zeros(B)),
        items=scale * V @ basis.matrix.T,
        bias=V @ basis.mean_user + released.ranker.offset,
    )
    asking = Asking(basis.table, basis.population, settings.history, scale, liked)
    model = {f"model.{name}": np.asarray(array) for name, array in arrays_of(released.model).items()}
    return additive_bundle(released.like.kind, origin, catalogue, asking, ranking, more=model)
