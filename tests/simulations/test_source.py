"""A kept row is stale when, and only when, something that decides it has changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fedrec_simulations.experiments import source
from fedrec_simulations.experiments.papers import am_ssp_runs
from fedrec_simulations.experiments.study import training

CACHES = (source.file_of, source._read, source._digest)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()


def changed(monkeypatch: pytest.MonkeyPatch, folder: Path, module: str, old: str, new: str) -> None:
    """Lets the digest read another text of one module."""
    place, found = source.file_of(module), source.file_of
    assert place is not None
    text = place.read_text()
    assert old in text
    other = folder / place.name
    other.write_text(text.replace(old, new, 1))
    monkeypatch.setattr(source, "file_of", lambda name: other if name == module else found(name))
    source._read.cache_clear()
    source._digest.cache_clear()


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("fedrec.recipes.fast_dpmf", "chosen.user_ridge or 4.0", "chosen.user_ridge or 5.0"),  # loaded by name
        ("fedrec_simulations.experiments.dp_sgd", "def ", "LEFT_OUT = 0\n\n\ndef "),
        ("fedrec_simulations.experiments.papers.am_ssp_runs", "return ", "return None or "),
        ("fedrec.privacy.gaussian", "_SMALLEST_STD = 4.0", "_SMALLEST_STD = 3.0"),
    ],
)
def test_a_change_in_any_module_on_the_way_to_a_row_makes_it_stale(
    module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = source.source_digest(am_ssp_runs.one_run)
    changed(monkeypatch, tmp_path, module, old, new)
    assert source.source_digest(am_ssp_runs.one_run) != before


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("fedrec.privacy.gaussian", "_SMALLEST_STD = 4.0", "_SMALLEST_STD  =  4.0  # a comment"),
        ("fedrec.errors", '"""', '"""Other words. '),
    ],
)
def test_comments_docstrings_and_layout_leave_rows_as_they_are(
    module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = source.source_digest(am_ssp_runs.one_run)
    changed(monkeypatch, tmp_path, module, old, new)
    assert source.source_digest(am_ssp_runs.one_run) == before


def test_what_no_row_imports_leaves_rows_as_they_are() -> None:
    found = source.reached(frozenset({training.__name__}))
    assert {"fedrec.recipes.default", "fedrec.numerics.kernels", "fedrec_simulations.data.sealed"} <= found
    assert not any(name.startswith(("fedrec_cli", "fedrec_simulations.commands", "fedrec_simulations.report")) for name in found)


def test_what_a_row_is_given_counts_too() -> None:
    assert source.source_digest(partial(len, am_ssp_runs.one_run)) == source.source_digest(len, am_ssp_runs.one_run)
    assert source.source_digest(len) != source.source_digest(len, am_ssp_runs.one_run)


def test_relative_imports_and_those_of_functions_are_followed_and_those_of_types_are_not() -> None:
    text = "def f():\n    from .a import b\nfrom .. import c\nif TYPE_CHECKING:\n    import fedrec.d\n"
    imports = source.understood(text, "fedrec.x.y")[1]
    assert {"fedrec.x.a", "fedrec.x.a.b", "fedrec.c"} <= set(imports)
    assert "fedrec.d" not in imports
