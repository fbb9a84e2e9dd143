"""Sentences of the documents are short enough to read once: at most 35 words, code and links
counted as one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONGEST = 35
# numbers and signs are no words: a list of figures is not read aloud
WORD = re.compile(r"[^\W\d_]{2,}[\w-]*|\b[aAI]\b")


def sentences(text: str) -> Iterator[str]:
    """Of the prose: without blocks of code, tables, headings and pictures.

    An item of a list is a paragraph."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(\|.*|#.*|<.*|!\[.*)$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", text))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|(?<=:)\n", text):
        yield from re.split(r"(?<=[.!?])\**\s+", " ".join(block.split()))


def test_a_long_sentence_is_found() -> None:
    long = "word " * 36
    assert [
        s
        for s in sentences(f"Short one. {long}.\n\n```sh\n{long}\n```\n| {long} |")
        if len(WORD.findall(s)) > LONGEST
    ] == [long.strip() + " ."]


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.name != "api.md"], ids=lambda path: path.name
)  # api.md names functions, whose docstrings the site fills in
def test_no_sentence_is_too_long_to_read_once(path: Path) -> None:
    assert [
        sentence
        for sentence in sentences(path.read_text())
        if len(WORD.findall(sentence)) > LONGEST
    ] == []
