"""The command that checks the built site finds a dead link, and a link to a heading that is not
there."""

from __future__ import annotations

from pathlib import Path

from tests.release.site import dead_links, on_page_markdown


def test_dead_links_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<h2 id="a">A</h2> <a href="#a">1</a> <a href=other/>2</a> <a href="gone/">3</a> <a '
        'href="https://x.org">4</a>'
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<a href="../#a">1</a> <a href="../#b">2</a>')
    assert sorted(dead_links(tmp_path)) == ["index.html: gone/", "other/index.html: ../#b"]


def test_a_link_to_a_file_of_the_repository_leads_to_its_copy() -> None:
    assert (
        on_page_markdown("[a](../Dockerfile) [b](news.md)")
        == "[a](../files/Dockerfile) [b](news.md)"
    )
