"""Subsets for experiments: whom and what they keep, and that they say what no guarantee covers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedrec.data.interactions import Dataset
from fedrec.data.planted import SHAPES, planted
from fedrec.errors import DataError
from fedrec.run.data.datasets import subset


@pytest.fixture(scope="module")
def whole() -> Dataset:
    data = planted(SHAPES["small"], seed=1)
    tested = np.arange(len(data.interactions)) % 5 == 0
    parts = {
        "interactions": data.interactions.select(~tested),
        "given_test": data.interactions.select(tested),
    }
    return dataclasses.replace(data, **parts)  # type: ignore[arg-type]


def rows(data: Dataset) -> set[tuple[str, str, float]]:
    names = data.catalogue
    events = data.interactions
    return {
        (names.user_ids[k], names.item_ids[j], float(v))
        for k, j, v in zip(events.users, events.items, events.values, strict=True)
    }


def test_users_are_the_same_in_every_order_and_nested(whole: Dataset) -> None:
    kept = subset(whole, users=40)
    assert set(kept.catalogue.user_ids) < set(subset(whole, users=80).catalogue.user_ids)
    assert rows(kept) == {row for row in rows(whole) if row[0] in kept.catalogue.user_ids}
    turned = dataclasses.replace(
        whole,
        interactions=whole.interactions.users_subset(np.arange(300)[::-1]),
        given_test=None,
        catalogue=dataclasses.replace(whole.catalogue, user_ids=whole.catalogue.user_ids[::-1]),
    )
    assert set(subset(turned, users=40).catalogue.user_ids) == set(kept.catalogue.user_ids)


def test_items_are_those_rated_most_often_in_training_with_their_features_titles_and_hashes(
    whole: Dataset,
) -> None:
    kept = subset(whole, users=100, items=25)
    of_users = subset(whole, users=100)
    counts = dict(
        zip(
            whole.catalogue.item_ids,
            np.bincount(of_users.interactions.items, minlength=120),
            strict=True,
        )
    )
    inside = [counts[item] for item in kept.catalogue.item_ids]
    assert len(inside) == 25
    assert min(inside) >= max(
        count for item, count in counts.items() if item not in kept.catalogue.item_ids
    )
    assert rows(kept) == {row for row in rows(of_users) if row[1] in kept.catalogue.item_ids}
    assert kept.given_test is not None
    assert kept.given_test.num_items == 25
    old = [whole.catalogue.item_ids.index(item) for item in kept.catalogue.item_ids]
    assert whole.interactions.item_words is not None
    assert kept.interactions.item_words is not None
    np.testing.assert_array_equal(kept.interactions.item_words, whole.interactions.item_words[old])
    assert whole.catalogue.titles is not None
    assert kept.catalogue.titles == tuple(whole.catalogue.titles[j] for j in old)
    for name, bag in kept.features.bags.items():
        assert (bag.counts != whole.features.bags[name].counts[old]).nnz == 0


def test_what_is_read_off_everybodys_rows_is_said_and_users_without_rows_are_left_out(
    whole: Dataset,
) -> None:
    assert subset(whole) is whole
    kept = subset(whole, users=200, items=2)
    assert kept.interactions.num_users < 200
    assert kept.given_test is not None
    assert (np.diff(kept.interactions.user_ptr) + np.diff(kept.given_test.user_ptr) > 0).all()
    assert [
        ("data.keep_users" in words, "data.keep_items" in words)
        for words in kept.provenance.not_covered[-2:]
    ] == [
        (True, False),
        (False, True),
    ]
    with pytest.raises(DataError, match="301 users were asked for, and the data has 300"):
        subset(whole, users=301)
    with pytest.raises(DataError, match="data has 120"):
        subset(whole, items=121)
