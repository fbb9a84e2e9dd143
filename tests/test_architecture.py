"""Rules of the layout that no single module can check of itself."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = sorted((ROOT / "fedrec").rglob("*.py"))
PACKAGES = [
    ROOT / "fedrec",
    *(ROOT / role / f"fedrec_{role}" for role in ("server", "client", "aggregator", "transport", "cli", "simulations")),
]
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))


def imported(path: Path) -> set[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", LIBRARY, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_library_knows_no_process(path: Path) -> None:
    tops = {name.split(".")[0] for name in imported(path)}
    processes = {
        "flwr",
        "grpc",
        "ray",
        "typer",
        "rich",
        "fedrec_server",
        "fedrec_client",
        "fedrec_aggregator",
        "fedrec_transport",
        "fedrec_simulations",
    }
    assert not tops & processes


@pytest.mark.parametrize("path", sorted((ROOT / "fedrec/privacy").glob("*.py")), ids=lambda p: p.name)
def test_the_privacy_room_knows_nobody(path: Path) -> None:
    ours = {name for name in imported(path) if name.startswith("fedrec")}
    assert all(name.startswith(("fedrec.privacy", "fedrec.errors", "fedrec.randomness", "fedrec.numerics.threads")) for name in ours), ours


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_command_line_prints(path: Path) -> None:
    calls = [n.func.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    assert "print" not in calls


def test_only_the_gaussian_mechanism_and_benchmarks_draw_noise() -> None:
    drawers = {path.relative_to(ROOT).as_posix() for path in MODULES if "discrete_gaussian.sample" in path.read_text()}
    assert "fedrec/privacy/gaussian.py" in drawers
    assert all("/bench/" in path for path in drawers - {"fedrec/privacy/gaussian.py"}), drawers


def test_no_test_decides_by_a_clock_of_its_own() -> None:
    """Waiting is `tests/waiting.py`'s; a timeout below a minute would end a test on a busy machine."""
    short = re.compile(r"time\.monotonic\(|\b(timeout=|\.(wait|join|result|exception)\()([1-9]|[1-5]\d)(\.\d+)?[,)]")
    paths = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != "waiting.py" and path.parent.name != "mutants"]
    found = [f"{path.relative_to(ROOT)}: {hit.group()}" for path in paths for hit in short.finditer(path.read_text())]
    assert not found
