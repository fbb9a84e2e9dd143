from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from fedrec.data.interactions import Interactions
from fedrec.errors import DataError, MalformedRowError, RefusedError, SettingsError
from fedrec.federation.protocol import Terms
from fedrec_client.settings import ClientData
from fedrec_client.store import LocalUsers, read_shard, read_users, write_shard

EVENTS = Interactions(
    np.array([0, 2, 2, 5]),
    np.array([0, 2, 0, 1, 2], np.int32),
    np.array([1, 5, 3, 4, 2.5], np.float32),
    3,
    (1.0, 5.0),
)
USERS = LocalUsers(EVENTS, ("alien", "brazil", "casablanca"), ("ann", "bob", "cleo"))
TERMS = Terms("run", "{}", "ratings", (1.0, 5.0), ("casablanca", "dune", "alien", "brazil"))


def same(one: Interactions, other: Interactions) -> bool:
    columns = (
        (getattr(one, name), getattr(other, name)) for name in ("user_ptr", "items", "values")
    )
    public = ("num_items", "value_range", "kind")
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in columns) and all(
        getattr(one, n) == getattr(other, n) for n in public
    )


def test_events_are_translated_to_the_catalogues_numbers_sorted_within_each_user() -> None:
    mine = USERS.translate(TERMS)
    assert mine.user_ptr.tolist() == [0, 2, 2, 5]
    assert mine.items.tolist() == [0, 2, 0, 2, 3]
    assert mine.values.tolist() == [5, 1, 2.5, 3, 4]
    assert (mine.num_items, mine.num_users) == (4, 3)


def test_items_the_catalogue_does_not_name_are_left_out_and_counted_and_no_user_is_lost() -> None:
    few = replace(TERMS, items=("brazil", "dune"))
    mine = USERS.translate(few)
    assert mine.items.tolist() == [0]
    assert mine.num_users == 3
    assert USERS.unknown_events(few) == (4, 5)
    assert USERS.unknown_events(TERMS) == (0, 5)


def test_another_kind_or_a_narrower_scale_is_refused_whatever_the_events_are() -> None:
    nobody = LocalUsers(EVENTS.select(np.zeros(5, bool)), USERS.item_ids, USERS.user_ids)
    for users in (USERS, nobody):
        with pytest.raises(DataError, match="clicks"):
            users.translate(replace(TERMS, kind="clicks"))
        with pytest.raises(DataError, match="scale"):
            users.translate(replace(TERMS, value_range=(2.0, 5.0)))
    assert same(
        USERS.translate(replace(TERMS, value_range=(0.0, 10.0))),
        replace(USERS.translate(TERMS), value_range=(0.0, 10.0)),
    )


def test_values_off_the_runs_scale_are_clipped_where_the_settings_say_so() -> None:
    mine = replace(USERS, out_of_range="clip").translate(replace(TERMS, value_range=(2.0, 4.0)))
    assert mine.values.tolist() == [4, 2, 2.5, 3, 4]


def test_a_catalogue_that_names_an_item_twice_is_refused() -> None:
    with pytest.raises(RefusedError, match="twice"):
        USERS.translate(replace(TERMS, items=("alien", "alien")))


def test_users_and_items_have_one_name_each() -> None:
    with pytest.raises(ValueError, match="one name"):
        replace(USERS, user_ids=("ann", "bob", "ann"))
    with pytest.raises(ValueError, match="named"):
        replace(USERS, item_ids=("alien",))


@pytest.mark.slow
@given(lengths=st.lists(st.integers(0, 6), max_size=8), ids=st.text(max_size=20), data=st.data())
def test_a_shard_gives_back_exactly_what_was_written(
    tmp_path_factory: Any, lengths: list[int], ids: str, data: Any
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    pointer = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    items = np.concatenate(
        [np.empty(0), *(np.sort(rng.choice(7, n, replace=False)) for n in lengths)]
    ).astype(np.int32)
    events = Interactions(
        pointer, items, rng.uniform(0.5, 5, len(items)).astype(np.float32), 7, (0.5, 5.0)
    )
    written = LocalUsers(
        events,
        tuple(f"{ids}{j}" for j in range(7)),
        tuple(f"{ids}\n{k}" for k in range(len(lengths))),
    )
    path = tmp_path_factory.mktemp("shard") / "shard.safetensors"
    write_shard(path, written.events, written.item_ids, written.user_ids)
    read = read_users(ClientData(path=str(path)))
    assert same(read.events, written.events)
    assert (read.item_ids, read.user_ids) == (written.item_ids, written.user_ids)


DAMAGE: dict[str, dict[str, Any]] = {
    "pointers that fall": {"user_ptr": np.array([0, 3, 2, 5])},
    "pointers past the end": {"user_ptr": np.array([0, 2, 2, 6])},
    "an item outside": {"items": np.array([0, 3, 0, 1, 2], np.int32)},
    "an item twice": {"items": np.array([2, 2, 0, 1, 2], np.int32)},
    "too few values": {"values": np.ones(4, np.float32)},
    "a value off the scale": {"values": np.full(5, 6, np.float32)},
    "not a number": {"values": np.full(5, np.nan, np.float32)},
    "another type": {"values": np.ones(5)},
    "ids that are no list": {"user_ids": np.frombuffer(b"{}", np.uint8)},
    "too few ids": {"user_ids": np.frombuffer(b'["ann"]', np.uint8)},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_shard_that_is_inconsistent_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "users.safetensors"
    write_shard(path, EVENTS, USERS.item_ids, USERS.user_ids)
    metadata = {
        "format": "fedrec-shard/1",
        "kind": "ratings",
        "lowest": (1.0).hex(),
        "highest": (5.0).hex(),
    }
    save_file({**load_file(path), **DAMAGE[damage]}, path, metadata)
    with pytest.raises(DataError, match="is no shard"):
        read_shard(path)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 8 + b"{}"])
