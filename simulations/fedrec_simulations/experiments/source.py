"""Digest of the source that decides a row: the module that makes it, and every module of fedrec's
that it imports, at any depth.

Imports are read off the syntax trees: also those within functions, and what a registry loads by
name; not those under TYPE_CHECKING. Of a module counts what the interpreter runs: neither comments
nor docstrings nor layout. A changed constant anywhere on the way to a row makes it stale; a changed
page, command or comment does not.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Collection, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RECIPES = "fedrec.recipes"
BY_NAME = {"fedrec.registry": RECIPES, "fedrec.news.variant": "fedrec.news.variants"}
"""Modules that load all modules of a package by name."""


def source_digest(*of: Any, recipes: Collection[str] | None = None) -> str:
    """Eight letters of the SHA-256 of what decides the results of these functions and values (of a
    value, the module of its class).

    recipes: names of those that a row trains, where it is known: others load by name, too, but do
    not decide it."""
    roots = frozenset(name for value in of for name in _modules_of(value))
    return _digest(roots, None if recipes is None else frozenset(recipes))


def _modules_of(value: Any) -> Iterator[str]:
    if isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _modules_of(part)
    else:
        yield str(getattr(value, "__module__", type(value).__module__))


@cache
def _digest(roots: frozenset[str], recipes: frozenset[str] | None) -> str:
    content = hashlib.sha256()
    for name in sorted(reached(roots, recipes)):
        content.update(f"{name}\0{_read(name)[0]}\0".encode())
    return content.hexdigest()[:8]


def reached(roots: frozenset[str], recipes: frozenset[str] | None = None) -> set[str]:
    """Modules that are imported from these, themselves among them; of recipes that are loaded by
    name only these, or all where None."""
    found, ahead = set[str](), list(roots)
    while ahead:
        name = ahead.pop()
        if name not in found and file_of(name) is not None:
            found.add(name)
            ahead += [*_read(name)[1], *_loaded(name, recipes)]
    return found


def _loaded(name: str, recipes: frozenset[str] | None) -> Iterator[str]:
    """Modules that this one loads by name."""
    package = BY_NAME.get(name)
    if package == RECIPES and recipes is not None:
        yield from (f"{package}.{recipe.replace('-', '_')}" for recipe in sorted(recipes))
    elif package is not None and (page := file_of(package)) is not None:
        yield from (f"{package}.{file.stem}" for file in page.parent.glob("*.py"))


@cache
def file_of(name: str) -> Path | None:
    """A module of fedrec's, or a module that is no package's and asked for a row itself; None for
    all others."""
    top, *parts = name.split(".")
    if not top.startswith("fedrec"):
        file = getattr(sys.modules.get(name), "__file__", None)
        return (
            Path(file)
            if file and "." not in name and "site-packages" not in file and not _is_standard(top)
            else None
        )
    spec = find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    place = Path(next(iter(spec.submodule_search_locations))).joinpath(*parts)
    return next(
        (file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None
    )


def _is_standard(top: str) -> bool:
    return top in sys.stdlib_module_names or top == "builtins"


@cache
def _read(name: str) -> tuple[str, tuple[str, ...]]:
    """What a module runs, as text, and the names that it may import."""
    file = file_of(name)
    assert file is not None
    return understood(file.read_text(encoding="utf-8"), name, is_package=file.name == "__init__.py")


def understood(text: str, name: str, *, is_package: bool = False) -> tuple[str, tuple[str, ...]]:
    """The tree of a module without docstrings, written out, and full names of all that its
    statements may import."""
    tree = _Bare().visit(ast.parse(text))
    package = name if is_package else name.rpartition(".")[0]
    imports = [found for node in ast.walk(tree) for found in _imported(node, package)]
    parents = [
        ".".join(full.split(".")[:k])
        for full in (*imports, name)
        for k in range(1, full.count(".") + 1)
    ]
    return ast.dump(tree), tuple(dict.fromkeys([*imports, *parents]))


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
        start = ".".join([*above, *([node.module] if node.module else [])])
        yield start
        yield from (f"{start}.{alias.name}" for alias in node.names)


class _Bare(ast.NodeTransformer):
    """Drops texts that stand alone, and what only type checkers read."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Docstrings, also those behind a name."""
        return (
            None
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            else node
        )

    def visit_If(self, node: ast.If) -> ast.AST | None:
        """`if TYPE_CHECKING:`."""
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return None
        return self.generic_visit(node)
