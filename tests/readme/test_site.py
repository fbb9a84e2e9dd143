"""The command that checks the built site finds a dead link, and a link to a heading that is not
there."""

from __future__ import annotations

from pathlib import Path

from tests.release.site import copy_files, dead_links


def test_dead_links_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<h2 id="a">A</h2> <a href="#a">1</a> <a href=other/>2</a> <a href="gone/">3</a> <a '
        'href="https://x.org">4</a>'
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<a href="../#a">1</a> <a href="../#b">2</a>')
    assert sorted(dead_links(tmp_path)) == ["index.html: gone/", "other/index.html: ../#b"]


def test_every_file_that_a_page_links_to_is_copied_to_where_its_link_leads(tmp_path: Path) -> None:
    copy_files(tmp_path)
    copies = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert "files/Dockerfile" in copies
    assert not [name for name in copies if name.endswith(".md")]
