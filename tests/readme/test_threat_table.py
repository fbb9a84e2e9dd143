"""The threat tables of docs/privacy.md: every party and behaviour is there, and every sentence,
proof and test they name exists."""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from fedrec.privacy.guarantee import Guarantee

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "privacy.md"
ACTIVITIES = ("Training on ratings or clicks", "Training on news", "Serving")
PARTIES = (
    "clients",
    "aggregator",
    "server",
    "server and aggregator",
    "server and clients",
    "serving",
    "server and serving",
    "network observer",
    "site",
    "recipient of the model",
)
NOTHING_REACHES_IT = ("takes no part", "nothing of the person's questions reaches them")
SENTENCES = {"U": Guarantee(5.0, 1e-5), "C": Guarantee(5.0, 1e-5, "click", "replace")}
"""As they are printed; A is printed as C is."""


@dataclass(frozen=True)
class Threat:
    """One row of a table."""

    activity: str
    who: str
    behaves: str
    learns: str
    covered: str
    proofs: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def sentences(self) -> set[str]:
        """Letters of the guarantees that cover it."""
        return set(re.findall(r"\b([UCA])\b", self.covered.partition("not covered")[0]))


def threats(text: str) -> list[Threat]:
    """Rows of the three tables; fails where a table or a cell is missing."""
    found = []
    for activity in ACTIVITIES:
        section = text.split(f"### {activity}\n", 1)[1].split("\n#", 1)[0]
        lines = [line for line in section.splitlines() if line.startswith("|")]
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" |")] for line in lines)
        assert [cell.strip() for cell in head] == [
            "who",
            "behaves",
            "can learn about a person",
            "covered by",
            "proof",
            "tests",
        ]
        for cells in rows:
            assert len(cells) == 6, cells
            who, behaves, learns, covered, proof, tests = cells
            found.append(
                Threat(activity, who, behaves, learns, covered, _named(proof), _named(tests))
            )
    return found


def _named(cell: str) -> tuple[str, ...]:
    names = tuple(re.findall(r"`([^`]+)`", cell))
    assert ", ".join(f"`{name}`" for name in names) == cell, cell
    return names


ROWS = threats(PAGE.read_text())
IDS = [f"{row.activity}: {row.who}, {row.behaves}" for row in ROWS]


@cache
def functions(path: Path) -> frozenset[str]:
    """Tests that a file defines, those of its classes too."""
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_party_honest_and_lying_has_one_row_in_every_table() -> None:
    wanted = sorted(itertools.product(ACTIVITIES, PARTIES, ("honest", "lying")))
    both = {"either": ("honest", "lying")}
    assert (
        sorted(
            (row.activity, row.who, how)
            for row in ROWS
            for how in both.get(row.behaves, (row.behaves,))
        )
        == wanted
    )


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_every_test_that_a_row_names_exists(row: Threat) -> None:
    for node in row.tests:
        file, _, name = node.partition("::")
        assert name.startswith("test_"), node
        assert (ROOT / file).is_file(), node
        assert name in functions(ROOT / file), node


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_a_row_that_a_sentence_covers_names_a_proof_and_a_test_and_any_other_says_what_is_not_covered(
    row: Threat,
) -> None:
    assert row.learns
    if row.sentences:
        assert row.proofs
        assert row.tests
    else:
        assert not row.proofs
        assert row.covered in NOTHING_REACHES_IT or re.match(r"not covered: \w", row.covered), (
            row.covered
        )


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_every_proof_is_a_module_that_says_why(row: Threat) -> None:
    for name in row.proofs:
        said = ast.get_docstring(ast.parse((ROOT / name).read_text())) or ""
        assert len(said) > 200, name


def test_a_sentence_is_of_the_tables_activity() -> None:
    allowed = dict(zip(ACTIVITIES, ({"U"}, {"U", "C", "A"}, {"U", "C", "A"}), strict=True))
    assert all(row.sentences <= allowed[row.activity] for row in ROWS)


def test_the_sentences_are_printed_as_the_page_says() -> None:
    text = PAGE.read_text()
    for letter, guarantee in SENTENCES.items():
        assert f"- **{letter}**, printed as `{guarantee}`" in text


def test_the_trusted_aggregator_is_never_said_to_be_covered() -> None:
    """Alone and with the server it reads reports: whoever mends that changes this test with the
    table."""
    for row in ROWS:
        if "aggregator" in row.who and row.activity == "Training on ratings or clicks":
            assert not row.sentences
            assert row.covered.startswith("not covered")


def test_a_missing_row_a_dead_test_and_an_unproved_row_are_seen() -> None:
    """The checks above, on a page with one thing wrong each."""
    text = PAGE.read_text()
    without = "\n".join(
        line for line in text.splitlines() if not line.startswith("| server | lying")
    )
    assert len(threats(without)) == len(ROWS) - 2
    line = next(line for line in text.splitlines() if line.startswith("| serving | lying"))
    dead = threats(text.replace(line, line.replace("::test_", "::test_no_longer_there_", 1)))
    assert any(
        node.partition("::")[2] not in functions(ROOT / node.partition("::")[0])
        for row in dead
        for node in row.tests
    )
    with pytest.raises(AssertionError):
        threats(text.replace(line, line.rsplit("|", 2)[0] + "| some words |"))
