"""Methods are found by the names of their papers."""

from __future__ import annotations

import pytest

import fedrec
from fedrec.registry import require
from fedrec.settings import load

MEANT = {
    "am-ssp": "published",
    "ssp1": "published",
    "SSP2": "published",
    "Ada-DPALS": "published",
    "ada-dpgd": "dp-gd",
    "AM-DPSGD": "am-dpsgd",
    "DP-CMF": "dp-cmf",
    "dp-cmf": "dp-cmf",
    "default": "default",
}


@pytest.mark.parametrize("name", MEANT)
def test_a_paper_is_found_by_its_name_in_python_and_in_a_scenario(name: str) -> None:
    for scenario in (
        fedrec.MatrixFactorization(method=name).scenario(),
        load(None, [f"recipe={name}"]),
    ):
        assert scenario.recipe == name.lower()  # kept, and printed
        assert scenario.run_id().startswith(f"{name.lower()}-")
        assert require(scenario.recipe).name == MEANT[name]
        assert scenario.model.encoder == "id" or name != "Ada-DPALS"
        assert scenario.model.resamples == (16 if name == "ssp1" else 1)
        assert scenario.model.biases == (name != "ada-dpgd")


@pytest.mark.parametrize(
    ("name", "variant", "unit"),
    [
        ("privaterec", "local", "click"),
        ("additive", "additive", "click"),
        ("central", "central", "user"),
        ("central-encoder", "central-encoder", "user"),
    ],
)
def test_privaterec_means_the_paper_and_our_variants_have_names_of_their_own(
    name: str, variant: str, unit: str
) -> None:
    scenario = load(None, [f"recipe={name}", "data.format=planted-news"])
    assert (scenario.recipe, scenario.news.variant) == ("privaterec", variant)
    assert scenario.privacy.unit == unit


def test_a_key_that_contradicts_a_name_is_refused_with_both() -> None:
    with pytest.raises(fedrec.SettingsError, match=r"stands for model\.encoder") as failure:
        load(None, ["recipe=ada-dpals", "model.encoder=features"])
    assert 'recipe = "published"' in str(failure.value)
    with pytest.raises(fedrec.SettingsError, match=r"stands for news\.variant"):
        load(None, ["recipe=additive", "news.variant=local", "data.format=planted-news"])


def test_a_former_name_is_answered_with_the_new_one() -> None:
    with pytest.raises(fedrec.SettingsError, match=r"'noisy-descent' now.*'dpmf'"):
        fedrec.MatrixFactorization(method="fast-dpmf").scenario()


def test_news_is_refused_where_items_are_recommended() -> None:
    with pytest.raises(fedrec.SettingsError, match="news") as failure:
        fedrec.MatrixFactorization(method="privaterec").scenario()
    assert "NewsRecommender" in failure.value.remedy
