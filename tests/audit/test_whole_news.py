"""The attack on the whole command for news: under its claims as things are, above with half of the
noise or a split by place."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.auditing import whole, whole_news
from fedrec.auditing.whole_news import whole_news_findings
from fedrec.data import news_files
from fedrec.data.impressions import Impressions
from fedrec.errors import SettingsError
from fedrec.news.variant import require
from fedrec.privacy import gaussian
from fedrec.settings import Scenario, load

NEWS = [
    "recipe=privaterec",
    "news.variant=additive",
    "data.format=planted-news",
    "data.preset=small",
    "privacy.noise=seeded",
]


def scenario_of(variant: str, epsilon: float) -> Scenario:
    unit = require(variant).unit
    rounds = ["news.rounds=2"] if unit == "user" else []
    return load(
        None,
        [
            *NEWS,
            f"news.variant={variant}",
            f"privacy.unit={unit}",
            f"privacy.epsilon={epsilon}",
            *rounds,
        ],
    )


@pytest.mark.slow
def test_a_click_of_additive_stays_under_its_claim_and_not_with_a_third_of_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = next(whole_news_findings(scenario_of("additive", 3.0), runs=120))
    assert (history.verdict, history.attack) == ("holds", "whole command: history")
    honest = gaussian.add_row_by_row
    monkeypatch.setattr(
        gaussian, "add_row_by_row", lambda sums, *, std, **rest: honest(sums, std=std / 3, **rest)
    )
    found = next(whole_news_findings(scenario_of("additive", 3.0), runs=120))
    assert found.failed
    assert found.measured > found.claim.epsilon


def test_a_user_of_central_stays_under_its_claim_and_not_where_users_are_divided_by_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole, "_TRAININGS", 3)
    (found,) = whole_news_findings(scenario_of("central", 2.0), runs=120)
    assert found.verdict == "holds"
    honest = news_files._a_tenth

    def every_third(part: Impressions, key: bytes) -> tuple[Impressions, Impressions]:
        places = np.arange(part.num_users)
        return part.users_subset(places[places % 3 != 1]), honest(part, key)[1]

    monkeypatch.setattr(news_files, "_a_tenth", every_third)
    (found,) = whole_news_findings(scenario_of("central", 2.0), runs=300)
    assert found.verdict == "EXCEEDED"


def test_a_user_of_central_encoder_stays_under_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_TRAININGS", 2)
    (found,) = whole_news_findings(scenario_of("central-encoder", 2.0), runs=60)
    assert found.verdict == "holds"


def test_the_two_folders_differ_in_one_click() -> None:
    for role, changed in (("history", {"history"}), ("label", {"clicked"})):
        one, other = whole_news._sides(scenario_of("additive", 3.0), role)
        different = {
            name
            for name in vars(one.train)
            if not np.array_equal(getattr(one.train, name), getattr(other.train, name))
        }
        assert different == changed


def test_a_variant_that_claims_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="claims nothing"):
        next(whole_news_findings(scenario_of("fedrec", float("inf"))))
