"""A scenario: everything that decides a run, validated at the edge, frozen after.

Written in TOML, one table per concern; every key may be overridden with `--set table.key=value`.
Unknown keys are refused. The resolved scenario is stored in the run folder and names it by its
digest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, Field, ValidationError, model_validator

from fedrec.data.kinds import KINDS
from fedrec.errors import SettingsError, of_weights
from fedrec.registry import ALIASES, BUILT_IN, RecipeSpec, find, fitting, outside, reading, require
from fedrec.settings_tables import Table, apply, keys_alike, load_content
from fedrec.settings_tables.collective import CollectiveSettings
from fedrec.settings_tables.data import (
    CompareSettings,
    DataSettings,
    EvaluationSettings,
    RunSettings,
)
from fedrec.settings_tables.news import NewsSettings
from fedrec.settings_tables.splitting import SplitSettings
from fedrec.settings_tables.training import ModelSettings, PrivacySettings

NEWS_FORMATS = {
    "mind": "MIND: folders of train and dev, each with news.tsv and behaviors.tsv",
    "click-log": (
        "impressions made of what people liked, in order, in any data set with times and texts"
    ),
    "planted-news": "made up: no file",
}
"""Values of data.format for recipe = "privaterec", and what they read."""
NEWS_SPLITS = {
    "mind": ("random", "given", "held-out-users"),
    "click-log": ("random", "held-out-users", "temporal"),
    "planted-news": ("random",),
}
"""Values of split.kind that make sense for each."""
ELSEWHERE = {
    "train": "data.path",
    "valid": "data.validation",
    "sep": "data.separator",
    "delimiter": "data.separator",
}
"""Names that people try for keys that are called otherwise, and are spelt nothing alike."""

EVERY_KEY = "`fedrec schema --search WORD` finds a key; docs/reference.md lists them all."

LOCAL = frozenset({"max_total_epsilon", "budget_file", "shares"})
"""Keys of [privacy] that concern whoever holds the data and nobody else: neither sent to a party
nor part of what a run trains."""
OF_THREE = frozenset({"aggregation", "calibrate_for", "hostile_clients"})
"""Keys of [privacy] that a run with one trusted aggregator does not name: what is sent and hashed
of it is as before there were three."""


NAMES: Mapping[str, Mapping[str, Any]] = {
    "ssp2": {"model.encoder": "features", "model.resamples": 1},
    "am-ssp": {"model.encoder": "features", "model.resamples": 1},
    "ssp1": {"model.encoder": "features", "model.encoder_steps": 16, "model.resamples": 16},
    "ada-dpals": {"model.encoder": "id"},
    "ada-dpgd": {"model.biases": False},
    "additive": {"recipe": "privaterec", "news.variant": "additive"},
    "central": {"recipe": "privaterec", "news.variant": "central"},
    "central-encoder": {"recipe": "privaterec", "news.variant": "central-encoder"},
    "fedrec": {"recipe": "privaterec", "news.variant": "fedrec"},
    "dp-fedrec": {"recipe": "privaterec", "news.variant": "dp-fedrec"},
}
"""Further names of `recipe`, of the papers' methods and of ours on news, and the keys that each
stands for. ssp1: as many resamples as steps, 16 in Figure 4 of AM-SSP."""
MEANT = {
    "fast-dpmf": "it is called 'noisy-descent' now, and the sampler of research/ 'dpmf'. ",
    "sgld": "the sampler of Fast DPMF is 'dpmf' of research/. ",
    "dpals": "with adaptive weights it is 'ada-dpals'; with uniform ones set model.weights. ",
    "ada-dpsgd": "Ada-DPALS Algorithm 2 is called 'ada-dpgd'. ",
    **dict.fromkeys(("dp-gd", "am-dpsgd", "dp-sgd"), "it comes with research/. "),
}
"""What is said of names that are no recipe."""


def resolved(content: dict[str, Any]) -> dict[str, Any]:
    """Content whose `recipe` may be one of `NAMES`, in any case, with the keys that the name stands
    for, and with what the recipe implies.

    Raises ValueError where a key says otherwise."""
    said = content.get("recipe")
    if not isinstance(said, str):
        return content
    known_as = said.lower()
    keys = NAMES.get(known_as, {})
    if keys or known_as in BUILT_IN or known_as in outside():
        content = {**content, "recipe": keys.get("recipe", known_as)}
    for key, value in keys.items():
        place, _, last = key.rpartition(".")
        if place and isinstance(table := content.get(place, {}), dict):
            if table.get(last, value) != value:
                plain = keys.get("recipe", ALIASES.get(known_as))
                raise ValueError(
                    f'recipe = "{said}" stands for {key} = {json.dumps(value)}, found '
                    f'{table[last]!r}: leave {key} out, or say recipe = "{plain}"'
                )
            content[place] = {**table, last: value}
    known = find(content["recipe"])
    return content if known is None else known.implied(content)


def _known_recipe(name: str) -> str:
    if name in BUILT_IN or find(name) is not None:
        return name
    known = (*BUILT_IN, *NAMES, *outside())
    near = get_close_matches(name.lower(), known, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    meant = MEANT.get(name.lower(), meant)
    raise ValueError(f"there is no such recipe: {meant}there are {', '.join(known)}")


class DataScenario(Protocol):
    """What reading and dividing ratings and clicks takes of a scenario."""

    @property
    def seed(self) -> int:
        """Seed of what is planted."""

    @property
    def data(self) -> DataSettings:
        """Where it lies."""

    @property
    def split(self) -> SplitSettings:
        """How it is divided."""

    @property
    def collective(self) -> CollectiveSettings:
        """What is public beside it."""


class RecipeScenario(Protocol):
    """What a recipe of ratings and clicks takes of a scenario."""

    @property
    def recipe(self) -> str:
        """Its name."""

    @property
    def privacy(self) -> PrivacySettings:
        """What is promised."""

    @property
    def model(self) -> ModelSettings:
        """What is learnt."""

    @property
    def collective(self) -> CollectiveSettings:
        """What is public beside it."""

    @property
    def data(self) -> DataSettings:
        """Whether features of items may be used."""


class NewsScenario(Protocol):
    """What a training of news takes of a scenario."""

    @property
    def seed(self) -> int:
        """Seed of initialisation and of seeded noise."""

    @property
    def news(self) -> NewsSettings:
        """What is learnt, how, and how it is served."""

    @property
    def privacy(self) -> PrivacySettings:
        """What is promised."""

    @property
    def data(self) -> DataSettings:
        """What its texts are like."""

    @property
    def split(self) -> SplitSettings:
        """How the clicks are divided."""

    @property
    def run(self) -> RunSettings:
        """Where vectors of texts are kept."""


class Scenario(Table):
    """One run.

    >>> from fedrec.settings import validated
    >>> validated({"privacy": {"epsilon": 3}}, source="example").privacy.epsilon
    3.0
    """

    recipe: Annotated[str, AfterValidator(_known_recipe)] = Field(
        "default",
        json_schema_extra={"examples": [*BUILT_IN, *NAMES]},
        description="ratings and clicks: our default; published: AM-SSP and Ada-DPALS, made sound; "
        "dp-cmf: with public data, see [collective]; "
        "noisy-descent: noisy gradient descent on item vectors; "
        "dp-bias: ratings by item biases and own means; "
        "dp-popularity: clicks by counts; "
        "dp-item-item: clicks by one Gram of the most clicked items and EASE; "
        "torch: clicks by a PyTorch module of your own, named in [own]; "
        "privaterec: news, see [news]; or one that an extension registers, see [own]. ssp1, ssp2, "
        "am-ssp, ada-dpals, ada-dpgd, additive, central, central-encoder, fedrec and dp-fedrec "
        "stand for one of these with keys of [model] or [news]",
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
    run: RunSettings = RunSettings()
    own: dict[str, Any] = Field(
        default_factory=dict,
        description="settings of a recipe that an extension registers",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_what_is_implied(cls, content: Any) -> Any:
        """Names of methods stand for keys, and data.test says how the data is divided, so that
        split.kind need not."""
        if isinstance(content, dict):
            content = resolved(content)
        if (
            isinstance(content, dict)
            and isinstance(data := content.get("data"), dict)
            and data.get("test")
        ):
            split = content.get("split", {})
            return (
                {**content, "split": {"kind": "given", **split}}
                if isinstance(split, dict)
                else content
            )
        return content

    @model_validator(mode="after")
    def _combinations(self) -> Scenario:
        if self.data.test and not self.split.own_test:
            raise ValueError(
                f'data.test names the test rows, but split.kind is "{self.split.kind}": '
                "leave it out, or leave data.test out"
            )
        self._require_three_party_fits()
        known = require(self.recipe)
        self._require_own_settings(known)
        if not self.learns_news and (named := self._of_news()):
            raise ValueError(f'{named} speaks of news, which needs recipe = "privaterec"')
        if self.model.weights == "constant" and not self.model.max_items_per_user:
            raise ValueError(
                'model.weights = "constant" needs model.max_items_per_user: without a limit '
                "no constant bounds a user"
            )
        if found := known.check(self):
            raise ValueError(found)
        if self.privacy.evaluation_share and not (
            known.evaluates and self.privacy.unit == "user" and self.privacy.accountant == "gdp"
        ):
            raise ValueError(
                f'privacy.evaluation_share has no effect with recipe = "{self.recipe}" and unit '
                f'"{self.privacy.unit}": devices are not asked about such a model; leave it out'
            )
        if self.privacy.horizon:
            self._require_streamed(known)
        if not self.learns_news:
            self._require_read(known)
        return self

    def _require_streamed(self, known: RecipeSpec) -> None:
        privacy = self.privacy
        if not known.streams:
            raise ValueError(
                f'privacy.horizon has no effect with recipe = "{self.recipe}": only counts and '
                'pairs of clicks are a stream, of recipe = "default" or "dp-item-item"'
            )
        beside = {
            'privacy.aggregation = "three-party"': privacy.aggregation != "trusted",
            "privacy.personal_epsilons": bool(privacy.personal_epsilons),
            "privacy.evaluation_share": bool(privacy.evaluation_share),
            f"collective.{min(self.collective.chosen(), default='')}": self.collective.chosen(),
        }
        if named := next((name for name, chosen in beside.items() if chosen), ""):
            raise ValueError(f"privacy.horizon and {named} do not go together yet: leave one out")

    def _of_news(self) -> str:
        """The first choice that is about news; empty where there is none."""
        said = {
            "data.format": self.data.format in NEWS_FORMATS,
            "privacy.unit": self.privacy.unit == "click",
            "news": self.news.chosen(),
        }
        return next((name for name, chosen in said.items() if chosen), "")

    def _require_own_settings(self, known: RecipeSpec) -> None:
        if known.read is not None:
            if self.own:
                raise ValueError(
                    f"own.{min(self.own)} is of a recipe that an extension registers, not of "
                    f'"{self.recipe}"'
                )
            return
        try:
            known.settings.model_validate(self.own)
        except ValidationError as failure:
            first = failure.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            if first["type"] == "missing":
                said = known.settings.model_fields[str(first["loc"][0])].description
                raise ValueError(
                    f'recipe = "{known.name}" needs own.{key}{f", {said}" if said else ""}: give '
                    f"--set own.{key}=..., or {key} = ... in the table [own]"
                ) from None
            near = get_close_matches(key, known.settings.model_fields, n=1)
            meant = (
                f"; did you mean own.{near[0]}?"
                if near and first["type"] == "extra_forbidden"
                else ""
            )
            raise ValueError(f"own.{key}: {first['msg']}{meant}") from None

    def _require_read(self, known: RecipeSpec) -> None:
        """Raises ValueError on what was chosen but this recipe does not read."""
        named = f'recipe = "{known.name}"'
        beside = require("published").keys if self.compare.published else frozenset[str]()
        if ignored := self.model.chosen() - known.keys - beside:
            own = (
                "its settings are in [own]" if known.settings.model_fields else "it has no settings"
            )
            raise ValueError(
                f"model.{min(ignored)} has no effect with {named}: "
                f"{'its keys are ' + ', '.join(sorted(known.keys)) if known.keys else own}; "
                f"model.{min(ignored)} needs recipe = {reading(min(ignored))}"
            )
        if not known.collective and (chosen := self.collective.chosen()):
            raise ValueError(
                f"collective.{min(chosen)} has no effect with {named}: it needs recipe = "
                '"default" or "dp-cmf"'
            )
        if self.data.kind in KINDS and self.data.kind not in known.kinds:
            raise ValueError(
                f"{named} fits {' or '.join(known.kinds)}, but data.kind is {self.data.kind!r}: "
                f"{self.data.kind} need recipe = {fitting(self.data.kind)}"
            )
        if known.whole_users and (self.privacy.unit != "user" or self.privacy.accountant != "gdp"):
            raise ValueError(
                f"{named} protects whole users and is accounted exactly: leave privacy.unit and "
                "accountant, "
                'or set recipe = "published", which knows the others'
            )
        if self.compare.published and not known.compares_published:
            raise ValueError(f'compare.published needs recipe = "default", found {named}')

    @property
    def learns_news(self) -> bool:
        """Whether clicks on news are trained on, by `[news]`."""
        return "news" in require(self.recipe).kinds

    def _require_three_party_fits(self) -> None:
        privacy = self.privacy
        named = 'privacy.aggregation = "three-party"'
        if privacy.personal_epsilons and self.learns_news:
            raise ValueError(
                "privacy.personal_epsilons is of ratings and clicks: leave it out of news"
            )
        if privacy.aggregation == "trusted":
            if chosen := [
                key
                for key in ("calibrate_for", "hostile_clients", "shares")
                if getattr(privacy, key) != PrivacySettings.model_fields[key].default
            ]:
                raise ValueError(f"privacy.{chosen[0]} needs {named}")
            return
        if privacy.unit != "user" or privacy.accountant != "gdp":
            raise ValueError(
                f"{named} protects whole users and is accounted exactly: leave privacy.unit "
                "and accountant"
            )
        if self.learns_news and privacy.hostile_clients == "checked":
            raise ValueError(
                "clients of news are not checked yet: leave privacy.hostile_clients = "
                '"trusted-sites"'
            )

    @property
    def unsaid(self) -> set[str]:
        """Keys of [privacy] that are left out of what is sent and hashed; so is what a run does not
        use."""
        later = ("personal_epsilons", "evaluation_share", "horizon")
        plain = {*LOCAL, *(key for key in later if not getattr(self.privacy, key))}
        if self.privacy.aggregation == "trusted":
            return plain | OF_THREE
        trusted = self.privacy.hostile_clients == "trusted-sites"
        return plain | {"hostile_clients"} if trusted else plain

    def digest(self) -> str:
        """SHA-256 of everything but where results and budgets go and what is allowed.

        Returns:
            64 hexadecimal digits.
        """
        left_out: dict[str, Any] = {"run": True, "privacy": self.unsaid}
        content = self.model_dump(
            mode="json", exclude=left_out if self.own else {**left_out, "own": True}
        )
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def run_id(self) -> str:
        """Id of the run: the same scenario is the same run.

        Returns:
            Words that a folder's name may have.
        """
        return f"{self.recipe}-{self.digest()[:16]}"

    def written(self) -> dict[str, Any]:
        """Keys that differ from their defaults, as JSON holds them.

        Returns:
            Tables and keys, nested.
        """
        return dict(json.loads(self.model_dump_json(exclude_defaults=True)))

    def as_published(self, *, features: bool) -> Scenario:
        """This scenario with the papers' recipe: AM-SSP with features, without any Ada-DPALS, whose
        item vectors are free; with item biases and users' own means, which no paper has, and
        without which either is behind the global mean on small data.

        Args:
            features: Whether items have public features.

        Returns:
            A new scenario.
        """
        encoder = self.model.encoder if features else "id"
        chosen = self.model.model_copy(update={"encoder": encoder, "own_means": True})
        return self.model_copy(update={"recipe": "published", "model": chosen})

    def with_epsilon(self, epsilon: float) -> Scenario:
        """This scenario at another epsilon.

        Args:
            epsilon: Above 0; infinite for none.

        Returns:
            A new scenario.
        """
        return self.model_copy(
            update={"privacy": self.privacy.model_copy(update={"epsilon": epsilon})}
        )


def load(path: Path | None, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario (None: all defaults) and apply `table.key=value` overrides.

    Raises SettingsError."""
    content: dict[str, Any] = {} if path is None else load_content(path)
    for override in overrides:
        apply(content, override)
    said = {override.partition("=")[0].strip() for override in overrides}
    if "data.path" in said:
        content = without_comparisons(content, said=said)
        planted = {"preset", "planted"} - {key.removeprefix("data.") for key in said}
        data = {key: value for key, value in content["data"].items() if key not in planted}
        content = {**content, "data": data}  # what the scenario planted is not this data
    return validated(content, source="the defaults" if path is None else str(path))


