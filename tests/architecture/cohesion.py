"""Cohesion of a module: parts that never name each other, and constants below definitions.

A definition is a function, a class or an assignment at the top of a module. Two are linked where
one names the other, also within a string, so two that both name a third are in one part. A part is
a connected group of `LEAST` statements or more. A part of types alone is the vocabulary of a
protocol and not counted: dataclasses, protocols, tables of settings and enumerations, most of whose
statements declare. A module with two or more parts is divided.

A constant is an assignment whose value names no function or class of the module, be it through
others, and that can therefore stand above the first of them.
"""

import ast
from collections.abc import Iterator

from tests.architecture.graph import circles, parsed

LEAST = 15
"""Statements below which a group is a helper rather than an idea."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_TYPES = {"dataclass", "Protocol", "BaseModel", "NamedTuple", "TypedDict", "StrEnum", "Enum"}


def parts(text: str) -> list[list[str]]:
    """The names of each part, in a module's order; two or more where it is divided."""
    nodes = _bound(parsed(text))
    graph = {name: _named(node) & nodes.keys() for name, node in nodes.items()}
    for name, others in list(graph.items()):
        for other in others:
            graph[other] = graph[other] | {name}  # both ways, so that circles are whole parts
    return [
        sorted(group, key=list(nodes).index)
        for group in circles(graph) + [[name] for name in graph if not graph[name] - {name}]
        if sum(size(nodes[name]) for name in group) >= LEAST
        and not all(_declares(nodes[name]) for name in group)
    ]


def late_constants(text: str) -> list[str]:
    """Names of constants below the first function or class."""
    seen = False
    above = set[str]()  # constants, and what is not of this module
    late = list[str]()
    nodes = _bound(parsed(text))
    for name, node in nodes.items():
        if isinstance(node, Definition):
            seen = True
        elif not _named(node) & nodes.keys() - above - {name}:
            above.add(name)
            late += [name] if seen else []
    return late


def _bound(tree: ast.Module) -> dict[str, ast.stmt]:
    return {name: node for node in tree.body for name in names_of(node)}


def names_of(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a module binds."""
    if isinstance(node, Definition):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (
            one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)
        )


def _named(node: ast.stmt) -> set[str]:
    """Every name in a statement: those in strings too, which annotations may be."""
    found = set[str]()
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            found.add(one.id)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found.add(one.value)
    return found


def size(node: ast.AST) -> int:
    """Statements in a node, docstrings not counted."""
    return sum(
        isinstance(one, ast.stmt)
        and not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        for one in ast.walk(node)
    )


def _declares(node: ast.stmt) -> bool:
    """Whether it is a constant, or a type most of whose statements declare."""
    if not isinstance(node, ast.ClassDef):
        return not isinstance(node, Definition)
    marks = {
        one.id if isinstance(one, ast.Name) else one.attr
        for mark in [*node.decorator_list, *node.bases]
        for one in ast.walk(mark)
        if isinstance(one, ast.Name | ast.Attribute)
    }
    does = sum(size(one) - 1 for one in node.body if isinstance(one, Definition))
    return any(mark in _TYPES or mark.endswith("Table") for mark in marks) and (
        2 * does <= size(node)
    )
