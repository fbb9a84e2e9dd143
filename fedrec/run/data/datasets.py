"""Data set and checked split from a scenario's data and split tables.

Smaller data sets of a larger one, for experiments: so many users by a hash of their ids, so many
of the items rated most often; all items but some that stand for new ones.

Neither choice is covered by a guarantee: which items are rated most is read off everybody's rows,
and of users the first N by hash are taken, so that one person more moves another out. Both are
named in the provenance's `not_covered`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Catalogue, Dataset, Interactions, with_events
from fedrec.data.keyed_hash import below, hashed, id_words
from fedrec.data.kinds import KINDS, assumed
from fedrec.data.planted import DEMO, SHAPES, PlantedShape, planted, shape_of_sizes
from fedrec.data.public_sources import (
    SIMILAR_ITEMS,
    public_looking,
    with_item_vectors,
    with_public_users,
    with_similar_items,
    with_users_made_public,
)
from fedrec.data.read import read
from fedrec.data.splits import (
    Split,
    given,
    held_out_users,
    leave_last_out,
    random_split,
    temporal,
    users_without_history,
)
from fedrec.errors import DataError, SettingsError
from fedrec.randomness import Streams
from fedrec.run.data.keys import (
    AFTER_READING,
    FILES,
    PLANTED,
    given_keys,
    require_own,
    require_used,
)
from fedrec.settings import DataScenario
from fedrec.settings_tables.data import DataSettings
from fedrec.settings_tables.splitting import SplitSettings

NEW = 0.1
"""Share of the catalogue that `left_out` takes for new."""


def subset(dataset: Dataset, *, users: int = 0, items: int = 0) -> Dataset:
    """Users first: the `users` of smallest hash; then the `items` that they rated most often in
    training; 0 keeps all.

    Users without a row left, in any part, are left out. The same for every seed. Raises DataError
    where there are fewer than asked for.
    """
    if not (users or items):
        return dataset
    for asked, there, what in (
        (users, dataset.interactions.num_users, "users"),
        (items, dataset.interactions.num_items, "items"),
    ):
        if asked > there:
            raise DataError(
                f"{asked} {what} were asked for, and the data has {there}",
                f"Set data.keep_{what} to {there} at most, or to 0.",
            )
    untold = list[str]()
    if users:
        draws = dataset.interactions.user_draws(Streams(0).key("subset"))
        dataset = of_users(dataset, np.sort(np.argsort(draws, kind="stable")[:users]))
        untold.append(
            f"which {users} users are kept (data.keep_users): one person more in the data "
            "moves another out"
        )
    if items:
        dataset = most_rated(dataset, items)
        untold.append(
            f"which {items} items are kept (data.keep_items): they are those that were rated "
            "most often"
        )
    parts = [
        part
        for part in (dataset.interactions, dataset.given_test, dataset.given_validation)
        if part is not None
    ]
    dataset = of_users(
        dataset, np.flatnonzero(np.sum([np.diff(part.user_ptr) for part in parts], axis=0))
    )
    return replace(
        dataset,
        provenance=replace(
            dataset.provenance, not_covered=(*dataset.provenance.not_covered, *untold)
        ),
    )


def of_users(dataset: Dataset, kept: npt.NDArray[np.integer]) -> Dataset:
    """The data set of these users, numbered anew in the given order."""
    names = dataset.catalogue.user_ids
    catalogue = replace(dataset.catalogue, user_ids=tuple(names[k] for k in kept))
    return with_events(dataset, lambda events: events.users_subset(kept), catalogue=catalogue)


def most_rated(dataset: Dataset, number: int) -> Dataset:
    """The data set of so many items, those with the most training events, numbered anew in the
    catalogue's order.

    Everybody's rows choose them: that makes a data set, and is no part of a private training.
    """
    counts = np.bincount(dataset.interactions.items, minlength=dataset.interactions.num_items)
    return of_items(dataset, np.sort(np.argsort(-counts, kind="stable")[:number]))


def of_items(dataset: Dataset, kept: npt.NDArray[np.integer]) -> Dataset:
    """The data set of these items, numbered anew in the given order, with the events on them.

    Features keep their vocabulary, but for similar items, of which those that are kept remain."""
    old = dataset.catalogue
    place = np.full(len(old.item_ids), -1, np.int32)
    place[kept] = np.arange(len(kept), dtype=np.int32)

    def fewer(events: Interactions) -> Interactions:
        some = events.select(place[events.items] >= 0)
        users = some.users
        words = None if events.item_words is None else events.item_words[kept]
        return Interactions.from_columns(
            users,
            place[some.items],
            some.values,
            num_users=some.num_users,
            num_items=len(kept),
            value_range=some.value_range,
            kind=some.kind,
            times=some.times,
            user_words=some.user_words,
            item_words=words,
        )

    titles = None if old.titles is None else tuple(old.titles[j] for j in kept)
    catalogue = Catalogue(tuple(old.item_ids[j] for j in kept), titles, old.user_ids)
    bags = {
        name: FeatureBag(bag.vocabulary, bag.counts[kept])
        for name, bag in dataset.features.bags.items()
    }
    if SIMILAR_ITEMS in bags:
        pairs = bags[SIMILAR_ITEMS].counts[:, kept]
        bags[SIMILAR_ITEMS] = FeatureBag(catalogue.item_ids, pairs)
    features = PublicFeatures(bags)
    return with_events(dataset, fewer, catalogue=catalogue, features=features)


def left_out(dataset: Dataset, *, seed: int) -> tuple[Dataset, Dataset]:
    """The data set without about a tenth of its items, by a hash of the seed and their ids, and
    the whole one with these items last: they stand for what comes after a training.

    Raises DataError where either side is empty."""
    ids = dataset.catalogue.item_ids
    new = below(hashed(Streams(seed).key("new-items"), id_words(ids)), NEW)
    if not 0 < int(new.sum()) < len(ids):
        raise DataError(
            f"{NEW:g} of {len(ids)} items as new items leaves one side empty",
            "Use more items, or another seed.",
        )
    known = np.flatnonzero(~new)
    whole = of_items(dataset, np.concatenate([known, np.flatnonzero(new)]))
    return of_items(dataset, known), whole


@dataclass(frozen=True)
class Events:
    """What is divided: all events, or those to train on beside the data's own test rows and
    validation rows. some_users: a part of a larger data set."""

    train: Interactions
    test: Interactions | None = None
    validation: Interactions | None = None
    some_users: bool = False


@dataclass(frozen=True)
class Division:
    """One way. timed: whether it needs the times of events. cut: whether it cuts time, where public
    times may be given; without them it reads the cuts off all events.

    A data set and a part of one are divided by the same functions; of a part any of the three may
    be empty.
    """

    divide: Callable[[Events, SplitSettings], Split]
    timed: bool = False
    cut: bool = False


class _BySeed(Protocol):
    def __call__(
        self, interactions: Interactions, /, *, seed: int, some_users: bool = False
    ) -> Split: ...


def _drawn(split: _BySeed) -> Callable[[Events, SplitSettings], Split]:
    return lambda events, chosen: split(
        _everything(events), seed=chosen.seed, some_users=events.some_users
    )


def _temporal(events: Events, chosen: SplitSettings) -> Split:
    return temporal(
        _everything(events), seed=chosen.seed, cuts=chosen.cuts, some_users=events.some_users
    )


def _given(events: Events, chosen: SplitSettings) -> Split:
    if events.test is None:
        raise SettingsError(
            'split.kind = "given" needs data that comes with its own test events',
            "Name them with data.test, or choose another split.kind.",
        )
    require_one_validation(events.validation is not None, chosen)
    return given(
        events.train,
        events.test,
        seed=chosen.seed,
        validation=events.validation,
        validation_share=chosen.validation_share,
        some_users=events.some_users,
    )


def require_one_validation(own: bool, chosen: SplitSettings) -> None:
    """Raises SettingsError where training rows are kept back for validation beside the data's
    own."""
    if own and chosen.validation_share:
        raise SettingsError(
            "split.validation_share keeps training rows back, but this data has validation rows",
            "Leave it out.",
        )


def _everything(events: Events) -> Interactions:
    if events.test is None:
        return events.train
    raise SettingsError("this data comes with its own test rows", 'Set split.kind = "given".')


DIVISIONS: Mapping[str, Division] = {
    "random": Division(_drawn(random_split)),
    "held-out-users": Division(_drawn(held_out_users)),
    "leave-last-out": Division(_drawn(leave_last_out), timed=True),
    "temporal": Division(_temporal, timed=True, cut=True),
    "given": Division(_given),
}
"""By `split.kind`."""


def load_dataset(scenario: DataScenario) -> Dataset:
    """Read the scenario's data, or plant it. Raises DataError or SettingsError."""
    data = scenario.data
    if data.path:
        if found := [key for key in given_keys(data) if key in FILES]:
            raise SettingsError(
                f"data.{found[0]} has no effect on a file of ratings or clicks", "Leave it out."
            )
        return prepared(read(data.path, data.format, **reader_options(data)), scenario)
    require_used(scenario, PLANTED, "planted data", "Give data.path, or leave it out.")
    if data.format not in {"auto", "planted"}:
        raise SettingsError(
            f"data.format = {data.format} speaks of data, but there is no data.path",
            "Give data.path, or leave it out.",
        )
    return prepared(planted(planted_shape(data), seed=scenario.seed), scenario)


