"""Report, comparison and audit in a real browser: they fit the screen, text has contrast, links and
tables are reached by keyboard."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("playwright", reason="playwright drives the browser")
from playwright.sync_api import Browser

from fedrec.auditing.command import Audit
from fedrec.auditing.finding import Finding, Recovery
from fedrec.privacy.guarantee import Guarantee
from fedrec.report import comparison, page
from tests.page.test_in_chromium import CONTRASTS, browser  # noqa: F401  the fixture
from tests.simulations.test_report import example

pytestmark = pytest.mark.browser

SCREENS = [(400, "light"), (400, "dark"), (1400, "light"), (1400, "dark")]
PROMISE = {
    "epsilon": 5.0,
    "delta": 1e-5,
    "unit": "user (add/remove, number of users public)",
    "noise": "seeded",
    "private": True,
}


def _comparison() -> str:
    none = {"epsilon": math.inf, "delta": None, "unit": None, "noise": None, "private": False}
    rows = [
        {
            "run": f"a-run-with-a-long-name-{n}",
            "data": "planted",
            "scenario": "planted",
            "method": method,
            **about,
            "rmse": 0.9 + n / 50,
            "mae": 0.7,
            "ndcg@10": 0.1,
            "ndcg@20": None,
        }
        for n, (method, about) in enumerate(
            [("default", PROMISE), ("dp-bias", PROMISE), ("non-private ALS", none)]
        )
    ]
    return comparison.page(
        comparison.over_runs(pl.DataFrame(rows * 2)),
        "rmse",
        notes=["A note."],
        runs=[Path("runs/a"), Path("runs/b")],
    )


def _audit() -> str:
    claim = Guarantee(5.0, 1e-5, "user", "add/remove")
    found = [
        Finding(
            "membership: ratio test",
            "default",
            claim,
            value,
            "gaussian",
            0.999,
            400,
            Recovery(0.2, 0.1),
        )
        for value in (3.8, 6.1)
    ]
    return Audit(tuple(found)).page("planted")


PAGES = {"report": lambda: page.render(example()), "comparison": _comparison, "audit": _audit}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {name: folder / f"{name}.html" for name in PAGES}
    for name, path in made.items():
        path.write_text(PAGES[name](), encoding="utf-8")
    return made


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_screen_and_every_text_has_contrast(
    name: str,
    width: int,
    scheme: str,
    files: dict[str, Path],
    browser: Browser,  # noqa: F811
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened = context.new_page()
    opened.goto(files[name].as_uri())
    opened.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    contrasts = opened.evaluate(CONTRASTS)
    assert len(contrasts) > 15
    assert [(round(ratio, 2), what) for ratio, what in contrasts if ratio < 4.5] == []
    context.close()


@pytest.mark.parametrize("name", ["report", "comparison"])
def test_a_phone_shows_the_first_chart_whole_on_its_first_screen(
    name: str,
    files: dict[str, Path],
    browser: Browser,  # noqa: F811
) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 900})
    opened = context.new_page()
    opened.goto(files[name].as_uri())
    ends = opened.evaluate(
        "[...document.querySelectorAll('svg')].map((e) => e.getBoundingClientRect())"
        ".filter((r) => r.height > 0).map((r) => r.bottom)[0]"
    )
    assert ends < 900
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_links_and_what_scrolls_are_reached_by_keyboard_and_the_focus_is_seen(
    name: str,
    files: dict[str, Path],
    browser: Browser,  # noqa: F811
) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 900})
    opened = context.new_page()
    opened.goto(files[name].as_uri())
    scrolling = (
        "[...document.querySelectorAll('*')].filter((e) => e.scrollWidth > e.clientWidth + 1 && "
        "getComputedStyle(e).overflowX === 'auto')"
    )
    wanted = opened.evaluate(f"{scrolling}.length + document.querySelectorAll('a, summary').length")
    reached = set[int]()
    for _ in range(wanted + 30):
        opened.keyboard.press("Tab")
        # asked at once: the browser may move the focus between two questions
        at, seen, within = opened.evaluate(
            "(() => { const e = document.activeElement; const s = getComputedStyle(e);"
            " return [[...document.querySelectorAll('*')].indexOf(e), s.outlineStyle !== 'none' "
            "&& parseFloat(s.outlineWidth) >= 1, e !== document.body]; })()"
        )
        if at > 0 and within:
            assert seen
            reached.add(at)
    assert len(reached) >= wanted
    context.close()
