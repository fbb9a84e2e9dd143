"""News: which of its choices contradict each other, and the devices' part of central training.

`news.variants` trains and prices it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, NoReturn

from fedrec.data.kinds import Kind
from fedrec.errors import SettingsError
from fedrec.federation.messages import ClientStep
from fedrec.news.variant import find, names, of
from fedrec.preparing import RecipeFacts
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import NEWS_FORMATS, NEWS_SPLITS, NewsScenario, Scenario
from fedrec.settings_tables.data import DataSettings
from fedrec.settings_tables.splitting import SplitSettings

_SAYS = {
    "attention_noise": 'is of attention: a choice of "local" and "printed"',
    "padding": 'hides clicks of "local" and "printed"',
    "open_categories": 'is a choice of "additive"',
    "no_click": 'is a choice of "additive"',
    "printed": 'is of the variant "printed"',
    "serving_noise": "is of answers of an encoder",
    "accounting": 'is of "local" and "dp-fedrec"',
    "sizes": "is of encoders that are trained",
    "bands": 'is of the noise of "central-encoder"',
    "word_vectors": 'start the words of "nrms" and "naml", which train in rounds',
    "language_model": 'is read by news.model = "plm-nr", which trains in rounds',
}
"""Keys of [news] that only some variants read."""
_SOME = frozenset(_SAYS)


def build(scenario: NewsScenario, facts: RecipeFacts) -> NoReturn:
    """Never reached by facts of ratings or clicks, which are the only ones."""
    raise SettingsError('recipe = "privaterec" is trained by its variant', "Give data of news.")


def client_steps(scenario: NewsScenario, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """Client steps of a variant whose questions an aggregator sums.

    Raises SettingsError for another one, whose devices answer no aggregator."""
    summed = of(scenario).summed
    if summed is None:
        raise SettingsError(
            f'news.variant = "{scenario.news.variant}" has no aggregator',
            'Choose "central" or "central-encoder".',
        )
    return summed.steps(scenario)


def implied(content: dict[str, Any]) -> dict[str, Any]:
    """The paper's way in its established form, `local`, where no variant is named; and the unit
    that the variant protects."""
    news = content.get("news", {})
    privacy = content.get("privacy", {})
    if not isinstance(news, dict) or not isinstance(privacy, dict):
        return content
    news = {"variant": "local", **news}
    known = find(str(news["variant"]))
    unit = {} if known is None else {"unit": known.unit}
    return {**content, "news": news, "privacy": {**unit, **privacy}}


def check(scenario: Scenario) -> str:
    """Contradictions of [news], [data], [split] and [privacy]."""
    if found := _of_data(scenario.data, scenario.split):
        return found
    if (known := find(scenario.news.variant)) is None:
        near = get_close_matches(scenario.news.variant, names(), n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        return (
            f"there is no news.variant {scenario.news.variant!r}: {meant}there are "
            f"{', '.join(names())}"
        )
    named = f'news.variant = "{known.name}"'
    if scenario.privacy.unit != known.unit:
        return (
            f'{named} protects a {known.unit}: say privacy.unit = "{known.unit}", found '
            f'"{scenario.privacy.unit}"'
        )
    if not known.private and scenario.privacy.epsilon != math.inf:
        return (
            f'{named} has no privacy: say privacy.epsilon = "inf", found '
            f"{scenario.privacy.epsilon:g}"
        )
    if scenario.privacy.aggregation != "trusted" and known.plan is None:
        return (
            'privacy.aggregation = "three-party" needs an aggregator to sum: of news, '
            'news.variant = "central" and "central-encoder" have one'
        )
    if ignored := scenario.news.chosen() & _SOME - known.keys:
        return f"news.{min(ignored)} {_SAYS[min(ignored)]}, not of {named}"
    if scenario.news.model not in known.models:
        return f"{named} has no news.model = {scenario.news.model!r}: use {sorted(known.models)}"
    if (
        "laplace" in {scenario.news.attention_noise, scenario.news.serving_noise}
        and scenario.news.padding
        and not known.not_established
    ):
        return (
            "news.padding hides single clicks: what padded Laplace answers cost a person with "
            "many is not priced, so leave one of them out"
        )
    if scenario.news.word_vectors and scenario.news.model not in {"nrms", "naml"}:
        return 'news.word_vectors start the words of "nrms" and "naml", which train in rounds'
    if scenario.news.language_model and scenario.news.model != "plm-nr":
        return 'news.language_model is read by news.model = "plm-nr", which trains in rounds'
    if scenario.news.open_categories and scenario.news.no_click == "report":
        return (
            "news.open_categories needs a click in every impression: leave news.no_click as it is"
        )
    if scenario.collective.chosen():
        return f'collective.{min(scenario.collective.chosen())} needs recipe = "dp-cmf"'
    if scenario.model.chosen():
        return "model.* belongs to ratings and clicks; news models are chosen in [news]"
    return ""


def _of_data(data: DataSettings, split: SplitSettings) -> str:
    if data.format not in NEWS_FORMATS:
        return (
            f'recipe = "privaterec" needs data.format to be one of {", ".join(NEWS_FORMATS)}; '
            f"found {data.format!r}"
        )
    if spoken := [
        key
        for key in ("validation", "test", "separator", "keep_users", "keep_items", "planted")
        if getattr(data, key)
    ]:
        return f"data.{spoken[0]} is of ratings and clicks, not of news"
    if (data.format == "planted-news") != (not data.path):
        return "planted-news needs no data.path, and every other format of news needs one"
    if split.kind not in (kinds := NEWS_SPLITS[data.format]):
        return f'split.kind = "{split.kind}" does not divide {data.format}: use {", ".join(kinds)}'
    if split.cuts is not None:
        return (
            "split.cuts cut ratings and clicks in time: news finds its own cut, and says that it "
            "is not covered"
        )
    return ""


SPEC = RecipeSpec(
    name="privaterec",
    build=build,
    client_steps=client_steps,
    kinds=("news",),
    read=whole_scenario,
    check=check,
    implied=implied,
)
