"""Kinds of data: what follows from each."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS, assumed
from fedrec.errors import SettingsError
from fedrec.preparing import client_steps

RATINGS = Interactions(
    np.array([0, 2, 3]),
    np.array([0, 1, 0], np.int32),
    np.array([2, 5, 4], np.float32),
    2,
    (1.0, 5.0),
)


def test_clicks_are_the_ratings_of_at_least_the_threshold() -> None:
    clicks = RATINGS.as_chosen("clicks", threshold=4.0)
    assert (clicks.kind, clicks.value_range, clicks.values.tolist()) == ("clicks", (0, 1), [1, 1])
    assert clicks.user_ptr.tolist() == [0, 1, 2]
    assert clicks.items.tolist() == [1, 0]
    assert clicks.liked(9.0) is clicks
    assert RATINGS.liked(4.0).values.tolist() == [5, 4]


def test_data_stays_what_it_is_where_nothing_or_its_own_kind_is_chosen() -> None:
    clicks = RATINGS.as_clicks(1.0)
    assert RATINGS.as_chosen("auto", threshold=4.0) is RATINGS
    assert RATINGS.as_chosen("ratings", threshold=4.0) is RATINGS
    assert clicks.as_chosen("clicks", threshold=4.0) is clicks
    with pytest.raises(SettingsError, match="needs ratings"):
        clicks.as_chosen("ratings", threshold=4.0)


@pytest.mark.parametrize(
    ("kind", "rated", "asked", "ranked"),
    [
        ("ratings", True, False, False),
        ("ratings", True, True, True),
        ("clicks", False, False, True),
        ("clicks", False, True, True),
    ],
)
def test_clicks_are_tested_by_lists_always_and_ratings_where_asked(
    kind: str, rated: bool, asked: bool, ranked: bool
) -> None:
    assert KINDS[kind].rated == rated
    assert KINDS[kind].ranked(asked) == ranked
    assert assumed(kind) == kind


@pytest.mark.parametrize(
    ("recipe", "kind"), [("default", "news"), ("dp-bias", "clicks"), ("dp-popularity", "ratings")]
)
def test_a_device_refuses_a_run_whose_recipe_is_of_other_data(recipe: str, kind: str) -> None:
    with pytest.raises(SettingsError, match=f"but the run is about {kind}"):
        client_steps(json.dumps({"recipe": recipe}), kind)  # type: ignore[arg-type]
