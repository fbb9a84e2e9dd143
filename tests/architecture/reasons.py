"""Lines that need a reason beside them: locks, waits, tolerances, roundings and numbers.

python -m tests.architecture.reasons          # those without one

A reason is a comment in a statement or right above it, a string below a constant (or below a block
of numbers), or the docstring of the function around it if it speaks of the same thing. This finds
that words stand there; whether they are a reason is for readers.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Iterator

from tests.architecture.graph import Sources, parsed, sources

Function = ast.FunctionDef | ast.AsyncFunctionDef
SMALL = 1e-3
"""A float at most so large in a comparison is a tolerance."""
SHOWN = ("fedrec.report", "fedrec.cli")
"""Rooms that round what they show and nothing else."""
_LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
_LOCKS |= {"flock", "lockf", "FileLock"}
_TOLERANCES = {"isclose", "allclose", "assert_allclose"}
_TOLERANCE_KEYS = {"rtol", "atol", "tol", "rel_tol", "abs_tol", "xtol", "ftol", "gtol", "rcond"}
_ROUNDINGS = {"round", "rint", "floor", "ceil", "trunc", "around", "fix"}
_SPEAKS = {
    "lock": r"lock|at a time|thread|another process",
    "wait": r"retr|again|wait|until|between attempts",
    "tolerance": r"toleran|precis|converg|rounding|nearly|to 1e-",
    "rounding": r"round|grid|integer|whole|nearest|digits|upwards|downwards",
}


def without_reason(tree: Sources) -> Iterator[str]:
    """Module, line, kind and text of each statement without a reason beside it."""
    for name, text in tree.items():
        module = parsed(text)
        spots = [*_numbers(module), *_statements(module, None, name)]
        comments = _comments(text) if spots else set()
        strings = _described(module, comments)
        for node, kind, around in spots:
            words = (ast.get_docstring(around) if around is not None else None) or ""
            spoken = kind in _SPEAKS and re.search(_SPEAKS[kind], words, re.IGNORECASE)
            head = [one for one in _own(node) if one is not node or not hasattr(node, "body")]
            last = max([node.lineno, *(getattr(one, "end_lineno", 0) for one in head)])
            commented = comments & {
                *range(-last, 2 - node.lineno),
                *range(node.lineno, last + 1),
            }
            if not (spoken or commented or node in strings):
                line = text.splitlines()[node.lineno - 1].strip()
                yield f"{name}:{node.lineno}: {kind}: {line}"


Spot = tuple[ast.stmt, str, Function | None]


def _numbers(module: ast.Module) -> Iterator[Spot]:
    yield from ((node, "number", None) for node in module.body if _is_number(node))


def _statements(node: ast.AST, around: Function | None, module: str) -> Iterator[Spot]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            continue
        if isinstance(child, ast.stmt) and not isinstance(child, Function | ast.ClassDef):
            yield from ((child, kind, around) for kind in sorted({*_kinds(child, module)}))
        yield from _statements(child, child if isinstance(child, Function) else around, module)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, but for those of statements within it."""
    todo = list[ast.AST]([statement])
    while todo:
        node = todo.pop()
        yield node
        todo += [
            one
            for one in ast.iter_child_nodes(node)
            if not isinstance(one, ast.stmt | ast.excepthandler | ast.match_case)
        ]


def _kinds(statement: ast.stmt, module: str) -> Iterator[str]:
    for node in _own(statement):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in _LOCKS:
                yield "lock"
            if called == "sleep":
                yield "wait"
            if called in _TOLERANCES or {one.arg for one in node.keywords} & _TOLERANCE_KEYS:
                yield "tolerance"
            if called in _ROUNDINGS and not module.startswith(SHOWN) and not _shown(node):
                yield "rounding"
        elif isinstance(node, ast.Compare) and any(
            _small(one) for side in (node.left, *node.comparators) for one in ast.walk(side)
        ):
            yield "tolerance"
    if isinstance(statement, ast.For):
        head = f"{ast.unparse(statement.target)} {ast.unparse(statement.iter)}"
        if re.search(r"attempt|retr(y|ies)|_tries", head, re.IGNORECASE):
            yield "wait"


def _shown(call: ast.Call) -> bool:
    """Whether a call is `round(x, 3)`, for people, or a method of what is no array, such as
    `state.round(run)`."""
    digits = len(call.args) == 2 and isinstance(call.args[1], ast.Constant)
    method = isinstance(call.func, ast.Attribute) and call.func.attr == "round"
    array = method and ast.unparse(call.func) == "np.round"
    return digits or (method and not array)


def _small(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, float) and 0 < value <= SMALL


def _is_number(node: ast.stmt) -> bool:
    """Whether a statement binds a name to numbers alone."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    made = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Tuple, ast.expr_context)
    parts = [*ast.walk(node.value)]
    values = [one.value for one in parts if isinstance(one, ast.Constant)]
    return (
        bool(values)
        and all(type(value) in {int, float} for value in values)
        and all(isinstance(one, (ast.Constant, *made)) for one in parts)
    )


def _comments(text: str) -> set[int]:
    """Lines with a comment that is for readers, negative where nothing else stands there."""
    return {
        token.start[0] if token.line[: token.start[1]].strip() else -token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
        and not re.match(r"#\s*(type:|noqa|pragma|fmt:)", token.string)
    }


def _described(module: ast.Module, comments: set[int]) -> set[ast.stmt]:
    """Constants of a block of numbers, one a line, with a string below or a comment above it."""
    found = set[ast.stmt]()
    block = list[ast.stmt]()
    for node, after in itertools.zip_longest(module.body, module.body[1:]):
        if not _is_number(node):
            continue
        block.append(node)
        if after is None or after.lineno != (node.end_lineno or 0) + 1 or not _is_number(after):
            string = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            found |= {*block} if string or 1 - block[0].lineno in comments else set()
            block = []
    return found


if __name__ == "__main__":
    found = without_reason(sources())
    print("\n".join(line for line in found if not line.startswith("fedrec_research")))
