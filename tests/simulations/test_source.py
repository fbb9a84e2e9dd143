"""A kept row is stale when, and only when, something that decides it has changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from fedrec_simulations.experiments import source
from fedrec_simulations.experiments.papers import am_ssp_runs
from fedrec_simulations.experiments.study import training


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Modules stay read; which of them decide a row is asked again."""
    source._digest.cache_clear()
    yield
    source._digest.cache_clear()


@pytest.mark.parametrize(
    ("module", "old", "new", "stale"),
    [
        # loaded by name
        ("fedrec.recipes.fast_dpmf", "chosen.user_ridge or 4.0", "chosen.user_ridge or 5.0", True),
        ("fedrec_simulations.experiments.dp_sgd", "def ", "LEFT_OUT = 0\n\n\ndef ", True),
        ("fedrec_simulations.experiments.papers.am_ssp_runs", "return ", "return None or ", True),
        ("fedrec.privacy.gaussian", "_SMALLEST_STD = 4.0", "_SMALLEST_STD = 3.0", True),
        (
            "fedrec.privacy.gaussian",
            "_SMALLEST_STD = 4.0",
            "_SMALLEST_STD  =  4.0  # a comment",
            False,
        ),
        ("fedrec.errors", '"""', '"""Other words. ', False),
    ],
)
def test_a_row_is_stale_when_and_only_when_code_on_the_way_to_it_has_changed(
    module: str, old: str, new: str, stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, read, place = (
        source.source_digest(am_ssp_runs.one_run),
        source._read,
        source.file_of(module),
    )
    assert place is not None
    text = place.read_text()
    assert old in text
    changed = source.understood(text.replace(old, new, 1), module)
    monkeypatch.setattr(source, "_read", lambda name: changed if name == module else read(name))
    source._digest.cache_clear()
    assert (source.source_digest(am_ssp_runs.one_run) != before) == stale


def test_a_constant_in_any_module_that_decides_a_study_row_makes_it_stale_and_a_comment_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, before = source._read, source.source_digest(training.study_row)
    for module in sorted(source.reached(frozenset({training.__name__}))):
        place = source.file_of(module)
        assert place is not None
        for added, stale in (("_ANOTHER = 1", True), ("# another", False)):
            changed = source.understood(
                f"{place.read_text()}\n{added}\n", module, is_package=place.name == "__init__.py"
            )
            monkeypatch.setattr(
                source, "_read", lambda name, m=module, c=changed: c if name == m else read(name)
            )
            source._digest.cache_clear()
            found = source.source_digest(training.study_row)
            assert (found != before) == stale, (module, added)


def test_what_no_row_imports_leaves_rows_as_they_are() -> None:
    found = source.reached(frozenset({training.__name__}))
    assert {
        "fedrec.recipes.default",
        "fedrec.numerics.kernels",
        "fedrec.run.data.sealed",
    } <= found
    assert not any(
        name.startswith(("fedrec.cli", "fedrec.cli.commands", "fedrec.report")) for name in found
    )


def test_what_a_row_is_given_counts_too() -> None:
    assert source.source_digest(partial(len, am_ssp_runs.one_run)) == source.source_digest(
        len, am_ssp_runs.one_run
    )
    assert source.source_digest(len) != source.source_digest(len, am_ssp_runs.one_run)


def test_relative_imports_and_those_of_functions_are_followed_and_those_of_types_are_not() -> None:
    text = (
        "def f():\n    from .a import b\nfrom .. import c\nif TYPE_CHECKING:\n    import fedrec.d\n"
    )
    imports = source.understood(text, "fedrec.x.y")[1]
    assert {"fedrec.x.a", "fedrec.x.a.b", "fedrec.c"} <= set(imports)
    assert "fedrec.d" not in imports
