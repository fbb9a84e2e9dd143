"""research/docs/figures.md is what the kept results of `fedrec research figures` say, and of full runs alone."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fedrec.errors import RunError
from fedrec_research.papers import figures, privaterec
from fedrec_research.papers import page as figures_page
from fedrec_research.papers.starts import Start
from fedrec_research.study import inventory

DOCS = Path(__file__).parents[1] / "docs"
FILES = sorted((DOCS.parent / "results" / figures_page.FOLDER).glob("*.json"))


def content(path: Path) -> tuple[str, dict[str, Any]]:
    """Name, as "ada-dpals/figure1", and result of the one figure of a kept file."""
    result = json.loads(path.read_text())
    ((figure, found),) = result["figures"].items()
    return f"{result['paper']}/{figure}", found


def section(path: Path) -> str:
    """What the page says of a kept file."""
    page = (DOCS / figures_page.PAGE).read_text()
    start = page.index(f"research/results/{figures_page.FOLDER}/{path.name}")
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
def test_a_kept_figure_has_all_seeds_of_its_scenario_and_every_value_on_the_page(
    path: Path,
) -> None:
    name, found = content(path)
    paper, figure = name.split("/")
    which = figures.paper(paper)
    seeds = Start(f"{which.prefix}_{figure}").figure.seeds
    assert max(len(row["seeds"]) for row in found["rows"]) == len(seeds) >= 3
    said = section(path)
    for row in found["rows"]:
        if isinstance(row["value"], float) and abs(row["value"]) < 100:
            assert f"{row['value']:.4f}" in said
    assert f"Code with digest {found['code']}." in said


def test_the_study_links_every_kept_figure_and_no_other() -> None:
    study = (DOCS / "study.md").read_text()
    headings = {
        "#" + "-".join(line[3:].lower().replace(",", "").split())
        for line in (DOCS / figures_page.PAGE).read_text().splitlines()
        if line.startswith("## ")
    }
    news = {f"privaterec/{figure}" for figure in privaterec.POINTS}
    names = news | {content(path)[0] for path in FILES}
    assert figures_page.figures(DOCS.parent / "results").keys() == names
    made = {
        f"{paper}/{figure}"
        for paper, shown in inventory.PAPERS.items()
        for one in shown
        for figure in one.made
    }
    assert names <= made
    for name in made:
        assert (f"[`{name}`]({figures_page.anchor(name)})" in study) == (name in names)
    assert {figures_page.anchor(name).removeprefix(figures_page.PAGE) for name in names} == headings


def test_privaterecs_figures_are_the_rows_of_news_paper() -> None:
    """By the runs' own names: one bare AUC of Table 1, one served of Figures 4 and 5, and one of
    Figures 6 and 7 each."""
    runs = json.loads((DOCS.parent / "results" / "news-paper-ml1m.json").read_text())["methods"]
    page = (DOCS / figures_page.PAGE).read_text()
    wanted = {
        "Table 1": ("local, plm-nr, epsilon 10", "inf", "plm-nr, local"),
        "Table 2": ("printed, epsilon 10", "10.0", "nrms, printed"),
        "Figure 4": ("local, epsilon 20", "0.1", "local, epsilon 20"),
        "Figure 5": (
            "local, basis 3, padding 0.3, epsilon 10",
            "5.0",
            "B = 3, served at epsilon 5",
        ),
        "Figure 6": ("dp-fedrec, epsilon 20", "inf", "dp-fedrec"),
        "Figure 7": ("printed, basis 32, epsilon 10", "inf", "printed"),
    }
    for title, (run, served, series) in wanted.items():
        shown = page.split(f"## PrivateRec, {title}\n")[1].split("\n## ")[0]
        (line,) = [x for x in shown.splitlines() if x.startswith(f"| {series} |")][:1]
        assert f" {runs[run]['served'][served]['auc']:.4f} ± " in line
        assert "per click (replace)" in shown
        assert "Seeds 1, 2, 3; each draws the noise and initial values" in shown
        told = shown.partition("do not change the AUC of: ")[2].partition(". ε is")[0]
        for name in told.split("; ") if told else ():
            row = runs[name]
            assert abs(row["history_swap_auc"] - row["served"]["inf"]["auc"]) <= row["auc_stderr"]
        assert ("printed, naml, epsilon 10" in told) == title.startswith("Table")
        assert "local, naml" not in told


@pytest.mark.parametrize("change", [{"quick": True}, {"overrides": ["figure.seeds=[1]"]}])
def test_a_quick_or_changed_run_is_no_result(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / figures_page.FOLDER).mkdir()
    result = json.loads(FILES[0].read_text()) | change
    (tmp_path / figures_page.FOLDER / "one.json").write_text(json.dumps(result))
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
