"""News recommenders from Python: a guarantee per click, lists from the serving bundle, and clear
refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedrec
from fedrec.output_folders import MARKER
from fedrec.serving.bundle import FILE

pytest.importorskip("torch")  # of the extra news


@pytest.mark.slow
def test_news_are_trained_asked_and_exported(tmp_path: Path) -> None:
    settings = {"news.serving_epsilons": ["inf", 5]}
    model = fedrec.NewsRecommender(epsilon=5, noise="seeded", settings=settings).fit(
        fedrec.NewsData.planted("small")
    )
    assert repr(model.guarantee).startswith("(5, 1e-05)-DP per click (replace)")
    assert 0.5 < model.metrics["auc"] < 1
    history = ["N1", "N2", "no such news"]
    with pytest.warns(fedrec.UnknownIdsWarning, match="1 of the 3 ids"):
        listed = model.recommend(history=history, k=5)
    assert listed["rank"].to_list() == [1, 2, 3, 4, 5]
    assert not set(listed["item"]) & set(history)
    every = model.recommend(history=history[:2], k=1_000, seen="keep")
    some = model.recommend(history=history[:2], items=["N1", *listed["item"][:2]], seen="keep")
    order = [item for item in every["item"] if item in {"N1", *listed["item"][:2]}]
    assert some["item"].to_list() == order
    assert len(model.recommend(history=history[:2], items=["N1", listed["item"][0]])) == 1
    with pytest.raises(fedrec.DataError, match="argument items"):
        model.recommend(history=history[:2], items=["no such news"])
    for wrong in ("N1", [1.5, None], [" N1"]):
        with pytest.raises(fedrec.DataError):
            model.recommend(history=wrong, k=5)
    with pytest.raises(fedrec.SettingsError, match="whole number"):
        model.recommend(history=history, k=0)
    assert len(model.export(tmp_path / "new" / "news.safetensors")) == 16
    with pytest.raises(fedrec.RunError, match="is a folder"):
        model.export(tmp_path)
    with pytest.raises(fedrec.RunError, match="is a file"):
        model.save(tmp_path / "new" / "news.safetensors")
    left = tmp_path / "run" / "model" / "certificate" / "round-000.safetensors"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of an earlier model")
    with pytest.raises(fedrec.RunError, match="the run itself"):
        model.save(model.result["run_dir"])
    with pytest.raises(fedrec.RunError, match=r"model/certificate/round-000"):
        model.save(tmp_path / "run")
    left.unlink()
    saved = model.save(model.save(tmp_path / "run"))
    names = {str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file()}
    written = {"model/model.safetensors", "model/manifest.json", FILE, "guarantee.json"}
    assert names == {*written, MARKER, f"model/{MARKER}"}
    assert "budget" not in json.loads((saved / "guarantee.json").read_text())


def test_a_method_is_named_in_any_case_and_a_near_name_is_proposed() -> None:
    for name, variant in (
        ("DP-FedRec", "dp-fedrec"),
        ("FedRec", "fedrec"),
        ("PrivateRec", "local"),
    ):
        for word in ("method", "variant"):
            asked: Any = {word: name}
            assert fedrec.NewsRecommender(**asked)._variant() == variant
    with pytest.raises(fedrec.SettingsError, match="no method 'privatrec'") as refused:
        fedrec.NewsRecommender(method="privatrec").fit(fedrec.NewsData.planted())
    assert refused.value.remedy.startswith("Did you mean 'privaterec'?")
    with pytest.raises(fedrec.SettingsError, match="two names"):
        fedrec.NewsRecommender(method="fedrec", variant="central").fit(fedrec.NewsData.planted())


def test_misuse_is_refused_before_anything_is_read() -> None:
    with pytest.raises(fedrec.RunError, match="not trained"):
        fedrec.NewsRecommender().recommend(history=["N1"])
    with pytest.raises(fedrec.DataError, match="needs NewsData, found a dict"):
        fedrec.NewsRecommender().fit({"user": ["a"]})  # type: ignore[arg-type]
    with pytest.raises(fedrec.SettingsError, match=r"no method 'centrl'"):
        fedrec.NewsRecommender(variant="centrl").fit(fedrec.NewsData.planted())  # type: ignore[arg-type]


@pytest.mark.parametrize("shown", [["a", "b"], ["a"]])
def test_lists_of_clicks_alone_are_refused(shown: list[str], tmp_path: Path) -> None:
    names = [f"{day}{one}" for day in (1, 2, 3) for one in shown]
    articles = {"item": names, "title": ["sun"] * len(names)}
    lists = [(day, user) for day in (1, 2, 3) for user in "tuvwxyz" for _ in shown]
    log = {
        "impression": [f"{day}{user}" for day, user in lists],
        "user": [user for _, user in lists],
        "time": [f"2026-01-0{day}" for day, _ in lists],
        "item": [f"{day}{one}" for day in (1, 2, 3) for _ in "tuvwxyz" for one in shown],
        "clicked": [1] * len(lists),
    }
    cuts = ("2026-01-02", "2026-01-03")
    data = fedrec.NewsData.from_frames(articles, log, tmp_path / "news", cuts=cuts)
    with pytest.raises(fedrec.DataError, match="clicked beside one that was not"):
        fedrec.NewsRecommender().fit(data)