def prepared(dataset: Dataset, scenario: DataScenario) -> Dataset:
    """A data set as the scenario's table [data] wants it once it is read, with public sources.

    Raises DataError or SettingsError."""
    require_own(scenario)
    data = scenario.data
    dataset = subset(as_kind(dataset, data), users=data.keep_users, items=data.keep_items)
    return with_public_sources(dataset, scenario)


def beside(given: Dataset, scenario: DataScenario) -> Dataset:
    """A data set in memory, in the place of the scenario's, as [data] wants it.

    A scenario's planted data gives way; raises SettingsError at a key of reading."""
    used = AFTER_READING | {"preset", "planted"}
    require_used(
        scenario, used, "a data set in memory", "Say it to Dataset.from_frame or Dataset.from_file."
    )
    return prepared(given, scenario)


def with_public_sources(dataset: Dataset, scenario: DataScenario) -> Dataset:
    """What [data] and [collective] add to the features; users made public are private no more."""
    if not scenario.data.features:
        return replace(dataset, features=PublicFeatures({}))
    chosen = scenario.collective
    if chosen.users_share:
        key = Streams(scenario.split.seed).key("public-users")
        dataset = with_users_made_public(dataset, share=chosen.users_share, key=key)
    if chosen.users_file:
        without = scenario.data.model_copy(update={"features_path": ""})
        public = read(chosen.users_file, chosen.users_format, **reader_options(without))
        dataset = with_public_users(
            dataset, as_kind(public, scenario.data), same_ids=chosen.users_ids == "same"
        )
    if similar := chosen.similar_file or scenario.data.similar_items:
        dataset = with_similar_items(dataset, Path(similar))
    if vectors := scenario.data.item_vectors:
        dataset = with_item_vectors(dataset, Path(vectors))
    return public_looking(dataset)


