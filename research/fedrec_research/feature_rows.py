"""Public rows of items, by which a linear encoder sees them: their bags, scaled together to norm 1,
an entry of each item's own, and a one; and as a question carries them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.data.features import PublicFeatures
from fedrec.encoders import items as encoder
from fedrec.encoders.items import ItemInputs
from fedrec.federation.messages import Question


@dataclass(frozen=True)
class FeatureSettings:
    """least_share: a feature value counts if this share of all items has it, and then as their
    number to the power -`rarity`. identity: size of an item's own entry beside its bags of norm 1;
    0 for none, where the encoder fits AM-SSP's functions of features."""

    least_share: float
    rarity: float
    identity: float


def feature_rows(
    features: PublicFeatures | None, num_items: int, settings: FeatureSettings
) -> sparse.csr_matrix:
    """X (m, P), public: an item's bags, scaled together to norm 1, its own entry, and a one."""
    own = sparse.csr_matrix(sparse.identity(num_items))
    ones = sparse.csr_matrix(np.ones((num_items, 1)))
    if features is None or not features.bags:
        return sorted_rows(sparse.csr_matrix(sparse.hstack([own, ones])))
    bags = _bags_of(encoder.prepare(features), settings)
    parts = [bags, settings.identity * own, ones] if settings.identity else [bags, ones]
    return sorted_rows(sparse.csr_matrix(sparse.hstack(parts)))


def _bags_of(inputs: ItemInputs, settings: FeatureSettings) -> sparse.csr_matrix:
    """(m, P') averages of all categories side by side, rare values cut and the others weighed, rows
    of norm 1 or 0."""
    averages = (inputs.csr.data, inputs.csr.indices, inputs.csr.indptr[:: len(inputs.categories)])
    bags = sparse.csr_matrix(
        averages, shape=(inputs.num_items, sum(inputs.sizes)), dtype=np.float64
    )
    items = bags.getnnz(axis=0)
    kept = np.flatnonzero(items >= max(settings.least_share * inputs.num_items, 1))
    bags = bags[:, kept] @ sparse.diags_array(items[kept] ** -settings.rarity)
    norms = np.sqrt(np.asarray(bags.multiply(bags).sum(axis=1)).ravel())
    return sparse.csr_matrix(sparse.diags_array(1 / np.where(norms > 0, norms, 1.0)) @ bags)


def padded_rows(X: sparse.csr_matrix) -> dict[str, npt.NDArray[np.generic]]:
    """X for a question: features and values of each item (m, L), 0 after its last."""
    lengths = np.diff(X.indptr)
    places = (
        np.arange(X.nnz) - np.repeat(X.indptr[:-1], lengths),
        np.repeat(np.arange(len(lengths)), lengths),
    )
    features = np.zeros((len(lengths), int(lengths.max())), np.int32)
    values = np.zeros((len(lengths), int(lengths.max())))
    features[places[1], places[0]] = X.indices
    values[places[1], places[0]] = X.data
    return {"bag_features": features, "bag_values": values, "num_features": np.array(X.shape[1])}


def rows_of_question(question: Question) -> sparse.csr_matrix:
    """X of a question. Raises ValueError where it names a feature that there is not, or there are
    more of them than rows are asked for: products with X take memory for each."""
    features = np.asarray(question.public["bag_features"])
    values = np.asarray(question.public["bag_values"], np.float64)
    P = int(question.public["num_features"])
    most = max(spec.rows for spec in question.blocks)
    sound = features.shape == values.shape and most >= P
    if not sound or int(features.min()) < 0 or int(features.max()) >= P:
        raise ValueError(
            f"bags of shape {features.shape} and {values.shape} do not name {P} features"
        )
    rows = np.repeat(np.arange(len(features)), features.shape[1])
    X = sparse.csr_matrix((values.ravel(), (rows, features.ravel())), shape=(len(features), P))
    X.eliminate_zeros()
    return X


def sorted_rows(rows: sparse.csr_matrix) -> sparse.csr_matrix:
    """A report names its rows in rising order."""
    rows.sort_indices()
    return rows
