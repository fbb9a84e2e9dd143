"""Checks of a release in clean virtual environments, from its wheel and source archive: `make
ways`, `make release`.

    python tests/release/clean.py ways [--output FILE]                the four people's ways, timed
    python tests/release/clean.py tests [--python python3.12 ...]     tests of the library against
        the installed wheel
    python tests/release/clean.py sizes [--extras serve ...]          packages and MB of each extra

Every command builds the archives first, in a temporary folder, and never imports fedrec from this
checkout: tests and examples are those that the source archive holds. `--unpinned` takes the newest
versions that the metadata allow instead of constraints.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from venv import create

ROOT = Path(__file__).parents[2]
TESTED = [
    f"tests/{name}"
    for name in ("api", "cli", "privacy", "data", "federation", "factorization", "evaluation")
]
TESTED += [
    "tests/serving/test_factorization_bundles.py",
    "tests/serving_server/test_serving_answers.py",
    "tests/simulations/test_own_parts.py",
    "tests/test_errors.py",
    "tests/test_randomness.py",
]
TEST_PACKAGES = (
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "mpmath",
    "pandas",
    "pyyaml",
    "nbclient",
    "ipykernel",
)
NOTEBOOK = (
    "import json, sys\n"
    "cells = json.load(open(sys.argv[1]))['cells']\n"
    "exec('\\n'.join(''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code'), "
    "{'__name__': '__main__'})\n"
)


@dataclass(frozen=True)
class Way:
    """One person's script, and the extras that it needs."""

    person: str
    extras: str
    words: tuple[str, ...]


WAYS = (
    Way(
        "researcher: frame, curve with three seeds, PDF and CSV",
        "",
        ("docs/examples/researcher.py", "out"),
    ),
    Way(
        "engineer: Parquet clicks, endpoint, asked from Python and curl",
        "serve",
        ("docs/examples/engineer.py", "out"),
    ),
    Way(
        "privacy person: own mechanism, simulation, audit",
        "",
        ("docs/examples/privacy_person.py", "out"),
    ),
    Way("student: notebook one", "", ("-c", NOTEBOOK, "docs/notebooks/1-ten-lines.ipynb")),
)


@dataclass(frozen=True)
class Timed:
    """A way in a clean environment.

    Seconds of installing (from the registry or pip's cache) and of the script; what was installed.
    """

    person: str
    python: str
    install_s: float
    run_s: float
    packages: int
    megabytes: int


def run(words: Sequence[str | Path], *, cwd: Path) -> str:
    """Its output.

    Exits with what it said where it fails: nothing of this checkout is on its path."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "FEDREC", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(str(word) for word in words)[:300]}\nended with "
            f"{done.returncode}\n{(done.stdout + done.stderr)[-5_000:]}"
        )
    return done.stdout


@dataclass(frozen=True)
class Archives:
    """What would be released. source: the source archive, unpacked."""

    wheel: Path
    source: Path
    folder: Path


@contextmanager
def built() -> Iterator[Archives]:
    """Wheel and source archive in a temporary folder; the wheel is built from the unpacked source
    archive, as an installer does it."""
    with tempfile.TemporaryDirectory(prefix="fedrec-release-") as name:
        folder = Path(name)
        create(folder / "build", with_pip=True)
        python = folder / "build" / "bin" / "python"
        run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "hatchling"],
            cwd=folder,
        )
        run([python, "-m", "hatchling", "build", "-t", "sdist", "-d", folder / "dist"], cwd=ROOT)
        with tarfile.open(next((folder / "dist").glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        source = next(folder.glob("fedrec-*"))
        run([python, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"], cwd=source)
        yield Archives(next((folder / "dist").glob("*.whl")), source, folder)


def installed(
    archives: Archives,
    where: Path,
    *,
    extras: str,
    python: str,
    pinned: bool,
    more: Sequence[str] = (),
) -> tuple[Path, float]:
    """A new environment's interpreter, and the seconds that installing took."""
    run([python, "-m", "venv", where], cwd=archives.folder)
    started = time.perf_counter()
    pins = ["--constraint", archives.source / "constraints.txt"] if pinned else []
    wheel = f"{archives.wheel}[{extras}]" if extras else str(archives.wheel)
    quiet = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    run(
        [where / "bin" / "python", "-m", "pip", "install", *quiet, *pins, wheel, *more],
        cwd=archives.folder,
    )
    return where / "bin" / "python", time.perf_counter() - started


