"""Every shipped scenario can be carried by real parties, comparisons included; `python -m
benchmarks runtimes` runs them all on each runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec.errors import SettingsError
from fedrec.factorization.facts import public_facts
from fedrec.public_data import PublicData
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.settings import Scenario, load
from fedrec.shipped import shipped
from fedrec_server import news, rounds
from fedrec_simulations.runtimes.deployment_files import NOT_FOR_PARTIES, toml
from tests.simulations.carried import CASTS, carried, families, reduced

SCENARIOS = shipped() | {
    path.stem: path for path in sorted((Path(__file__).parent / "scenarios").glob("*.toml"))
}
"""Those that are shipped, and one of each published system."""
TINY = (
    "data.preset=",
    "data.planted={users=60, items=40, events=900}",
    "compare.als=false",
    "compare.epsilons=[]",
)


def trainings(scenario: Scenario) -> list[Scenario]:
    """All that `fedrec simulate` trains for it."""
    epsilons = list(dict.fromkeys([scenario.privacy.epsilon, *scenario.compare.epsilons]))
    recipes = [
        scenario,
        *([scenario.as_published(features=True)] if scenario.compare.published else []),
    ]
    return [recipe.with_epsilon(epsilon) for recipe in recipes for epsilon in epsilons]


@pytest.mark.parametrize("name", SCENARIOS)
def test_parties_read_every_training_of_every_shipped_scenario(name: str, tmp_path: Path) -> None:
    chosen, _ = reduced(SCENARIOS[name])
    assert (chosen.data.keep_users, chosen.data.keep_items) == (0, 0)  # the planted data has few
    for training in trainings(chosen):
        path = tmp_path / "scenario.toml"
        path.write_text(toml(training.model_dump(mode="json", exclude=set(NOT_FOR_PARTIES))))
        read = load(path)
        assert (read.recipe, read.privacy, read.model, read.news) == (
            training.recipe,
            training.privacy,
            training.model,
            training.news,
        )
        if read.recipe == "privaterec":
            news.check(read, object())
        else:
            kind = "clicks" if read.data.kind == "clicks" else "ratings"
            rounds.check(
                read,
                PublicData(("a", "b"), kind, (0.0, 1.0) if kind == "clicks" else (1.0, 5.0), None),
            )


FAMILIES = [
    path.stem
    for path in families([path for name, path in SCENARIOS.items() if "privaterec" not in name])
]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_one_scenario_of_each_kind_gives_the_same_bytes_over_flower(
    name: str, tmp_path: Path
) -> None:
    tiny = TINY if "dp_cmf" not in name else TINY[2:]
    scenario, _ = reduced(SCENARIOS[name], *tiny)
    alone = carried(scenario, CASTS["loopback"], tmp_path / "loopback")
    over_flower = carried(scenario, CASTS["parties"], tmp_path / "flower")
    assert (alone.why, over_flower.why) == ("", "")
    assert over_flower.same_as(alone)


def test_what_a_scenario_was_changed_to_is_said() -> None:
    chosen, words = reduced(SCENARIOS["convex_ssp"])
    assert {"data.preset=small", "split.kind=random", "data.kind=clicks"} <= set(words)
    assert (chosen.recipe, chosen.model.dimension, chosen.data.path) == ("convex-ssp", 33, "")
    dataset = load_dataset(chosen)
    assert public_facts(chosen.seed, dataset, load_split(chosen, dataset)).kind == "clicks"


def test_a_scenario_that_a_runtime_does_not_carry_says_why(tmp_path: Path) -> None:
    scenario, _ = reduced(SCENARIOS["am_ssp"], *TINY, "privacy.unit=example")
    came = carried(scenario, CASTS["parties"], tmp_path)
    assert "whole user" in came.why
    with pytest.raises(SettingsError, match="whole user"):
        rounds.check(scenario, PublicData(("a",), "ratings", (1.0, 5.0), None))
