"""Figures of the tree's size and shape, from the syntax trees.

python -m tests.architecture.measure          # a line for each figure
python -m tests.architecture.measure --each   # with the long functions and modules
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator

from tests.architecture.choices import NAMES, choices
from tests.architecture.graph import BENCHMARKS, ROOT, Sources, circles, edges, read, sources

LONG_FUNCTION, LONG_MODULE = 60, 400
Function = ast.FunctionDef | ast.AsyncFunctionDef


def tests() -> dict[str, str]:
    """All modules of the tests."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }


def statements(text: str) -> int:
    """Statements of a module, docstrings not counted."""
    return sum(
        isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(ast.parse(text))
    )


def functions(tree: Sources) -> Iterator[tuple[int, str]]:
    """Lines of each function's body without its docstring, and its name."""
    for module, text in tree.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function):
                body = node.body[ast.get_docstring(node) is not None :]
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                yield lines, f"{module}.{node.name}"


def modules(tree: Sources) -> Iterator[tuple[int, str]]:
    """Lines of each module, and its name."""
    yield from ((text.count("\n"), module) for module, text in tree.items())


def figures(of: Sources, each: bool) -> Iterator[str]:
    """The table, a line for each figure."""
    research = {name: text for name, text in of.items() if name.startswith("fedrec_research.")}
    product = {name: text for name, text in of.items() if name not in research}
    for where, tree in (
        ("src", product),
        ("research", research),
        ("benchmarks", sources(BENCHMARKS)),
        ("tests", tests()),
    ):
        lines = sum(count for count, _ in modules(tree))
        stated = sum(statements(text) for text in tree.values())
        yield f"{where}: files {len(tree)}, lines {lines}, statements {stated}"
        for what, counted, most in (
            ("functions", [*functions(tree)], LONG_FUNCTION),
            ("modules", [*modules(tree)], LONG_MODULE),
        ):
            long = sorted((one for one in counted if one[0] > most), reverse=True)
            longest = max(counted)[0]
            yield f"{where}: {what} {len(counted)}, over {most} lines {len(long)}, max {longest}"
            yield from (f"    {count} {name}" for count, name in long if each and where == "src")
    known = {name.removesuffix(".__init__"): read(name, text) for name, text in of.items()}
    yield f"src: cycles of modules {len(circles(edges(known)))}"
    found = choices(of)
    for name in NAMES:
        by = Counter(one.meaning for one in found if one.name == name)
        told = ", ".join(f"{meaning} {count}" for meaning, count in sorted(by.items()))
        yield f"src: places that compare {name} by string {by.total()} ({told})"


if __name__ == "__main__":
    print("\n".join(figures(sources(), "--each" in sys.argv)))
