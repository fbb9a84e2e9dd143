"""Python in the documents runs as it stands, one page after another in one process."""

from __future__ import annotations

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


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    code = "\n".join(
        re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    )
    assert "import fedrec" in code
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr[-3_000:]


def test_the_readme_says_in_its_first_lines_what_the_field_calls_it() -> None:
    first = " ".join((ROOT / "README.md").read_text().split()[:120]).lower()
    for word in ("federated", "recommender", "differential privacy", "python", "clicks", "ratings"):
        assert word in first
    text = (ROOT / "README.md").read_text()
    assert "pip install fedrec" in text
    assert text.count("```python") == 1
    assert (
        len(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0].splitlines())
        <= 12
    )


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
