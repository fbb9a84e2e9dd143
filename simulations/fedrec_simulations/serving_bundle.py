"""The last file of a run: what its model is served with, or the reason why it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.factorization.ssp import PublishedRecipe
from fedrec.serving.bundle import FILE, write
from fedrec.serving.exporting import Export
from fedrec.serving.synthetic import Released
from fedrec.settings import Scenario
from fedrec_simulations.training import Trained


def write_bundle(folder: Path, export: Callable[[], Export]) -> dict[str, object]:
    """For the result: version, coefficients and form of the bundle that was written, or `refused` with the reason."""
    try:
        about, arrays = export()
    except SettingsError as refusal:
        return {"refused": f"{refusal}"}
    version = write(folder / FILE, about, arrays)
    return {"version": version, "coefficients": len(arrays["users.linear"]), "form": about.form}


def released_of(trained: Trained, train: Interactions) -> Released:
    """What a training released, and what is public of its data; of `train` no event is kept."""
    counts = np.asarray(trained.state["counts"], np.float64)
    mean = float(np.maximum(counts, 0).sum()) / max(train.num_users, 1)
    # the default recipes let a user weigh 1 / sqrt(n) on each of its n items, the published one 1
    events = mean if isinstance(trained.prepared.recipe, PublishedRecipe) else mean**2
    return Released.of(trained.model, counts, events=events, empty=_nobody(train))


def liked_of(scenario: Scenario, train: Interactions) -> float:
    """The least rating that counts as a click: the scenario's threshold, or three quarters up the scale (4 of 1 to 5); 0 for clicks."""
    low, high = train.value_range
    return 0.0 if train.kind == "clicks" else scenario.data.click_threshold or low + 0.75 * (high - low)


def _nobody(train: Interactions) -> Interactions:
    """One user without events, on the same items and scale."""
    return train.select(np.zeros(len(train), np.bool_)).users_subset(np.zeros(1, np.int64))
