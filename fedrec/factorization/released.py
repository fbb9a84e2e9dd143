"""The released file: a model that any device can load, with a manifest that says what it is and
what it promises.

A folder holds `model.safetensors`, the public arrays, and `manifest.json`: format, kind of model,
guarantee, where the noise came from, the plan's digest, item ids, and the SHA-256 of the arrays. No
pickle: a file can be wrong, but it runs nothing. Arrays of the model that makes the lists, where it
is another one, are named `ranker.KIND.NAME`; `new.vectors` and `new.ranked` are rows of items that
came after training (`new_items`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.errors import RunError, SettingsError
from fedrec.factorization.default_ratings.model import LikedRanker
from fedrec.factorization.model import Model, ranker_of
from fedrec.factorization.new_items import NEW, NEW_RANKED, ExtendedModel
from fedrec.registry import model_kinds
from fedrec.storage import read_arrays, read_json, write_arrays, write_json

Arrays = Mapping[str, npt.NDArray[np.generic]]

FORMAT = "fedrec/1"
_RANKER = "ranker."
_LIKED = "liked"
_REMEDY = "Copy the whole model folder of a finished run again."


def save(folder: Path, model: Model, *, about: Mapping[str, Any]) -> None:
    """Write the model and its manifest, `about` (guarantee, noise, plan, items, ...) included."""
    digest = write_arrays(folder / "model.safetensors", arrays_of(model))
    write_json(
        folder / "manifest.json",
        {**about, "format": FORMAT, "kind": _kind(model), "sha256": digest},
    )


def load(folder: Path) -> tuple[Model, dict[str, Any]]:
    """The model of a folder and its manifest.

    Raises RunError where a file is missing, damaged or of another format."""
    manifest = read_json(folder / "manifest.json")
    path = folder / "model.safetensors"
    if manifest.get("format") != FORMAT or manifest.get("kind") not in model_kinds():
        raise RunError(
            (
                f"{folder} holds format {manifest.get('format')!r}, kind "
                f"{manifest.get('kind')!r}; expected {FORMAT!r}"
            ),
            _REMEDY,
        )
    arrays = read_arrays(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != manifest["sha256"]:
        raise RunError(f"{path} is not the file that its manifest describes", _REMEDY)
    try:
        return model_of(arrays, manifest["kind"]), manifest
    except (KeyError, ValueError, TypeError) as failure:
        raise RunError(
            f"{path} lacks what a {manifest['kind']} model needs: {failure}", _REMEDY
        ) from None


def arrays_of(model: Model) -> dict[str, npt.NDArray[np.generic]]:
    """The model's own arrays, those of its ranker, and rows of items that came after training."""
    arrays = dict(model.arrays())
    if isinstance(model, ExtendedModel):
        return arrays_of(model.known) | arrays
    ranker = ranker_of(model)
    if ranker is not model:
        arrays |= {
            f"{_RANKER}{_kind(ranker)}.{name}": array for name, array in ranker.arrays().items()
        }
    return arrays


def model_of(arrays: Arrays, kind: str) -> Model:
    """The model with its ranker.

    Raises KeyError, ValueError or TypeError where an array is missing or wrong."""
    if NEW in arrays:
        own = {name: array for name, array in arrays.items() if name not in {NEW, NEW_RANKED}}
        return ExtendedModel.of_arrays(arrays, model_of(own, kind))
    model: Model = model_kinds()[kind].of_arrays(arrays)
    theirs = {
        name.removeprefix(_RANKER): array
        for name, array in arrays.items()
        if name.startswith(_RANKER)
    }
    if not theirs:
        return model
    of = next(iter(theirs)).partition(".")[0]
    named = {name.removeprefix(f"{of}."): array for name, array in theirs.items()}
    ranker = (
        LikedRanker.of_arrays(named, model) if of == _LIKED else model_kinds()[of].of_arrays(named)
    )
    return replace(model, ranker=ranker)  # type: ignore[type-var]  # models are dataclasses; only those with a ranker are saved with one


def _kind(model: Model) -> str:
    """Raises SettingsError on a class that neither fedrec nor an extension names."""
    if isinstance(model, ExtendedModel):
        return _kind(model.known)
    found = next((name for name, known in model_kinds().items() if isinstance(model, known)), None)
    if isinstance(model, LikedRanker):
        return _LIKED
    if found is None:
        name = type(model).__name__
        remedy = f"Register its kind: fedrec.recipe(..., models={{'NAME': {name}}})."
        raise SettingsError(f"a model of class {name} cannot be written", remedy)
    return found
