"""The tree keeps `architecture/rules.toml`, and what breaks a rule is found: each planted violation
is one line in a copy of the graph."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import rooms
from tests.architecture import choices, cohesion, docstrings, graph, measure, reach, reasons

ROOT = Path(__file__).parents[1]
TREE = graph.sources((*graph.PACKAGES, *graph.BENCHMARKS))
MOST_DIVIDED = 0.075
MOST_LATE = 0.05
"""Shares of modules: one that reads better divided, or with a constant beside its use, may be."""


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


def test_a_process_loads_no_more_than_its_row_says() -> None:
    declared = dict(graph.rules()["processes"])
    weighed = declared.pop("weighed")
    for entry, allowed in declared.items():
        code = f"import sys, {entry}; print(*({set(weighed)!r} & set(sys.modules)))"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert sorted(told.stdout.split()) == allowed, (entry, told.stderr)


@pytest.mark.slow
def test_every_definition_is_reached_by_more_than_tests_or_says_why_it_stays() -> None:
    assert reach.unreached(TREE, reach.pages()) == set(reach.allowed())


def test_what_only_an_import_or_an_unreached_definition_names_is_unreached() -> None:
    tree = {
        "fedrec.a": "def used(): ...\ndef lost(): return under()\ndef under(): ...\n",
        "fedrec.b": "from fedrec.a import lost, used\nused()\n",
    }
    assert reach.unreached(tree) == {"fedrec.a.lost", "fedrec.a.under"}


PLANTED = [
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
    (
        "fedrec.data.read",
        "import polars as pl\n\ndef rows(path):\n    return pl.read_csv(path)",
        "opens a file by polars.read_csv",
    ),
    ("fedrec.federation.wire", "def f():\n    import httpx2", "imports httpx2"),
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
        ("import fedrec.privacy.gaussian\n\ndef f(x): return fedrec.privacy.gaussian.row_noise(x)"),
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
]
"""Module, lines that break a rule there, and what is said of them beside the module's name."""


def test_planted_violations_are_found() -> None:
    """One of each module at a time: the graph of all modules is made anew each time."""
    left = list(PLANTED)
    while left:
        at_once = {module: (text, said) for module, text, said in reversed(left)}
        lines = found(**{name.replace(".", "__"): text for name, (text, _) in at_once.items()})
        for module, (text, said) in at_once.items():
            assert any(module in line and said in line for line in lines), (module, text)
            left.remove((module, text, said))


def test_modules_that_import_each_other_are_found() -> None:
    lines = found(fedrec__privacy__guarantee="from fedrec.privacy import calibration")
    assert any("modules import each other" in line for line in lines)


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


_PART = "def {0}():\n" + "    {1}\n" * cohesion.LEAST


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (_PART.format("one", "pass") + _PART.format("two", "pass"), 2),
        (_PART.format("one", "pass") + _PART.format("two", "one()"), 1),
        ("K = 1\n" + _PART.format("one", "print(K)") + _PART.format("two", "print(K)"), 1),
        (_PART.format("one", "pass") + "def two(): pass\n", 1),
        (_PART.format("one", "x: 'two'") + _PART.format("two", "pass"), 1),
        (_PART.format("one", "pass") + "@dataclass\nclass Two:\n" + "    a: int\n" * 15, 1),
        (_PART.format("one", "pass") + "class Two:\n" + "    a: int\n" * 15, 2),
    ],
)
def test_parts_of_a_module_never_name_each_other(text: str, parts: int) -> None:
    assert len(cohesion.parts(text)) == parts


def test_a_constant_is_late_unless_it_needs_a_definition_of_its_module() -> None:
    text = "A = 1\ndef f(): ...\nB = A\nC = f\nD = [C]\nclass E: ...\nF: int = 2\n"
    assert cohesion.late_constants(text) == ["B", "F"]


