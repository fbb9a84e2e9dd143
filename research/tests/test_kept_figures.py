"""research/docs/figures.md is what the kept results of `fedrec research figures` say, and of full
runs alone."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fedrec.errors import RunError
from fedrec_research.papers import figures, kept, privaterec
from fedrec_research.papers import page as figures_page
from fedrec_research.papers.starts import Start

DOCS = Path(__file__).parents[1] / "docs"
FILES = sorted((DOCS.parent / "results" / kept.FOLDER).glob("*.json"))


def content(path: Path) -> tuple[str, dict[str, Any]]:
    """Name, as "ada-dpals/figure1", and result of the one figure of a kept file."""
    result = json.loads(path.read_text())
    ((figure, found),) = result["figures"].items()
    return f"{result['paper']}/{figure}", found


def section(path: Path) -> str:
    """What the page says of a kept file."""
    page = (DOCS / figures_page.PAGE).read_text()
    start = page.index(f"results/{kept.FOLDER}/{path.name}")
    return page[start : page.find("\n## ", start)]


@pytest.mark.parametrize(
    "path", sorted((DOCS / "img").glob("figure-*.svg")), ids=lambda path: path.stem
)
def test_labels_of_a_picture_are_within_it_and_each_names_one_line(path: Path) -> None:
    """A letter of a label is taken to be 7.8 pixels wide, as the bold ones of a browser are."""
    drawn = ElementTree.parse(path).getroot()
    width, height = (float(number) for number in drawn.attrib["viewBox"].split()[2:])
    for word in drawn.iter("{http://www.w3.org/2000/svg}text"):
        x = float(word.attrib["x"])
        y = float(word.attrib["y"])
        letters = len(word.text or "")
        assert 8 <= y <= height - 2
        kind = word.attrib.get("class", "")
        if kind.startswith("label"):
            assert x + 7.8 * letters <= width + 4, word.text
        if kind == "tick" and word.attrib["text-anchor"] == "end":
            assert x - 6.5 * letters >= 0, word.text
    said = drawn.findtext("{http://www.w3.org/2000/svg}desc") or ""
    names = re.findall(r"(?:^|\. )([^:]+): ", said)
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_kept_figure_has_all_seeds_of_its_scenario_and_a_section(path: Path) -> None:
    name, found = content(path)
    paper, figure = name.split("/")
    which = figures.paper(paper)
    seeds = Start(f"{which.prefix}_{figure}").figure.seeds
    assert max(len(row["seeds"]) for row in found["rows"]) == len(seeds) >= 3
    assert "| claim |" in section(path) or paper == "convex-ssp"


def test_the_page_has_a_section_for_every_figure_that_is_made() -> None:
    headings = {
        "#" + "-".join(line[3:].lower().replace(",", "").split())
        for line in (DOCS / figures_page.PAGE).read_text().splitlines()
        if line.startswith("## ")
    }
    names = {f"privaterec/{f}" for f in privaterec.POINTS} | {content(path)[0] for path in FILES}
    assert kept.figures(DOCS.parent / "results").keys() == names
    assert {figures_page.anchor(name).removeprefix(figures_page.PAGE) for name in names} == headings


def test_privaterecs_figures_are_the_rows_of_news_paper() -> None:
    """By the runs' own names: one bare AUC of Table 1, one served of Figures 4 and 5, and one of
    Figures 6 and 7 each."""
    runs = json.loads((DOCS.parent / "results" / "news-paper-ml1m.json").read_text())["methods"]
    rows = kept.figures(DOCS.parent / "results")
    wanted = {
        "table1": ("local, plm-nr, epsilon 10", "inf", "plm-nr, local"),
        "table2": ("printed, epsilon 10", "10.0", "nrms, printed"),
        "figure4": ("local, epsilon 20", "0.1", "local, epsilon 20"),
        "figure5": (
            "local, basis 3, padding 0.3, epsilon 10",
            "5.0",
            "B = 3, served at epsilon 5",
        ),
        "figure6": ("dp-fedrec, epsilon 20", "inf", "dp-fedrec"),
        "figure7": ("printed, basis 32, epsilon 10", "inf", "printed"),
    }
    for figure, (run, served, series) in wanted.items():
        value = runs[run]["served"][served]["auc"]
        found = [row for row in rows[f"privaterec/{figure}"] if row["metric"] == "auc"]
        assert any(
            row["series"] == series and row["value"] == pytest.approx(value) for row in found
        )
        assert all("per click (replace)" in row["guarantee"] for row in found if row["guarantee"])


@pytest.mark.parametrize("change", [{"quick": True}, {"overrides": ["figure.seeds=[1]"]}])
def test_a_quick_or_changed_run_is_no_result(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / kept.FOLDER).mkdir()
    result = json.loads(FILES[0].read_text()) | change
    (tmp_path / kept.FOLDER / "one.json").write_text(json.dumps(result))
    with pytest.raises(RunError, match="of a quick run, or of a scenario that was changed"):
        figures_page.write(tmp_path / figures_page.PAGE, tmp_path)
    assert not (tmp_path / figures_page.PAGE).exists()


def test_without_kept_results_there_is_no_page(tmp_path: Path) -> None:
    figures_page.write(tmp_path / figures_page.PAGE, tmp_path)
    assert not (tmp_path / figures_page.PAGE).exists()


def test_a_guarantee_that_is_not_proved_is_said() -> None:
    for path in FILES:
        _, found = content(path)
        unproved = [r for r in found["rows"] if "NOT ESTABLISHED" in r.get("guarantee", "")]
        assert ("**Not established**" in section(path)) == bool(unproved)
