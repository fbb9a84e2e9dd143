"""Word vectors read from a text file: GloVe (`word 0.1 ...`) and MIND's `entity_embedding.vec`,
`relation_embedding.vec` (tabs).

A file is read line by line: memory grows with the words that are wanted, not with the file (GloVe
840B is 5.6 GB).
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from fedrec.arrays import Float32s
from fedrec.data.delimited import decoded
from fedrec.data.opening import open_bytes, require_file
from fedrec.errors import DataError, MalformedRowError


def read_vectors(path: Path, *, wanted: Collection[str] | None = None) -> dict[str, Float32s]:
    """Word (or entity id) to its vector, (d,) float32, in the file's order; `wanted` None takes all
    of them.

    The first line decides d and whether tabs or blanks separate. Words may hold blanks, as some of
    GloVe 840B do. Where a word comes twice the first counts. Raises DataError on a missing or empty
    file, MalformedRowError at the first line read that is not a word and d finite numbers; lines of
    words that nobody wants are not checked beyond that they have a first field.
    """
    needed = None if wanted is None else {word.encode() for word in wanted}
    found: dict[str, Float32s] = {}
    separator, dimension = _shape_of(require_file(path))
    spaced = None if needed is None else {word.split(separator, 1)[0] for word in needed} | needed
    for line, text in _lines(path):
        if spaced is not None and text.split(separator, 1)[0] not in spaced:
            continue
        word, *numbers = text.rsplit(separator, dimension)
        if needed is not None and word not in needed and len(numbers) == dimension:
            continue
        name = decoded(word, path, line)
        if name not in found:
            found[name] = _vector(path, line, numbers, dimension)
    return found


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line that is not blank; MIND's lines end in a tab."""
    with open_bytes(path) as file:
        for line, text in enumerate(file, start=1):
            begun = text.removeprefix(BOM_UTF8) if line == 1 else text
            if content := begun.rstrip(b"\r\n\t "):
                yield line, content


def _shape_of(path: Path) -> tuple[bytes, int]:
    for _, text in _lines(path):
        separator = b"\t" if b"\t" in text else b" "
        if dimension := text.count(separator):
            return separator, dimension
        break
    raise DataError(
        f"{path} does not begin with a word and its numbers",
        "Give a GloVe text file or a .vec file of MIND.",
    )


def _vector(path: Path, line: int, numbers: list[bytes], dimension: int) -> Float32s:
    try:
        vector = (
            np.array(numbers, dtype=np.bytes_).astype(np.float32)
            if len(numbers) == dimension
            else None
        )
    except ValueError:
        vector = None
    if vector is None or not np.isfinite(vector).all():
        raise MalformedRowError(
            path,
            line,
            f"a word and {dimension} numbers",
            b" ".join(numbers).decode("utf-8", "replace")[:80],
        )
    return vector