def test_modules_hold_one_idea_and_their_constants_stand_first() -> None:
    product = {name: text for name, text in TREE.items() if name.startswith("fedrec")}
    divided = [name for name, text in product.items() if len(cohesion.parts(text)) > 1]
    late = [name for name, text in product.items() if cohesion.late_constants(text)]
    assert len(divided) <= MOST_DIVIDED * len(product), divided
    assert len(late) <= MOST_LATE * len(product), late


def test_reasons_stand_beside_locks_waits_tolerances_roundings_and_numbers() -> None:
    product = re.compile(r"fedrec(?!_research)")
    tree = {name: text for name, text in TREE.items() if product.match(name)}
    assert [*reasons.without_reason(tree)] == []


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("A = 7\nB = 8  # digits of a code\nC = 'x'\n", ["number"]),
        ('A = 7\nB = 2**3\n"""Sizes of both."""\n', []),
        ("# why\nA = 7\n\nB = (1, 2)\n", ["number"]),
        ("x = 1  # one\nlock = Lock()\n", ["lock"]),
        ("# two threads add\nlock = Lock()\n", []),
        ("def f():\n    for attempt in range(3):\n        sleep(1)\n", ["wait", "wait"]),
        ('def f():\n    """Tries again."""\n    sleep(1)\n', []),
        ("x = a > 1e-9 * b\ny = allclose(a, b)\n", ["tolerance", "tolerance"]),
        ("x = np.rint(a)\ny = round(b, 3)\nstate.round(4)\n", ["rounding"]),
        ("if round(x):\n    # of the branch\n    y = 1\n", ["rounding"]),
    ],
)
def test_a_line_without_a_reason_is_found(text: str, kinds: list[str]) -> None:
    found = reasons.without_reason({"planted": text})
    assert [line.split(": ")[1] for line in found] == kinds


def test_every_room_has_a_budget_and_all_of_them_fit_into_four_minutes() -> None:
    """Two cores do 480 seconds of work in four minutes. Budgets have about a fifth of slack, which
    is what imports and collecting take. Those of `make test-rest` are 1,200 seconds, ten minutes."""
    budgets = rooms.budgets("test")
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert {rooms.room_of(file) for file in files} == set(budgets)
    assert sum(budgets.values()) <= 480
    rest = rooms.budgets("rest")
    assert set(rest) <= set(budgets)
    assert sum(rest.values()) <= 1_200


_DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?`")
_FILES = re.compile(
    r"\.(py|pyi|toml|md|js|html|sqlite|proto|pem|key|gz|csv|tsv|txt|json|jsonl|npz|dat|item"
    r"|parquet|safetensors|vec|base|test)$"
)


def test_every_dotted_name_in_a_docstring_is_one_of_code() -> None:
    """`module.name` is defined or used in a module of that name; other names are of packages that
    are installed, or of files."""
    held = dict[str, set[str]]()
    for module, text in TREE.items():
        held[module] = {
            str(getattr(node, field))
            for node in ast.walk(graph.parsed(text))
            for field in ("name", "id", "attr", "arg")
            if hasattr(node, field)
        }
    every = set[str]().union(*held.values())
    unknown = []
    for module, text in TREE.items():
        for node in ast.walk(graph.parsed(text)):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            for name in _DOTTED.findall(node.value):
                first, *_, last = name.split(".")
                if _FILES.search(name) or (first in every and last in every):
                    continue
                if not (_is_ours(name, held) or (first != "fedrec" and find_spec(first))):
                    unknown.append(f"{module}: {name}")
    assert not unknown


def _is_ours(name: str, held: dict[str, set[str]]) -> bool:
    """Whether the name is a module, a package, or a name in a module, each perhaps without the
    packages that hold it."""
    steps = name.split(".")
    for cut in range(len(steps), 0, -1):
        head = ".".join(steps[:cut])
        modules = [one for one in held if f".{one}".endswith(f".{head}")]
        if any(cut == len(steps) or steps[cut] in held[one] for one in modules):
            return True
        if cut == len(steps) and any(f".{head}." in f".{one}" for one in held):
            return True
    return False
