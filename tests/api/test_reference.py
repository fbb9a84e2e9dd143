"""docs/api.md lists what the reference page shows, and docstrings say arguments, results and errors
as griffe reads them, the tool that makes the page."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

import fedrec
from tests.api.test_surface import EXTENDING

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
SHOWN = re.findall(r"^::: ([\w.]+)$", PAGE.read_text(), re.MULTILINE)
WITHOUT_RESULT = {None, "None"}


@cache
def loader() -> griffe.GriffeLoader:
    """The packages of the page, read and not imported; `fedrec/__init__.pyi` says where its names
    are."""
    packages = sorted({name.split(".")[0] for name in SHOWN})
    folders = [_folder_above(package) for package in packages]
    made = griffe.GriffeLoader(docstring_parser=griffe.Parser.google, search_paths=folders)
    for package in packages:
        made.load(package)
    made.resolve_aliases(implicit=False, external=False)
    return made


def _folder_above(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def found(name: str) -> griffe.Object:
    """What a name of the page stands for."""
    one = loader().modules_collection[name]
    return one.final_target if isinstance(one, griffe.Alias) else one


def unsaid(one: griffe.Object) -> Iterator[str]:
    """What a function, or a class with its public methods, leaves unsaid."""
    if isinstance(one, griffe.Function):
        yield from _unsaid_of_function(one)
    elif isinstance(one, griffe.Class):
        own = one.members.get("__init__")
        if isinstance(own, griffe.Function):
            told = _parts(one).get("parameters", []) or _parts(own).get("parameters", [])
            if told != _parameters(own):
                yield f"{one.path}: has {_parameters(own)}, says {told}"
        for name, member in one.members.items():
            if isinstance(member, griffe.Function) and not name.startswith("_"):
                yield from _unsaid_of_function(member)


def _unsaid_of_function(one: griffe.Function) -> Iterator[str]:
    parts = _parts(one)
    if parts.get("parameters", []) != _parameters(one):
        yield f"{one.path}: has {_parameters(one)}, says {parts.get('parameters', [])}"
    result = None if one.returns is None else str(one.returns)
    if result not in WITHOUT_RESULT and not parts.keys() & {"returns", "yields"}:
        yield f"{one.path}: does not say what it returns"
    text = one.docstring.value if one.docstring else ""
    if re.search(r"\bRaises? [A-Z`]", text):
        yield f"{one.path}: names errors in prose"
    if missing := _raised(one) - {*parts.get("raises", [])}:
        yield f"{one.path}: raises {sorted(missing)} and does not say when"


def _parameters(one: griffe.Function) -> list[str]:
    return [each.name.lstrip("*") for each in one.parameters if each.name not in {"self", "cls"}]


def _parts(one: griffe.Object) -> dict[str, list[str]]:
    """Names that each section of the docstring tells; of a result, its words."""
    told = dict[str, list[str]]()
    for section in one.docstring.parsed if one.docstring else ():
        kind = section.kind.value
        if kind == "parameters":
            told[kind] = [each.name.lstrip("*") for each in section.value if each.description]
        elif kind in {"raises", "returns", "yields"}:
            told[kind] = [str(each.annotation) for each in section.value if each.description]
    return told


def _raised(one: griffe.Function) -> set[str]:
    """Classes that the function's own statements raise; `refused(...)` makes a RefusedError."""
    source = Path(str(one.filepath)).read_text().splitlines()[one.lineno - 1 : one.endlineno]
    body = ast.parse("if True:\n" + "\n".join(f" {line}" for line in source))
    calls = (node.exc for node in ast.walk(body) if isinstance(node, ast.Raise))
    names = {ast.unparse(call.func) for call in calls if isinstance(call, ast.Call)}
    return {name for name in names if name.endswith("Error")}


def test_the_page_shows_every_public_name_and_what_extensions_use() -> None:
    assert len(SHOWN) == len({*SHOWN})
    public = {f"fedrec.{name}" for name in fedrec.__all__ if name != "__version__"}
    extending = {f"{one.__module__}.{one.__qualname__}" for one in EXTENDING}
    assert (public | extending) - {"fedrec.registry.recipe"} <= {*SHOWN}  # fedrec.recipe


def test_arguments_results_and_errors_are_said_as_tools_read_them() -> None:
    shown = [found(name) for name in SHOWN]
    assert all(one.docstring for one in shown)
    assert [line for one in shown for line in unsaid(one)] == []


def test_what_is_left_unsaid_is_found() -> None:
    text = '''
def f(a: int, b: int = 1) -> int:
    """Do. Raises DataError.

    Args:
        a: One.
    """
    raise ValueError(a)
'''
    with griffe.temporary_visited_module(text, docstring_parser=griffe.Parser.google) as module:
        path = module.filepath
        Path(str(path)).write_text(text)
        said = [*unsaid(module["f"])]
    assert [line.partition(": ")[2][:20] for line in said] == [
        "has ['a', 'b'], says",
        "does not say what it",
        "names errors in pros",
        "raises ['ValueError'",
    ]
