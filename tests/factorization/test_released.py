"""A released folder is all a device needs, and a damaged one is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrec.errors import RunError
from fedrec.factorization.default_clicks.model import ClickModel
from fedrec.factorization.default_ratings.liked_ranker import LikedRanker
from fedrec.factorization.default_ratings.model import DefaultModel
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.factorization.released import load, save
from fedrec.federation.messages import train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.settings import load as scenario
from tests.torch_modules.registered import TORCH


@pytest.mark.parametrize(
    "keys",
    [
        ["recipe=default"],
        ["recipe=published"],
        ["recipe=dp-cmf", 'collective.sides=["metadata"]'],
        ["recipe=noisy-descent"],
        ["recipe=dp-gd"],
        ["recipe=am-dpsgd"],
        ["recipe=encoder-descent"],
        ["recipe=dp-bias"],
        ["recipe=default", "data.kind=clicks"],
        ["recipe=dp-popularity", "data.kind=clicks"],
        ["recipe=dp-item-item", "data.kind=clicks"],
        ["recipe=published", "data.kind=clicks"],
        [*TORCH, "data.kind=clicks"],
        ["recipe=convex-ssp", "data.kind=clicks", "model.click_weight=2"],
    ],
)
def test_a_device_with_the_released_folder_predicts_as_the_run_did(
    keys: list[str], tmp_path: Path
) -> None:
    chosen = scenario(None, ["data.preset=small", *keys])
    dataset = load_dataset(chosen)
    history = load_split(chosen, dataset).train
    facts = PublicFacts(
        history.num_users,
        history.num_items,
        history.kind,
        history.value_range,
        dataset.features,
        Streams(1),
    )
    made = prepare(chosen, facts)
    *_, last = train(
        made.recipe,
        Loopback(history, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee)),
        made.recipe.begin(),
    )
    model = made.recipe.model(last.state)
    save(tmp_path, model, about={"guarantee": {"epsilon": 5.0}})
    again, manifest = load(tmp_path)
    assert manifest["guarantee"] == {"epsilon": 5.0}
    assert (ranker_of(model) is model) == (ranker_of(again) is again)
    for ours, theirs in ((model, again), (ranker_of(model), ranker_of(again))):
        assert type(ours) is type(theirs)
        np.testing.assert_allclose(ours.item_vectors, theirs.item_vectors, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            ours.user_vectors(history), theirs.user_vectors(history), rtol=1e-4, atol=1e-5
        )
        assert ours.offset == theirs.offset


@pytest.mark.parametrize("kind", ["liked", "clicks"])
def test_a_model_is_saved_with_its_ranker_of_any_kind(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    plain = DefaultModel(
        rng.normal(size=(5, 2)), rng.normal(size=5), np.ones(5), 0.1, 0.5, (1.0, 5.0)
    )
    counts = np.arange(1.0, 6.0)
    clicks = ClickModel(np.ones((5, 3), np.float32), counts, 2.0, 20.0)
    rankers: dict[str, Model] = {
        "liked": LikedRanker.of(plain, counts, std=1.0, value_range=(1.0, 5.0)),
        "clicks": clicks,
    }
    save(tmp_path, replace(plain, ranker=rankers[kind]), about={})
    again = ranker_of(load(tmp_path)[0])
    assert type(again) is type(rankers[kind])
    np.testing.assert_allclose(again.item_vectors, rankers[kind].item_vectors, rtol=1e-6)


def test_a_damaged_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        load(tmp_path)
    from fedrec.factorization.am_ssp.client import PublishedModel

    save(tmp_path, PublishedModel(np.ones((2, 2), np.float32), 3.0, 1.0, 1.0), about={})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    for key, value, words in (
        ("format", "other/9", "format"),
        ("kind", "tower", "kind"),
        ("kind", "clicks", "lacks"),
        ("sha256", "0", "describes"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps({**manifest, key: value}))
        with pytest.raises(RunError, match=words):
            load(tmp_path)
