"""Pages that are made from the code, docs/reference.md and docs/habits.md: `make docs` writes them.

python -m tests.release.pages
"""

from __future__ import annotations

from pathlib import Path

from tests.release import habits_page, reference_page

DOCS = Path(__file__).parents[2] / "docs"

if __name__ == "__main__":
    (DOCS / "reference.md").write_text(reference_page.page())
    (DOCS / "habits.md").write_text(habits_page.page())
