"""`fedrec data ...`: formats, a first look at a data set, planted data in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data.planted import SHAPES, write_parquet
from fedrec.data.read import FORMATS
from fedrec.errors import SettingsError
from fedrec.settings import Scenario
from fedrec_simulations.datasets import load_dataset


def formats() -> str:
    """A line for every format."""
    return "\n".join(f"{name:24} {reader.summary}" for name, reader in FORMATS.items())


def describe(scenario: Scenario) -> dict[str, Any]:
    """Sizes, scale and features of a data set; nothing about any single user."""
    dataset = load_dataset(scenario)
    events = dataset.interactions
    per_user, per_item = np.diff(events.user_ptr), np.bincount(events.items, minlength=events.num_items)
    return {
        "format": dataset.provenance.format,
        "kind": events.kind,
        "events": len(events),
        "users": events.num_users,
        "items": events.num_items,
        "density": round(len(events) / max(events.num_users * events.num_items, 1), 6),
        "median events per user": float(np.median(per_user)),
        "median events per item": float(np.median(per_item)),
        "scale": list(events.value_range),
        "mean value": round(float(np.mean(events.values, dtype=np.float64)), 5) if len(events) else None,
        "given test events": len(dataset.given_test) if dataset.given_test is not None else 0,
        "features": {name: len(bag.vocabulary) for name, bag in dataset.features.bags.items()},
        "rows resolved": vars(dataset.provenance.report),
    }


def table(described: dict[str, Any]) -> str:
    """The same for a terminal: a line for each figure."""
    return "\n".join(f"{name:>24}  {_words(value)}" for name, value in described.items())


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_words(part)}" for name, part in value.items() if part != ()) or "none"
    if isinstance(value, list):  # the scale
        return " to ".join(f"{part:g}" for part in value)
    if isinstance(value, tuple):  # notes
        return "; ".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def plant(folder: Path, preset: str, seed: int) -> str:
    """Write a planted data set; returns what was written in a line."""
    if seed < 0:
        raise SettingsError(f"--seed {seed} is negative", "Give 0 or more.")
    if preset not in SHAPES:
        raise SettingsError(f"preset {preset!r} is unknown", f"Use one of: {', '.join(SHAPES)}.")
    files = write_parquet(folder, SHAPES[preset], seed=seed)
    return "\n".join(str(file) for file in files)
