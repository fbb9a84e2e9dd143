"""Places that choose by a string: comparisons of a name like `kind` with string literals.

python -m tests.architecture.choices          # each place, one a line

Counted, over the syntax trees: comparisons and `match` of a variable or attribute of one of NAMES
with literals, and tables written where they are looked up (`{"ratings": f, "clicks": g}[kind]`).
numpy's `dtype.kind` is numpy's, and not counted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.architecture.graph import Sources, parsed, sources

NAMES = ("kind", "recipe", "variant")
_MEANINGS = {
    "of data": {"ratings", "clicks", "news", "auto"},
    "of a split": {"given", "temporal", "random", "leave-last-out", "held-out-users"},
    "of a block": {"linear", "outer"},
    "of a party": {"aggregator", "server", "client", "serving"},
}


@dataclass(frozen=True, order=True)
class Choice:
    """A place. meaning: what the string names, by the literals it is compared with."""

    module: str
    line: int
    name: str
    meaning: str


def choices(tree: Sources) -> list[Choice]:
    """All of them, by module and line."""
    return sorted(
        Choice(module.removesuffix(".__init__"), line, name, _meaning(literals))
        for module, text in tree.items()
        for line, name, literals in _found(parsed(text))
    )


def _found(tree: ast.AST) -> Iterator[tuple[int, str, set[str]]]:
    for node in ast.walk(tree):
        subjects = list[ast.AST]()
        others = list[ast.AST]()
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            subjects = [side for side in sides if _name(side)]
            others = [side for side in sides if not _name(side)]
        elif isinstance(node, ast.Match):
            subjects = [node.subject]
            others = [case.pattern for case in node.cases]
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            subjects = [node.slice]
            others = [key for key in node.value.keys if key is not None]
        literals = {text for other in others for text in _strings(other)}
        if literals and (named := [_name(one) for one in subjects if _name(one)]):
            yield node.lineno, named[0], literals


def _name(node: ast.AST) -> str:
    """One of NAMES where the node is a variable or an attribute called so; "" for any other."""
    if isinstance(node, ast.Attribute):
        of = node.value
        numpys = isinstance(of, ast.Attribute | ast.Name) and _last(of) == "dtype"
        return node.attr if node.attr in NAMES and not numpys else ""
    return node.id if isinstance(node, ast.Name) and node.id in NAMES else ""


def _last(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


def _strings(node: ast.AST) -> set[str]:
    return {
        inner.value
        for inner in ast.walk(node)
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
    }


def _meaning(literals: set[str]) -> str:
    return next((meaning for meaning, words in _MEANINGS.items() if literals & words), "other")


if __name__ == "__main__":
    for one in choices(sources()):
        print(f"{one.module}:{one.line}: {one.name} {one.meaning}")
