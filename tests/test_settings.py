import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import SettingsError
from fedrec.registry import BUILT_IN, require
from fedrec.settings import Scenario, load

SCENARIOS = sorted((Path(__file__).parents[1] / "simulations").glob("*.toml"))


def test_every_shipped_scenario_is_valid() -> None:
    assert {path.name for path in SCENARIOS} >= {
        "planted.toml",
        "ml1m.toml",
        "ml10m.toml",
        "ml20m.toml",
        "ml1m_ssp2.toml",
    }
    for path in SCENARIOS:
        scenario = load(path)
        # parties are given all of it, every default too
        assert Scenario.model_validate(scenario.model_dump(mode="json")) == scenario


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name)
def test_a_scenario_s_name_says_which_recipe_it_runs(path: Path) -> None:
    """They run the default, unless the name has a method."""
    scenario = load(path)
    expected = {
        "ssp2": "published",
        "dpals": "ada-dpals",
        "privaterec": "privaterec",
        "convex": "convex-ssp",
    }
    [recipe] = {recipe for word, recipe in expected.items() if word in path.stem} or {"default"}
    assert scenario.recipe == recipe


def test_the_demo_has_no_baseline_whose_settings_nobody_tuned() -> None:
    [demo] = [load(path) for path in SCENARIOS if path.name == "planted.toml"]
    assert not demo.compare.published
    assert demo.compare.als


def test_overrides_reach_every_table_and_bare_words_are_strings() -> None:
    scenario = load(
        None,
        [
            "privacy.epsilon=inf",
            "data.path=/some folder/ml",
            "compare.epsilons=[1, 5]",
            "recipe=published",
            "seed=7",
        ],
    )
    assert (scenario.privacy.epsilon, scenario.data.path, scenario.compare.epsilons) == (
        math.inf,
        "/some folder/ml",
        (1.0, 5.0),
    )
    assert (scenario.recipe, scenario.seed) == ("published", 7)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("privacy.epsilon=0", "privacy.epsilon"),
        ("privacy.epsilon=-1", "privacy.epsilon"),
        ("privacy.delta=1", "privacy.delta"),
        ("privacy.epsilom=1", "privacy.epsilom"),
        ("split.kind=diagonal", "split.kind"),
        ("recipe=best", "recipe"),
        ("recipe.name=best", "recipe"),
        ("seed", "expected key=value"),
        ("seed.x.y=1", "seed"),
        ("=1", "expected key=value"),
        ("privacy.unit=example", "published"),
        ("model.dimension=3", "model.dimension needs"),
        ("model.weights=constant", "max_items_per_user"),
        ("recipe=privaterec", "needs data.format to be one of mind"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_a_remedy(override: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named) as caught:
        load(None, [override])
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_key_that_a_recipe_needs_says_what_it_is_and_how_it_is_given() -> None:
    needed = {
        (recipe, key): field
        for recipe in BUILT_IN
        for key, field in require(recipe).settings.model_fields.items()
        if field.is_required()
    }
    assert all(field.description for field in needed.values())
    for recipe, key in needed:
        with pytest.raises(SettingsError, match=rf"{recipe}.*needs own.{key}, .*own.{key}=\.\.\."):
            load(None, [f"recipe={recipe}"])


@pytest.mark.parametrize(
    ("data", "kind", "takes"),
    [
        ("click-log", "held-out-users", True),
        ("click-log", "temporal", True),
        ("click-log", "leave-last-out", False),
        ("click-log", "given", False),
        ("mind", "given", True),
        ("mind", "temporal", False),
    ],
)
def test_news_takes_only_divisions_that_make_sense_for_its_data(
    data: str, kind: str, takes: bool
) -> None:
    keys = [
        "recipe=privaterec",
        "privacy.unit=click",
        f"data.format={data}",
        "data.path=x",
        f"split.kind={kind}",
    ]
    if takes:
        assert load(None, keys).split.kind == kind
    else:
        with pytest.raises(SettingsError, match="does not divide"):
            load(None, keys)


def test_public_cuts_in_time_are_refused_where_news_would_ignore_them() -> None:
    keys = [
        "recipe=privaterec",
        "privacy.unit=click",
        "data.format=click-log",
        "data.path=x",
        "split.kind=temporal",
    ]
    with pytest.raises(SettingsError, match="finds its own cut"):
        load(None, [*keys, "split.cuts=[1, 2]"])


def test_files_that_are_missing_or_no_toml_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="absent"):
        load(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("privacy = [")
    with pytest.raises(SettingsError, match=r"broken\.toml"):
        load(tmp_path / "broken.toml")


UNHASHED = {"privacy.budget_file", "privacy.max_total_epsilon", "privacy.shares"}
"""Where budgets and shares lie, and a limit of all trainings."""


def other_than(value: Any) -> Any:
    """A value that is not this one; whether a scenario may have it decides nothing."""
    half = 0.5 if value in (0, math.inf) else value / 2 if isinstance(value, int | float) else "x"
    return not value if isinstance(value, bool) else half


def test_the_digest_sees_every_key_but_where_results_go() -> None:
    """Runs that share a digest share a folder, and one would go on with the other's rounds."""
    three = {"aggregation": "three-party", "hostile_clients": "checked"}
    base = load(None).model_copy(update={"privacy": load(None).privacy.model_copy(update=three)})
    keys = [
        (table, key)
        for table in Scenario.model_fields
        for key in (getattr(type(getattr(base, table)), "model_fields", {None: None}))
    ]
    same = set[str]()
    for table, key in keys:
        own = getattr(base, table)
        other = other_than(own) if key is None else own.model_copy(
            update={key: other_than(getattr(own, key))}
        )  # fmt: skip
        with warnings.catch_warnings(action="ignore"):  # of pydantic: of other types
            if base.model_copy(update={table: other}).digest() == base.digest():
                same.add(table if key is None else f"{table}.{key}")
    assert {name for name in same if not name.startswith("run.")} == UNHASHED


def test_noise_is_the_systems_unless_a_scenario_asks_for_an_experiment() -> None:
    assert load(None).privacy.noise == "system"
    for path in SCENARIOS:
        assert load(path).privacy.noise == "system", path.name


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("privacy.epsilom=3", "privacy.epsilon"),
        ("epsilon=3", "privacy.epsilon"),
        ("model.recipe=x", "recipe"),
        ("sed=3", "seed"),
        ("data.train=x", "data.path"),
    ],
)
def test_a_mistyped_key_is_answered_with_the_nearest_one(typed: str, meant: str) -> None:
    with pytest.raises(SettingsError, match="there is no key") as caught:
        load(None, [typed])
    assert f"Did you mean {meant}" in caught.value.remedy


