"""Patterns of Python's syntax tree: a fragment of code is found in a function and replaced there.

A fragment is an expression or one or more statements; line breaks, brackets and comments do not
count. A body that is `...` stands for whatever is there, and the bodies of the replacement that are
`...` are those in the same order, as in `with lock: ...` that becomes `...`.
"""

import ast
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BODIES = ("body", "orelse", "finalbody")
Statements = list[ast.stmt]


@dataclass(frozen=True)
class _Place:
    """A slice of the list `holder`, or the field `where` of the node `holder`."""

    holder: Any
    where: slice | str
    around: tuple[ast.stmt, ...]  # statements that hold the place, the innermost first

    def nodes(self) -> list[Any]:
        """What stands there."""
        if isinstance(self.where, str):
            return [getattr(self.holder, self.where)]
        return list(self.holder[self.where])

    def put(self, nodes: list[Any]) -> None:
        """Replaces what stands there."""
        if isinstance(self.where, str):
            setattr(self.holder, self.where, nodes[0])
        else:
            self.holder[self.where] = nodes


def applied(source: str, function: str, find: str, replace: str, nth: int = 0) -> str:
    """The source with `find`, once in `function` or its `nth` occurrence there, made `replace`.

    `function` is a qualified name in the module; "" is the whole module. Raises ValueError where
    the place is missing or ambiguous, and SyntaxError on a fragment that is no Python.
    """
    tree = ast.parse(source)
    wanted, given = _fragments(find, replace)
    if not wanted:
        raise ValueError("nothing to find")
    found = list(_found(tree, function, wanted))
    if not (1 <= nth <= len(found) if nth else len(found) == 1):
        wish = f"occurrence {nth} is asked for" if nth else "it must be one"
        raise ValueError(
            f"{find!r} occurs {len(found)} times in {function or 'the module'}: {wish}"
        )
    place, bodies = found[max(nth, 1) - 1]
    given = _filled(given, iter(bodies))
    old = place.nodes()
    body = isinstance(place.where, slice) and isinstance(old[0], ast.stmt)
    if body and not given and len(place.holder) == len(old):
        given = [ast.Pass()]
    place.put(given)
    return _written(source, tree, [(old, given), *(([one], [one]) for one in place.around)])


def _fragments(find: str, replace: str) -> tuple[list[Any], list[Any]]:
    """Both as expressions where both are one, otherwise as statements."""
    wanted = _parsed(find)
    given = _parsed(replace)
    if all(len(body) == 1 and isinstance(body[0], ast.Expr) for body in (wanted, given)):
        return [wanted[0].value], [given[0].value]
    return wanted, given


def _parsed(text: str) -> list[Any]:
    try:
        return ast.parse(text).body
    except SyntaxError:  # it may be an expression over several lines
        return ast.parse(f"({text}\n)").body


def _found(
    tree: ast.Module, function: str, wanted: list[Any]
) -> Iterator[tuple[_Place, list[Statements]]]:
    """Places that match, in the order of the source, each with the bodies behind `...`."""
    for place in _places(tree, (), function.split(".") if function else [], len(wanted)):
        bodies = list[Statements]()
        if _same(wanted, place.nodes(), bodies):
            yield place, bodies


def _places(
    node: ast.AST, around: tuple[ast.stmt, ...], names: list[str], size: int
) -> Iterator[_Place]:
    """Places of `size` nodes in the definition of these names, or in all of `node`."""
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            if not names and size == 1:
                yield _Place(node, field, around)
            yield from _places(value, around, names, size)
        elif isinstance(value, list):
            for number, child in enumerate(value):
                if not isinstance(child, ast.AST):
                    continue
                within = (child, *around) if isinstance(child, ast.stmt) else around
                left = names
                if names and isinstance(child, DEFINITIONS):
                    if child.name != names[0]:
                        continue
                    left = names[1:]
                window = slice(number, number + (1 if names else size))
                if not left and window.stop <= len(value):
                    yield _Place(value, window, around)
                yield from _places(child, within, left, size)


def _same(wanted: Any, node: Any, bodies: list[Statements]) -> bool:
    """Whether the trees are equal but for positions; `bodies` gains what `...` stands for."""
    if isinstance(wanted, list):
        return len(wanted) == len(node) and all(
            _same(*pair, bodies) for pair in zip(wanted, node, strict=True)
        )
    if not isinstance(wanted, ast.AST):
        return type(wanted) is type(node) and wanted == node
    if type(wanted) is not type(node):
        return False
    for field in wanted._fields:
        part = getattr(wanted, field, None)
        there = getattr(node, field, None)
        if field in BODIES and _any_body(part) and there:
            bodies.append(there)
        elif not _same(part, there, bodies):
            return False
    return True


def _any_body(part: Any) -> bool:
    return isinstance(part, list) and len(part) == 1 and _is_dots(part[0])


def _is_dots(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and node.value.value is ...
    )


def _filled(nodes: list[Any], bodies: Iterator[Statements]) -> list[Any]:
    """The nodes with the bodies in place of `...`, as long as there are some."""
    filled = list[Any]()
    for node in nodes:
        if _is_dots(node):
            filled += next(bodies, [node])
            continue
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and field in (*BODIES, "handlers", "cases"):
                setattr(node, field, _filled(value, bodies))
        filled.append(node)
    return filled


def _written(source: str, tree: ast.Module, changes: list[tuple[list[Any], list[Any]]]) -> str:
    """The text of the changed tree: the least of these changes that gives it, or all anew.

    Positions of nodes in a string with placeholders are wrong before Python 3.12, for instance.
    """
    data = source.encode()
    lines = [0, *(match.end() for match in re.finditer(b"\n", data))]
    expected = ast.dump(tree)
    for old, new in changes:
        above = [old[0], *getattr(old[0], "decorator_list", ())]
        start = lines[min(node.lineno for node in above) - 1] + old[0].col_offset
        end = lines[old[-1].end_lineno - 1] + old[-1].end_col_offset
        for text in _texts(new, old[0].col_offset // 4):
            written = data[:start] + text.encode() + data[end:]
            with contextlib.suppress(SyntaxError):
                if ast.dump(ast.parse(written)) == expected:
                    return written.decode()
    return ast.unparse(tree)


def _texts(nodes: list[Any], depth: int) -> list[str]:
    """The text of statements at this depth without the first indentation, or of an expression."""
    if nodes and isinstance(nodes[0], ast.expr):
        text = ast.unparse(nodes[0])
        return [text, f"({text})"]
    if not nodes:
        return [""]
    for _ in range(depth):  # a docstring in them keeps its lines, which an indentation changes
        nodes = [ast.If(test=ast.Constant(value=True), body=nodes, orelse=[])]
    text = ast.unparse(ast.Module(body=nodes, type_ignores=[]))
    return [text.split("\n", depth)[-1].lstrip()]
