"""Measurements behind research/docs/papers.md, each as a small part."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fedrec.errors import SettingsError
from fedrec_research import news_noise
from fedrec_research.papers import names
from fedrec_research.quality import posterior
from fedrec_research.trials import Asked, trial
from fedrec_research.weights import Weights


def test_the_sampler_is_measured_beside_item_means_by_conversion() -> None:
    found = posterior.run(Asked(quick=True, epsilons=(math.inf, 5.0)))
    rows = {(row["epsilon"], row["conversion"]): row["rmse"] for row in found["rows"]}
    assert set(rows) == {("inf", "printed"), (5.0, "printed"), (5.0, "add/remove")}
    assert rows["inf", "printed"] < found["rmse"]["item mean"] < found["rmse"]["global mean"]
    assert rows["inf", "printed"] < min(rows[5.0, "printed"], rows[5.0, "add/remove"])


def test_noise_as_printed_hides_a_vector_less_than_sound_noise_by_the_root_of_its_width(
    tmp_path: Path,
) -> None:
    """L2 norm 1 is at most sqrt 64 in L1: of random vectors about sqrt(2 / pi) of that."""
    found = news_noise.run(Asked(quick=True, folder=tmp_path))["rows"]
    heard = {(row["way"], row["noise"]): row["signal over noise at 10"][0] for row in found}
    assert len(found) == 3 + 3 * 2
    gained = heard["FedRec", "laplace-printed"] / heard["FedRec", "laplace"]
    assert 0.5 * 8 < gained <= 8
    assert heard["as printed", "gaussian"] < heard["FedRec", "gaussian"]
    printed = {row["noise"]: row for row in found if row["way"] == "as printed"}
    soft = printed["gaussian"]
    relu = printed["gaussian, ReLU"]
    assert relu["auc at inf"] == soft["auc at inf"] != soft["SoftPlus at inf"]
    assert relu["auc at 10"] != soft["auc at 10"]
    with pytest.raises(SettingsError, match="no way"):
        news_noise.run(Asked(quick=True, only=("Nobody",)))


def test_every_model_has_the_ways_of_the_table_and_one_has_each_departure() -> None:
    pairs = news_noise._chosen(Asked())
    assert {pair for pair in pairs if pair[1] in news_noise.TABLE} == set(
        itertools.product(news_noise.MODELS, news_noise.TABLE)
    )
    assert [model for model, way in pairs if way not in news_noise.TABLE] == ["plm-nr"] * (
        len(news_noise.WAYS) - len(news_noise.TABLE)
    )


def test_a_row_is_found_again_wherever_its_weights_were_unpacked() -> None:
    here = trial(news_noise.row, (), "nrms", (), 0, ("word_vectors", Weights("a==1", Path("x"))))
    there = trial(news_noise.row, (), "nrms", (), 0, ("word_vectors", Weights("a==1", Path("y"))))
    other = trial(news_noise.row, (), "nrms", (), 0, ("word_vectors", Weights("b==1", Path("x"))))
    assert here.key == there.key != other.key


def test_a_command_of_the_names_is_run_and_its_error_stands_beside_what_knows_nobody(
    tmp_path: Path,
) -> None:
    (row,) = names.run(Asked(quick=True, folder=tmp_path))["rows"]
    assert (row["name"], row["data"], row["metric"]) == ("ssp1", "planted", "rmse")
    assert row["value"] < row["beside_value"]
    assert row["processor_seconds"] > 0
    assert row["established"]
    asked = Asked(("PATH/ml-100k",))
    listed = {name for name, _, _ in names._commands(asked)}
    assert listed == {*names.NAMES, names.NEWS}