def words_of_data(dataset: Dataset, split: Split) -> list[str]:
    """What a person should know of how the data was read and divided: rows resolved, guesses, and
    what `given` trains on."""
    report = dataset.provenance.report
    counted = {
        "repeated rows of one user and item merged": report.duplicates_resolved,
        "ratings off the scale moved onto it": report.out_of_range_clipped,
        "ratings off the scale dropped": report.out_of_range_dropped,
    }
    words = [f"{count:,} {what}" for what, count in counted.items() if count]
    words += report.notes if dataset.provenance.format != "planted" else ()
    if dataset.given_test is not None:
        kept = len(split.validation.targets)
        own = "of the data's own" if dataset.given_validation is not None else "kept back"
        words.append(
            f"trained on {len(split.train):,} of {len(dataset.interactions):,} given "
            f"training rows; {kept:,} validation rows {own}"
        )
        tested, unknown = users_without_history(split.test.history, split.test.targets)
        if unknown:
            words.append(
                f"{unknown:,} of {tested:,} test users have no training rows: they get the list "
                "for nobody in particular"
            )
    return words


def load_split(scenario: DataScenario, dataset: Dataset) -> Split:
    """Divide the data as the scenario says; every kind checks itself for leaks.

    `not_covered` has the data's part too."""
    events = Events(dataset.interactions, dataset.given_test, dataset.given_validation)
    split = DIVISIONS[scenario.split.kind].divide(events, scenario.split)
    for part, own in (("train", split.train), ("test", split.test.targets)):
        if not len(own):
            raise DataError(
                f"split.kind = {scenario.split.kind} leaves no row for {part}",
                "Give more rows, other cuts, or another split.kind.",
            )
    return replace(split, not_covered=(*dataset.provenance.not_covered, *split.not_covered))


