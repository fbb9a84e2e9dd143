"""`fedrec simulate` leaves a bundle that loads, or says why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedrec.run import simulate
from fedrec.serving import bundle as files
from fedrec.settings import load

pytestmark = pytest.mark.slow

FAST = [
    "data.preset=small",
    "privacy.noise=seeded",
    "compare.als=false",
    "compare.baselines=false",
    "evaluation.ranking=false",
    "run.examples=0",
]
NEWS = [
    "recipe=privaterec",
    "news.variant=additive",
    "privacy.noise=seeded",
    "data.format=planted-news",
    "data.preset=small",
    "privacy.unit=click",
    "news.history=20",
    "news.epochs=1",
]


def simulated(folder: Path, *keys: str) -> tuple[dict[str, Any], Path]:
    scenario = load(None, [*keys, f"run.directory={folder}"])
    result = simulate.run(scenario, name="test", quiet=True)
    return result["serving"], Path(result["run_dir"]) / files.FILE


@pytest.mark.parametrize(
    ("keys", "family"),
    [
        (FAST, "ratings"),
        ([*FAST, "data.kind=clicks", "privacy.epsilon=20"], "clicks"),
        ([*FAST, "recipe=published"], "ratings"),
        (NEWS, "news"),
    ],
    ids=["ratings", "clicks", "published", "news"],
)
def test_a_run_ends_with_a_bundle_of_its_family(
    keys: list[str], family: str, tmp_path: Path
) -> None:
    said, path = simulated(tmp_path, *keys)
    bundle = files.read(path)
    assert (said["version"], said["coefficients"], said["form"]) == (
        bundle.version,
        bundle.coefficients,
        bundle.about.form,
    )
    assert (bundle.about.family, bundle.about.training["epsilon"]) == (
        family,
        load(None, keys).privacy.epsilon,
    )
    ranked = files.read_ranked(path)
    assert ranked.items.shape[0] == bundle.size == len(bundle.ids)
    assert ranked.version == bundle.version
    if family == "ratings":
        assert bundle.about.liked == 4.0
        assert bundle.about.categories


def test_the_same_run_gives_the_same_bundle(tmp_path: Path) -> None:
    first, second = (simulated(tmp_path / name, *FAST)[0]["version"] for name in "ab")
    assert first == second


def test_a_run_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    keys = [key for key in NEWS if "epochs" not in key]
    said, path = simulated(tmp_path, *keys, "news.variant=dp-fedrec", "news.rounds=1")
    assert "whole user vector" in said["refused"]
    assert not path.exists()
