"""News: which of its choices contradict each other, and the devices' part of central training. `news.variants` trains and prices it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NoReturn

from fedrec.data.interactions import Kind
from fedrec.errors import SettingsError
from fedrec.federation.rounds import ClientStep
from fedrec.preparing import RecipeFacts
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import NEWS_FORMATS, NEWS_SPLITS, NEWS_UNITS, Scenario


def build(scenario: Scenario, facts: RecipeFacts) -> NoReturn:
    """Never reached by facts of ratings or clicks, which are the only ones."""
    raise SettingsError('recipe = "privaterec" is trained by its variant', "Give data of news.")


def client_steps(scenario: Scenario, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """Of the variant `central`, whose questions an aggregator sums."""
    from fedrec.news import central_client  # with PyTorch

    return central_client.client_steps(scenario.news.history)


def check(scenario: Scenario) -> str:
    """Contradictions of [news], [data], [split] and [privacy]."""
    if scenario.data.format not in NEWS_FORMATS:
        return f'recipe = "privaterec" needs data.format to be one of {", ".join(NEWS_FORMATS)}; found {scenario.data.format!r}'
    if spoken := [key for key in ("validation", "test", "separator", "keep_users", "keep_items", "planted") if getattr(scenario.data, key)]:
        return f"data.{spoken[0]} is of ratings and clicks, not of news"
    if (scenario.data.format == "planted-news") != (not scenario.data.path):
        return "planted-news needs no data.path, and every other format of news needs one"
    if scenario.split.kind not in (kinds := NEWS_SPLITS[scenario.data.format]):
        return f'split.kind = "{scenario.split.kind}" does not divide {scenario.data.format}: use {", ".join(kinds)}'
    if scenario.split.cuts is not None:
        return "split.cuts cut ratings and clicks in time: news finds its own cut, and says that it is not covered"
    unit = NEWS_UNITS[scenario.news.variant]
    if scenario.privacy.unit != unit:
        return f'news.variant = "{scenario.news.variant}" protects a {unit}: say privacy.unit = "{unit}", found "{scenario.privacy.unit}"'
    if scenario.news.variant in {"fedrec", "centralized"} and scenario.privacy.epsilon != math.inf:
        return f'news.variant = "{scenario.news.variant}" has no privacy: say privacy.epsilon = "inf", found {scenario.privacy.epsilon:g}'
    if scenario.news.variant in {"additive", "central", "fedrec", "dp-fedrec", "centralized"} and scenario.news.padding:
        return f'news.padding hides clicks of "local" and "printed", not of "{scenario.news.variant}"'
    published = scenario.news.variant not in {"additive", "central"}
    if scenario.news.word_vectors and not (published and scenario.news.model in {"nrms", "naml"}):
        return 'news.word_vectors start the words of "nrms" and "naml", which train in rounds'
    if scenario.news.language_model and not (published and scenario.news.model == "plm-nr"):
        return 'news.language_model is read by news.model = "plm-nr", which trains in rounds'
    if scenario.news.variant != "additive" and (scenario.news.open_categories or scenario.news.no_click != "leave-out"):
        named = "open_categories" if scenario.news.open_categories else "no_click"
        return f'news.{named} is a choice of "additive", not of "{scenario.news.variant}"'
    if scenario.news.open_categories and scenario.news.no_click == "report":
        return "news.open_categories needs a click in every impression: leave news.no_click as it is"
    if scenario.collective.chosen():
        return f'collective.{min(scenario.collective.chosen())} needs recipe = "dp-cmf"'
    if scenario.model.chosen():
        return "model.* belongs to ratings and clicks; news models are chosen in [news]"
    return ""


SPEC = RecipeSpec(name="privaterec", build=build, client_steps=client_steps, kinds=("news",), read=whole_scenario, check=check)
