"""From a scenario's data and split tables to a data set and a checked split."""

from __future__ import annotations

from dataclasses import replace

from fedrec.data.planted import PRESETS, planted
from fedrec.data.splits import Split, given, held_out_users, leave_last_out, random_split, temporal

from fedrec.data.dataset import Dataset
from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.read import read
from fedrec.errors import SettingsError
from fedrec.settings import DataSettings, Scenario

SPLITS = {"random": random_split, "held-out-users": held_out_users, "temporal": temporal, "leave-last-out": leave_last_out}


def load_dataset(scenario: Scenario) -> Dataset:
    """Read the scenario's data, or plant it. Raises DataError or SettingsError."""
    data = scenario.data
    if not data.path:
        return _planted(data, scenario.seed)
    dataset = read(data.path, data.format, **_options(data))
    return dataset if data.features else replace(dataset, features=PublicFeatures({}))


def load_split(scenario: Scenario, dataset: Dataset) -> Split:
    """Divide the data as the scenario says; every kind checks itself for leaks."""
    if scenario.split.kind == "given":
        if dataset.given_test is None:
            raise SettingsError('split.kind = "given" needs data that comes with its own test events', "Choose another split.kind.")
        return given(dataset.interactions, dataset.given_test, seed=scenario.split.seed)
    return SPLITS[scenario.split.kind](_everything(dataset), seed=scenario.split.seed)


def _everything(dataset: Dataset) -> Interactions:
    if dataset.given_test is None:
        return dataset.interactions
    raise SettingsError("this data comes with its own test events", 'Use split.kind = "given".')


def _planted(data: DataSettings, seed: int) -> Dataset:
    if data.preset not in PRESETS:
        raise SettingsError(f"data.preset {data.preset!r} is unknown", f"Use one of: {', '.join(PRESETS)}.")
    return planted(replace(PRESETS[data.preset], kind=data.kind), seed=seed).dataset


def _options(data: DataSettings) -> dict[str, object]:
    """Only what differs from the reader's own defaults: a format refuses options that mean nothing to it."""
    options: dict[str, object] = dict(data.columns)
    if data.duplicates != "refuse":
        options["duplicates"] = data.duplicates
    if data.out_of_range != "refuse":
        options["out_of_range"] = data.out_of_range
    if data.rating_range is not None:
        options["rating_range"] = data.rating_range
    if data.features_path:
        options["item_features"] = data.features_path
    return options
