"""Public news and private impressions from a scenario's data table: MIND's files, a click log made
from ratings, or planted news."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedrec.arrays import Float64s
from fedrec.data.clicklog import ClickLog, ClickLogProtocol, click_log, not_covered
from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions, News
from fedrec.data.news_files import read_mind
from fedrec.data.planted_news import NEWS_SHAPES, planted_news
from fedrec.data.rated_news import read_rated_news
from fedrec.errors import DataError, SettingsError
from fedrec.news.trained import Catalogue, item_vectors
from fedrec.numerics.segments import sums
from fedrec.randomness import Streams
from fedrec.run.data.keys import NEWS, require_used
from fedrec.settings import NewsScenario
from fedrec.settings_tables.data import DataSettings
from fedrec.settings_tables.splitting import SplitSettings

# by `split.kind` (`settings.NEWS_SPLITS`): whether MIND is tested on users of its train part, and
# how a click log is divided
_USERS_OF_TRAIN = {"random": False, "given": False, "held-out-users": True}
_DIVISIONS: Mapping[str, Literal["drawn", "latest"]] = {
    "random": "drawn",
    "held-out-users": "drawn",
    "temporal": "latest",
}


@dataclass(frozen=True)
class NewsData:
    """Public: `news` and `features` (empty where the texts are all there is). Private: `log`.

    not_covered: sentences on what was read off all users' data, so that no guarantee for training
    covers it.
    """

    name: str
    news: News
    features: PublicFeatures
    log: ClickLog
    not_covered: tuple[str, ...] = ()

    def describe(self) -> dict[str, object]:
        """Sizes, for the run folder."""
        parts = {"train": self.log.train, "validation": self.log.validation, "test": self.log.test}
        sizes = {
            name: {"users": part.num_users, "impressions": len(part)}
            for name, part in parts.items()
        }
        return {"data": self.name, "news": len(self.news), **sizes}

    def digest(self) -> str:
        """SHA-256 of the impressions of every part: who is where, what was shown, what was clicked;
        the same on every machine."""
        found = hashlib.sha256(str(len(self.news)).encode())
        for name, part in (
            ("train", self.log.train),
            ("validation", self.log.validation),
            ("test", self.log.test),
        ):
            numbers = (
                part.history_ptr,
                part.history,
                part.users,
                part.candidate_ptr,
                part.candidates,
                part.clicked,
            )
            found.update(f"/{name}/{part.num_users}/{len(part)}/".encode())
            for array in numbers:
                found.update(array.astype("<i8").tobytes())
        return found.hexdigest()

    def sentence(self) -> str:
        """Return the sizes as a sentence for a reader."""
        train = self.log.train
        test = self.log.test
        return (
            f"trained on {len(train):,} impressions of {train.num_users:,} users among "
            f"{len(self.news):,} items; "
            f"tested on {len(test):,} impressions of {test.num_users:,} users"
        )


def load_news(scenario: NewsScenario) -> NewsData:
    """Read or plant the scenario's data; users are divided by `split.seed`.

    Raises DataError or SettingsError."""
    chosen = scenario.data
    require_used(
        scenario, NEWS[chosen.format], f"news in the format {chosen.format}", "Leave it out."
    )
    if split := [key for key in ("cuts", "validation_share") if getattr(scenario.split, key)]:
        raise SettingsError(
            f"split.{split[0]} has no effect on news, which are divided by users", "Leave it out."
        )
    found = _READERS[chosen.format](chosen, scenario.split, scenario.news.no_click)
    for name, part in (("train", found.log.train), ("test", found.log.test)):
        if not part.clicked.any() or part.num_users < 2:
            raise DataError(
                f"{name} has no clicks of two users or more", "Give data with labelled impressions."
            )
        clicks = _clicks(part)
        if not ((clicks > 0) & (clicks < np.diff(part.candidate_ptr))).any():
            raise DataError(
                f"no list of {name} holds an article that was clicked beside one that was not",
                "Give what was shown too; of clicks alone, fedrec.Dataset makes a recommender.",
            )
    return found


def catalogue_of(scenario: NewsScenario, data: NewsData) -> Catalogue:
    """The public catalogue: a vector for every item, and `news.entity_vectors` beside it.

    Raises DataError on a file that names none."""
    return Catalogue(data.news, item_vectors(scenario, data.news, data.features))


def _mind(chosen: DataSettings, split: SplitSettings, no_click: str) -> NewsData:
    mind = read_mind(Path(chosen.path), unknown=chosen.unknown_news)
    users_of_train = _USERS_OF_TRAIN[split.kind]
    log = mind.click_log(streams=Streams(split.seed), held_out_users=users_of_train)
    if no_click == "leave-out":
        log = ClickLog(*map(only_told, (log.train, log.validation, log.test)))
    part = users_of_train or chosen.unknown_news != "refuse"
    added = ("news without a line in news.tsv: their ids are read off everybody's impressions",)
    untold = added if chosen.unknown_news == "add" else ()
    return NewsData(_name_of(mind.news, part=part), mind.news, PublicFeatures({}), log, untold)


def _name_of(news: News, *, part: bool) -> str:
    """MIND's own ids are N and a number: what is published of MIND stands beside no other data."""
    if not all(re.fullmatch(r"N\d+", item) for item in news.ids):
        return "impressions in MIND's format"
    return "a part of MIND" if part else "MIND"


def _clicks(impressions: Impressions) -> Float64s:
    """(n,) how many candidates of each impression were clicked."""
    return sums(impressions.candidate_ptr, impressions.clicked.astype(np.float64))


def only_told(impressions: Impressions) -> Impressions:
    """Impressions with a click: MIND as it is published has no other in train and dev."""
    clicks = _clicks(impressions)
    return impressions if clicks.all() else impressions.select(np.flatnonzero(clicks))


def _click_log(chosen: DataSettings, split: SplitSettings, no_click: str) -> NewsData:
    rated = read_rated_news(Path(chosen.path))
    protocol = ClickLogProtocol(division=_DIVISIONS[split.kind])
    log = click_log(rated.ratings, protocol, streams=Streams(split.seed))
    untold = (*rated.not_covered, *not_covered(protocol))
    return NewsData(
        f"click log of {Path(chosen.path).name}", rated.news, rated.features, log, untold
    )


def _planted(chosen: DataSettings, split: SplitSettings, no_click: str) -> NewsData:
    preset = chosen.preset or "demo"
    if preset not in NEWS_SHAPES:
        raise SettingsError(
            f"data.preset {preset!r} is unknown",
            f"For planted news, use one of: {', '.join(NEWS_SHAPES)}.",
        )
    planted = planted_news(NEWS_SHAPES[preset], seed=split.seed)
    return NewsData("planted news", planted.news, PublicFeatures({}), planted.log)


_READERS = {"mind": _mind, "click-log": _click_log, "planted-news": _planted}