@pytest.mark.parametrize("other", ["data.preset=small", "data.preset=demo", "data.path=x"])
def test_sizes_of_a_planted_data_set_go_with_no_other_source(other: str) -> None:
    sizes = "data.planted={users = 200, items = 100, events = 4000}"
    planted = load(None, [sizes, "data.planted.least_events=5"]).data.planted
    assert planted is not None
    assert (planted.users, planted.least_events, planted.value_range) == (200, 5, (0.5, 5.0))
    with pytest.raises(
        SettingsError, match=rf"data\.planted .* {other.partition('=')[0]} must be left out"
    ):
        load(None, [sizes, other])
    with pytest.raises(SettingsError, match="whole steps"):
        load(None, [sizes, "data.planted.step=0.4"])
    with pytest.raises(SettingsError, match=r"data\.planted\.items"):
        load(None, ["data.planted.users=200", "data.planted.events=4000"])


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["data.test=b.csv"], "data.test needs data.path"),
        (["data.path=a.csv", "data.validation=b.csv"], "data.validation needs data.test"),
        (
            ["data.path=a.csv", "data.test=b.csv", "split.kind=random"],
            "data.test names the test rows",
        ),
        (["split.validation_share=0.1"], "validation_share is of"),
        (
            [
                "recipe=privaterec",
                "privacy.unit=click",
                "data.format=mind",
                "data.path=x",
                "data.keep_users=3",
            ],
            "not of news",
        ),
    ],
)
def test_parts_that_contradict_the_division_are_refused(keys: list[str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(None, keys)
