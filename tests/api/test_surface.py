"""The names of `import fedrec`: a kept list, the same for Python and for type checkers, loaded when
they are used."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedrec
from fedrec_simulations import api
from fedrec_simulations.commands import api_reference

HERE = Path(__file__).parent
KEPT = HERE / "surface.txt"
MODULES = sorted(
    module.name for module in pkgutil.iter_modules(api.__path__, "fedrec_simulations.api.")
)


def surface() -> str:
    """A line for each public name: a function or class with its parameters, then the class's public
    methods and properties."""
    lines = list[str]()
    for name in sorted(set(fedrec.__all__) - {"__version__"}):
        value = getattr(fedrec, name)
        if not inspect.isclass(value):
            lines.append(f"{name}({', '.join(inspect.signature(value).parameters)})")
        elif not value.__module__.startswith("fedrec_simulations.api"):
            lines.append(name)
        else:
            lines.append(f"{name}({', '.join(inspect.signature(value).parameters)})")
            for member, what in sorted(inspect.getmembers_static(value)):
                if member.startswith("_"):
                    continue
                called = what.__func__ if isinstance(what, staticmethod) else what
                words = (
                    ", ".join(p for p in inspect.signature(called).parameters if p != "self")
                    if callable(called)
                    else None
                )
                lines.append(f"    {member}" + ("" if words is None else f"({words})"))
    return "\n".join(lines) + "\n"


def test_the_surface_is_the_kept_one() -> None:
    """A change here is a change for everybody who uses fedrec: keep old names, or say in the
    changelog that they went."""
    assert surface() == KEPT.read_text()


def test_type_checkers_see_the_same_names() -> None:
    stub = ast.parse(Path(fedrec.__file__).with_suffix(".pyi").read_text())
    found = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert found == fedrec._PLACES


def test_importing_fedrec_is_cheap() -> None:
    words = (
        "import sys, fedrec; print(*(m for m in ('numpy', 'torch', 'flwr', 'grpc', 'polars', "
        "'pydantic') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_training_and_evaluating_need_neither_torch_nor_flower() -> None:
    used = "import sys, fedrec; [getattr(fedrec, n) for n in fedrec.__all__]"
    words = f"{used}; print(*(m for m in ('torch', 'flwr', 'grpc') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Datasets'"):
        _ = fedrec.Datasets  # type: ignore[attr-defined]
    assert set(fedrec.__all__) <= set(dir(fedrec))


@pytest.mark.parametrize("name", ["fedrec", *MODULES])
def test_every_example_runs(name: str) -> None:
    found = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert found.failed == 0


def test_every_public_thing_is_documented() -> None:
    for name in set(fedrec.__all__) - {"__version__"}:
        value = getattr(fedrec, name)
        assert inspect.getdoc(value), name
        if inspect.isclass(value) and value.__module__.startswith("fedrec_simulations.api"):
            for member, what in inspect.getmembers_static(value):
                assert (
                    member.startswith("_") or isinstance(what, (str, bool)) or inspect.getdoc(what)
                ), f"{name}.{member}"


def test_the_reference_page_is_made_of_the_docstrings() -> None:
    made = api_reference.page()
    assert (HERE.parents[1] / "docs" / "api.md").read_text() == made, "stale: run make docs"
    for name in set(fedrec.__all__) - {"__version__"}:
        assert f"### `{name}`\n" in made
    assert made.count("```") % 2 == 0
