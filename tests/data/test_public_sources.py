"""Public users and similar items as features, and that nobody is private and public at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Catalogue, Dataset, Interactions, Provenance, ReadReport
from fedrec.data.planted import SHAPES, planted
from fedrec.data.public_sources import (
    ITEM_VECTORS,
    PUBLIC_USERS,
    SEEN_BEFORE,
    SIMILAR_ITEMS,
    item_vectors_bag,
    with_item_vectors,
    with_public_users,
    with_similar_items,
    with_users_made_public,
)
from fedrec.errors import DataError, MalformedRowError, PrivacyError, UnknownIdsWarning
from fedrec.randomness import Streams

ITEMS = ("x", "y", "z")


def some_data(
    user_ids: tuple[str, ...],
    rows: list[tuple[int, int, float, int]],
    items: tuple[str, ...] = ITEMS,
) -> Dataset:
    users, numbers, values, times = (np.array(column) for column in zip(*rows, strict=True))
    events = Interactions.from_columns(
        users,
        numbers,
        values,
        num_users=len(user_ids),
        num_items=len(items),
        value_range=(1.0, 5.0),
        times=times,
    )
    return Dataset(
        events,
        Catalogue(items, None, user_ids),
        PublicFeatures({}),
        Provenance("test", (), ReadReport(0, 0)),
    )


PRIVATE = some_data(("1", "2"), [(0, 0, 5, 100), (0, 1, 4, 101), (1, 2, 3, 102)])


def test_users_made_public_leave_the_private_data_with_all_they_rated() -> None:
    whole = planted(SHAPES["small"], seed=1)
    parted = with_users_made_public(whole, share=0.25, key=Streams(1).key("public-users"))
    bag = parted.features.bags[PUBLIC_USERS]
    assert not set(bag.vocabulary) & set(parted.catalogue.user_ids)
    assert sorted([*bag.vocabulary, *parted.catalogue.user_ids]) == sorted(whole.catalogue.user_ids)
    assert bag.counts.nnz + len(parted.interactions) == len(whole.interactions)
    assert bag.counts.sum() + parted.interactions.values.sum(dtype=np.float64) == pytest.approx(
        whole.interactions.values.sum(dtype=np.float64)
    )


def test_a_share_that_leaves_a_side_empty_is_refused() -> None:
    with pytest.raises(DataError, match="one side empty"):
        with_users_made_public(PRIVATE, share=0.1, key=Streams(1).key("public-users"))


def test_public_users_are_matched_by_item_id() -> None:
    public = some_data(("7",), [(0, 0, 2, 1), (0, 1, 4, 2), (0, 2, 5, 3)], ("z", "unknown", "x"))
    bag = with_public_users(PRIVATE, public, same_ids=True).features.bags[PUBLIC_USERS]
    assert bag.vocabulary == ("7",)
    np.testing.assert_array_equal(bag.counts.toarray(), [[5], [0], [2]])


def test_a_public_user_who_is_a_private_user_is_refused() -> None:
    with pytest.raises(PrivacyError, match="user '2' and 0 more are private and public"):
        with_public_users(
            PRIVATE, some_data(("2", "9"), [(0, 0, 2, 1), (1, 0, 2, 1)]), same_ids=True
        )


def test_where_ids_say_nothing_users_with_a_private_history_are_left_out() -> None:
    """User "1" of the source is somebody else than the private "1"; its "2" is the private "1"
    under another number."""
    public = some_data(("1", "2"), [(0, 0, 5, 500), (1, 0, 5, 100), (1, 1, 4, 101), (1, 2, 4, 900)])
    found = with_public_users(PRIVATE, public, same_ids=False)
    assert found.features.bags[PUBLIC_USERS].vocabulary == ("1",)
    assert found.provenance.report.notes == (
        "1 public users, 1 more left out because they are private users",
    )
    assert found.provenance.not_covered == (*PRIVATE.provenance.not_covered, SEEN_BEFORE)


def test_public_users_of_other_items_are_refused() -> None:
    with pytest.raises(DataError, match="names none of the"):
        with_public_users(PRIVATE, some_data(("7",), [(0, 0, 2, 1)], ("a", "b")), same_ids=True)


def test_similar_items_are_read_from_a_table(tmp_path: Path) -> None:
    file = tmp_path / "similar.csv"
    file.write_text("item,neighbour,score\nx,y,0.5\nz,x,2\nx,unknown,1\n")
    bag = with_similar_items(PRIVATE, file).features.bags[SIMILAR_ITEMS]
    np.testing.assert_array_equal(bag.counts.toarray(), [[0, 0.5, 0], [0, 0, 0], [2, 0, 0]])


@pytest.mark.parametrize("row", ["x,y", "x,y,nan", "x,y,high", "x,y,1\nx,y,2"])
def test_a_bad_row_of_similar_items_is_named(tmp_path: Path, row: str) -> None:
    file = tmp_path / "similar.csv"
    file.write_text(f"item,neighbour,score\n{row}\n")
    with pytest.raises(MalformedRowError, match="line"):
        with_similar_items(PRIVATE, file)


def test_similar_items_of_another_catalogue_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "similar.csv"
    file.write_text("item,neighbour,score\na,b,1\n")
    with pytest.raises(DataError, match="names none of the"):
        with_similar_items(dataclasses.replace(PRIVATE), file)


def test_similar_items_without_scores_are_pairs(tmp_path: Path) -> None:
    file = tmp_path / "links.csv"
    file.write_text("item,neighbour\nx,y\n")
    bag = with_similar_items(PRIVATE, file).features.bags[SIMILAR_ITEMS]
    assert bag.counts.data.tolist() == [1.0]


def test_item_vectors_are_read_from_parquet_in_both_forms(tmp_path: Path) -> None:
    file = tmp_path / "vectors.parquet"
    pl.DataFrame({"item": ["y", "u"], "v": [[1.0, -2.0], [3.0, 4.0]]}).write_parquet(file)
    with pytest.warns(UnknownIdsWarning, match="names 1 of the 3 items"):
        listed = with_item_vectors(PRIVATE, file).features.bags[ITEM_VECTORS].counts.toarray()
    frame = pl.DataFrame({"item": ["u", "y"], "one": [3.0, 1.0], "two": [4.0, -2.0]})
    with pytest.warns(UnknownIdsWarning, match="names 1 of the 3 items"):
        wide = item_vectors_bag(frame, file, PRIVATE.catalogue.item_ids).counts.toarray()
    expected = [[1, -2] if item == "y" else [0, 0] for item in PRIVATE.catalogue.item_ids]
    np.testing.assert_array_equal(listed, expected)
    np.testing.assert_array_equal(wide, expected)


@pytest.mark.parametrize(
    "columns",
    [
        {"item": ["y", "y"], "one": [1.0, 2.0]},
        {"item": ["u", "v"], "one": [1.0, 2.0]},
        {"item": ["x", "y"], "v": [[1.0], [1.0, 2.0]]},
        {"item": ["x", "y"], "one": [1.0, float("nan")]},
        {"item": ["x", "y"], "one": ["red", "blue"]},
    ],
)
def test_item_vectors_that_cannot_be_used_are_refused(columns: dict[str, list[object]]) -> None:
    with pytest.raises(DataError):
        item_vectors_bag(
            pl.DataFrame(columns, strict=False), Path("vectors"), PRIVATE.catalogue.item_ids
        )
