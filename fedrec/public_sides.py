"""Public input of recipes, from a scenario's [collective] table and public features: the sides of
DP-CMF, and public people."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import sparse

from fedrec.arrays import Float32s
from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.public_sources import PUBLIC_USERS, SIMILAR_ITEMS, metadata_of
from fedrec.errors import SettingsError
from fedrec.evaluation.toplists import NO_ITEM, top_items
from fedrec.factorization.collective import Side
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.least_squares import alternate_clicks
from fedrec.randomness import Streams
from fedrec.settings_tables.collective import CollectiveSettings

Similarity = Literal["inner-product", "cosine"]

WIDTH = 32
RIDGE = 10.0
ALPHA = 10.0
ITERATIONS = 8
"""Of the public factorisation: ordinary values, not fitted to any data set."""


def learned_vectors(
    public_users: FeatureBag, *, threshold: float, rng: np.random.Generator
) -> Float32s:
    """(m, WIDTH) item vectors from ratings of at least `threshold`; zero for an item that no public
    user rated so.

    They come from implicit matrix factorisation of what public users rated highly (DP-CMF section
    4, Curmei et al. 2023). For each item, the k others with the largest inner product or cosine are
    similar. The paper learns from a variant of ML-20M in which most of the private users of ML-10M
    rate too, and calls the result public; ours sees the public users and nobody else.
    """
    liked = public_users.counts.T.tocoo()
    users, items = (part[liked.data >= threshold] for part in (liked.row, liked.col))
    n, m = liked.shape
    clicks = Interactions.from_columns(
        users, items, None, num_users=n, num_items=m, value_range=(0.0, 1.0), kind="clicks"
    )
    *_, last = alternate_clicks(
        clicks, width=WIDTH, ridge=RIDGE, alpha=ALPHA, iterations=ITERATIONS, rng=rng
    )
    return np.asarray(last.model.V, np.float32)


def neighbours(V: Float32s, *, k: int, similarity: Similarity) -> sparse.csr_matrix:
    """(m, m) CSR float32: row i holds the scores of the k items most similar to i, itself left out,
    in any order of scores.

    An item of zero length has no neighbours and is nobody's. Fewer than k positive scores give
    fewer neighbours. Of equal ones the smaller key is first (`numerics.segments`).
    """
    lengths = np.linalg.norm(V, axis=1, keepdims=True)
    X = V / np.where(lengths > 0, lengths, 1) if similarity == "cosine" else V
    m = len(X)

    def scores(start: int, stop: int) -> Float32s:
        block = X[start:stop] @ X.T
        return np.where(block > 0, block, -np.inf).astype(np.float32)

    itself = Interactions(
        np.arange(m + 1),
        np.arange(m, dtype=np.int32),
        np.ones(m, np.float32),
        m,
        (0.0, 1.0),
        "clicks",
    )
    lists = top_items(scores, history=itself, k=min(k, m))
    rows, places = np.nonzero(lists != NO_ITEM)
    columns = lists[rows, places]
    found = np.einsum("ed,ed->e", X[rows], X[columns])
    return sparse.csr_matrix((found.astype(np.float32), (rows, columns)), shape=(m, m))


def sides_of(chosen: CollectiveSettings, facts: PublicFacts) -> tuple[Side, ...]:
    """The sides that `chosen` names, in its order; none where nothing public is known yet (a plan
    needs none).

    Raises SettingsError where one needs data that is not there, or where public users' raw ratings
    meet private clicks.
    """
    if chosen.users_values == "raw" and "public-users" in chosen.sides and not facts.rated:
        raise SettingsError(
            (
                'collective.users_values = "raw" puts ratings of public users beside clicks of '
                "private ones"
            ),
            'Use users_values = "binary".',
        )
    if facts.features is None or not facts.features.bags:
        return ()
    if not facts.rated:  # a click says it already
        chosen = chosen.model_copy(update={"users_threshold": 0.0})
    makers = {"metadata": _metadata, "similar-items": _similar_items, "public-users": _public_users}
    return tuple(makers[name](chosen, facts.features, facts.streams) for name in chosen.sides)


def clicks_of_people(chosen: CollectiveSettings, facts: PublicFacts) -> Interactions | None:
    """Public people as users, for the default recipe on clicks; None where there are none, or
    nothing public is known yet.

    Raises SettingsError on sides other than public users.
    """
    if not chosen.chosen():
        return None
    if chosen.sides != ("public-users",):
        raise SettingsError(
            (
                'recipe = "default" learns clicks from public users alone, found '
                f"collective.sides = {list(chosen.sides)}"
            ),
            'Set collective.sides = ["public-users"].',
        )
    sides = sides_of(chosen, facts)
    if not sides:
        return None
    S = sides[0].entries.tocoo()
    return Interactions.from_columns(
        S.row,
        S.col,
        None,
        num_users=S.shape[0],
        num_items=facts.num_items,
        value_range=facts.value_range,
        kind="clicks",
    )


def people_of(chosen: CollectiveSettings, facts: PublicFacts) -> Interactions:
    """The ratings of public users, at most `users_limit` of them.

    Raises SettingsError where there are none."""
    if facts.features is None:
        raise SettingsError(
            "collective.sides needs public users, and there are none",
            "Give collective.users_file or users_share.",
        )
    S = _limited(_users_of(facts.features), chosen, facts.streams).tocoo()
    (n, m), (low, high) = S.shape, facts.value_range
    if S.nnz and not low <= float(S.data.min()) <= float(S.data.max()) <= high:
        raise SettingsError(
            f"public users rate outside of {low:g} to {high:g}, the private users' scale",
            "Bring both to one scale.",
        )
    return Interactions.from_columns(
        S.row, S.col, S.data, num_users=n, num_items=m, value_range=facts.value_range
    )


def _metadata(chosen: CollectiveSettings, features: PublicFeatures, streams: Streams) -> Side:
    """Every feature value a row, 1 where an item carries it."""
    found = metadata_of(features, chosen.categories)
    bags = [] if found is None else [bag.counts for bag in found.bags.values()]
    if not bags:
        raise SettingsError(
            "collective.sides names metadata, but the items have none",
            "Give features, or choose other sides.",
        )
    return _side(
        "metadata",
        _binary(sparse.csr_matrix(sparse.vstack([bag.T for bag in bags]))),
        chosen.metadata_weight,
        chosen.metadata_ridge,
        chosen,
    )


def _similar_items(chosen: CollectiveSettings, features: PublicFeatures, streams: Streams) -> Side:
    """Column j: the items most similar to item j, from a file or learned from public users; scores
    have mean 1."""
    given = features.bags.get(SIMILAR_ITEMS)
    S = sparse.csr_matrix((given or learned_similar_items(chosen, features, streams)).counts.T)
    if chosen.similar_values == "binary":
        S = _binary(S)
    elif S.nnz:
        S = sparse.csr_matrix(S / np.abs(S.data).mean(dtype=np.float64), dtype=np.float32)
    return _side("similar-items", S, chosen.similar_weight, chosen.similar_ridge, chosen)


def learned_similar_items(
    chosen: CollectiveSettings, features: PublicFeatures, streams: Streams
) -> FeatureBag:
    """The bag `SIMILAR_ITEMS` that public users teach.

    Raises SettingsError where there are none."""
    V = learned_vectors(
        _users_of(features),
        threshold=chosen.users_threshold,
        rng=streams.numpy("public-similarity"),
    )
    found = neighbours(V, k=chosen.neighbours, similarity=chosen.similarity)
    return FeatureBag(tuple(map(str, range(len(V)))), found)


def _public_users(chosen: CollectiveSettings, features: PublicFeatures, streams: Streams) -> Side:
    """Every public user a row: ratings less their mean, or 1 for those of at least the
    threshold."""
    S = _limited(_users_of(features), chosen, streams)
    if chosen.users_values == "binary":
        S.data = (S.data >= chosen.users_threshold).astype(np.float32)
        S.eliminate_zeros()
        return _side("public-users", S, chosen.users_weight, chosen.users_ridge, chosen)
    S.data = (S.data - S.data.mean(dtype=np.float64)).astype(np.float32)
    return Side("public-users", S, chosen.users_weight, chosen.users_ridge)


def _limited(users: FeatureBag, chosen: CollectiveSettings, streams: Streams) -> sparse.csr_matrix:
    """Users as rows, drawn where there are more than the limit."""
    S = sparse.csr_matrix(users.counts.T)
    if not chosen.users_limit:
        return S
    drawn = streams.numpy("public-users-limit").permutation(S.shape[0])[: chosen.users_limit]
    return sparse.csr_matrix(S[np.sort(drawn)])


def _users_of(features: PublicFeatures) -> FeatureBag:
    if PUBLIC_USERS not in features.bags:
        raise SettingsError(
            "collective.sides needs public users, and there are none",
            "Give collective.users_file or users_share.",
        )
    return features.bags[PUBLIC_USERS]


def _binary(S: sparse.csr_matrix) -> sparse.csr_matrix:
    return sparse.csr_matrix(S > 0, dtype=np.float32)


def _side(
    name: str, S: sparse.csr_matrix, weight: float, ridge: float, chosen: CollectiveSettings
) -> Side:
    """A side whose absent entries are zeros."""
    return Side(name, S, weight, ridge, chosen.unobserved)
