"""Measurements behind research/docs/papers.md, each as a small part."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from fedrec.errors import SettingsError
from fedrec_research import news_noise
from fedrec_research.quality import posterior
from fedrec_research.trials import Asked


def test_the_sampler_is_measured_beside_item_means_by_conversion() -> None:
    found = posterior.run(Asked(quick=True, epsilons=(math.inf, 5.0)))
    rows = {(row["epsilon"], row["conversion"]): row["rmse"] for row in found["rows"]}
    assert set(rows) == {("inf", "printed"), (5.0, "printed"), (5.0, "add/remove")}
    assert rows["inf", "printed"] < found["rmse"]["item mean"] < found["rmse"]["global mean"]
    assert rows["inf", "printed"] < min(rows[5.0, "printed"], rows[5.0, "add/remove"])


def test_noise_as_printed_hides_a_vector_less_than_sound_noise_by_the_root_of_its_width() -> None:
    """L2 norm 1 is at most sqrt 64 in L1: of random vectors about sqrt(2 / pi) of that."""
    found = news_noise.run(Asked(quick=True))["rows"]
    heard = {(row["way"], row["noise"]): row["signal over noise at 10"][0] for row in found}
    assert len(found) == 6
    gained = heard["FedRec", "laplace-printed"] / heard["FedRec", "laplace"]
    assert 0.5 * 8 < gained <= 8
    assert heard["printed", "gaussian"] < heard["FedRec", "gaussian"]
    with pytest.raises(SettingsError, match="no way"):
        news_noise.run(Asked(quick=True, only=("Nobody",)))
