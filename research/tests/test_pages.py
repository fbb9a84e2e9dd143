"""The pages and pictures of research are what the kept results make."""

from pathlib import Path

import pytest

from fedrec_research.command import pages

HOME = Path(__file__).parents[1]


def test_all_pages_and_pictures_are_what_the_kept_results_make(tmp_path: Path) -> None:
    pages(HOME / "results", tmp_path)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")}
    kept = HOME / "docs"
    found = {path.relative_to(kept): path.read_bytes() for path in kept.rglob("*.*")}
    assert made == found


def test_without_results_there_is_no_section(tmp_path: Path) -> None:
    from fedrec_research.quality import page

    page.write(tmp_path / "quality.md", tmp_path)
    assert "## " not in (tmp_path / "quality.md").read_text()


@pytest.mark.parametrize("path", sorted((HOME / "results").rglob("*.json")), ids=lambda p: p.stem)
def test_no_kept_result_names_a_place_of_the_machine_that_made_it(path: Path) -> None:
    assert '": "/' not in path.read_text()
