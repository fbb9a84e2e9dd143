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

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from fedrec.data.kinds import Kind
from fedrec.errors import SettingsError

GROUP = "fedrec.recipes"

Build = TypeVar("Build", bound=Callable[..., Any])
BUILT_IN = (
    "default",
    "published",
    "dp-cmf",
    "noisy-descent",
    "dp-bias",
    "dp-popularity",
    "dp-item-item",
    "torch",
    "privaterec",
)
"""Recipes that come with fedrec: each is a module of `fedrec.recipes`, loaded when its name is
first asked for."""
ALIASES: Mapping[str, str] = {
    "ssp1": "published",
    "ssp2": "published",
    "am-ssp": "published",
    "ada-dpals": "published",
    "ada-dpgd": "dp-gd",
}
"""Names of the papers' methods, and the recipe that carries each one out. A run keeps the name that
was asked for, in what it prints and in its folder."""

MODELS: Mapping[str, str] = {
    "default": "fedrec.factorization.default_ratings.model:DefaultModel",
    "clicks": "fedrec.factorization.default_clicks.model:ClickModel",
    "item-item": "fedrec.factorization.default_clicks.model:ItemItemModel",
    "public-prior": "fedrec.factorization.default_clicks.model:PublicPriorModel",
    "published": "fedrec.factorization.am_ssp.client:PublishedModel",
    "fast-dpmf": "fedrec.factorization.least_squares:LocalStageModel",
    "torch": "fedrec.torch_modules.model:TorchModel",
}
"""Kinds of models that fedrec's own recipes release, and the class of each: a name is known without
its module, which is loaded when a model of that kind is."""


class NoSettings(BaseModel):
    """Settings of a recipe that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, kw_only=True)
class RecipeSpec:
    """One recipe: all that the rest of fedrec knows of it.

    Its settings are the table `[own]`, a pydantic model that refuses unknown keys. The recipes that
    had tables of their own before `[own]` was there give `read` instead, from a whole scenario to
    settings.

    Args:
        name: As scenarios give it.
        build: From its settings and `fedrec.RecipeFacts` to a `fedrec.Prepared`.
        client_steps: From its settings and the kind of data to what runs on devices; needed
            where clients are processes of their own.
        kinds: What it learns from.
        models: Kinds of models that it releases, by name, each with `arrays()` and a static
            `of_arrays(arrays)`, where none of fedrec's own is meant.
        cohorts: Kinds of which every round may ask other users: each sum is divided by who
            reported, and none needs the same users twice.
        settings: Model of the table `[own]`.
        read: Reads settings from a whole scenario instead.
        keys: Keys of `[model]` that it reads.
        collective: Whether it reads `[collective]`.
        whole_users: Whether users are protected, not single ratings, and accounting is exact.
        compares_published: Whether the published recipe may run beside it.
        curated: Whether it needs everybody's data at one trusted curator.
        evaluates: Whether devices can be sent its model, so that people may say how good it is
            (`privacy.evaluation_share`).
        streams: Kinds of which it learns a year of weeks under one guarantee
            (`privacy.horizon`).
        check: Why other choices of a scenario contradict each other, empty where they do not.
        implied: A scenario's tables with what they leave to the recipe.

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
    evaluates: bool = False
    streams: tuple[Kind, ...] = ()
    check: Callable[[Any], str] = lambda scenario: ""
    implied: Callable[[dict[str, Any]], dict[str, Any]] = lambda content: content

    def chosen(self, scenario: Any) -> Any:
        """What `build` and `client_steps` take.

        Args:
            scenario: The whole one.

        Returns:
            Settings in the recipe's own type.

        Raises:
            ValidationError: The table `[own]` is wrong (pydantic's).
        """
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

    Args:
        name: In small letters.
        settings: Model of the table `[own]`.
        kinds: What the recipe learns from.
        models: Kinds of models of its own, by name.
        client_steps: From its settings and the kind of data to what runs on devices.

    Returns:
        A decorator, which returns the builder as it is.

    Raises:
        SettingsError: The name is one of fedrec's own.

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

    if name in BUILT_IN or name in ALIASES:
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

    Args:
        name: As scenarios give it.

    Returns:
        The recipe, or None where there is none.

    Raises:
        SettingsError: An entry point cannot be loaded.

    >>> find("dp-bias").kinds
    ('ratings',)
    >>> find("ssp2").name
    'published'
    >>> find("unheard-of") is None
    True
    """
    name = ALIASES.get(name, name)
    if name in BUILT_IN:
        try:
            own: RecipeSpec = import_module(f"fedrec.recipes.{name.replace('-', '_')}").SPEC
        except ModuleNotFoundError as failure:
            raise SettingsError(
                f"recipe {name!r} cannot be loaded: {failure}", "Reinstall fedrec."
            ) from None
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
    """Finds a recipe as `find` does.

    Args:
        name: As scenarios give it.

    Returns:
        The recipe.

    Raises:
        SettingsError: There is no such recipe.

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

    Returns:
        Registered ones first.

    >>> "default" in outside()
    False
    """
    return tuple(
        dict.fromkeys([*_REGISTERED, *(point.name for point in metadata.entry_points(group=GROUP))])
    )


def _own() -> Iterator[tuple[str, RecipeSpec]]:
    """Fedrec's own recipes; one that cannot be loaded is left out, and breaks itself alone."""
    for name in BUILT_IN:
        with suppress(SettingsError):
            yield name, require(name)


