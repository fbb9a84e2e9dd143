"""The figures of DP-CMF: every point once, chosen without a look at test, from public users who are
nobody's private users."""

from __future__ import annotations

import math
from copy import copy
from pathlib import Path

import pytest

from fedrec.data.public_sources import PUBLIC_USERS
from fedrec.errors import PrivacyError
from fedrec.factorization.facts import PublicFacts
from fedrec.public_sides import sides_of
from fedrec.randomness import Streams
from fedrec.run.data.datasets import load_dataset
from fedrec.settings import Scenario, validated
from fedrec_research.papers import dp_cmf, dp_cmf_runs
from fedrec_research.papers.starts import Start
from fedrec_research.sealed import SealedSplit
from research.tests.paper_rows import paper_rows

ROOM = Start("dp_cmf_figure1", "planted")


def scenario_of_files(folder: Path) -> Scenario:
    """Private ratings, public users and similar items, each of its file in the folder."""
    said = {
        "recipe": "dp-cmf",
        "data": {"path": str(folder / "private.csv"), "rating_range": [1.0, 5.0]},
        "collective": {
            "sides": ["public-users", "similar-items"],
            "users_file": str(folder / "public.csv"),
            "similar_file": str(folder / "similar.csv"),
        },
    }
    return validated(said, source="files")


def test_a_quick_figure_has_every_curve_its_guarantee_and_every_bucket(tmp_path: Path) -> None:
    rows = paper_rows("dp-cmf/figure3", tmp_path)
    whole = {row["series"]: row for row in rows if row["metric"] == "rmse"}
    assert set(whole) == {dp_cmf.LOOPBACK.label, "genre", "topic", "cast", dp_cmf.METADATA.label}
    assert all(
        0.5 < row["value"] < 1.5 and row["guarantee"].startswith("epsilon 1 ")
        for row in whole.values()
    )
    assert [row["x"] for row in rows if row["series"] == "cast" and "bucket" in row["metric"]] == [
        1,
        2,
        3,
        4,
    ]


def test_the_default_of_figure_5_is_not_dp_cmf_once_more(tmp_path: Path) -> None:
    rows = [row for row in paper_rows("dp-cmf/figure5", tmp_path) if row["metric"] == "rmse"]
    ours, theirs = (
        {row["x"]: row["value"] for row in rows if row["series"].startswith(way)}
        for way in ("our default, public users", "public users, raw")
    )
    assert ours.keys() == theirs.keys()
    assert not set(ours.values()) & set(theirs.values())


def test_settings_are_chosen_without_a_look_at_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split whose test events are not there gives the same choice."""
    candidates = [{"metadata_weight": weight} for weight in (1.0, 100.0)]
    arguments = (ROOM, dp_cmf.METADATA, 1.0, candidates, 1)
    chosen = dp_cmf_runs.chosen_on_validation(*arguments)
    dataset, sealed = dp_cmf_runs.loaded(ROOM, 1)
    blind = copy(sealed._split)
    object.__setattr__(blind, "test", None)
    monkeypatch.setattr(dp_cmf_runs, "loaded", lambda *_: (dataset, SealedSplit(blind)))
    assert dp_cmf_runs.chosen_on_validation(*arguments) == chosen
    assert chosen["tried"] == 2


def test_public_users_are_in_no_part_of_the_private_data() -> None:
    dataset, sealed = dp_cmf_runs.loaded(ROOM, 1)
    split = sealed.open({}).split
    public = set(dataset.features.bags[PUBLIC_USERS].vocabulary)
    assert public
    assert not public & set(dataset.catalogue.user_ids)
    assert (
        split.train.num_users
        == split.validation.targets.num_users
        == split.test.targets.num_users
        == len(dataset.catalogue.user_ids)
    )


def test_a_scenario_reads_public_users_and_similar_items_from_files(tmp_path: Path) -> None:
    rows = {"private": ["u,a,5", "u,b,1", "w,a,2"], "public": ["p,a,4", "p,c,3", "q,b,2"]}
    for name, lines in rows.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item,rating", *lines, ""]))
    (tmp_path / "similar.csv").write_text("item,neighbour,score\na,b,0.5\n")
    scenario = scenario_of_files(tmp_path)
    dataset = load_dataset(scenario)
    assert dataset.features.bags[PUBLIC_USERS].counts.toarray().tolist() == [[4, 0], [0, 2]]
    assert [digest.name for digest in dataset.provenance.files] == [
        "private.csv",
        "public.csv",
        "similar.csv",
    ]
    raw, similar = sides_of(
        scenario.collective, PublicFacts(2, 2, "ratings", (1.0, 5.0), dataset.features, Streams(1))
    )
    assert raw.entries.toarray().tolist() == [[1, 0], [0, -1]]
    assert similar.entries.toarray().tolist() == [[0, 0], [1, 0]]


def test_a_private_user_in_the_public_file_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    for name in ("private", "public"):
        (tmp_path / f"{name}.csv").write_text("user,item,rating\nu,a,5\n")
    (tmp_path / "similar.csv").write_text("item,neighbour,score\na,a,1\n")
    with pytest.raises(PrivacyError, match="user 'u'"):
        load_dataset(scenario_of_files(tmp_path))


def test_the_default_recipe_beside_them_sees_no_public_user() -> None:
    features = dp_cmf_runs.facts_of(ROOM, dp_cmf.OURS, 1).features
    assert features is not None
    assert PUBLIC_USERS not in features.bags


def test_popularity_bias_adds_up(tmp_path: Path) -> None:
    rows = paper_rows("dp-cmf/figure2", tmp_path)
    for series in ("ratings", *dp_cmf_runs.KEYS):
        shares = [
            row["value"]
            for row in rows
            if row["series"] == series and row["metric"] == "share of entries in bucket"
        ]
        assert len(shares) == 4
        assert math.fsum(shares) == pytest.approx(1)
    assert all(0 <= row["value"] <= 1 for row in rows)
