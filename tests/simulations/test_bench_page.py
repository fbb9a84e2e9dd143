"""The benchmark page is made of the kept results, and of nothing else."""

from pathlib import Path

from fedrec_simulations.bench import page

ROOT = Path(__file__).parents[2]


def test_the_page_in_the_project_is_what_its_results_make(tmp_path: Path) -> None:
    page.write(tmp_path / "benchmarks.md", ROOT / "docs" / "results")
    made = (
        (tmp_path / "benchmarks.md")
        .read_text()
        .replace((ROOT / "docs" / "results").as_posix(), "docs/results")
    )
    assert made == (ROOT / "docs" / "benchmarks.md").read_text()


def test_a_section_without_its_result_is_left_out(tmp_path: Path) -> None:
    page.write(tmp_path / "benchmarks.md", tmp_path)
    assert "## " not in (tmp_path / "benchmarks.md").read_text()


def test_no_kept_result_names_a_place_of_the_machine_that_made_it() -> None:
    kept = sorted((ROOT / "docs" / "results").rglob("*.json"))
    assert kept
    assert not [path.name for path in kept if '": "/' in path.read_text()]
