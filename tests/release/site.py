"""The documentation site: a Markdown extension leads links to files of the repository to copies of
them, and a command makes these copies and finds dead links.

python tests/release/site.py site      exits with 1 and the dead links, if there are any
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
_FILE = re.compile(r"(\.\./[\w./-]+|examples/[\w./-]+)")
_LINK = re.compile(rf"\]\({_FILE.pattern}\)")


def makeExtension(**_: Any) -> Any:  # noqa: N802 - Markdown calls it by this name
    """Links to files that are no pages lead to copies below `files/`; see mkdocs.yml."""
    from markdown.extensions import Extension
    from markdown.treeprocessors import Treeprocessor

    class Links(Treeprocessor):
        def run(self, root: Any) -> None:
            for link in root.iter("a"):
                if _FILE.fullmatch(link.get("href", "")):
                    link.set("href", _copy_of(link.get("href")))

    class ToCopies(Extension):
        def extendMarkdown(self, md: Any) -> None:  # noqa: N802
            # as long as links are elements: Zensical leads them from docs/ to a page's own folder
            md.treeprocessors.register(Links(md), "fedrec-files", 15)

    return ToCopies()


def copy_files(site: Path) -> None:
    """Every file that a page links to, to where its link leads."""
    for page in (ROOT / "docs").glob("*.md"):
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            target = site / _copy_of(link)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / _within(link), target)


def _copy_of(link: str) -> str:
    """Below the site; Markdown as text, since Zensical takes `.md` for a page of its own."""
    return re.sub(r"\.md$", ".txt", f"files/{_within(link)}")


def _within(link: str) -> str:
    """The path in the repository of what a page of docs/ links to."""
    return (ROOT / "docs" / link).resolve().relative_to(ROOT).as_posix()


def dead_links(site: Path) -> Iterator[str]:
    """Page and address of each link within the site whose file or heading is not there."""
    pages = {
        page.resolve(): page.read_text(encoding="utf-8")
        for page in site.rglob("*.html")
        if page.name != "404.html"
    }
    for page, text in pages.items():
        for address in re.findall(r'<a [^>]*href="?([^"\s>]+)', text):
            parts = urlsplit(address.replace("&amp;", "&"))
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            heading = re.escape(unquote(parts.fragment))
            lost = (
                target in pages
                and heading
                and not re.search(rf'\bid="?{heading}["\s>]', pages[target])
            )
            if not parts.scheme and (not target.exists() or lost):
                yield f"{page.relative_to(site.resolve())}: {address}"


if __name__ == "__main__":
    built = Path(sys.argv[1])
    copy_files(built)
    dead = [*dead_links(built)]
    print("\n".join(dead) or "all links of the site lead somewhere")
    sys.exit(bool(dead))
