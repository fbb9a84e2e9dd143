"""The documentation site: a hook of mkdocs.yml copies the files of the repository that pages link
to, and a command finds dead links.

python tests/release/site.py site      exits with 1 and the dead links, if there are any
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
_FILES = re.compile(r"\]\((\.\./[\w./-]+|examples/[\w./-]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to files that are no pages lead to copies below `files/`. mkdocs calls this for every
    page."""
    return _FILES.sub(lambda match: f"]({_copied(match[1])})", markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Copy these files. mkdocs calls this at the end."""
    for page in (ROOT / "docs").glob("*.md"):
        for link in _FILES.findall(page.read_text(encoding="utf-8")):
            source = (ROOT / "docs" / link).resolve()
            target = Path(config["site_dir"]) / "files" / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def _copied(link: str) -> str:
    """From a page's own folder, one below the site's root."""
    return "../files/" + (ROOT / "docs" / link).resolve().relative_to(ROOT).as_posix()


def dead_links(site: Path) -> list[str]:
    """Page and address of each link within the site whose file or heading is not there."""
    pages = {
        page.resolve(): page.read_text(encoding="utf-8")
        for page in site.rglob("*.html")
        if page.name != "404.html"
    }
    dead = []
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
                dead.append(f"{page.relative_to(site.resolve())}: {address}")
    return dead


if __name__ == "__main__":
    found = dead_links(Path(sys.argv[1]))
    print("\n".join(found) or "all links of the site lead somewhere")
    sys.exit(bool(found))
