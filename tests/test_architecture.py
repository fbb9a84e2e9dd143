"""The tree keeps `architecture/rules.toml`, and what breaks a rule is found: each planted violation
is one line in a copy of the graph."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture import choices, docstrings, graph, measure, reach

ROOT = Path(__file__).parents[1]
TREE = graph.sources((*graph.PACKAGES, *graph.BENCHMARKS))


@pytest.fixture(scope="module", autouse=True)
def _no_collection_of_garbage() -> Iterator[None]:
    """Syntax trees are a million objects and no garbage while they are shared."""
    gc.disable()
    yield
    graph.parsed.cache_clear()
    gc.enable()


def found(**added: str) -> list[str]:
    """What the rules say once these lines stand at the end of these modules; a name may be new.

    `__` is a dot."""
    plus = {name.replace("__", "."): text for name, text in added.items()}
    return graph.violations(
        {**TREE, **{name: f"{TREE.get(name, '')}\n{text}\n" for name, text in plus.items()}}
    )


def test_the_tree_keeps_the_rules() -> None:
    assert found() == []


@pytest.mark.slow
def test_every_definition_is_reached_by_more_than_tests_or_says_why_it_stays() -> None:
    assert reach.unreached(TREE, reach.pages()) == set(reach.allowed())


def test_what_only_an_import_or_an_unreached_definition_names_is_unreached() -> None:
    tree = {
        "fedrec.a": "def used(): ...\ndef lost(): return under()\ndef under(): ...\n",
        "fedrec.b": "from fedrec.a import lost, used\nused()\n",
    }
    assert reach.unreached(tree) == {"fedrec.a.lost", "fedrec.a.under"}


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        (
            "fedrec.data.read",
            (
                "from fedrec.privacy import gaussian as d\n\ndef jitter(k): return "
                "d.sample(3, std=1.0, key=k)"
            ),
            "without a price",
        ),
        (
            "fedrec.privacy.clipping",
            "from ..factorization import least_squares",
            "fedrec.factorization.least_squares, which fedrec.privacy may not",
        ),
        ("fedrec.privacy.clipping", "import uvicorn", "imports uvicorn"),
        ("fedrec.federation.wire", "def f():\n    import httpx", "imports httpx"),
        (
            "fedrec_client.participant",
            "import fedrec_server.main",
            "imports fedrec_server.main, which fedrec_client may not",
        ),
        (
            "fedrec_server.rounds",
            "from fedrec_aggregator import core",
            "which fedrec_server may not",
        ),
        (
            "fedrec.federation.messages",
            (
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fedrec.recipes "
                "import Prepared"
            ),
            "fedrec.recipes",
        ),
        (
            "fedrec.data.read",
            "def f():\n    from fedrec.evaluation.ranking import ranks",
            "which fedrec.data may not",
        ),
        (
            "fedrec.evaluation.ranking",
            "import importlib\nimportlib.import_module('fedrec.recipes')",
            "imports fedrec.recipes",
        ),
        (
            "fedrec.evaluation.ranking",
            "import importlib\nimportlib.import_module('fedrec.' + 'recipes')",
            "no constant",
        ),
        (
            "fedrec.storage",
            "__import__('fedrec.run.simulate')",
            "imports fedrec.run.simulate",
        ),
        (
            "fedrec.cli.parties",
            "from fedrec_simulations.demo.deployment import run",
            "which fedrec.cli may not",
        ),
        (
            "fedrec.privacy.guarantee",
            "from fedrec.privacy import calibration",
            "modules import each other",
        ),
        (
            "fedrec.factorization.am_ssp.recipe",
            "from pydantic import BaseModel",
            "imports pydantic",
        ),
        ("fedrec_server.main", "import typer", "imports typer"),
        ("fedrec.federation.protocol", "import grpc", "imports grpc"),
        (
            "fedrec_server.news",
            "from fedrec.privacy.gaussian import add_to_rows as plus\n\ndef f(x): return plus(x)",
            "fedrec_server.news.f: draws",
        ),
        (
            "fedrec_server.news",
            (
                "import fedrec.privacy.gaussian\n\ndef f(x): return "
                "fedrec.privacy.gaussian.row_noise(x)"
            ),
            "fedrec_server.news.f: draws",
        ),
        (
            "fedrec.news.topics",
            (
                "from fedrec.privacy import gaussian\n\ndef f(x): return getattr(gaussian, "
                "'add_to_rows')(x)"
            ),
            "fedrec.news.topics.f: draws",
        ),
        ("fedrec_client.answering", "def f(rng): return rng.laplace(0, 1)", "no discrete noise"),
        (
            "fedrec.run.simulate",
            "from fedrec_research.trials import rows_of",
            "imports fedrec_research.trials, which fedrec.run.simulate may not",
        ),
        (
            "fedrec.cli.main",
            "def f():\n    import fedrec_research.command",
            "which fedrec.cli may not",
        ),
        (
            "fedrec.factorization.facts",
            "from fedrec.run.outcomes import evaluate",
            "fedrec.run.outcomes, which fedrec.factorization may not",
        ),
        (
            "fedrec.run.job",
            "def f():\n    from fedrec_simulations.runtimes import processes",
            "which fedrec.run may not",
        ),
        ("fedrec.attic", "x = 1", "in no room"),
        (
            "fedrec.run.simulate",
            "from benchmarks import kernels",
            "imports benchmarks.kernels, which fedrec.run.simulate may not",
        ),
        (
            "fedrec.cli.main",
            "import importlib\nimportlib.import_module('benchmarks.kernels')",
            "imports benchmarks.kernels, which fedrec.cli may not",
        ),
    ],
)
def test_a_planted_violation_is_found(module: str, text: str, said: str) -> None:
    assert any(said in line for line in found(**{module.replace(".", "__"): text}))


def test_no_test_of_the_product_needs_research() -> None:
    """Their texts name it in planted violations alone."""
    needing = re.compile(r"^\s*(from|import) (fedrec_research|research)\b", re.MULTILINE)
    assert not [
        path.name for path in (ROOT / "tests").rglob("*.py") if needing.search(path.read_text())
    ]


def test_a_door_to_noise_that_no_longer_returns_its_price_is_found() -> None:
    text = TREE["fedrec.news.attention"].replace(
        "key: bytes) -> tuple[Float64s, Event]:", "key: bytes) -> Float64s:"
    )
    assert text != TREE["fedrec.news.attention"]
    assert any(
        "without the price Event" in line
        for line in graph.violations({**TREE, "fedrec.news.attention": text})
    )


def test_a_circle_that_was_cut_must_be_taken_off_the_list() -> None:
    declared = graph.rules()
    declared["cycles"]["modules"].append(["fedrec.data.read", "fedrec.storage"])
    assert graph.violations(TREE, declared) == [
        "no circle any more, take it off the list: fedrec.data.read, fedrec.storage"
    ]


def test_rooms_that_may_import_each_other_are_found() -> None:
    declared = graph.rules()
    declared["rooms"]["fedrec.privacy"].append("fedrec.data")
    assert graph.violations(TREE, declared) == [
        "rooms may import each other: fedrec.data, fedrec.privacy"
    ]


@pytest.mark.slow
def test_hardly_a_place_chooses_by_a_string() -> None:
    """At the edge alone, where a file or a message says it; elsewhere an object is asked."""
    found = Counter(one.name for one in choices.choices(TREE))
    allowed = graph.rules()["choices"]
    assert {name: found[name] for name in choices.NAMES if found[name] > allowed[name]} == {}


@pytest.mark.parametrize(
    ("text", "meanings"),
    [
        ("x = data.kind == 'clicks'", ["of data"]),
        ("x = kind in {'given', 'temporal'} or 'clicks' != kind", ["of a split", "of data"]),
        ("match spec.kind:\n    case 'outer': pass", ["of a block"]),
        ("x = {'server': f, 'client': g}[party.kind]", ["of a party"]),
        ("x = array.dtype.kind == 'f' or kind == other or word == 'clicks'", []),
    ],
)
def test_a_choice_by_a_string_is_found(text: str, meanings: list[str]) -> None:
    assert [one.meaning for one in choices.choices({"fedrec.planted": text})] == meanings


def test_the_measure_of_the_tree_counts_bodies_without_docstrings() -> None:
    text = 'def f():\n    """Says."""\n    x = 1\n    return x\n'
    assert list(measure.functions({"fedrec.planted": text})) == [(2, "fedrec.planted.f")]
    assert measure.statements(text) == 3


def test_a_docstring_names_its_subject() -> None:
    assert docstrings.unfinished(TREE) == []


def test_a_docstring_that_asks_or_begins_in_mid_sentence_is_found() -> None:
    modules = {
        "fedrec.asks": '"""How noise is drawn."""',
        "fedrec.held": '"""Draws."""\nclass A:\n    def f(self):\n        """Of the class."""',
        "fedrec.fine": '"""Draws, as printed."""\ndef f():\n    """Whether it ends."""',
    }
    found = docstrings.unfinished(modules)
    assert found == ["fedrec.asks: 'How noise is drawn.'", "fedrec.held.A.f: 'Of the class.'"]


def test_only_the_command_line_prints() -> None:
    calls = {
        name: {called for called, _ in graph.read(name, text).calls} for name, text in TREE.items()
    }
    assert not [name for name, called in calls.items() if "print" in called]
    assert "print" in {called for called, _ in graph.read("planted", "print(1)").calls}


def test_no_test_decides_by_a_clock_of_its_own() -> None:
    """Waiting is `tests/waiting.py`'s; a timeout below a minute would end a test on a busy
    machine."""
    short = re.compile(
        r"time\.monotonic\(|\b(timeout=|\.(wait|join|result|exception)\()([1-9]|[1-5]\d)(\.\d+)?[,)]"
    )
    paths = [
        path
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name not in {"waiting.py", "kills.py"}  # random kills come by the clock
        and path.parent.name != "mutants"
    ]
    found = [
        f"{path.relative_to(ROOT)}: {hit.group()}"
        for path in paths
        for hit in short.finditer(path.read_text())
    ]
    assert not found
