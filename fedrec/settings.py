"""A scenario: everything that decides a run, validated at the edge, frozen after.

Written in TOML, one table per concern; every key may be overridden with `--set table.key=value`. Unknown keys are
refused. The resolved scenario is stored in the run folder and names it by its digest.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator

from fedrec.errors import SettingsError
from fedrec.extensions import BUILT_IN, extension, extensions
from fedrec.settings_tables import (
    CollectiveSettings,
    CompareSettings,
    DataSettings,
    EvaluationSettings,
    FigureSettings,
    ModelSettings,
    NewsSettings,
    PrivacySettings,
    RunSettings,
    SplitSettings,
    Table,
)

NEWS_FORMATS = {
    "mind": "MIND: folders of train and dev, each with news.tsv and behaviors.tsv",
    "click-log": "impressions made of what people liked, in order, in any data set with times and texts",
    "planted-news": "made up: no file",
}
"""Values of data.format for recipe = "privaterec", and what they read."""
NEWS_SPLITS = {
    "mind": ("random", "given", "held-out-users"),
    "click-log": ("random", "held-out-users", "temporal"),
    "planted-news": ("random",),
}
"""Values of split.kind that make sense for each."""
NEWS_UNITS = {"central": "user"} | dict.fromkeys(("additive", "local", "printed", "fedrec", "dp-fedrec", "centralized"), "click")
"""What each variant of news training protects; epsilons of different units do not compare, so a scenario names its unit."""

ELSEWHERE = {"train": "data.path", "valid": "data.validation", "sep": "data.separator", "delimiter": "data.separator"}
"""Names that people try for keys that are called otherwise, and are spelt nothing alike."""

EVERY_KEY = "`fedrec schema` and docs/reference.md list every key."

LOCAL = frozenset({"max_total_epsilon", "budget_file", "shares"})
"""Keys of [privacy] that concern whoever holds the data and nobody else: neither sent to a party nor part of what a run trains."""
OF_THREE = frozenset({"aggregation", "calibrate_for"})
"""Keys of [privacy] that a run with one trusted aggregator does not name: what is sent and hashed of it is as before there were three."""

_DESCENT = frozenset({"encoder", "dimension", "steps", "user_ridge", "item_ridge", "learning_rate"})
DESCENT_KEYS = {
    "fast-dpmf": _DESCENT,
    "dp-gd": _DESCENT | {"biases", "weight_exponent"},
    "am-dpsgd": _DESCENT | {"biases", "encoder_steps"},
}
"""Recipes of noisy gradient descent, and what [model] says to each."""
SIMPLE_KINDS = {"dp-bias": "ratings", "dp-popularity": "clicks", "dp-item-item": "clicks"}
"""Recipes without settings, and what they fit."""


def _known_recipe(name: str) -> str:
    if name in BUILT_IN or extension(name) is not None:
        return name
    known = (*BUILT_IN, *extensions())
    near = get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"there is no such recipe: {meant}there are {', '.join(known)}")


class Scenario(Table):
    """One run."""

    recipe: Annotated[str, AfterValidator(_known_recipe)] = Field(
        "default",
        json_schema_extra={"examples": list(BUILT_IN)},
        description="ratings and clicks: our default; published: AM-SSP and Ada-DPALS, made sound; "
        "dp-cmf: with public data, see [collective]; "
        "fast-dpmf, dp-gd: noisy gradient descent on item vectors; am-dpsgd: on an item encoder; "
        "convex-ssp: clicks by logistic loss; dp-bias: ratings by item biases and own means; dp-popularity: clicks by counts; "
        "dp-item-item: clicks by one Gram of the most clicked items and EASE; "
        "privaterec: news, see [news]; or one that an extension registers, see [own]",
    )
    seed: int = Field(1, ge=0, description="seed of initialisation and of seeded noise")
    data: DataSettings = DataSettings()
    split: SplitSettings = SplitSettings()
    privacy: PrivacySettings = PrivacySettings()
    model: ModelSettings = ModelSettings()
    collective: CollectiveSettings = CollectiveSettings()
    news: NewsSettings = NewsSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    compare: CompareSettings = CompareSettings()
    figure: FigureSettings = FigureSettings()
    run: RunSettings = RunSettings()
    own: dict[str, Any] = Field(default_factory=dict, description="settings of a recipe that an extension registers")

    @model_validator(mode="before")
    @classmethod
    def _given_where_test_rows_are_named(cls, content: Any) -> Any:
        """data.test says how the data is divided, so that split.kind need not."""
        if isinstance(content, dict) and isinstance(data := content.get("data"), dict) and data.get("test"):
            split = content.get("split", {})
            return {**content, "split": {"kind": "given", **split}} if isinstance(split, dict) else content
        return content

    @model_validator(mode="after")
    def _combinations(self) -> Scenario:
        if self.data.test and self.split.kind != "given":
            raise ValueError(f'data.test names the test rows, but split.kind is "{self.split.kind}": leave it out, or leave data.test out')
        self._require_three_party_fits()
        if self.recipe not in BUILT_IN:
            return self._extension_combinations()
        if self.own:
            raise ValueError(f'own.{min(self.own)} is of a recipe that an extension registers, not of "{self.recipe}"')
        if self.recipe == "privaterec":
            return self._news_combinations()
        if self.data.format in NEWS_FORMATS or self.news.chosen() or self.privacy.unit == "click":
            named = "data.format" if self.data.format in NEWS_FORMATS else "privacy.unit" if self.privacy.unit == "click" else "news"
            raise ValueError(f'{named} speaks of news, which needs recipe = "privaterec"')
        if self.model.weights == "constant" and not self.model.max_items_per_user:
            raise ValueError('model.weights = "constant" needs model.max_items_per_user: without a limit no constant bounds a user')
        if self.recipe == "dp-cmf":
            return self._collective_combinations()
        if self.recipe == "default":
            self._require_known_sides()
        elif self.collective.chosen():
            raise ValueError(f'collective.{min(self.collective.chosen())} needs recipe = "default" or "dp-cmf"')
        if self.recipe == "convex-ssp":
            return self._convex_combinations()
        if self.recipe in SIMPLE_KINDS:
            return self._simple_combinations()
        if ignored := self.model.chosen() & {"loss", "click_weight"}:
            raise ValueError(f'model.{min(ignored)} needs recipe = "convex-ssp": the other recipes have a squared loss of their own')
        if self.recipe in DESCENT_KEYS:
            return self._descent_combinations(DESCENT_KEYS[self.recipe])
        if not self.model.biases:
            raise ValueError('model.biases needs recipe = "dp-gd" or "am-dpsgd": the other recipes know what biases they have')
        if self.privacy.unit == "example" and self.recipe == "default":
            raise ValueError('privacy.unit = "example" needs recipe = "published": the default recipe protects whole users')
        if self.recipe == "default" and not self.compare.published and (ignored := self.model.chosen() - {"encoder"}):
            raise ValueError(f'model.{min(ignored)} needs recipe = "published": the default recipe chooses it from public numbers')
        if self.compare.published and self.recipe == "published":
            raise ValueError('compare.published needs recipe = "default": the published recipe is what runs already')
        if self.compare.published and self.data.kind == "clicks":
            raise ValueError("compare.published is for ratings: no rule was found that chooses the papers' settings for clicks fairly")
        if self.privacy.accountant == "am-ssp" and self.recipe == "default":
            raise ValueError('privacy.accountant = "am-ssp" needs recipe = "published": the default recipe is accounted exactly')
        return self

    def _extension_combinations(self) -> Scenario:
        known = extension(self.recipe)
        assert known is not None
        try:
            known.settings.model_validate(self.own)
        except ValidationError as failure:
            first = failure.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            near = get_close_matches(key, known.settings.model_fields, n=1)
            meant = f"; did you mean own.{near[0]}?" if near and first["type"] == "extra_forbidden" else ""
            raise ValueError(f"own.{key}: {first['msg']}{meant}") from None
        for table in ("model", "news", "collective"):
            if chosen := getattr(self, table).chosen():
                raise ValueError(f'{table}.{min(chosen)} says nothing to recipe = "{self.recipe}": its settings are in [own]')
        if self.data.kind != "auto" and self.data.kind not in known.kinds:
            raise ValueError(f'recipe = "{self.recipe}" learns from {" or ".join(known.kinds)}, but data.kind is {self.data.kind!r}')
        if self.privacy.unit != "user" or self.privacy.accountant != "gdp" or self.compare.published:
            raise ValueError(f'recipe = "{self.recipe}" protects whole users and is accounted exactly: leave privacy.unit and accountant')
        return self

    def _require_three_party_fits(self) -> None:
        privacy, named = self.privacy, 'privacy.aggregation = "three-party"'
        if privacy.aggregation == "trusted":
            if chosen := [key for key in ("calibrate_for", "shares") if getattr(privacy, key) != PrivacySettings.model_fields[key].default]:
                raise ValueError(f"privacy.{chosen[0]} needs {named}")
            return
        if privacy.unit != "user" or privacy.accountant != "gdp":
            raise ValueError(f"{named} protects whole users and is accounted exactly: leave privacy.unit and accountant")
        if self.recipe == "privaterec" and self.news.variant != "central":
            raise ValueError(f'{named} needs an aggregator to sum: of news, news.variant = "central" has one')

    def _collective_combinations(self) -> Scenario:
        if found := self.collective.contradiction():
            raise ValueError(found)
        encoder = {"encoder", "encoder_steps", "learning_rate", "item_batch", "resamples", "example_share"}
        if ignored := self.model.chosen() & encoder:
            raise ValueError(f'model.{min(ignored)} is of an item encoder trained by gradient: "dp-cmf" solves item vectors in closed form')
        if not self.data.features:
            raise ValueError('data.features = false leaves "dp-cmf" without public data: choose what it uses with collective.sides')
        if self.privacy.unit != "user" or self.privacy.accountant != "gdp":
            raise ValueError(
                'recipe = "dp-cmf" protects whole users and is accounted exactly: leave privacy.unit and accountant as they are'
            )
        if self.compare.published:
            raise ValueError('compare.published needs recipe = "default": its settings say nothing of collective.*')
        return self

    def _require_known_sides(self) -> None:
        """Of [collective] the default recipe takes whose ratings are public and which metadata counts; how much, it finds itself."""
        if found := self.collective.contradiction() or self.collective.unknown_to_default():
            raise ValueError(found)
        if self.collective.chosen() and not self.data.features:
            raise ValueError("data.features = false leaves out all public data, public users too: choose with collective.sides")
        if self.collective.chosen() and self.compare.published:
            raise ValueError("compare.published knows nothing of collective.*: leave one of them out")

    def _descent_combinations(self, known: Set[str]) -> Scenario:
        if ignored := self.model.chosen() - known:
            raise ValueError(f'model.{min(ignored)} says nothing to recipe = "{self.recipe}": its keys are {", ".join(sorted(known))}')
        if self.data.kind == "clicks":
            raise ValueError(f'recipe = "{self.recipe}" fits ratings: clicks need "default" or "published"')
        if self.privacy.unit != "user" or self.privacy.accountant != "gdp":
            raise ValueError(f'recipe = "{self.recipe}" protects whole users and is accounted exactly: leave privacy.unit and accountant')
        if self.compare.published:
            raise ValueError('compare.published needs recipe = "default"')
        return self

    def _simple_combinations(self) -> Scenario:
        named, fits = f'recipe = "{self.recipe}"', SIMPLE_KINDS[self.recipe]
        if ignored := self.model.chosen():
            raise ValueError(f"model.{min(ignored)} says nothing to {named}: it has no settings")
        if self.data.kind not in {"auto", fits}:
            raise ValueError(f"{named} fits {fits}, but data.kind is {self.data.kind!r}")
        if self.privacy.unit != "user" or self.privacy.accountant != "gdp":
            raise ValueError(f"{named} protects whole users and is accounted exactly: leave privacy.unit and accountant")
        if self.compare.published:
            raise ValueError('compare.published needs recipe = "default"')
        return self

    def _convex_combinations(self) -> Scenario:
        known = {"encoder", "loss", "click_weight", "dimension", "steps", "user_ridge", "item_ridge", "user_radius"}
        if ignored := self.model.chosen() - known:
            raise ValueError(f'model.{min(ignored)} says nothing to recipe = "convex-ssp": it fits free item vectors to clicks')
        if self.data.kind == "ratings":
            raise ValueError('recipe = "convex-ssp" fits clicks: ratings need "default", "published", "dp-cmf" or "fast-dpmf"')
        if self.privacy.unit != "user" or self.privacy.accountant != "gdp":
            raise ValueError('recipe = "convex-ssp" protects whole users and is accounted exactly: leave privacy.unit and accountant')
        if self.compare.published:
            raise ValueError('compare.published needs recipe = "default"')
        return self

    def _news_combinations(self) -> Scenario:
        if self.data.format not in NEWS_FORMATS:
            raise ValueError(f'recipe = "privaterec" needs data.format to be one of {", ".join(NEWS_FORMATS)}; found {self.data.format!r}')
        if spoken := [key for key in ("validation", "test", "separator", "keep_users", "keep_items", "planted") if getattr(self.data, key)]:
            raise ValueError(f"data.{spoken[0]} is of ratings and clicks, not of news")
        if (self.data.format == "planted-news") != (not self.data.path):
            raise ValueError("planted-news needs no data.path, and every other format of news needs one")
        if self.split.kind not in (kinds := NEWS_SPLITS[self.data.format]):
            raise ValueError(f'split.kind = "{self.split.kind}" does not divide {self.data.format}: use {", ".join(kinds)}')
        if self.split.cuts is not None:
            raise ValueError("split.cuts cut ratings and clicks in time: news finds its own cut, and says that it is not covered")
        unit = NEWS_UNITS[self.news.variant]
        if self.privacy.unit != unit:
            raise ValueError(
                f'news.variant = "{self.news.variant}" protects a {unit}: say privacy.unit = "{unit}", found "{self.privacy.unit}"'
            )
        if self.news.variant in {"fedrec", "centralized"} and self.privacy.epsilon != math.inf:
            raise ValueError(
                f'news.variant = "{self.news.variant}" has no privacy: say privacy.epsilon = "inf", found {self.privacy.epsilon:g}'
            )
        if self.news.variant in {"additive", "central", "fedrec", "dp-fedrec", "centralized"} and self.news.padding:
            raise ValueError(f'news.padding hides clicks of "local" and "printed", not of "{self.news.variant}"')
        published = self.news.variant not in {"additive", "central"}
        if self.news.word_vectors and not (published and self.news.model in {"nrms", "naml"}):
            raise ValueError('news.word_vectors start the words of "nrms" and "naml", which train in rounds')
        if self.news.language_model and not (published and self.news.model == "plm-nr"):
            raise ValueError('news.language_model is read by news.model = "plm-nr", which trains in rounds')
        if self.news.variant != "additive" and (self.news.open_categories or self.news.no_click != "leave-out"):
            named = "open_categories" if self.news.open_categories else "no_click"
            raise ValueError(f'news.{named} is a choice of "additive", not of "{self.news.variant}"')
        if self.news.open_categories and self.news.no_click == "report":
            raise ValueError("news.open_categories needs a click in every impression: leave news.no_click as it is")
        if self.collective.chosen():
            raise ValueError(f'collective.{min(self.collective.chosen())} needs recipe = "dp-cmf"')
        if self.model.chosen():
            raise ValueError("model.* belongs to ratings and clicks; news models are chosen in [news]")
        return self

    @property
    def unsaid(self) -> set[str]:
        """Keys of [privacy] that are left out of what is sent and hashed."""
        return set(LOCAL | OF_THREE if self.privacy.aggregation == "trusted" else LOCAL)

    def digest(self) -> str:
        """SHA-256 of everything but where results and budgets go, what is allowed, and what a figure varies around it."""
        left_out: dict[str, Any] = {"run": True, "figure": True, "privacy": self.unsaid}
        content = self.model_dump(mode="json", exclude=left_out if self.own else {**left_out, "own": True})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def as_published(self, *, features: bool) -> Scenario:
        """The same scenario with the papers' recipe: AM-SSP with features, without any Ada-DPALS, whose item vectors are free."""
        encoder = self.model.encoder if features else "id"
        return self.model_copy(update={"recipe": "published", "model": self.model.model_copy(update={"encoder": encoder})})

    def with_epsilon(self, epsilon: float) -> Scenario:
        """The same scenario at another epsilon."""
        return self.model_copy(update={"privacy": self.privacy.model_copy(update={"epsilon": epsilon})})