def test_a_file_that_is_no_shard_is_refused_and_a_missing_one_too(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "users.safetensors"
    with pytest.raises(DataError, match="does not exist"):
        read_shard(path)
    path.write_bytes(content)
    with pytest.raises(DataError, match="is no shard"):
        read_shard(path)


def test_a_table_is_read_with_the_columns_of_the_settings(tmp_path: Path) -> None:
    table = tmp_path / "log.csv"
    table.write_text("reader,book,stars\nbob,alien,5\nann,brazil,1\nann,alien,3\n")
    columns = {"user": "reader", "item": "book", "rating": "stars"}
    users = read_users(ClientData(path=str(table), columns=columns, rating_range=(1, 5)))
    assert users.user_ids == ("ann", "bob")
    assert users.translate(TERMS).items.tolist() == [2, 3, 2]


def test_a_bad_row_names_its_file_and_line(tmp_path: Path) -> None:
    table = tmp_path / "log.csv"
    table.write_text("user,item,rating\nbob,alien,5\nann,brazil,9\n")
    with pytest.raises(MalformedRowError, match=r"log\.csv, line 3"):
        read_users(ClientData(path=str(table), rating_range=(1, 5)))
    assert (
        read_users(
            ClientData(path=str(table), rating_range=(1, 5), out_of_range="clip")
        ).events.values.max()
        == 5
    )


def test_ratings_become_clicks_at_the_threshold_and_clicks_never_ratings(tmp_path: Path) -> None:
    path = tmp_path / "users.safetensors"
    write_shard(path, EVENTS, USERS.item_ids, USERS.user_ids)
    clicks = read_users(ClientData(path=str(path), kind="clicks", click_threshold=3)).events
    assert (clicks.items.tolist(), clicks.values.tolist(), clicks.kind) == (
        [2, 0, 1],
        [1, 1, 1],
        "clicks",
    )
    write_shard(path, clicks, USERS.item_ids, USERS.user_ids)
    with pytest.raises(SettingsError, match="needs ratings"):
        read_users(ClientData(path=str(path), kind="ratings"))


def test_a_table_of_another_make_is_read_as_the_settings_say_and_repeated_clicks_are_merged(
    tmp_path: Path,
) -> None:
    (tmp_path / "log.txt").write_text("ann;alien\nann;alien\nbob;brazil\n")
    said = ClientData(path=str(tmp_path / "log.txt"), separator="semicolon", header="no")
    users = read_users(said)
    assert (users.user_ids, users.events.items.tolist()) == (("ann", "bob"), [0, 1])
    with pytest.raises(MalformedRowError, match="one row per user and item"):
        read_users(said.model_copy(update={"duplicates": "refuse"}))
    (tmp_path / "stars.csv").write_text("user,item,rating\nann,alien,5\nann,alien,4\n")
    rated = ClientData(path=str(tmp_path / "stars.csv"), kind="clicks", rating_range=(1, 5))
    assert len(read_users(rated).events) == 1
    with pytest.raises(MalformedRowError):
        read_users(rated.model_copy(update={"kind": "auto"}))


def test_options_that_say_nothing_about_a_shard_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="shard"):
        read_users(ClientData(path=str(tmp_path / "users.safetensors"), columns={"user": "u"}))


def test_devices_that_call_their_users_alike_draw_differently_and_each_the_same_every_time(
    make_run: Any, make_site: Any
) -> None:
    """What a client draws for a user hangs on its own pseudonym: not on a number, and not on an id
    that others use too."""
    run = make_run()
    me = LocalUsers(
        replace(run.events.users_subset(np.array([0])), user_words=None), run.item_ids, ("me",)
    )
    sites = [make_site(me, name) for name in ("one", "other")]
    words = [site.participant._translated(run.terms).user_words for site in (*sites, sites[0])]
    assert words[0] == words[2] != words[1]


def test_people_who_stay_keep_the_draws_of_their_pseudonyms(run: Any) -> None:
    """What a step draws for a person follows from her pseudonym, which her number is not."""
    users = replace(run.users, events=replace(run.events, user_words=None))
    stay = np.array([1, 4])
    assert users.only(stay).events.user_words is None
    assert users.only(stay).user_ids == ("user 1", "user 4")
    named = run.users.only(stay)
    assert np.array_equal(named.events.user_words, run.events.user_words[stay])
