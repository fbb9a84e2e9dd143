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