def load(path: Path | None, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario (None: all defaults) and apply `table.key=value` overrides. Raises SettingsError."""
    content: dict[str, Any] = {} if path is None else load_content(path)
    for override in overrides:
        _apply(content, override)
    return validated(content, source="the defaults" if path is None else str(path))


def validated(content: dict[str, Any], *, source: str) -> Scenario:
    """Raises SettingsError naming the first wrong key, what it must be and what was found."""
    try:
        return Scenario.model_validate(content)
    except ValidationError as failure:
        first = failure.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "scenario"
        found = "" if isinstance(first["input"], dict | Scenario) else f", found {first['input']!r}"
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            near = nearest_keys(key)
            meant = f"Did you mean {' or '.join(near)}? " if near else ""
            raise SettingsError(f"{source}: there is no key {key}{found}", f"{meant}{EVERY_KEY}") from None
        raise SettingsError(f"{source}: {key}: {message}{found}", f"{_remedy(first, key)}{EVERY_KEY}") from None


def _remedy(error: Mapping[str, Any], key: str) -> str:
    """What a wrong value should be instead, in words; nothing where the message says it."""
    found, limits = error["input"], error.get("ctx", {})
    if error["type"] == "literal_error":
        near = get_close_matches(str(found), re.findall(r"'([^']*)'", str(limits.get("expected", ""))), n=1)
        return f"Did you mean {near[0]!r}? " if near else f"Give {limits.get('expected', 'one of them')}. "
    if error["type"] in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        sign = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}
        return "".join(f"Give a number {word} {limits[name]:g}. " for name, word in sign.items() if name in limits)
    if isinstance(found, str) and found.startswith(("[", "{")):
        return f'Words in a list need quotes, for example {key}=\'["a", "b"]\'. '
    if "parsing" in error["type"] or error["type"].endswith("_type") or error["type"] == "int_from_float":
        words = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text", "tuple": "a list, as in [1, 2]"}
        kind = error["type"].partition("_")[0]
        return f"Give {words[kind]}. " if kind in words else ""
    return ""


def nearest_keys(name: str) -> list[str]:
    """Keys of a scenario that a mistyped one may stand for, the likeliest first: of the same last part, or spelt alike."""
    last = name.rpartition(".")[2]
    if last in ELSEWHERE:
        return [ELSEWHERE[last]]
    known = list[str]()
    for table, field in Scenario.model_fields.items():
        kind = field.annotation
        inside = kind.model_fields if isinstance(kind, type) and issubclass(kind, Table) else None
        known += [table] if inside is None else [f"{table}.{key}" for key in inside]
    tables = sorted({key.partition(".")[0] for key in known if "." in key})
    if "." not in name and (near := get_close_matches(name, tables, n=1, cutoff=0.8)):
        return near
    same = [key for key in known if key.rpartition(".")[2] == last]
    alike = get_close_matches(name, known, n=1, cutoff=0.8)
    lasts = get_close_matches(last, [key.rpartition(".")[2] for key in known], n=1, cutoff=0.75)
    return same or alike or [key for key in known if key.rpartition(".")[2] in lasts]


def load_content(path: Path) -> dict[str, Any]:
    """The tables of a scenario file, not validated. Raises SettingsError where it cannot be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise SettingsError(f"{path}: {failure.strerror or failure}", "Give a scenario file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise SettingsError(f"{path} is not TOML: {failure}", "Correct the line; strings need quotes.") from None


def _apply(content: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    parts = name.strip().split(".")
    if not equals or not all(parts):
        raise SettingsError(f"--set {override!r}: expected key=value", "For example --set privacy.epsilon=5.")
    _put(content, parts, _value(text.strip()), said=f"--set {override!r}")


def nested(keys: Mapping[str, Any], *, onto: dict[str, Any] | None = None) -> dict[str, Any]:
    """Tables of `table.key` names, laid over the tables of `onto`. Raises SettingsError where a key is both a value and a table."""
    content: dict[str, Any] = copy.deepcopy(onto or {})
    for name, value in keys.items():
        _put(content, str(name).split("."), value, said=str(name))
    return content


def _put(content: dict[str, Any], parts: Sequence[str], value: Any, *, said: str) -> None:
    table = content
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise SettingsError(f"{said}: {part!r} is a value, not a table", "Check the key against docs/reference.md.")
    table[parts[-1]] = value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string
