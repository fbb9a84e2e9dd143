"""Smaller data sets of a larger one, for experiments: so many users by a hash of their ids, so many
of the items rated most often; all items but some that stand for new ones.

Neither choice is covered by a guarantee: which items are rated most is read off everybody's rows,
and of users the first N by hash are taken, so that one person more moves another out. Both are
named in the provenance's `not_covered`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Catalogue, Dataset, Interactions, with_events
from fedrec.data.keyed_hash import below, hashed, id_words
from fedrec.data.public_sources import SIMILAR_ITEMS
from fedrec.errors import DataError
from fedrec.randomness import Streams


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


NEW = 0.1
"""Share of the catalogue that `left_out` takes for new."""


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
