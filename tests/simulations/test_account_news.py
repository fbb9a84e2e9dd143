"""`fedrec account` for news says what a run charges, whatever the variant, and `fedrec data` speaks
of news."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedrec.cli.main import guarded
from fedrec.news.local_clients import LocalClients
from fedrec.news.trained import TrainedNews
from fedrec.news.variant import train_news
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.run.account import describe, table
from fedrec.run.data.describing import describe as describe_data
from fedrec.run.data.news import catalogue_of, load_news
from fedrec.settings import load
from tests.cases import slow_but

SCENARIOS = sorted((Path(__file__).parents[2] / "simulations").glob("privaterec_*.toml"))
KEYS = [
    "recipe=privaterec",
    "news.variant=additive",
    "data.format=planted-news",
    "data.preset=small",
    "news.history=20",
    "news.epochs=1",
    "news.users_per_round=3",
]
USERS = 3  # each answer is the gradient of a whole encoder
VARIANTS = {
    "additive": ["privacy.unit=click"],
    "central": ["privacy.unit=user", "news.variant=central", "news.rounds=3"],
    "central-encoder": [
        "privacy.unit=user",
        "news.variant=central-encoder",
        "news.rounds=3",
        "news.bands=2",
    ],
    "local": ["privacy.unit=click", "news.variant=local", "news.rounds=6", "news.padding=0.2"],
    "printed": ["privacy.unit=click", "news.variant=printed"],
    "dp-fedrec": ["privacy.unit=click", "news.variant=dp-fedrec", "news.rounds=4"],
    "fedrec": ["privacy.unit=click", "news.variant=fedrec", "privacy.epsilon=inf"],
    "centralized": ["privacy.unit=click", "news.variant=centralized", "privacy.epsilon=inf"],
}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_of_the_paper_accounts_without_its_data(path: Path) -> None:
    said = describe(load(path))
    assert said["releases"]
    assert str(said["guarantee"]["words"]) in table(said)


@pytest.mark.parametrize("name", slow_but(set(VARIANTS) - {"local"}, VARIANTS))
def test_what_account_says_of_a_variant_is_what_its_run_charges(name: str) -> None:
    scenario = load(None, [*KEYS, *VARIANTS[name]])
    said = describe(scenario, users=USERS)
    data = load_news(scenario)
    catalogue = catalogue_of(scenario, data)
    clicks = data.log.train.users_subset(np.arange(USERS))
    (*_, done) = train_news(scenario, catalogue, LocalClients(scenario, catalogue, clicks))
    assert isinstance(done, TrainedNews)
    units = [float(value) for unit, value in said["training"].items() if "at once" not in unit]
    if name == "printed":
        assert not said["guarantee"]["established"]
        assert units == [math.inf]
    else:
        assert max(units) == pytest.approx(done.spent, rel=1e-9)
    assert said["guarantee"]["unit"] == done.guarantee.unit
    times = [release["times"] for release in said["releases"]]
    summed = name in {"central", "central-encoder"}  # their releases differ: count them all
    assert (sum(times) if summed else max(times)) == done.rounds


def test_answers_of_serving_add_up_exactly_and_a_history_is_not_a_click() -> None:
    said = describe(
        load(
            None,
            [
                *KEYS,
                "privacy.unit=click",
                "privacy.epsilon=1",
                "news.history=50",
                "news.serving_epsilons=[1]",
            ],
        )
    )
    (serving,) = said["serving"]
    # RECIPE's figures, by another program
    assert [round(x, 1) for x in serving["fresh_answers"].values()] == [1.0, 3.6, 9.4, 14.4]
    assert said["person"]["training"]["50"]["0"] == pytest.approx(146, abs=1)


def test_account_says_what_a_plan_is_for_a_person_at_numbers_of_clicks_labels_and_answers() -> None:
    keys = [*KEYS, "privacy.unit=click", "news.history=30", 'news.serving_epsilons=["inf", 5]']
    said = describe(load(None, keys))
    found = said["person"]
    assert (found["unit"], found["neighbours"], list(found["training"])) == (
        "user",
        "replace",
        ["1", "10", "30"],
    )
    mu = mu_for(5, 1e-5)
    assert found["training"]["10"]["0"] == pytest.approx(epsilon_of(10 * mu, 1e-5), rel=1e-9)
    assert (
        found["training"]["1"]["10"]
        > found["training"]["1"]["1"]
        > found["training"]["1"]["0"]
        == pytest.approx(5.0)
    )
    bare, served = found["serving"]
    assert bare["clicks"]["30"]["1"] == "inf"
    assert served["clicks"]["30"]["100"] == pytest.approx(epsilon_of(300 * mu, 1e-5), rel=1e-9)
    printed = table(said)
    assert "epsilon per user (replace), all clicks of one person" in printed
    assert f"{served['clicks']['30']['100']:.5g}" in printed


def test_what_is_promised_per_user_is_not_priced_for_a_person_again() -> None:
    said = describe(load(None, [*KEYS, *VARIANTS["central"]]))
    assert said["person"]["training"] is None
    assert "it is promised per user" in table(said)


def test_rounds_over_users_need_their_number_alone(tmp_path: Path) -> None:
    keys = [*KEYS, *VARIANTS["dp-fedrec"], "data.format=mind", f"data.path={tmp_path / 'nowhere'}"]
    keys.append("news.users_per_round=64")
    (release,) = describe(load(None, keys), users=128)["releases"]
    assert release["times"] == 2  # 4 rounds of 64 of 128 users


def said_by(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert guarded(list(words)) == 0
    return capsys.readouterr().out


def test_the_verbs_speak_of_news(capsys: pytest.CaptureFixture[str]) -> None:
    assert "MIND" in said_by(capsys, "data", "formats")
    found = describe_data(load(None, KEYS))
    assert found["news"] == 500
    assert found["train"]["without a click"] == 0
    keys = [word for key in [*KEYS, "privacy.unit=click"] for word in ("--set", key)]
    assert "a click that is a label" in said_by(capsys, "account", *keys)