def without_comparisons(content: dict[str, Any], *, said: Collection[str]) -> dict[str, Any]:
    """Content of a scenario whose data was replaced by people's own, without the further trainings
    that it makes to compare, but for those that `said`, keys, names.

    Each of them would be charged to these people. With seeded noise nothing is released, and all
    are kept."""
    if content.get("privacy", {}).get("noise") == "seeded":
        return content
    kept = {
        key: value
        for key, value in content.get("compare", {}).items()
        if key not in {"epsilons", "published"} or {"compare", f"compare.{key}"} & {*said}
    }
    return {**content, "compare": kept}


def validated(content: dict[str, Any], *, source: str) -> Scenario:
    """A scenario of these keys, and of defaults for all others.

    Args:
        content: Tables and keys, nested, as TOML holds them.
        source: Named in what is raised, for example the file's name.

    Returns:
        The scenario.

    Raises:
        SettingsError: A key is unknown or wrong; the message names the first one, what it must
            be and what was found.
    """
    try:
        return Scenario.model_validate(content)
    except ValidationError as failure:
        errors = failure.errors()
        # a key in the wrong spelling may also be missing in the right one
        first = min(errors, key=lambda error: error["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in first["loc"]) or "scenario"
        found = "" if isinstance(first["input"], dict | Scenario) else f", found {first['input']!r}"
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            near = nearest_keys(key)
            meant_model = key.startswith("model.") and "model.weights" in near
            of_clicks = "" if meant_model else of_weights(key)
            meant = of_clicks or (f"Did you mean {' or '.join(near)}? " if near else "")
            raise SettingsError(
                f"{source}: there is no key {key}{found}", f"{meant}{EVERY_KEY}"
            ) from None
        raise SettingsError(
            f"{source}: {key}: {message}{found}", f"{_remedy(first, key)}{EVERY_KEY}"
        ) from None


def _remedy(error: Mapping[str, Any], key: str) -> str:
    """What a wrong value should be instead, in words; nothing where the message says it."""
    found = error["input"]
    limits = error.get("ctx", {})
    if error["type"] == "literal_error":
        near = get_close_matches(
            str(found), re.findall(r"'([^']*)'", str(limits.get("expected", ""))), n=1
        )
        return (
            f"Did you mean {near[0]!r}? "
            if near
            else f"Give {limits.get('expected', 'one of them')}. "
        )
    if error["type"] in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        sign = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}
        return "".join(
            f"Give a number {word} {limits[name]:g}. "
            for name, word in sign.items()
            if name in limits
        )
    if isinstance(found, str) and found.startswith(("[", "{")):
        return f'Words in a list need quotes, for example {key}=\'["a", "b"]\'. '
    if (
        "parsing" in error["type"]
        or error["type"].endswith("_type")
        or error["type"] == "int_from_float"
    ):
        words = {
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false",
            "string": "text",
            "tuple": "a list, as in [1, 2]",
        }
        kind = error["type"].partition("_")[0]
        return f"Give {words[kind]}. " if kind in words else ""
    return ""


def nearest_keys(name: str) -> list[str]:
    """Keys of a scenario that a mistyped one may stand for, the likeliest first."""
    known = ELSEWHERE.get(name.rpartition(".")[2])
    return [known] if known else keys_alike(Scenario, name)