def fitting(kind: str) -> str:
    """Fedrec's own recipes that learn from this kind of data, in words.

    Args:
        kind: "ratings", "clicks" or "news".

    Returns:
        The names in quotation marks, joined by "or".

    >>> fitting("news")
    '"privaterec"'
    """
    return ", ".join(f'"{name}"' for name, of in _own() if kind in of.kinds)


def reading(key: str) -> str:
    """Fedrec's own recipes that read a key of [model], in words.

    Args:
        key: Without the table's name.

    Returns:
        The names in quotation marks, joined by "or".

    >>> reading("optimizer")
    '"published" or "dp-cmf"'
    """
    named = [f'"{name}"' for name, of in _own() if key in of.keys]
    return " or ".join(named) or "one that an extension registers"


def _outside_models() -> dict[str, Any]:
    """Models of recipes from outside; those of installed packages are loaded for it."""
    for name in outside():
        with suppress(SettingsError):  # one that cannot be loaded has no models
            find(name)
    return {name: kind for known in _REGISTERED.values() for name, kind in known.models.items()}


def model_kinds() -> tuple[str, ...]:
    """Names of the kinds of models of fedrec's own recipes, and of registered and installed ones.

    Returns:
        Fedrec's own first.

    >>> model_kinds()[:4]
    ('default', 'clicks', 'item-item', 'public-prior')
    """
    return tuple(dict.fromkeys((*MODELS, *_outside_models())))


def model_class(kind: str) -> Any:
    """The class of a kind of models, with `of_arrays`.

    Args:
        kind: As a model's file names it.

    Returns:
        The class.

    Raises:
        KeyError: There is no such kind.

    >>> model_class("published").__name__
    'PublishedModel'
    """
    if (registered := _outside_models().get(kind)) is not None:
        return registered
    module, _, name = MODELS[kind].partition(":")
    return getattr(import_module(module), name)


def kind_of(model: object) -> str | None:
    """The kind of a model, by its class or one that it inherits from; None where nobody names it.

    Args:
        model: A released one.

    Returns:
        Its kind's name.

    >>> kind_of(object()) is None
    True
    """
    named = {path: kind for kind, path in MODELS.items()}
    for known in type(model).__mro__:
        if (kind := named.get(f"{known.__module__}:{known.__qualname__}")) is not None:
            return kind
    return next((name for name, of in _outside_models().items() if isinstance(model, of)), None)
