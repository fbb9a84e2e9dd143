"""Definitions that no command and no public name reaches: only tests, or nothing, would miss them.

python -m tests.architecture.reach          # those of the tree, one a line

By names: a definition is reached where its name stands in code that is reached, in any module, so
that what is listed is surely unreached, and what shares a name with something else may be missed.
Code that runs on import is reached; an import alone reaches nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.architecture.graph import BENCHMARKS, PACKAGES, Sources, parsed, rules, sources

_PLAIN = {
    "dataclass",
    "cache",
    "lru_cache",
    "contextmanager",
    "njit",
    "overload",
    "runtime_checkable",
    "final",
    "jit",
    "vectorize",
}
"""Decorators that register a function nowhere."""
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Definition:
    """A function or class of a module, or a method, and the names in it."""

    module: str
    name: str
    uses: frozenset[str]
    always: bool

    @property
    def full(self) -> str:
        """With its module."""
        return f"{self.module}.{self.name}"


def unreached(tree: Sources, templates: str = "") -> set[str]:
    """Full names. templates: text of pages whose words count as uses."""
    definitions = list[Definition]()
    names = set(_WORD.findall(templates))
    for module, text in tree.items():
        for node in parsed(text).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                definitions.append(_definition(module.removesuffix(".__init__"), node))
            else:
                names |= _names(node, strings=not isinstance(node, ast.Import | ast.ImportFrom))
    ahead = definitions
    while True:
        now = [d for d in ahead if d.always or d.name in names]
        if not now:
            return {d.full for d in ahead}
        ahead = [d for d in ahead if not (d.always or d.name in names)]
        names.update(*(found.uses for found in now))


def _definition(
    module: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
) -> Definition:
    registered = any(_last(one) not in _PLAIN for one in node.decorator_list)
    return Definition(
        module,
        node.name,
        frozenset(_names(node)),
        registered or node.name == "main" or node.name.startswith("__"),
    )


def _last(decorator: ast.expr) -> str:
    inner = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (
        inner.attr
        if isinstance(inner, ast.Attribute)
        else inner.id
        if isinstance(inner, ast.Name)
        else ""
    )


def _names(node: ast.AST, *, strings: bool = False) -> set[str]:
    return set(_named(node, strings))


def _named(node: ast.AST, strings: bool) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.alias) and inner.asname:
            yield inner.name.rpartition(".")[2]
        elif strings and isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield from re.split(r"[.:\s]", inner.value) if len(inner.value) < 100 else ()


def pages() -> str:
    """All templates of the tree."""
    return "\n".join(
        path.read_text() for package in PACKAGES for path in sorted(package.rglob("*.html"))
    )


def allowed() -> Mapping[str, str]:
    """Definitions that may be unreached, and why."""
    found: Mapping[str, str] = rules()["unreached"]
    return found


if __name__ == "__main__":
    print("\n".join(sorted(unreached(sources((*PACKAGES, *BENCHMARKS)), pages()) - set(allowed()))))