def size(python: Path) -> tuple[int, int]:
    """Installed packages, fedrec among them, and their MB; neither counts pip and setuptools, which
    every environment has."""
    code = (
        "import importlib.metadata as m; from pathlib import Path\n"
        "left = [d for d in m.distributions() if d.name not in ('pip', 'setuptools')]\n"
        "files = {p for d in left for f in d.files or () if not f.name.endswith('.pyc') and (p "
        ":= Path(d.locate_file(f))).is_file()}\n"
        "print(len(left), round(sum(p.stat().st_size for p in files) / 1e6))"
    )
    packages, megabytes = run([python, "-c", code], cwd=python.parent).split()
    return int(packages), int(megabytes)


def extras_of(source: Path) -> tuple[str, ...]:
    """Nothing ("") and every extra that a user installs, from the archive's pyproject.toml."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    return ("", *project["optional-dependencies"])


def ways(archives: Archives, python: str, *, pinned: bool) -> Iterator[Timed]:
    """Each person's way in an environment of its own."""
    for number, way in enumerate(WAYS):
        where = archives.folder / f"way-{number}"
        interpreter, install_s = installed(
            archives, where, extras=way.extras, python=python, pinned=pinned
        )
        started = time.perf_counter()
        run([interpreter, "-W", "ignore", *way.words], cwd=archives.source)
        run_s = time.perf_counter() - started
        version = run(
            [interpreter, "-c", "import platform; print(platform.python_version())"], cwd=where
        ).strip()
        yield Timed(way.person, version, round(install_s, 1), round(run_s, 1), *size(interpreter))
        shutil.rmtree(where)


def tests(archives: Archives, python: str, *, pinned: bool) -> str:
    """The last line of pytest on the installed wheel: the archive's tests, in a folder without its
    packages."""
    where = archives.folder / f"tests-{Path(python).name}"
    interpreter, _ = installed(
        archives, where, extras="flower", python=python, pinned=pinned, more=TEST_PACKAGES
    )
    beside = where / "beside"
    for name in (
        "tests",
        "docs",
        "simulations",
        "README.md",
        "CITATION.cff",
        "mkdocs.yml",
        "pyproject.toml",
    ):
        source = archives.source / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, _made(beside) / name)
    for package in ("fedrec_app", "fedrec_simulations"):
        shutil.rmtree(beside / "simulations" / package)
    line = [
        interpreter,
        "-c",
        "import sys, pytest; sys.path.insert(0, '.'); sys.exit(pytest.main(sys.argv[1:]))",
        "-n",
        "2",
        *TESTED,
    ]
    last = run([*line, "-m", "not (processes or browser)"], cwd=beside).strip().splitlines()[-1]
    shutil.rmtree(where)
    return last


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    """One command line, see the module."""
    parser = argparse.ArgumentParser(
        description="Checks of a release in clean virtual environments."
    )
    parser.add_argument("what", choices=("ways", "tests", "sizes"))
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--extras", nargs="+", help="for sizes: these alone ('' for none)")
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "--unpinned",
        action="store_true",
        help="the newest versions that the metadata allow, not constraints.txt",
    )
    asked = parser.parse_args()
    figures = list[dict[str, object]]()
    with built() as archives:
        print(
            (
                f"{archives.wheel.name}: {archives.wheel.stat().st_size / 1e6:.1f} MB, built "
                "from the unpacked source archive"
            ),
            flush=True,
        )
        for python in asked.python:
            if asked.what == "tests":
                figures.append(
                    {"python": python, "pytest": tests(archives, python, pinned=not asked.unpinned)}
                )
                print(figures[-1], flush=True)
            elif asked.what == "ways":
                for timed in ways(archives, python, pinned=not asked.unpinned):
                    figures.append(asdict(timed))
                    print(figures[-1], flush=True)
            else:
                for extras in asked.extras or extras_of(archives.source):
                    where = archives.folder / "sizes"
                    interpreter, seconds = installed(
                        archives, where, extras=extras, python=python, pinned=not asked.unpinned
                    )
                    packages, megabytes = size(interpreter)
                    figures.append(
                        {
                            "extras": extras,
                            "packages": packages,
                            "megabytes": megabytes,
                            "install_s": round(seconds, 1),
                        }
                    )
                    print(figures[-1], flush=True)
                    shutil.rmtree(where)
    if asked.output:
        asked.output.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
