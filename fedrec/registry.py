"""Registry of recipes: fedrec's own by name, others registered in Python or found by the entry
point group `fedrec.recipes`.

    @fedrec.recipe("my-mechanism", settings=MySettings, kinds=("clicks",))
    def build(settings: MySettings, facts: fedrec.RecipeFacts) -> fedrec.Prepared: ...

A package that is installed names its builder in its metadata, and every process of a deployment
finds it:

    [project.entry-points."fedrec.recipes"]
    my-mechanism = "my_package.mechanism:build"

An entry point may also name a `RecipeSpec`, which is what fedrec's own modules of `fedrec.recipes`
hold.

What an extension is trusted with: it decides what devices report and how the server learns. Noise,
its price and the ledgers stay those of fedrec: reports longer than a release's radius are refused,
and noise is drawn by the aggregator for the radius that the plan states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from fedrec.data.kinds import Kind
from fedrec.errors import SettingsError

GROUP = "fedrec.recipes"

Build = TypeVar("Build", bound=Callable[..., Any])


class NoSettings(BaseModel):
    """Settings of a recipe that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, kw_only=True)
class RecipeSpec:
    """One recipe: all that the rest of fedrec knows of it.

    build: from its settings and `fedrec.RecipeFacts` to a `fedrec.Prepared`. client_steps: from its
    settings and the kind of data to what runs on devices; needed where clients are processes of
    their own. kinds: what it learns from. models: kinds of models that it releases, by name, each
    with `arrays()` and a static `of_arrays(arrays)`, where none of fedrec's own is meant. cohorts:
    kinds of which every round may ask other users: each sum is divided by who reported, and none
    needs the same users twice.

    Its settings are the table `[own]`, a pydantic model that refuses unknown keys. The recipes that
    had tables of their own before `[own]` was there give `read` instead, from a whole scenario to
    settings; `keys` of `[model]` and whether it reads `[collective]` say which. whole_users: users
    are protected, not single ratings, and accounting is exact. compares_published: the published
    recipe may run beside it. curated: it needs everybody's data at one trusted curator.
    check: why other choices of a scenario contradict each other, empty where they do not. implied:
    a scenario's tables with what they leave to the recipe.

    >>> from fedrec.registry import require
    >>> spec = require("dp-popularity")
    >>> spec.kinds, spec.whole_users
    (('clicks',), True)
    """

    name: str
    build: Callable[..., Any]
    client_steps: Callable[..., Any] | None = None
    kinds: tuple[Kind | Literal["news"], ...] = ("ratings", "clicks")
    models: Mapping[str, Any] = field(default_factory=dict)
    cohorts: tuple[Kind, ...] = ()
    settings: type[BaseModel] = NoSettings
    read: Callable[[Any], Any] | None = None
    keys: frozenset[str] = frozenset()
    collective: bool = False
    whole_users: bool = True
    compares_published: bool = False
    curated: bool = False
    check: Callable[[Any], str] = lambda scenario: ""
    implied: Callable[[dict[str, Any]], dict[str, Any]] = lambda content: content

    def chosen(self, scenario: Any) -> Any:
        """What `build` and `client_steps` take.

        Raises pydantic's ValidationError where the table [own] is wrong."""
        return (
            self.settings.model_validate(scenario.own) if self.read is None else self.read(scenario)
        )


def whole_scenario(scenario: Any) -> Any:
    """`RecipeSpec.read` of a recipe that takes all of a scenario."""
    return scenario


_REGISTERED: dict[str, RecipeSpec] = {}


