"""Methods are found by the names of their papers."""

from __future__ import annotations

import pytest

import fedrec

MEANT = {
    "am-ssp": "published",
    "ssp2": "published",
    "Ada-DPALS": "published",
    "DPMF": "fast-dpmf",
    "dp-cmf": "dp-cmf",
    "default": "default",
}


@pytest.mark.parametrize("name", MEANT)
def test_a_paper_is_found_by_its_name(name: str) -> None:
    scenario = fedrec.MatrixFactorization(method=name).scenario()
    assert scenario.recipe == MEANT[name]
    assert scenario.model.encoder == "id" or name != "Ada-DPALS"


def test_a_name_of_a_paper_in_a_scenario_is_answered_with_its_recipe() -> None:
    with pytest.raises(fedrec.SettingsError, match="did you mean 'published'"):
        fedrec.MatrixFactorization(settings={"recipe": "am-ssp"}).scenario()
    with pytest.raises(fedrec.SettingsError, match="news") as failure:
        fedrec.MatrixFactorization(method="privaterec").scenario()
    assert "NewsRecommender" in failure.value.remedy
