"""The glossary: in order, one line a term, in plain sentences, about words that the documentation
uses, and linked where readers start."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "glossary.md"
ROWS = re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[2:]
_LATIN = str.maketrans({"δ": "d", "ε": "e", "μ": "m"})
_ELSEWHERE = [ROOT / "README.md", *(path for path in (ROOT / "docs").glob("*.md") if path != PAGE)]


def test_terms_are_in_order_and_none_stands_twice() -> None:
    terms = [term.lower().translate(_LATIN) for term, _ in ROWS]
    assert len(terms) > 40
    assert terms == sorted(set(terms))


def test_every_term_is_used_in_the_documentation_and_explained_in_whole_sentences() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in _ELSEWHERE).lower()
    for term, meaning in ROWS:
        assert any(word.lower() in text for word in re.split(r" \(|\)|, ", term) if word), term
        assert meaning.endswith("."), term
        assert len(meaning.split()) <= 35, term


def test_pages_where_readers_start_link_to_it() -> None:
    for path in (
        ROOT / "README.md",
        *(
            ROOT / "docs" / f"{name}.md"
            for name in ("index", "python", "quickstart", "simulate", "privacy")
        ),
    ):
        assert "glossary.md" in path.read_text(encoding="utf-8"), path.name
