"""The list of claims: each has a verdict, a reason, and rows or a proof that test it, and stands on
the pages that are drawn from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedrec_research.claims import listed
from fedrec_research.claims.claim import Evidence
from fedrec_research.command import MEASUREMENTS
from fedrec_research.papers.figures import paper
from fedrec_research.papers.kept import figures
from fedrec_research.study.judging import OUTCOMES

HOME = Path(__file__).parents[1]
FOUND = listed.evidence(HOME / "results")
JUDGED = listed.verdicts(FOUND)
WORDS = {
    "figures.md and study.md": (("figures.md", "study.md"), 12_000),
    "quality.md": (("quality.md",), 3_000),
    "papers.md": (("papers.md",), 3_000),
}


def test_no_claim_is_without_a_verdict_and_a_reason() -> None:
    assert (
        len({(claim.paper, claim.words, claim.figure) for claim, _ in JUDGED}) == len(JUDGED) > 100
    )
    for claim, verdict in JUDGED:
        assert verdict.outcome in OUTCOMES
        assert len(verdict.found.split()) > 1, claim.words
        assert claim.where
        assert claim.words.endswith(".")


def test_every_claim_names_rows_that_are_kept_or_a_proof_or_has_no_verdict() -> None:
    kept = figures(HOME / "results")
    for claim, verdict in JUDGED:
        for command in claim.test.commands:
            *words, last = command.split()
            match words:
                case ["fedrec", "research", "figures"]:
                    assert last in kept
                case ["fedrec", "research", "measure"]:
                    assert last in MEASUREMENTS
                case ["pytest"]:
                    assert (HOME.parent / last).exists()
                case _:
                    assert command == "fedrec research study"
        assert claim.test.commands or verdict.outcome == "not tested"


def test_every_figure_that_is_made_has_a_claim_of_its_paper() -> None:
    names = {f"{claim.paper}/{claim.figure}" for claim in listed.CLAIMS if claim.figure}
    made = figures(HOME / "results").keys()
    # App. D of AM-SSP leaves its Algorithm 7 as future work
    assert {name for name in made if not name.startswith("convex-ssp")} == names
    for claim in listed.CLAIMS:
        assert not claim.figure or claim.figure in paper(claim.paper).figures


def test_every_claim_stands_on_a_page_with_its_verdict() -> None:
    pages = "".join((HOME / "docs" / name).read_text() for name in ("figures.md", "study.md"))
    for claim, verdict in JUDGED:
        row = rf"\| {re.escape(claim.words)}.* \| \*\*{verdict.outcome}\*\* \|\n"
        assert re.search(row, pages), claim.words


def test_verdicts_turn_where_rows_turn() -> None:
    """With every value's sign changed, what was ahead is behind: no claim on a difference that held
    holds still, and no number is written down."""
    turned = Evidence(
        (),
        {
            name: [{**row, "each": [-value for value in row["each"]]} for row in rows]
            for name, rows in FOUND.figures.items()
        },
    )
    for claim, verdict in JUDGED:
        if verdict.outcome == "held" and "ahead" in verdict.found and not claim.test.by_study:
            assert claim.test.judge(turned).outcome != "held", claim.words


def test_without_rows_nothing_is_judged_but_by_proof() -> None:
    for claim, verdict in listed.verdicts(Evidence((), {})):
        proof = claim.test.rows == "a proof"
        assert (verdict.outcome == "not tested") != proof, claim.words


@pytest.mark.parametrize("name", WORDS)
def test_pages_are_short_enough_to_be_read(name: str) -> None:
    files, most = WORDS[name]
    assert sum(len((HOME / "docs" / file).read_text().split()) for file in files) <= most
