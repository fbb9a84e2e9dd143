"""Interface of text encoders, and vectors of texts kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from fedrec.arrays import Float32s
from fedrec.data.frame_files import array


class TextEncoder(Protocol):
    """What turns texts into vectors."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal encoders: part of the name of what is cached."""
        ...

    def encode(self, texts: Sequence[str]) -> Float32s:
        """(len(texts), width) vectors."""
        ...


def cached_vectors(folder: Path, texts: Sequence[str], encoder: TextEncoder) -> Float32s:
    """(len(texts), width) vectors, from a file in `folder` if the same encoder was asked for the
    same texts before.

    The file is written beside its place and moved there, so a broken run leaves no half of it.
    """
    digest = hashlib.sha256(encoder.fingerprint.encode())
    for text in texts:
        digest.update(len(text).to_bytes(8, "little") + text.encode())
    path = folder / f"news-vectors-{digest.hexdigest()[:32]}.npy"
    if path.is_file():
        kept: Float32s = array(path)
        return kept
    place = {text: at for at, text in enumerate(dict.fromkeys(texts))}  # most of a part have none
    found = encoder.encode(list(place))
    vectors = np.ascontiguousarray(found[[place[text] for text in texts]], np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    with (partial := path.with_suffix(".partial")).open("wb") as file:
        np.save(file, vectors)
    partial.replace(path)
    return vectors
