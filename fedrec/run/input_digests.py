"""Digests of what a run is computed from, kept in its folder.

A run's checkpoints are those of these inputs, and go on with no others. A checkpoint of one data
set under another would be a model of neither, and what was charged for it would be known to the
budget of neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy import sparse

from fedrec import __version__
from fedrec.data.interactions import Dataset
from fedrec.errors import RunError
from fedrec.storage import read_json, write_json

FILE = "inputs.json"


def bind(folder: Path, inputs: Mapping[str, Any]) -> None:
    """Keep the digest of each input, by its name, in a folder that has none; in one that a run
    began, compare.

    Raises RunError with the names of those that are others.
    """
    found = {"version of fedrec": __version__} | {
        name: content_digest(value) for name, value in inputs.items()
    }
    path = folder / FILE
    if not path.exists():
        if any(folder.glob("epsilon-*")):
            raise RunError(
                f"{folder} cannot be resumed: its run kept no digests of its inputs",
                "An earlier version made it. Run the command without --resume.",
            )
        write_json(path, found)
        return
    kept = read_json(path)
    if changed := sorted(name for name in {*kept, *found} if kept.get(name) != found.get(name)):
        raise RunError(
            f"{folder} cannot be resumed: its run began with another {', another '.join(changed)}",
            "Put back what it began with, or run the command without --resume: a new training, "
            "which is charged anew.",
        )


def inputs_of(dataset: Dataset) -> dict[str, Any]:
    """What is public of a data set, by name: its items and scale, and each bag of features."""
    catalogue = dataset.catalogue
    events = dataset.interactions
    return {
        "catalogue": (catalogue.item_ids, catalogue.titles, events.kind, events.value_range),
        "user ids": "\n".join(catalogue.user_ids),
        **{f"features ({name})": bag for name, bag in dataset.features.bags.items()},
    }


def content_digest(value: Any) -> str:
    """SHA-256 of a value that is made of arrays, texts, numbers, files, and dataclasses, mappings
    and sequences of such; the same in every process.

    Raises TypeError on anything else.
    """
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Every part with its type and length before it, so that no two values have one text."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        whole = np.ascontiguousarray(value)
        digest.update(f"array {whole.dtype.str} {whole.shape} ".encode())
        digest.update(whole.data.cast("B") if whole.size else b"")
    elif sparse.issparse(value):
        rows = cast(Any, value).tocsr()
        _add(digest, (rows.shape, rows.indptr, rows.indices, rows.data))
    elif isinstance(value, Path):
        with value.open("rb") as file:
            digest.update(b"file " + hashlib.file_digest(file, "sha256").digest())
    elif isinstance(value, str | bytes):
        content = value.encode() if isinstance(value, str) else value
        digest.update(f"{type(value).__name__} {len(content)} ".encode() + content)
    elif is_dataclass(value):
        _add(digest, {field.name: getattr(value, field.name) for field in fields(value)})
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)} ".encode())
        for key in sorted(value):
            _add(digest, key)
            _add(digest, value[key])
    elif isinstance(value, tuple | list) and all(isinstance(part, str) for part in value):
        # ids of a million items, at the speed of C
        digest.update(b"texts " + json.dumps(value).encode())
    elif isinstance(value, tuple | list | np.ndarray):
        digest.update(f"sequence {len(value)} ".encode())
        for part in value:
            _add(digest, part)
    elif value is None or isinstance(value, bool | int | float | np.generic):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    elif hasattr(value, "numpy"):  # a tensor
        _add(digest, value.numpy())
    else:
        raise TypeError(f"{type(value).__name__} has no digest")
