"""Four people's ways from nothing to a result, as scripts and notebooks that run as they stand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.waiting import HANG_S

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
RUNS_IT = """
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
print(nbformat.writes(book))
"""


def run(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(DOCS / "examples" / script), str(folder)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_researcher_has_a_figure_and_its_numbers(tmp_path: Path) -> None:
    assert "PrivacyCurve of ItemItem" in run("researcher.py", tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".csv"}
    points = pl.read_csv(tmp_path / "points.csv")
    assert points.filter(pl.col("method") == "ItemItem").group_by("epsilon").len()[
        "len"
    ].to_list() == [3, 3, 3]
    means = dict(pl.read_csv(tmp_path / "summary.csv").select("epsilon", "mean").iter_rows())
    assert means[1.0] < means[20.0], "tastes are planted: less noise finds more of them"


def test_an_engineer_has_an_endpoint_that_python_and_curl_ask(tmp_path: Path) -> None:
    lines = dict(line.split(": ", 1) for line in run("engineer.py", tmp_path).splitlines())
    assert lines["training"].startswith("(5, 1e-05)-DP per user (add/remove")
    assert lines["device"].count(",") == 4
    assert len(json.loads(lines["curl"])["items"]) == 5


def test_a_privacy_person_attacks_a_mechanism_of_ones_own(tmp_path: Path) -> None:
    text = run("privacy_person.py", tmp_path)
    assert "(5, 1e-05)-DP per user (add/remove" in text
    assert text.count("holds") == 2


PROGRESS = """import fedrec
train, test = fedrec.Dataset.planted("small", kind="clicks").split()
model = fedrec.ItemItem(noise="seeded").fit(train, progress=True)
quiet = fedrec.ItemItem(noise="seeded").fit(train)"""


def test_progress_in_a_notebook_is_one_line_of_plain_text() -> None:
    book = new_notebook(cells=[new_code_cell(PROGRESS)])
    NotebookClient(book, kernel_name="python3", timeout=HANG_S).execute()
    (shown,) = [out for out in book.cells[0].outputs if out["output_type"] == "display_data"]
    assert len(book.cells[0].outputs) == 1
    line = shown["data"]["text/plain"]
    assert line.startswith("✓ epsilon 5 per user")
    assert "release 2/2" in line
    assert line.isprintable(), "no control codes, and no end of a line"


def test_every_notebook_has_its_number() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("1234567")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_as_it_stands(path: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-W", "ignore", "-c", RUNS_IT, str(path), str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr[-3_000:]
    cells = [cell for cell in json.loads(done.stdout)["cells"] if cell["cell_type"] == "code"]
    assert all(output["output_type"] != "error" for cell in cells for output in cell["outputs"])
    kept = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in kept), (
        "kept without outputs"
    )
