"""Walks over recipes leave none out: every list of the tests that names many of them names all that
are registered."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from fedrec.registry import ALIASES, BUILT_IN, require

ROOT = Path(__file__).parents[2]
MANY = 6
"""Recipes from which on a list is a walk: others are choices of two or three kinds."""
EVERY = {name for name in BUILT_IN if require(name).kinds != ("news",)}
CHOSEN = {("tests/cli/test_bad_inputs.py", "BAD")}
"""No walks: commands that fail, each for its own reason."""


def lists_of_recipes() -> Iterator[tuple[str, str, set[str]]]:
    """File, name and recipes of every module's table, and of every parametrised test's cases."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        # a list of many recipes says so in its file; the syntax trees of all files take seconds
        named = text.count("recipe=") >= MANY
        for node in ast.walk(ast.parse(text)) if named else ():
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    pass
                case ast.Call(func=ast.Attribute(attr="parametrize" as name), args=[_, value, *_]):
                    pass
                case _:
                    continue
            inside = list(ast.walk(value))
            words = [one.value for one in inside if isinstance(one, ast.Constant)]
            found = {
                ALIASES.get(recipe, recipe)
                for word in words
                if isinstance(word, str)
                for recipe in re.findall(r"recipe=([a-z0-9-]+)", word)
            }
            if any(isinstance(one, ast.Name) and one.id == "TORCH" for one in inside):
                found.add("torch")
            yield path.relative_to(ROOT).as_posix(), name, found & EVERY


def test_every_list_that_names_many_recipes_names_every_one() -> None:
    walks = [one for one in lists_of_recipes() if len(one[2]) >= MANY]
    assert len(walks) >= 6
    less = {(file, name): EVERY - recipes for file, name, recipes in walks if EVERY - recipes}
    assert set(less) == set(CHOSEN), less
