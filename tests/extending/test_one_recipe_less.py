"""Deleting one recipe's file breaks that recipe alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import fedrec
from fedrec import registry
from tests.architecture import graph

FILES = {name: f"fedrec.recipes.{name.replace('-', '_')}" for name in registry.BUILT_IN}


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As if the files of these recipes were not there; those of the others are loaded anew."""
    for name, module in FILES.items():
        if name in names:  # Python raises ModuleNotFoundError for a module that is None
            monkeypatch.setitem(sys.modules, module, None)
        else:
            monkeypatch.delitem(sys.modules, module, raising=False)


def test_no_module_of_the_product_names_the_file_of_a_recipe_that_is_not_its_own() -> None:
    named = {
        (module, f"{node.module}.{alias.name}" if node.module == "fedrec.recipes" else node.module)
        for module, text in graph.sources().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {pair for pair in named if pair[1] in FILES.values()} == set()


@pytest.mark.parametrize("missing", registry.BUILT_IN)
def test_a_recipe_without_its_file_is_refused_and_every_other_one_is_found(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, missing)
    with pytest.raises(fedrec.SettingsError, match=f"recipe '{missing}' cannot be loaded"):
        registry.require(missing)
    for name in registry.BUILT_IN:
        if name != missing:
            assert registry.require(name).name == name
    assert f'"{missing}"' not in registry.fitting("ratings") + registry.fitting("clicks")
    for kind in registry.MODELS:
        if not registry.MODELS[kind].startswith(FILES[missing]):
            assert registry.model_class(kind).of_arrays


@pytest.mark.parametrize(("recipe", "kind"), [("dp-bias", "ratings"), ("dp-gd", "clicks")])
def test_a_recipe_trains_and_its_model_is_read_where_no_other_recipe_has_a_file(
    recipe: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without(monkeypatch, *(name for name in FILES if name != recipe))
    few = {"data.preset": "small", "data.kind": kind, "compare.als": False, "run.examples": 0}
    run = fedrec.simulate({"recipe": recipe}, settings=few, noise="seeded", directory=tmp_path)
    assert run.metrics
    assert fedrec.load(run.folder / "model")
