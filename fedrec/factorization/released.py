"""The released file: a model that any device can load, with a manifest that says what it is and what it promises.

A folder holds `model.safetensors`, the public arrays, and `manifest.json`: format, kind of model, guarantee, where the noise
came from, the plan's digest, item ids, and the SHA-256 of the arrays. No pickle: a file can be wrong, but it runs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrec.checkpoint import read_arrays, read_json, write_arrays, write_json
from fedrec.errors import RunError
from fedrec.factorization.clicks import ClickModel
from fedrec.factorization.convex_ssp import ConvexModel
from fedrec.factorization.default_model import DefaultModel
from fedrec.factorization.local_stage import LocalStageModel
from fedrec.factorization.model import Model
from fedrec.factorization.ssp import PublishedModel

FORMAT = "fedrec/1"
KINDS: Mapping[str, Any] = {
    "default": DefaultModel,
    "clicks": ClickModel,
    "published": PublishedModel,
    "fast-dpmf": LocalStageModel,
    "convex-ssp": ConvexModel,
}
_REMEDY = "Copy the whole model folder of a finished run again."


def save(folder: Path, model: Model, *, about: Mapping[str, Any]) -> None:
    """Write the model and its manifest, `about` (guarantee, noise, plan, items, ...) included."""
    kind = next(name for name, known in KINDS.items() if isinstance(model, known))
    digest = write_arrays(folder / "model.safetensors", model.arrays())
    write_json(folder / "manifest.json", {**about, "format": FORMAT, "kind": kind, "sha256": digest})


def load(folder: Path) -> tuple[Model, dict[str, Any]]:
    """The model of a folder and its manifest. Raises RunError where a file is missing, damaged or of another format."""
    manifest, path = read_json(folder / "manifest.json"), folder / "model.safetensors"
    if manifest.get("format") != FORMAT or manifest.get("kind") not in KINDS:
        raise RunError(f"{folder} holds format {manifest.get('format')!r}, kind {manifest.get('kind')!r}; expected {FORMAT!r}", _REMEDY)
    arrays = read_arrays(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != manifest["sha256"]:
        raise RunError(f"{path} is not the file that its manifest describes", _REMEDY)
    try:
        return KINDS[manifest["kind"]].of_arrays(arrays), manifest
    except (KeyError, ValueError, TypeError) as failure:
        raise RunError(f"{path} lacks what a {manifest['kind']} model needs: {failure}", _REMEDY) from None
