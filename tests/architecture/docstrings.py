"""Docstrings that leave their subject to the reader: modules' that ask, and any in mid-sentence."""

import ast
import re
from collections.abc import Iterator, Mapping

from tests.architecture.graph import parsed

ASKS = re.compile(r"(What|Whatever|How|Where|Who|Whose|Which|When|From|Whether|Why|Does|Is)\b")
MID_SENTENCE = re.compile(r"(Of|As|For)\b|The same\b")
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def unfinished(tree: Mapping[str, str]) -> list[str]:
    """Names of modules, classes and functions with such a docstring, each with how it begins.

    "Whether ..." is how a function that returns a bool is described, so it counts for modules alone.
    """
    return [
        f"{name}: {text[:40]!r}"
        for module, source in tree.items()
        for name, node in _documented(module, parsed(source))
        if (text := ast.get_docstring(node))
        and (MID_SENTENCE.match(text) or (isinstance(node, ast.Module) and ASKS.match(text)))
    ]


def _documented(name: str, node: ast.AST) -> Iterator[tuple[str, ast.Module | Definition]]:
    if isinstance(node, ast.Module | Definition):
        yield name, node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            continue  # no definition stands in an expression
        within = f"{name}.{child.name}" if isinstance(child, Definition) else name
        yield from _documented(within, child)
