"""Parts of the demonstration without processes: what arrives when, what the parties' limit is, what is
printed and what is refused."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedrec.cli.main import guarded
from fedrec.errors import SettingsError
from fedrec.privacy.accounting import mu_for
from fedrec.settings import load
from fedrec_simulations.demo.deployment import run, show
from fedrec_simulations.demo.trial import Trial
from tests.demo.conftest import SMALLEST


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(
        load(
            None, ["data.preset=small", "privacy.noise=seeded", "recipe=published", "model.steps=1"]
        ),
        tmp_path_factory.mktemp("trial"),
    )


def test_later_ratings_come_on_top_of_the_earlier_ones_and_test_ratings_never_reach_a_site(
    trial: Trial,
) -> None:
    pairs = [
        {(int(k), int(j)) for k, j in zip(events.users, events.items, strict=True)}
        for events in (trial.events(0), trial.events(1), trial.split.test.targets)
    ]
    assert pairs[0] < pairs[1]
    assert not pairs[1] & pairs[2]
    assert 0.75 < len(pairs[0]) / len(pairs[1]) < 0.85  # 5,943 events: false alarm below 1e-9


def test_the_limit_of_all_parties_is_that_of_two_trainings_together(trial: Trial) -> None:
    limit = trial.files(0).job.limit
    once = trial.alone(0).prepared.plan.guarantee
    assert mu_for(limit.epsilon, limit.delta) == pytest.approx(
        math.sqrt(2) * mu_for(once.epsilon, once.delta), rel=1e-6
    )


@pytest.mark.slow
def test_a_further_training_of_the_default_recipe_goes_on_from_the_first(tmp_path: Path) -> None:
    default = Trial(load(None, ["data.preset=small", "privacy.noise=seeded"]), tmp_path)
    first, second = (default.alone(number) for number in range(2))
    assert "people_observed" not in first.state
    assert "people_observed" in second.state
    assert second.rounds < first.rounds  # biases are not asked for again


def printed(**more: Any) -> str:
    out = io.StringIO()
    content = {
        "spent": {"unit": "per user (add/remove)", "epsilon": 5.2, "delta": 1e-5, "limit": 5.2},
        "killed": {"party": "aggregator", "training": 1, "round": 1},
        "noise": "seeded",
        "aggregation": "trusted",
        "same_bytes": True,
        "folder": "",
        "users": 300,
        "holds": True,
        **more,
    }
    show(content, Console(file=out, width=300))
    return out.getvalue()


def test_what_is_printed_names_the_unit_and_the_noise_and_ends_with_the_next_command() -> None:
    words = printed()
    assert "ε = 5.2 of 5.2 per user (add/remove)" in words
    assert "seeded" in words
    assert "any two" not in words
    assert words.splitlines()[-1].startswith("next     fedrec certs ")
    assert "any two aggregators" in printed(aggregation="three-party")


def test_a_model_that_differs_is_said_and_without_seeded_noise_nothing_is_claimed() -> None:
    failed = printed(same_bytes=False, holds=False)
    assert "A MODEL DIFFERS" in failed
    assert "It held" not in failed
    assert "not compared" in printed(noise="system", same_bytes=None)


def test_a_folder_that_holds_something_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(SettingsError, match="there already"):
        run(tuple(SMALLEST), keep=tmp_path, quiet=True)
    assert (tmp_path / "mine").read_text() == "kept"


def test_keep_needs_a_deployment_and_news_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["demo", "--keep", "somewhere"]) == 2
    news = [
        "recipe=privaterec",
        "news.variant=additive",
        "data.format=planted-news",
        "data.preset=small",
        "data.keep_users=0",
        "privacy.unit=click",
    ]
    assert (
        guarded(["demo", "--deployment", *(word for key in news for word in ("--set", key))]) == 2
    )
    assert "ratings or clicks" in capsys.readouterr().err