def as_kind(dataset: Dataset, data: DataSettings) -> Dataset:
    """Its events as the scenario wants them (`Interactions.as_chosen`).

    Raises DataError where no rating reaches the threshold of clicks."""
    if (
        "click_threshold" in data.model_fields_set
        and not dataset.interactions.rated
        and not dataset.columns.get("rating")
    ):
        raise SettingsError(
            "data.click_threshold has no effect on clicks, which have no value",
            "Leave it out, or name the column of ratings, thumbs or counts.",
        )
    chosen = with_events(
        dataset, lambda events: events.as_chosen(data.kind, threshold=data.click_threshold)
    )
    if not len(chosen.interactions) and len(dataset.interactions):
        low, high = dataset.interactions.value_range
        raise DataError(
            f"no rating is {data.click_threshold:g} or more, so none counts as a click",
            f"The scale is {low:g} to {high:g}: choose a lower click_threshold.",
        )
    return chosen


def planted_shape(data: DataSettings) -> PlantedShape:
    """Return the shape of the preset, or of one's own sizes.

    Raises SettingsError on an unknown preset or impossible sizes."""
    kind = assumed(data.kind)
    if data.planted is not None:
        try:
            return shape_of_sizes(**data.planted.model_dump(), kind=kind)
        except ValueError as failure:
            raise SettingsError(
                f"data.planted: {failure}",
                "Change users, items or events: no user sees over 30% of the items.",
            ) from None
    preset = data.preset or DEMO
    if preset not in SHAPES:
        near = get_close_matches(preset, SHAPES, n=1)
        meant = f"Did you mean {near[0]!r}? " if near else ""
        raise SettingsError(
            f"data.preset {preset!r} is unknown", f"{meant}Use one of: {', '.join(SHAPES)}."
        )
    return replace(SHAPES[preset], kind=kind)


def reader_options(data: DataSettings) -> dict[str, object]:
    """Only what differs from the reader's own defaults: a format refuses options that mean nothing
    to it."""
    options: dict[str, object] = dict(data.columns)
    if data.duplicates != "auto":
        options["duplicates"] = data.duplicates
    elif data.rating_range and not KINDS[assumed(data.kind)].rated:
        # of a table of ratings too: what counts is whether, not how often
        options["duplicates"] = "last"
    for name in ("separator", "validation", "test", "time_format"):
        if value := getattr(data, name):
            options[name] = value
    if data.header != "auto":
        options["header"] = data.header
    if data.out_of_range != "refuse":
        options["out_of_range"] = data.out_of_range
    if data.missing != "refuse":
        options["missing"] = data.missing
    if data.decimal != ".":
        options["decimal"] = data.decimal
    if data.rating_range is not None:
        options["rating_range"] = data.rating_range
    elif "click_threshold" in data.model_fields_set and not KINDS[assumed(data.kind)].rated:
        options["click_threshold"] = data.click_threshold
    if data.features_path:
        options["item_features"] = data.features_path
    return options