def recipe(
    name: str,
    *,
    settings: type[BaseModel] = NoSettings,
    kinds: tuple[Kind, ...] = ("ratings", "clicks"),
    models: Mapping[str, Any] | None = None,
    client_steps: Callable[..., Any] | None = None,
) -> Callable[[Build], Build]:
    """Register a builder under a name that scenarios may give as `recipe`; see `RecipeSpec`. A name
    is registered anew where it is known.

    Raises SettingsError where the name is one of fedrec's own.

    >>> import fedrec
    >>> from fedrec.recipes.dp_popularity import CLIENT_STEPS, SHARES, PopularityRecipe
    >>> @fedrec.recipe("my-counts", kinds=("clicks",))
    ... def build(settings, facts):
    ...     plan = facts.plan(SHARES)
    ...     return fedrec.Prepared(PopularityRecipe(plan, facts), CLIENT_STEPS, plan)
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> model = fedrec.MatrixFactorization(method="my-counts", noise="seeded").fit(data)
    >>> model.guarantee.epsilon
    5.0
    """

    if name in BUILT_IN:
        raise SettingsError(f"recipe {name!r} is one of fedrec's own", "Choose another name.")

    def register(build: Build) -> Build:
        _REGISTERED[name] = RecipeSpec(
            name=name,
            build=build,
            client_steps=client_steps,
            kinds=kinds,
            models=dict(models or {}),
            settings=settings,
        )
        return build

    return register


def find(name: str) -> RecipeSpec | None:
    """The recipe of this name: one of fedrec's own, one that was registered, or one with an entry
    point, whose module is loaded.

    Raises SettingsError where an entry point cannot be loaded.

    >>> find("dp-bias").kinds
    ('ratings',)
    >>> find("unheard-of") is None
    True
    """
    if name in BUILT_IN:
        own: RecipeSpec = import_module(f"fedrec.recipes.{name.replace('-', '_')}").SPEC
        return own
    if name not in _REGISTERED:
        for point in metadata.entry_points(group=GROUP, name=name):
            try:
                build = point.load()
            except (ImportError, AttributeError) as failure:
                raise SettingsError(
                    f"recipe {name!r} cannot be loaded: {failure}",
                    f"Reinstall {point.value.partition(':')[0]}.",
                ) from None
            if name not in _REGISTERED:  # the module did not register it by itself
                _REGISTERED[name] = (
                    build if isinstance(build, RecipeSpec) else RecipeSpec(name=name, build=build)
                )
    return _REGISTERED.get(name)


def require(name: str) -> RecipeSpec:
    """Finds a recipe as `find` does. Raises SettingsError where there is no such recipe.

    >>> require("dp-bias").name
    'dp-bias'
    """
    if (found := find(name)) is None:
        raise SettingsError(
            f"there is no recipe {name!r}", f"There are {', '.join((*BUILT_IN, *outside()))}."
        )
    return found


def outside() -> tuple[str, ...]:
    """Names of all recipes from outside: registered, or installed.

    >>> outside()
    ()
    """
    return tuple(
        dict.fromkeys([*_REGISTERED, *(point.name for point in metadata.entry_points(group=GROUP))])
    )


def fitting(kind: str) -> str:
    """Fedrec's own recipes that learn from this kind of data, in words.

    >>> fitting("news")
    '"privaterec"'
    """
    return ", ".join(f'"{name}"' for name in BUILT_IN if kind in require(name).kinds)


def reading(key: str) -> str:
    """Fedrec's own recipes that read a key of [model], in words.

    >>> reading("optimizer")
    '"published" or "dp-cmf"'
    """
    return " or ".join(f'"{name}"' for name in BUILT_IN if key in require(name).keys)


def model_kinds() -> dict[str, Any]:
    """Kinds of models of fedrec's own recipes and of all registered ones, by name.

    >>> sorted(model_kinds())
    ['clicks', 'convex-ssp', 'default', 'fast-dpmf', 'item-item', 'public-prior', 'published']
    """
    return {
        name: kind
        for known in (*map(require, BUILT_IN), *_REGISTERED.values())
        for name, kind in known.models.items()
    }


BUILT_IN = (
    "default",
    "published",
    "dp-cmf",
    "dpmf",
    "noisy-descent",
    "dp-gd",
    "dp-sgd",
    "am-dpsgd",
    "convex-ssp",
    "dp-bias",
    "dp-popularity",
    "dp-item-item",
    "privaterec",
)
"""Recipes that come with fedrec: each is a module of `fedrec.recipes`, loaded when its name is
first asked for."""
