"""What is particular to DP-CMF (Curmei et al. 2023, Alg. 1); the five tests of a private algorithm
are in test_recipes.py."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted
from fedrec.data.public_sources import PUBLIC_USERS, with_users_made_public
from fedrec.errors import SettingsError
from fedrec.factorization import collective
from fedrec.factorization.collective import Side
from fedrec.factorization.facts import PublicFacts, predict
from fedrec.factorization.item_statistics import ItemStatistics
from fedrec.federation.messages import train
from fedrec.in_process import Loopback
from fedrec.numerics.segments import pack
from fedrec.privacy.accounting import Ledger
from fedrec.public_sides import neighbours, sides_of
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import load
from fedrec.settings_tables.collective import CollectiveSettings

PLAIN = [
    "model.user_ridge=1",
    "model.item_ridge=10",
    "model.user_radius=1",
    "model.target_radius=1",
]
"""What dp-cmf takes where nothing is said; the published recipe takes others."""
CMF = ["recipe=dp-cmf", "model.dimension=3", "model.steps=2", *PLAIN]
EXPLICIT = Side(
    "ratings",
    sparse.csr_matrix(np.array([[2.0, 0, -1, 0], [0, 3, 0, 0], [1, 0, 0, 0]], np.float32)),
    weight=2.0,
    ridge=0.5,
)
IMPLICIT = Side(
    "kinds",
    sparse.csr_matrix(np.array([[1.0, 1, 0, 0], [0, 1, 1, 0]], np.float32)),
    weight=3.0,
    ridge=0.7,
    unobserved=0.2,
)


def facts_of(ratings: Interactions, features: PublicFeatures | None) -> PublicFacts:
    return PublicFacts(
        ratings.num_users,
        ratings.num_items,
        ratings.kind,
        ratings.value_range,
        features,
        Streams(1),
    )


def final_vectors(ratings: Interactions, made: Prepared) -> np.ndarray:
    link = Loopback(ratings, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
    *_, last = train(made.recipe, link, made.recipe.begin())
    return np.asarray(last.state["V"])


def loss_of_item(
    j: int, v: np.ndarray, F: np.ndarray, side: Side, A: np.ndarray, b: np.ndarray, ridge: float
) -> float:
    """Eq. (1) as a function of v_j: the private part as a quadratic form, the public part entry by
    entry.
    """
    S = side.entries
    public = sum((F[k] @ v - S[k, j]) ** 2 for k in S[:, [j]].nonzero()[0]) + side.unobserved * sum(
        (f @ v) ** 2 for f in F
    )
    return float(v @ A @ v - 2 * b @ v + side.weight * public + ridge * v @ v)


@pytest.mark.parametrize("side", [EXPLICIT, IMPLICIT], ids=lambda side: side.name)
def test_feature_vectors_solve_equation_3(side: Side) -> None:
    V = np.random.default_rng(1).standard_normal((4, 2))
    F = collective.feature_vectors(side, V)
    S = side.entries.toarray()
    for k, f in enumerate(F):
        carried = S[k] != 0
        system = V[carried].T @ V[carried] + side.unobserved * V.T @ V + side.ridge * np.eye(2)
        np.testing.assert_allclose(system @ f, V[carried].T @ S[k][carried], atol=1e-12)


@pytest.mark.parametrize("side", [EXPLICIT, IMPLICIT], ids=lambda side: side.name)
def test_the_item_update_minimises_the_collective_loss(side: Side) -> None:
    """Alg. 1 l. 9-11 at a positive definite A_j: no step away from v_j lowers eq. (1)."""
    rng = np.random.default_rng(2)
    V = rng.standard_normal((4, 2))
    half = rng.standard_normal((4, 2, 2))
    A = half @ half.transpose(0, 2, 1)
    b = rng.standard_normal((4, 2))
    moved = collective.item_update(
        ItemStatistics(pack(A), b), [collective.exact_statistics(side, V)], ridge=0.3
    )
    F = collective.feature_vectors(side, V)
    for j, v in enumerate(moved):
        least = loss_of_item(j, v, F, side, A[j], b[j], 0.3)
        for away in np.vstack([np.eye(2), -np.eye(2)]) * 1e-2:
            assert loss_of_item(j, v + away, F, side, A[j], b[j], 0.3) > least


def test_without_weight_on_public_data_it_is_the_published_recipe() -> None:
    dataset = planted(SHAPES["small"], seed=3)
    facts = facts_of(dataset.interactions, dataset.features)
    cmf = final_vectors(
        dataset.interactions, prepare(load(None, [*CMF, "collective.metadata_weight=1e-30"]), facts)
    )
    alone = final_vectors(
        dataset.interactions,
        prepare(load(None, ["recipe=published", "model.encoder=id", *CMF[1:]]), facts),
    )
    np.testing.assert_allclose(cmf, alone, atol=1e-5)


def test_public_data_costs_nothing() -> None:
    facts = facts_of(planted(SHAPES["small"], seed=3).interactions, PublicFeatures({}))
    cmf = prepare(load(None, CMF), facts).plan
    assert (
        cmf == prepare(load(None, ["recipe=published", "model.encoder=id", *CMF[1:]]), facts).plan
    )


def test_planted_public_users_bring_private_training_closer_to_the_truth() -> None:
    """At epsilon 1 and with 500 private users, ratings of 1,000 public ones take more than a tenth
    off the error on unseen ratings."""
    dataset = planted(dataclasses.replace(SHAPES["small"], users=1_500, events=37_500), seed=1)
    dataset = with_users_made_public(dataset, share=2 / 3, key=Streams(1).key("public-users"))
    everything = dataset.interactions
    facts = facts_of(dataset.interactions, dataset.features)
    unseen = np.random.default_rng(1).random(len(everything)) < 0.1
    seen = everything.select(~unseen)
    asked = everything.select(unseen)
    errors = []
    for overrides in (
        ["recipe=published", "model.encoder=id", "model.dimension=4", "model.steps=3", *PLAIN],
        ["recipe=dp-cmf", 'collective.sides=["public-users"]', "collective.users_share=0.5"],
    ):
        made = prepare(load(None, [*overrides, "privacy.epsilon=1"]), facts)
        link = Loopback(seen, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
        *_, last = train(made.recipe, link, made.recipe.begin())
        error = predict(made.recipe.model(last.state), seen, asked) - asked.values
        errors.append(float(np.sqrt(np.mean(error**2))))
    assert errors[1] < 0.9 * errors[0]


def test_every_side_reads_its_public_matrix() -> None:
    kinds = FeatureBag(
        ("old", "new"), sparse.csr_matrix(np.array([[2, 0], [0, 1], [1, 1]], np.float32))
    )
    people = FeatureBag(
        ("a", "b"), sparse.csr_matrix(np.array([[5, 0], [1, 4], [0, 0]], np.float32))
    )
    facts = PublicFacts(
        9,
        3,
        "ratings",
        (1.0, 5.0),
        PublicFeatures({"kind": kinds, PUBLIC_USERS: people}),
        Streams(1),
    )
    chosen = CollectiveSettings(sides=("public-users", "metadata"), users_share=0.5)
    raw, metadata = sides_of(chosen, facts)
    np.testing.assert_allclose(
        raw.entries.toarray(), [[5 - 10 / 3, 1 - 10 / 3, 0], [0, 4 - 10 / 3, 0]], atol=1e-6
    )
    np.testing.assert_array_equal(metadata.entries.toarray(), [[1, 0, 1], [0, 1, 1]])
    assert (raw.unobserved, metadata.unobserved) == (0.0, chosen.unobserved)
    binary = sides_of(
        chosen.model_copy(update={"users_values": "binary", "sides": ("public-users",)}), facts
    )[0]
    np.testing.assert_array_equal(binary.entries.toarray(), [[1, 0, 0], [0, 1, 0]])
    assert sides_of(chosen.model_copy(update={"users_limit": 1}), facts)[0].entries.shape == (1, 3)


def test_neighbours_are_the_most_similar_items_and_never_the_item_itself() -> None:
    V = np.array([[2, 0], [1, 0.1], [0, 3], [0.1, 1], [0, 0]], np.float32)
    inner, cosine = (neighbours(V, k=1, similarity=kind) for kind in ("inner-product", "cosine"))
    assert [list(inner[i].indices) for i in range(5)] == [[1], [0], [3], [2], []]
    assert [list(cosine[i].indices) for i in range(5)] == [[1], [0], [3], [2], []]
    assert inner[2, 3] == pytest.approx(3.0)
    assert cosine[2, 3] == pytest.approx(1 / np.hypot(0.1, 1))
    assert neighbours(V, k=9, similarity="cosine").diagonal().sum() == 0


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (['collective.sides=["public-users"]'], "say who they are"),
        (['collective.sides=["similar-items"]'], "learn them from"),
        (["collective.users_share=0.5"], "used by no side"),
        (["collective.similar_file=x.csv"], "used by no side"),
        (["collective.users_share=0.5", "collective.users_file=x"], "choose one"),
        (['collective.sides=["metadata", "metadata"]'], "twice"),
        (["model.resamples=2"], "closed form"),
        (["model.encoder=id"], "closed form"),
        (["data.features=false"], "without public data"),
        (["privacy.unit=example"], "protects whole users"),
        (["privacy.accountant=am-ssp"], "protects whole users"),
        (["compare.published=true"], "compare.published"),
        (["recipe=default", "collective.neighbours=5"], "finds from the data"),
        (["recipe=published", "collective.neighbours=5"], 'needs recipe = "default" or "dp-cmf"'),
    ],
)
def test_combinations_that_cannot_work_are_refused_with_the_reason(
    overrides: list[str], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        load(None, ["recipe=dp-cmf", *overrides])


def test_sides_without_data_are_refused_before_anybody_is_asked() -> None:
    features = PublicFeatures(
        {"kind": FeatureBag(("a",), sparse.csr_matrix(np.ones((3, 1), np.float32)))}
    )
    ratings = PublicFacts(9, 3, "ratings", (1.0, 5.0), features, Streams(1))
    people = CollectiveSettings(sides=("public-users",), users_share=0.5)
    with pytest.raises(SettingsError, match="needs public users"):
        sides_of(people, ratings)
    with pytest.raises(SettingsError, match="no feature 'genre'"):
        sides_of(CollectiveSettings(categories=("genre",)), ratings)
    with pytest.raises(SettingsError, match="beside clicks"):
        sides_of(people, dataclasses.replace(ratings, kind="clicks"))
    with pytest.raises(SettingsError, match="nothing public"):
        prepare(load(None, CMF), dataclasses.replace(ratings, features=None)).recipe.begin()
