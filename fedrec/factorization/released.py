"""The released file: a model that any device can load, with a manifest that says what it is and
what it promises.

A folder holds `model.safetensors`, the public arrays, and `manifest.json`: format, kind of model,
guarantee, where the noise came from, the plan's digest, item ids, and the SHA-256 of the arrays. No
pickle: a file can be wrong, but it runs nothing. Arrays of the model that makes the lists, where it
is another one, are named `ranker.KIND.NAME`; `new.vectors` and `new.ranked` are rows of items that
came after training (`released`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Floats
from fedrec.errors import RunError, SettingsError
from fedrec.factorization.default_ratings.liked_ranker import LikedRanker
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.registry import kind_of, model_class, model_kinds
from fedrec.storage import read_arrays, read_json, sha256_of, write_arrays, write_json

if TYPE_CHECKING:
    from fedrec.data.interactions import Interactions

NEW = "new.vectors"
NEW_RANKED = "new.ranked"
"""Arrays of a released file."""
Arrays = Mapping[str, npt.NDArray[np.generic]]
FORMAT = "fedrec/1"
_RANKER = "ranker."
_LIKED = "liked"
_REMEDY = "Copy the whole model folder of a finished run again."


@dataclass(frozen=True)
class ExtendedModel:
    """A released model with more items after its own.

    new: (n, D) rows of item vectors; new_ranked: those of its ranker, None where it has none. A
    history is read by the known items alone.
    """

    known: Model
    new: Float32s
    new_ranked: Float32s | None

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]], known: Model) -> ExtendedModel:
        """Around a known model, the rows of a released file."""
        ranked = np.asarray(arrays[NEW_RANKED], np.float32) if NEW_RANKED in arrays else None
        return ExtendedModel(known, np.asarray(arrays[NEW], np.float32), ranked)

    @property
    def ranker(self) -> ExtendedModel | None:
        """What makes its lists (`model.ranker_of`)."""
        if self.new_ranked is None:
            return None
        return ExtendedModel(ranker_of(self.known), self.new_ranked, None)

    @property
    def item_vectors(self) -> Floats:
        """(m + n, D)."""
        return np.concatenate([np.asarray(self.known.item_vectors, np.float32), self.new])

    @property
    def offset(self) -> float:
        """That of the known model."""
        return self.known.offset

    def user_vectors(self, history: Interactions) -> Floats:
        """(users, D) by events on known items."""
        m = history.num_items - len(self.new)
        events = history.select(history.items < m)
        return self.known.user_vectors(replace(events, num_items=m, item_words=None))

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """What the known model's own arrays do not hold."""
        ranked = {} if self.new_ranked is None else {NEW_RANKED: self.new_ranked}
        return {NEW: self.new, **ranked}


def trained_items(model: Model, items: int) -> int:
    """How many of its items training knew."""
    return items - len(model.new) if isinstance(model, ExtendedModel) else items


def save(folder: Path, model: Model, *, about: Mapping[str, Any]) -> None:
    """Write the model and its manifest, `about` (guarantee, noise, plan, items, ...) included."""
    digest = write_arrays(folder / "model.safetensors", arrays_of(model))
    write_json(folder / "manifest.json", manifest_of(model, digest, about))


def manifest_of(model: Model, digest: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a model whose arrays have this SHA-256."""
    return {**about, "format": FORMAT, "kind": _kind(model), "sha256": digest}


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
    if sha256_of(path) != manifest["sha256"]:
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
    model: Model = model_class(kind).of_arrays(arrays)
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
        LikedRanker.of_arrays(named, model) if of == _LIKED else model_class(of).of_arrays(named)
    )
    return replace(model, ranker=ranker)  # type: ignore[type-var]  # models are dataclasses; only those with a ranker are saved with one


def _kind(model: Model) -> str:
    """Raises SettingsError on a class that neither fedrec nor an extension names."""
    if isinstance(model, ExtendedModel):
        return _kind(model.known)
    if isinstance(model, LikedRanker):
        return _LIKED
    if (found := kind_of(model)) is None:
        name = type(model).__name__
        remedy = f"Register its kind: fedrec.recipe(..., models={{'NAME': {name}}})."
        raise SettingsError(f"a model of class {name} cannot be written", remedy)
    return found
