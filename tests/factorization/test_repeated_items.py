"""Repeated rows of one user and item, which a log may hold, and which readers refuse or merge: no
recipe adds them up."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import load
from tests.torch_modules.registered import TORCH

RECIPES = {
    "default": ("ratings", "recipe=default"),
    "clicks": ("clicks", "recipe=default"),
    "published": ("ratings", "recipe=published"),
    "noisy-descent": ("ratings", "recipe=noisy-descent"),
    "dp-gd": ("ratings", "recipe=dp-gd"),
    "dp-bias": ("ratings", "recipe=dp-bias"),
    "dp-popularity": ("clicks", "recipe=dp-popularity"),
    "dp-item-item": ("clicks", "recipe=dp-item-item"),
    "am-dpsgd": ("ratings", "recipe=am-dpsgd"),
    "encoder-descent": ("ratings", "recipe=encoder-descent"),
    "dp-cmf": ("ratings", "recipe=dp-cmf", 'collective.sides=["metadata"]'),
    "torch": ("clicks", *TORCH),
    "convex-ssp": ("clicks", "recipe=convex-ssp"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_adds_the_repeated_items_of_one_user(name: str) -> None:
    """900 rows of one pair moved the sums by 30 times their sensitivity."""
    kind, *overrides = RECIPES[name]
    rng = np.random.default_rng(0)
    n = 60
    m = 30
    rated = np.array(
        [(k, j) for k in range(n) for j in rng.choice(m, 8, replace=False)] + [(0, 7)] * 900
    )
    values = None if kind == "clicks" else np.full(len(rated), 4.0)
    scale = (0.0, 1.0) if kind == "clicks" else (1.0, 5.0)
    data = Interactions.from_columns(
        rated[:, 0], rated[:, 1], values, num_users=n, num_items=m, value_range=scale, kind=kind
    )
    scenario = load(
        None,
        [*overrides, "model.encoder=id"]
        if name in ("default", "clicks", "published")
        else overrides,
    )
    kinds = sparse.csr_matrix(rng.random((m, 3)) < 0.4, dtype=np.float32)
    bag = FeatureBag(("old", "new", "long"), kinds)
    features = PublicFeatures({"kind": bag}) if name == "dp-cmf" else None
    prepared = prepare(scenario, PublicFacts(n, m, kind, scale, features, Streams(1)))
    link = Loopback(
        data, prepared.steps, prepared.plan, Streams(1), Ledger(prepared.plan.guarantee)
    )
    with pytest.raises(ValueError, match="item 7 twice"):
        next(train(prepared.recipe, link, prepared.recipe.begin()))
