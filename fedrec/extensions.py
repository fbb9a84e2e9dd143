"""Recipes from outside the package: registered in Python, or found by the entry point group `fedrec.recipes`.

    @fedrec.recipe("my-mechanism", settings=MySettings, kinds=("clicks",))
    def build(settings: MySettings, facts: fedrec.RecipeFacts) -> fedrec.Prepared: ...

A package that is installed names its builder in its metadata, and every process of a deployment finds it:

    [project.entry-points."fedrec.recipes"]
    my-mechanism = "my_package.mechanism:build"

What an extension is trusted with: it decides what devices report and how the server learns. Noise, its price and the ledgers stay those of
fedrec: reports longer than a release's radius are refused, and noise is drawn by the aggregator for the radius that the plan states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from fedrec.data.interactions import Kind
from fedrec.errors import SettingsError

GROUP = "fedrec.recipes"

Build = TypeVar("Build", bound=Callable[..., Any])


class NoSettings(BaseModel):
    """Of a recipe without settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Extension:
    """One recipe.

    build: from settings and `fedrec.RecipeFacts` to a `fedrec.Prepared`. settings: a pydantic model that refuses unknown keys, filled by
    the scenario's table `[own]`. kinds: what it learns from. models: kinds of models that it releases, by name, each with `arrays()` and a
    static `of_arrays(arrays)`, where none of fedrec's own is meant. client_steps: from settings and kind to what runs on devices; needed
    where clients are processes of their own.
    """

    name: str
    build: Callable[..., Any]
    settings: type[BaseModel] = NoSettings
    kinds: tuple[Kind, ...] = ("ratings", "clicks")
    models: Mapping[str, Any] = field(default_factory=dict)
    client_steps: Callable[..., Any] | None = None


_REGISTERED: dict[str, Extension] = {}


def recipe(
    name: str,
    *,
    settings: type[BaseModel] = NoSettings,
    kinds: tuple[Kind, ...] = ("ratings", "clicks"),
    models: Mapping[str, Any] | None = None,
    client_steps: Callable[..., Any] | None = None,
) -> Callable[[Build], Build]:
    """Register a builder under a name that scenarios may give as `recipe`; see `Extension`. A name is registered anew where it is known.

    Raises SettingsError where the name is one of fedrec's own.
    """

    if name in BUILT_IN:
        raise SettingsError(f"recipe {name!r} is one of fedrec's own", "Choose another name.")

    def register(build: Build) -> Build:
        _REGISTERED[name] = Extension(name, build, settings, kinds, dict(models or {}), client_steps)
        return build

    return register


def extension(name: str) -> Extension | None:
    """The registered recipe of this name; its entry point is loaded where it has one. Raises SettingsError where that fails."""
    if name not in _REGISTERED:
        for point in metadata.entry_points(group=GROUP, name=name):
            try:
                build = point.load()
            except (ImportError, AttributeError) as failure:
                raise SettingsError(f"recipe {name!r} cannot be loaded: {failure}", f"Reinstall {point.value.partition(':')[0]}.") from None
            if name not in _REGISTERED:  # the module did not register it by itself
                _REGISTERED[name] = build if isinstance(build, Extension) else Extension(name, build)
    return _REGISTERED.get(name)


def extensions() -> tuple[str, ...]:
    """Names of all recipes from outside: registered, or installed."""
    return tuple(dict.fromkeys([*_REGISTERED, *(point.name for point in metadata.entry_points(group=GROUP))]))


def model_kinds() -> dict[str, Any]:
    """Kinds of models of all registered recipes, by name."""
    return {name: kind for known in _REGISTERED.values() for name, kind in known.models.items()}


BUILT_IN = (
    "default",
    "published",
    "dp-cmf",
    "fast-dpmf",
    "dp-gd",
    "am-dpsgd",
    "convex-ssp",
    "dp-bias",
    "dp-popularity",
    "dp-item-item",
    "privaterec",
)
"""Recipes that come with fedrec; others are registered (`fedrec.extensions`)."""
