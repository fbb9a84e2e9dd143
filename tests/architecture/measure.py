"""Figures of the tree's size and shape, from the syntax trees.

python -m tests.architecture.measure          # a line for each figure
python -m tests.architecture.measure --each   # with long functions, long and divided modules
python -m tests.architecture.measure --runs   # modules whose code runs in two common calls; with
                                              # --each by name
"""

from __future__ import annotations

import ast
import cProfile
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from types import CodeType

from tests.architecture import cohesion
from tests.architecture.choices import NAMES, choices
from tests.architecture.graph import BENCHMARKS, ROOT, Sources, circles, edges, read, sources

LONG_FUNCTION = 60
LONG_MODULE = 400
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
    yield from _cohesion(product, each)
    whole = sum(takes_scenario(text) for text in of.values())
    yield f"src: functions that are given a whole scenario {whole}"
    tuples = sum(map(assigns_tuples, of.values()))
    yield f"src: assignments of tuples to tuples {tuples}"
    known = {name.removesuffix(".__init__"): read(name, text) for name, text in of.items()}
    yield f"src: cycles of modules {len(circles(edges(known)))}"
    found = choices(of)
    for name in NAMES:
        by = Counter(one.meaning for one in found if one.name == name)
        told = ", ".join(f"{meaning} {count}" for meaning, count in sorted(by.items()))
        yield f"src: places that compare {name} by string {by.total()} ({told})"


def _cohesion(tree: Sources, each: bool) -> Iterator[str]:
    """Shares of modules that hold one idea, and whose constants stand above it."""
    divided = {name: found for name, text in tree.items() if len(found := cohesion.parts(text)) > 1}
    late = {name: found for name, text in tree.items() if (found := cohesion.late_constants(text))}
    yield f"src: modules of two or more parts {len(divided)} ({len(divided) / len(tree):.1%})"
    for name, groups in divided.items() if each else ():
        yield f"    {name}: {'; '.join(', '.join(group[:4]) for group in groups)}"
    yield f"src: modules with all constants above definitions {1 - len(late) / len(tree):.1%}"
    yield from (f"    {name}: {', '.join(names)}" for name, names in late.items() if each)


def takes_scenario(text: str) -> int:
    """Functions of a module that have a parameter of the type Scenario."""
    return sum(
        arg.annotation is not None and ast.unparse(arg.annotation) in ("Scenario", "'Scenario'")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, Function)
        for arg in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    )


def assigns_tuples(text: str) -> int:
    """Assignments of as many values, written out, to as many names: `a, b = b, a`."""
    return sum(
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        for node in ast.walk(ast.parse(text))
    )


def executed(call: Callable[[], object]) -> set[str]:
    """Modules of fedrec whose code runs in the second of two calls: by then all is imported."""
    call()
    profile = cProfile.Profile()
    profile.runcall(call)
    # what was evaluated from a string, such as the annotations of another verb, is of no file
    ran = {
        entry.code.co_filename for entry in profile.getstats() if isinstance(entry.code, CodeType)
    }
    return {
        name
        for name, module in sys.modules.items()
        if name.split(".")[0].startswith("fedrec") and getattr(module, "__file__", None) in ran
    }


def runs(each: bool) -> Iterator[str]:
    """A line for each of two common calls."""
    import fedrec
    from fedrec.cli.main import guarded

    train, _ = fedrec.Dataset.planted("small").split()
    verb = ["simulate", "planted", "--json", "--set", "privacy.noise=seeded"]
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for name, call in (
            ("MatrixFactorization.fit", lambda: fedrec.MatrixFactorization().fit(train)),
            ("fedrec simulate planted", lambda: _silent(lambda: guarded(verb))),
        ):
            found = executed(call)
            yield f"src: modules whose code runs in {name} {len(found)}"
            yield from (f"    {module}" for module in sorted(found) if each)


def _silent(call: Callable[[], object]) -> None:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        call()


if __name__ == "__main__":
    each = "--each" in sys.argv
    lines = runs(each) if "--runs" in sys.argv else figures(sources(), each)
    print("\n".join(lines))
