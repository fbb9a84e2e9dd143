"""The names of `import fedrec`: a kept list, the same for Python and for type checkers, loaded when
they are used."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedrec
from fedrec import preparing, registry, testing
from fedrec.data import read
from fedrec.federation import block_kinds
from fedrec.news import variant
from tests.cases import slow_but

HERE = Path(__file__).parent
KEPT = HERE / "surface.txt"
PACKAGES = (
    *("fedrec", "fedrec_simulations", "fedrec.cli", "fedrec_client", "fedrec_server"),
    *("fedrec_aggregator", "fedrec.transport", "fedrec_client.device"),
)


def _modules(package: str) -> Iterator[tuple[str, str]]:
    """Names and texts of a package's modules as it is installed: in the checkout or from a wheel."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    for file in folder.rglob("*.py"):
        name = ".".join((package, *file.relative_to(folder).with_suffix("").parts))
        yield name.removesuffix(".__init__"), file.read_text(encoding="utf-8")


EXAMPLES = sorted(
    name for package in PACKAGES for name, text in _modules(package) if ">>> " in text
)
"""Modules whose docstrings hold examples."""
EXTENDING = (
    *(registry.RecipeSpec, registry.recipe, registry.find, registry.require),
    *(
        registry.outside,
        registry.fitting,
        registry.reading,
        registry.model_kinds,
        registry.model_class,
        registry.kind_of,
    ),
    *(block_kinds.BlockKind, block_kinds.register, block_kinds.kind_named),
    *(variant.NewsVariant, variant.register, variant.find, variant.require, variant.names),
    *(read.Reader, read.formats, read.read, read.detect),
    *(testing.RecipeContract, preparing.prepare),
)
"""What a recipe, a variant, a format or a block kind of somebody else's package uses."""
TRAININGS = ("api.news", "api.running", "api.recommender", "api.estimators")
"""Of these, those that train for seconds."""


def surface() -> str:
    """A line for each public name: a function or class with its parameters, then the class's public
    methods and properties."""
    lines = list[str]()
    for name in sorted(set(fedrec.__all__) - {"__version__"}):
        value = getattr(fedrec, name)
        if not inspect.isclass(value):
            lines.append(f"{name}({', '.join(inspect.signature(value).parameters)})")
        elif not value.__module__.startswith("fedrec.api"):
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


@pytest.mark.slow
def test_a_first_fit_loads_no_second_opinion_and_nothing_of_reports_news_or_serving() -> None:
    """Importing them took longer than such a training. `guarantee` asks the second accountants."""
    words = (
        "import sys, fedrec; data = fedrec.Dataset.planted('small', kind='clicks'); "
        "model = fedrec.ItemItem(noise='seeded').fit(data.split()[0]); "
        "print(*(m for m in ('scipy.stats', 'scipy.signal', 'dp_accounting', 'pandas', 'jinja2', "
        "'prometheus_client', 'fedrec.serving', 'fedrec.news.variant', 'fedrec.run.ratings') "
        "if m in sys.modules)); model.guarantee.as_dict(); print('dp_accounting' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "True"]


@pytest.mark.slow
def test_training_and_evaluating_need_neither_torch_nor_flower() -> None:
    used = "import sys, fedrec; [getattr(fedrec, n) for n in fedrec.__all__]"
    words = f"{used}; print(*(m for m in ('torch', 'flwr', 'grpc') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Datasets'"):
        _ = fedrec.Datasets  # type: ignore[attr-defined]
    assert set(fedrec.__all__) <= set(dir(fedrec))


@pytest.mark.parametrize(
    "name",
    slow_but([name for name in EXAMPLES if not name.endswith(TRAININGS)], EXAMPLES),
)
def test_every_example_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.endswith("api.news"):
        pytest.importorskip("torch")  # of the extra news
    monkeypatch.setattr(registry, "_REGISTERED", {})  # what an example registers goes again
    monkeypatch.setattr(variant, "_REGISTERED", {})
    monkeypatch.setattr(block_kinds, "_KNOWN", dict(block_kinds._KNOWN))
    found = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert found.attempted > 0
    assert found.failed == 0


def _has_example(value: object) -> bool:
    return ">>> " in (inspect.getdoc(value) or "")


def test_every_public_name_and_method_has_an_example_that_runs() -> None:
    """A method without arguments may be shown in its class's example; a property always is."""
    for name in set(fedrec.__all__) - {"__version__"}:
        value = getattr(fedrec, name)
        assert _has_example(value), name
        assert value.__module__ in EXAMPLES, f"{name}: no test runs its example"
        if inspect.isclass(value) and value.__module__.startswith("fedrec.api"):
            for member, what in vars(value).items():
                called = what.__func__ if isinstance(what, staticmethod) else what
                if not member.startswith("_") and inspect.isfunction(called):
                    shown = f".{member}(" in (inspect.getdoc(value) or "")
                    assert shown or _has_example(called), f"{name}.{member}"


@pytest.mark.parametrize(
    "public", EXTENDING, ids=lambda public: f"{public.__module__}.{public.__qualname__}"
)
def test_what_an_extension_uses_has_an_example_that_runs(public: Any) -> None:
    assert _has_example(public)
    assert public.__module__ in EXAMPLES


def test_every_public_thing_is_documented() -> None:
    for name in set(fedrec.__all__) - {"__version__"}:
        value = getattr(fedrec, name)
        assert inspect.getdoc(value), name
        if inspect.isclass(value) and value.__module__.startswith("fedrec.api"):
            for member, what in inspect.getmembers_static(value):
                assert (
                    member.startswith("_") or isinstance(what, (str, bool)) or inspect.getdoc(what)
                ), f"{name}.{member}"
