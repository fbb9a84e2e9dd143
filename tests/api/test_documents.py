"""Python in the documents runs as it stands, one page after another in one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import fedrec
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]


def python(page: str) -> str:
    text = (ROOT / page).read_text()
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def run(*words: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


@pytest.mark.slow
def test_the_python_of_the_tutorial_runs(tmp_path: Path) -> None:
    run("-c", python("docs/python.md"), folder=tmp_path)


@pytest.mark.slow
def test_the_readme_goes_from_a_table_to_a_private_list(tmp_path: Path) -> None:
    """Its Python, then its commands, as they stand but for the ports."""
    (made,) = re.findall(r"`python (docs/\S+)`", (ROOT / "README.md").read_text())
    run(str(ROOT / made), folder=tmp_path)
    shown = run("-c", python("README.md"), folder=tmp_path)
    assert shown.count("mystery-") == 10, "five books, each by its id and title"
    (commands,) = re.findall(
        r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    *before, serve, ask = [line.split()[1:] for line in commands.splitlines()]
    for line in before:
        run("-m", "fedrec.cli", *line, folder=tmp_path)
    (tmp_path / "read.txt").write_text("".join(f"mystery-{n}\n" for n in range(10, 20)))
    with subprocess.Popen(
        [sys.executable, "-m", "fedrec.cli", *serve, "--http=127.0.0.1:0", "--grpc=127.0.0.1:0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            address = next(line.split()[1] for line in server.stdout if line.startswith("http "))
            words = [address if word.startswith("http://") else word for word in ask]
            said = run("-m", "fedrec.cli", *words, folder=tmp_path)
        finally:
            server.terminate()
    assert "one fresh answer of epsilon 5 per click (replace)" in said


def test_the_readme_says_in_its_first_lines_what_the_field_calls_it() -> None:
    text = (ROOT / "README.md").read_text()
    first = text.partition("```")[0].lower()
    for word in (
        "federated",
        "recommender",
        "differential privacy",
        "matrix factorisation",
        "python",
        "clicks",
        "ratings",
        "news",
        "flower",
        "grpc",
    ):
        assert word in first
    assert "pip install fedrec" in text
    assert len(python("README.md").splitlines()) <= 12


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == fedrec.__version__ == project["version"]
    assert citation["authors"] == project["authors"] == [{"name": "the fedrec developers"}]


def test_the_site_has_every_page() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = {
        page
        for part in site["nav"]
        for pages in part.values()
        for page in ([pages] if isinstance(pages, str) else pages)
    }
    assert named == {path.name for path in (ROOT / "docs").glob("*.md")}
