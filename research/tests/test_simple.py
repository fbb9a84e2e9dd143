from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import SettingsError
from fedrec_research.quality import simple
from fedrec_research.quality.simple import Cut, Place
from fedrec_research.trials import Asked, Row

SMALL = ("data.preset=small",)


SIZES = {"users": 3, "items": 2, "train": 4, "kind": "ratings"}


def _summed(values: dict[str, Any]) -> Row:
    """Of recipes and their metrics at epsilon 5, one seed."""
    place = Place("", (), Cut())
    return simple.summary(
        {(place, 5.0, name): [{**SIZES, **found}] for name, found in values.items()}
    )


def test_the_bar_is_two_thousandths_of_rmse_or_one_percent_of_ndcg() -> None:
    held = _summed(
        {
            "default": {"rmse": 0.9019, "ndcg@20": 0.0991},
            "dp-bias": {"rmse": 0.9},
            "dp-popularity": {"ndcg@20": 0.1},
        }
    )
    assert [(cell["metric"], cell["best_simple"], cell["behind"]) for cell in held["cells"]] == [
        ("rmse", "dp-bias", False),
        ("ndcg@20", "dp-popularity", False),
    ]
    behind = _summed(
        {
            "default": {"rmse": 0.9021, "ndcg@20": 0.0989},
            "dp-bias": {"rmse": 0.9, "ndcg@20": 0.01},
            "dp-popularity": {"ndcg@20": 0.1},
        }
    )
    assert [cell["behind"] for cell in behind["cells"]] == [True, True]
    assert (held["behind"], behind["behind"]) == (0, 2)


def test_a_difference_has_the_error_of_pairs_of_seeds() -> None:
    found = {"default": (0.9, 0.95, 0.85), "dp-bias": (0.91, 0.97, 0.86)}
    place = Place("", (), Cut())
    made = {
        (place, 5.0, name): [{**SIZES, "rmse": one} for one in each] for name, each in found.items()
    }
    (cell,) = simple.summary(made)["cells"]
    # -.01, -.02, -.01: a standard deviation of .01 / sqrt(3)
    assert cell["difference_error"] == pytest.approx(0.01 / 3)


def test_planted_stands_for_ratings_and_clicks_of_every_shape() -> None:
    found = [Place(data, more, Cut(), words) for data, more, words in simple.planted_places()]
    assert len({place.name for place in found}) == len(found) == 2 * len(simple.SHAPES) == 20
    scenarios = [place.scenario("default", 5.0, 2) for place in found]
    assert [one.data.kind for one in scenarios] == ["ratings"] * 10 + ["clicks"] * 10
    assert found[10].name == "planted clicks, 300 x 100, 20 each"
    assert scenarios[10].data.planted is not None
    assert (scenarios[10].data.planted.items, scenarios[10].data.planted.events) == (100, 6_000)


def test_the_best_simple_method_is_the_one_to_beat_and_a_refusal_is_told() -> None:
    found = _summed(
        {
            "default": {"rmse": 0.9},
            "dp-bias": {"rmse": 0.95},
            "dp-item-item": {"rmse": 0.93},
            "dp-popularity": {"refused": "clicks"},
        }
    )
    assert found["cells"][0]["best_simple"] == "dp-item-item"
    assert found["refused"] == {"planted: dp-popularity": "clicks"}


def test_without_a_simple_method_there_is_no_verdict() -> None:
    assert _summed({"default": {"rmse": 0.9}})["cells"][0]["behind"] is None


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_a_row_measures_what_its_kind_of_data_has(kind: str) -> None:
    found = simple.simple_row(Place("", (*SMALL, f"data.kind={kind}"), Cut()), "default", 5.0, 1)
    assert ("rmse" in found) == (kind == "ratings")
    assert 0 < found["ndcg@20"] < 1
    assert (found["users"], found["items"]) == (300, 120)


def test_a_recipe_that_refuses_the_data_says_why() -> None:
    found = simple.simple_row(Place("", SMALL, Cut()), "convex-ssp", 5.0, 1)
    assert "clicks" in found["refused"]


def test_a_recipe_that_refuses_the_kind_that_is_asked_for_says_why_too() -> None:
    clicks = (*SMALL, "data.kind=clicks")
    found = simple.simple_row(Place("", clicks, Cut()), "dp-bias", 5.0, 1)
    assert "clicks" in found["refused"]
    with pytest.raises(SettingsError, match=r"data\.unheard"):
        simple.simple_row(Place("", ("data.unheard=1",), Cut()), "default", 5.0, 1)


def test_a_cut_keeps_so_many_users_or_items() -> None:
    sizes = [
        simple.simple_row(Place("", SMALL, cut), "dp-bias", 5.0, 1)
        for cut in (Cut(users=100), Cut(items=30))
    ]
    assert sizes[0]["users"] == 100
    assert [found["items"] for found in sizes] == [120, 30]
    assert (
        "the data has 300"
        in simple.simple_row(Place("", SMALL, Cut(users=1_000)), "dp-bias", 5.0, 1)["refused"]
    )


def test_two_folders_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="same name"):
        simple.run(Asked((str(tmp_path / "a" / "x"), str(tmp_path / "b" / "x"))))
