"""All pages in a second browser engine, Firefox's: they fit the screen, text has contrast, the
keyboard reaches what they offer.

The page of `fedrec serve` asks a real server here too: its mechanism runs in another engine's
JavaScript.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="the pages are those of the tests in Chromium")
pytest.importorskip("websockets", reason="websockets carries WebDriver BiDi")
from tests.page.firefox import FIREFOX, Tab, firefox
from tests.page.test_in_chromium import CONTRASTS
from tests.page.test_reports_in_chromium import PAGES
from tests.waiting import until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        FIREFOX is None, reason="Firefox is not installed: apt-get install firefox-esr"
    ),
]
ORDER = "[...document.querySelectorAll('*')].indexOf(document.activeElement)"
OUTLINED = (
    "(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== "
    "'none' && parseFloat(s.outlineWidth) >= 1; })()"
)


@pytest.fixture(scope="module", params=["light", "dark"])
def tab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    folder = tmp_path_factory.mktemp("firefox")
    for name, made in PAGES.items():
        (folder / f"{name}.html").write_text(made(), encoding="utf-8")
    with firefox(folder / "profile", dark=request.param == "dark") as opened:
        opened.folder = folder
        opened.scheme = request.param  # type: ignore[attr-defined]
        yield opened


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_screen_and_every_text_has_contrast(
    name: str, width: int, tab: Tab
) -> None:
    folder: Path = tab.folder  # type: ignore[attr-defined]
    tab.open((folder / f"{name}.html").as_uri(), width=width)
    assert tab.evaluate("innerWidth") == width
    assert tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (
        tab.scheme == "dark"
    )  # type: ignore[attr-defined]
    tab.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; }) ?? true")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    contrasts = tab.evaluate(f"({CONTRASTS})()")
    assert len(contrasts) > 15
    assert [(round(ratio, 2), what) for ratio, what in contrasts if ratio < 4.5] == []


@pytest.mark.parametrize("name", PAGES)
def test_links_and_summaries_are_reached_by_keyboard_and_the_focus_is_seen(
    name: str, tab: Tab
) -> None:
    folder: Path = tab.folder  # type: ignore[attr-defined]
    tab.open((folder / f"{name}.html").as_uri(), width=400)
    wanted = tab.evaluate("document.querySelectorAll('a, summary').length")
    reached = set[int]()
    for _ in range(wanted + 30):
        tab.press("\ue004")  # Tab
        link, outlined, place = tab.evaluate(
            f"[document.activeElement.matches('a, summary'), {OUTLINED}, {ORDER}]"
        )
        if link:
            assert outlined
            reached.add(place)
        if len(reached) == wanted:
            break
    assert len(reached) == wanted


def test_a_private_list_is_asked_for_by_keyboard_alone(tab: Tab, site: str) -> None:
    tab.open(site, width=400)
    until(
        lambda: tab.evaluate("document.querySelector('main:not([hidden])') !== null"),
        "the page shows itself",
    )
    _tab_to(tab, "search")
    for word in ("space", "violin"):
        for key in (*word, "\ue007"):  # Enter
            tab.press(key)
    _tab_to(tab, "asking summary")  # a small model is ranked in the browser: asking is opened
    tab.press("\ue007")
    _tab_to(tab, "ask")
    tab.press("\ue007")
    until(
        lambda: tab.evaluate("document.querySelectorAll('#private li:not(.empty)').length") == 10,
        "an answer comes",
    )
    assert "ε\u00a0=\u00a05" in tab.evaluate("document.getElementById('said').textContent")
    assert tab.evaluate("document.querySelectorAll('#exact li:not(.empty)').length") == 10
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert [
        (round(ratio, 2), what) for ratio, what in tab.evaluate(f"({CONTRASTS})()") if ratio < 4.5
    ] == []


def _tab_to(tab: Tab, wanted: str) -> None:
    """Press Tab until the focus is on what the selector `#wanted` names."""
    for _ in range(60):
        if tab.evaluate(f"document.activeElement.matches('#{wanted}')"):
            return
        tab.press("\ue004")
    raise AssertionError(f"Tab does not reach {wanted}")
