"""A released folder is all a device needs, and a damaged one is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedrec.errors import RunError
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.released import load, save
from fedrec.federation.rounds import Loopback, train
from fedrec.privacy.ledger import Ledger
from fedrec.recipes import prepare
from fedrec.settings import load as scenario
from fedrec.streams import Streams
from fedrec_simulations.datasets import load_dataset, load_split


@pytest.mark.parametrize(
    "keys",
    [
        ["recipe=default"],
        ["recipe=published"],
        ["recipe=fast-dpmf"],
        ["recipe=dp-gd"],
        ["recipe=am-dpsgd"],
        ["recipe=default", "data.kind=clicks"],
        ["recipe=published", "data.kind=clicks"],
        ["recipe=convex-ssp", "data.kind=clicks", "model.click_weight=2"],
    ],
)
def test_a_device_with_the_released_folder_predicts_as_the_run_did(keys: list[str], tmp_path: Path) -> None:
    chosen = scenario(None, ["data.preset=small", *keys])
    dataset = load_dataset(chosen)
    history = load_split(chosen, dataset).train
    facts = PublicFacts(history.num_users, history.num_items, history.kind, history.value_range, dataset.features, Streams(1))
    made = prepare(chosen, facts)
    *_, last = train(made.recipe, Loopback(history, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee)), made.recipe.begin())
    model = made.recipe.model(last.state)
    save(tmp_path, model, about={"guarantee": {"epsilon": 5.0}})
    again, manifest = load(tmp_path)
    assert manifest["guarantee"] == {"epsilon": 5.0}
    for one, other in ((model.item_vectors, again.item_vectors), (model.user_vectors(history), again.user_vectors(history))):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert model.offset == again.offset


def test_a_damaged_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        load(tmp_path)
    from fedrec.factorization.ssp import PublishedModel

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
