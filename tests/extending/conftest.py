"""A package outside fedrec, installed for one test: its modules on the path, and its metadata
beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec import registry
from fedrec.federation import block_kinds
from fedrec.news import variant

OUTSIDE = Path(__file__).parent / "outside"
ENTRY_POINTS = """
[fedrec.recipes]
counted = outside_recipe:SPEC
[fedrec.formats]
json-lines = outside_data:READER
[fedrec.metrics]
first_is_hit = outside_data:first_is_hit
[fedrec.block_kinds]
squares = outside_kind:SQUARES
too-long = outside_kind:TOO_LONG
[fedrec.news_variants]
twice = outside_news:VARIANT
[fedrec.commands]
greet = outside_verb:app
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folders on the path: of modules, and of metadata."""
    metadata = tmp_path / "site"
    about = metadata / "outside-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    for folder in (OUTSIDE, metadata):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    monkeypatch.setattr(variant, "_REGISTERED", dict(variant._REGISTERED))
    monkeypatch.setattr(block_kinds, "_KNOWN", dict(block_kinds._KNOWN))
    return OUTSIDE, metadata
