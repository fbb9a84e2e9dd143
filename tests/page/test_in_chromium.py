"""The page in a real Chromium against a real `fedrec serve`: by keyboard, on a phone, light and
dark."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedrec.news import attention
from fedrec.serving import asking, bundle
from fedrec.serving.bundle import FILE, Texts
from fedrec.serving.user_map import Sizes

pytest.importorskip("playwright", reason="playwright drives the browser")
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.page.conftest import attention_parts, planted
from tests.waiting import until

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium")
_QUIET = ("background-networking", "component-update", "sync", "quic", "gpu")
_ARGUMENTS = ["--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in _QUIET)]
_PAGE = Path(__file__).parents[2] / "server" / "fedrec_server" / "serving" / "page"
_PHONE = {"width": 400, "height": 844}

CONTRASTS = """() => {
  const part = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * part(r / 255) + 0.7152 * part(g / 255) + 0.0722 * part(b / 255);
  const colour = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (e) => {
    const back = colour(getComputedStyle(e).backgroundColor);
    return back.length < 4 || back[3] > 0 ? back : behind(e.parentElement);
  };
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.getClientRects().length;
  return [...document.body.querySelectorAll('*')].filter((e) => own(e) && !e.disabled && !e.closest('noscript')).map((e) => {
    const style = getComputedStyle(e);
    const front = light(colour(e instanceof SVGElement ? style.fill : style.color));
    const back = light(behind(e));
    return [(Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05), e.outerHTML.slice(0, 90)];
  });
}"""

KEPT = """async (key) => (await import('/page/storage.js')).database.get(key)"""
"""What the page's database holds."""


class Visit:
    """One person's browser on the page: what it sent, and what it complained of."""

    def __init__(self, browser: Browser, site: str, **context: Any) -> None:
        self.site = site
        self.requests = []
        self.complaints = []
        self.page: Page = browser.new_context(**context).new_page()
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on(
            "console",
            lambda said: (
                self.complaints.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        self.page.on("pageerror", lambda failure: self.complaints.append(str(failure)))
        self.open()

    def open(self) -> None:
        self.page.goto(self.site)
        self.page.wait_for_selector("main:not([hidden])")
        self.page.evaluate("document.getElementById('asking').open = true")

    @property
    def bodies(self) -> list[str]:
        return [request.post_data for request in self.requests if request.post_data is not None]

    def pick(self, *words: str) -> None:
        """By keyboard alone, from wherever the focus is."""
        self.tab_to("search")
        for word in words:
            self.page.keyboard.type(word)
            self.page.keyboard.press("Enter")

    def tab_to(self, wanted: str) -> None:
        for _ in range(60):
            if self.page.evaluate("document.activeElement.id") == wanted:
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not reach {wanted}")

    def ask(self) -> str:
        """By keyboard; what the page says then."""
        self.page.evaluate("document.getElementById('said').textContent = ''")
        self.tab_to("ask")
        self.page.keyboard.press("Enter")
        expect(self.page.locator("#said")).not_to_be_empty()
        expect(self.page.locator("#ask")).to_have_text("Ask the server")
        return self.page.inner_text("#said")

    def list_of(self, name: str) -> list[str]:
        return self.page.locator(f"#{name} li:not(.empty) span").all_inner_texts()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Browser, site: str) -> Iterator[Visit]:
    """A visit that must end without a complaint, and without a request to anybody else."""
    made = Visit(browser, site)
    yield made
    assert made.complaints == []
    assert {urlsplit(request.url).netloc for request in made.requests} == {urlsplit(site).netloc}
    made.page.context.close()


def test_five_titles_are_picked_and_ten_recommendations_read_by_keyboard_and_a_repeat_costs_nothing(
    visit,
):
    visit.pick("space", "space", "violin", "DETECTIVE", "letters")
    picked = visit.page.locator("#picked li span").all_inner_texts()
    assert picked == [
        "Space Story",
        "Space Letters",
        "Violin Story",
        "Détective Story",
        "Kitchen Letters",
    ]

    assert "ε\u00a0=\u00a05" in visit.ask()
    recommended = visit.list_of("private")
    assert len(recommended) == len(visit.list_of("exact")) == 10
    assert not set(recommended) & set(picked)
    ledger = visit.page.inner_text("#ledger-words")

    assert "nothing was spent" in visit.ask()
    assert visit.page.inner_text("#ledger-words") == ledger
    assert visit.list_of("private") == recommended
    first, second = visit.bodies
    assert first == second
    assert visit.page.inner_text("#saw-bytes") == first


def test_a_request_holds_the_agreed_fields_and_no_request_names_a_title(visit, planted_bundle):
    visit.pick("space", "violin")
    visit.ask()
    (body,) = visit.bodies
    asked = json.loads(body)
    assert sorted(asked) == ["coefficients", "k", "version"]
    assert (asked["version"], asked["k"]) == (
        planted_bundle.version,
        10 + planted_bundle.about.history,
    )
    assert len(asked["coefficients"]) == planted_bundle.coefficients
    paths = {urlsplit(request.url).path for request in visit.requests}
    known = ("/", "/v1/models", "/v1/recommend", f"/v1/models/{planted_bundle.version}/bundle")
    assert {path for path in paths if not path.startswith("/page/")} == set(known)
    for request in visit.requests:
        assert not urlsplit(request.url).query
        assert not request.headers.get("cookie")
        assert not request.headers.get("referer") or request.post_data is None


def test_the_exact_list_is_the_ranking_of_the_coefficients_before_noise(visit, planted_bundle):
    visit.pick("violin story", "violin letters", "garden story")
    history = np.full((1, planted_bundle.about.history), -1)
    history[0, -3:] = [6, 14, 4]
    query = (
        asking.exact(planted_bundle, history) - planted_bundle.mean
    ) / planted_bundle.about.scale
    scores = (
        planted_bundle.users(query.astype(np.float32)) @ planted_bundle.items.T
        + planted_bundle.bias
    )[0]
    order = [row for row in np.argsort(-scores, kind="stable") if row not in (6, 14, 4)]
    assert visit.list_of("exact") == [planted_bundle.titles[row] for row in order[:10]]
    assert visit.bodies == []  # it needs no server


def test_a_remembered_answer_outlives_the_page_and_an_edit_ends_it(visit):
    visit.pick("space", "violin")
    visit.ask()
    visit.open()
    assert "nothing was spent" in visit.ask()
    visit.pick("garden")
    visit.ask()
    first, second, third = visit.bodies
    assert first == second != third
    assert "2 answers" in visit.page.inner_text("#ledger-words")


_AT_ONCE = """async ([base, tab, count]) => {
  const { Ledger } = await import('/page/ledger.js');
  const { database } = await import('/page/storage.js');
  const ledger = new Ledger(database, {epsilon: 1000, delta: 1e-5});
  while (Date.now() < base) {}
  for (let i = 0; i < count; i++) {
    await ledger.ask(() => ({edit: `${tab} ${i}`, version: 'v', epsilon: 1}), 'm', () => [0]);
  }
}"""


def test_two_tabs_that_ask_at_once_both_pay_for_every_answer(browser, site):
    """Each tab is a process with a copy of localStorage: a lock around that lost 18 of 200."""
    context = browser.new_context()
    count = 60
    *tabs, idle = [context.new_page() for _ in range(3)]
    for tab in (*tabs, idle):
        tab.goto(site)
        tab.wait_for_selector("main:not([hidden])")
    # of this site by a version that kept its ledger in localStorage
    entry = {"epsilon": 1, "mu": 0.2, "padding": 0}
    old = json.dumps({"entries": [entry], "answers": []})
    tabs[0].evaluate("(old) => localStorage.setItem('fedrec.ledger', old)", old)
    begin = tabs[0].evaluate("Date.now()") + 500
    started = "([js, given]) => { window.done = eval(js)(given); }"
    for number, tab in enumerate(tabs):
        tab.evaluate(started, [_AT_ONCE, [begin, number, count]])
    for tab in tabs:
        tab.evaluate("window.done")
    kept = json.loads(tabs[0].evaluate(KEPT, "fedrec.ledger"))
    assert len(kept["entries"]) == 1 + 2 * count
    expect(idle.locator("#ledger-words")).to_contain_text(f"{1 + 2 * count} answers")
    context.close()


def test_past_the_limit_nothing_is_sent_and_the_page_says_what_is_left(visit):
    visit.pick("space")
    visit.tab_to("epsilon")
    visit.page.keyboard.press("End")
    visit.ask()
    visit.pick("violin")
    assert "Not asked" in visit.ask()
    assert len(visit.bodies) == 1
    assert len(visit.list_of("exact")) == 10


def test_forgetting_removes_titles_and_answers_and_keeps_the_ledger(visit):
    visit.pick("space", "violin")
    visit.ask()
    visit.tab_to("forget")
    visit.page.keyboard.press("Enter")
    expect(visit.page.locator("#said")).to_contain_text("forgotten")
    assert "i0" not in visit.page.evaluate("JSON.stringify(localStorage)")
    assert json.loads(visit.page.evaluate(KEPT, "fedrec.ledger"))["answers"] == []
    assert "1 answer" in visit.page.inner_text("#ledger-words")


def test_a_category_is_sent_as_it_is_and_filters_both_lists(visit):
    visit.pick("space")
    visit.page.select_option("#category", "Garden")
    visit.ask()
    assert json.loads(visit.bodies[0])["categories"] == ["Garden"]
    for name in ("private", "exact"):
        assert {title.split()[0] for title in visit.list_of(name)} == {"Garden"}


def test_a_title_that_the_next_model_lacks_stops_no_question_and_is_said_here_alone(
    browser, serve, tmp_path
):
    ids = [f"i{row}" for row in range(120)]
    planted(tmp_path / FILE)
    with serve(tmp_path, settings="[models]\nwatch_s = 0.05\n") as url:
        visit = Visit(browser, url)
        visit.pick("space story", "violin story")
        lacking = Texts.of(["gone" if name == "i0" else name for name in ids])
        version = planted(
            tmp_path / FILE, **{"ids.content": lacking.content, "ids.ptr": lacking.ptr}
        ).version
        _until_newest(visit, version)
        visit.open()
        assert "ε\u00a0=\u00a05" in visit.ask()
        (body,) = visit.bodies
        assert len(json.loads(body)["coefficients"]) == 8
        assert "a title that this model lacks" in visit.page.inner_text("#stays-titles")
        assert visit.complaints == []
        visit.page.context.close()


def test_what_the_page_shows_does_not_decide_whether_a_question_leaves(visit):
    """Even if drawing fails for these titles: the question is on its way before anything is
    drawn."""
    visit.pick("space")
    visit.page.evaluate("document.getElementById('exact').remove()")
    with visit.page.expect_request("**/v1/recommend"):
        visit.page.evaluate("document.getElementById('ask').click()")
    assert len(visit.bodies) == 1
    visit.complaints.clear()


def test_the_page_says_that_its_code_comes_from_the_server(visit):
    said = visit.page.locator("#trust")
    expect(said).to_be_visible()
    assert "could send other code" in said.inner_text()
    assert "fedrec recommend" in said.inner_text()
    expect(visit.page.locator("#experiment")).to_be_hidden()


def test_the_page_of_an_experiment_says_so(browser, serve, tmp_path):
    planted(tmp_path / FILE, noise="seeded")
    with serve(tmp_path, more=["--demo"]) as url:
        visit = Visit(browser, url)
        expect(visit.page.locator("#experiment")).to_be_visible()
        assert "can remove the noise" in visit.page.inner_text("#experiment")
        assert "an experiment, trained with seeded noise" in visit.page.inner_text("#model")
        visit.page.context.close()


def test_a_person_of_few_titles_is_told_what_noise_leaves_of_them(browser, serve, tmp_path):
    rng = np.random.default_rng(5)
    G = 2
    B = 8
    few = 1e-6 * np.eye(B)
    many = 1e3 * np.eye(B)
    sizes = Sizes(
        *(np.array([2.0, 30.0]), np.full(G, 1 / G), np.zeros((G, B)), np.stack([few, many])),
        rng.normal(size=(G, B, B)),
    )
    planted(tmp_path / FILE, **sizes.arrays())
    with serve(tmp_path) as url:
        visit = Visit(browser, url)
        expect(visit.page.locator("#shows")).to_have_text("")
        visit.pick("space", "space")
        said = visit.page.inner_text("#shows")
        assert (
            "Noise of ε\u00a0=\u00a05 per title leaves about 0% of what 2 titles say about your list"
            in said
        )
        assert "what everybody gets. More titles, a larger ε" in said
        visit.ask()
        expect(visit.page.locator("#private-title")).to_contain_text("Everybody's")
        read = bundle.read(tmp_path / FILE)
        nobody = np.argsort(
            -(read.users(np.zeros((1, B), np.float32)) @ read.items.T + read.bias)[0]
        )
        picked = set(visit.page.locator("#picked li span").all_inner_texts())
        everybodys = [read.titles[int(row)] for row in nobody]
        assert visit.list_of("private") == [one for one in everybodys if one not in picked][:10]
        assert len(visit.bodies) == 1
        assert visit.complaints == []
        visit.page.context.close()


def test_a_small_public_model_is_ranked_here_and_the_page_says_so(browser, site):
    visit = Visit(browser, site)
    visit.page.evaluate("document.getElementById('asking').open = false")
    visit.page.fill("#search", "space")
    visit.page.keyboard.press("Enter")
    assert len(visit.list_of("exact")) == 10
    expect(visit.page.locator("#lead-here")).to_contain_text("Nothing of what you pick is sent")
    for hidden in ("lead-asks", "private-part", "ledger-part", "ask"):
        expect(visit.page.locator(f"#{hidden}")).to_be_hidden()
    assert visit.bodies == []
    visit.page.route(
        "**/v1/models",
        lambda route: route.fulfill(
            body=re.sub(r'"bundle_bytes":\d+', '"bundle_bytes":20000001', route.fetch().text()),
            content_type="application/json",
        ),
    )
    visit.page.goto(site)
    for shown in ("lead-asks", "private-part", "ledger-part", "ask"):
        expect(visit.page.locator(f"#{shown}")).to_be_visible()
    visit.page.context.close()


def test_a_list_that_is_none_is_not_shown(visit):
    lies = ['{"items": null}', '{"items": [0, 0]}', '{"items": [5000]}', "[]"]
    told = iter(lies)
    for _ in lies:
        visit.page.route(
            "**/v1/recommend",
            lambda route: route.fulfill(body=next(told), content_type="application/json"),
        )
        if not visit.page.locator("#picked li").count():
            visit.pick("space")
        assert "not one of this model" in visit.ask()
        visit.page.unroute("**/v1/recommend")
    assert "Answered again" in visit.ask()


def test_a_title_is_text_whatever_it_holds(visit, planted_bundle):
    visit.pick("<img")
    assert visit.page.locator("#picked li span").all_inner_texts() == [planted_bundle.titles[117]]
    visit.ask()
    assert visit.page.locator("img").count() == 0


@pytest.mark.parametrize(("basis", "padding"), [(3, 0.7), (5, 0.2), (32, 0.0)])
def test_a_model_that_is_asked_by_attention_is_answered_through_the_server(
    browser, serve, tmp_path, basis, padding
):
    """At numbers of basis vectors and paddings of PrivateRec's Figures 5 and 7."""
    bundle.write(tmp_path / FILE, *attention_parts(basis=basis, padding=padding))
    read = bundle.read(tmp_path / FILE)
    with serve(tmp_path) as url:
        visit = Visit(browser, url)
        visit.pick("violin story", "violin letters", "garden story")
        history = np.full((1, read.about.history), -1)
        history[0, -3:] = [6, 14, 4]
        shares = attention.renormalise_relu(asking.exact(read, history))
        scores = (read.users(shares.astype(np.float32)) @ read.items.T)[0]
        order = [row for row in np.argsort(-scores, kind="stable") if row not in (6, 14, 4)]
        assert visit.list_of("exact") == [read.titles[row] for row in order[:10]]

        assert "ε\u00a0=\u00a05" in visit.ask()
        (body,) = visit.bodies
        asked = json.loads(body)
        assert sorted(asked) == ["coefficients", "k", "version"]
        sent = np.array(asked["coefficients"], np.float32)
        assert len(sent) == basis
        assert sent.min() >= 0
        assert sent.sum() == pytest.approx(1, rel=1e-5)
        if "Everybody's" in visit.page.inner_text("#private-title"):
            nobody = np.full_like(history, -1)
            sent = attention.renormalise_relu(asking.exact(read, nobody))[0].astype(np.float32)
        scores = (read.users(sent[None]) @ read.items.T)[0]
        ranked = [row for row in np.argsort(-scores, kind="stable") if row not in (6, 14, 4)]
        assert visit.list_of("private") == [read.titles[row] for row in ranked[:10]]

        hiding = f"each title hidden with probability {padding:g}"
        assert (hiding in visit.page.inner_text("#model")) == (padding > 0)
        said = visit.page.inner_text("#stays-noise")
        assert f"each of {basis} public vectors a share of attention" in said
        assert ("hidden behind an anonymous one" in said) == (padding > 0)
        assert "ε\u00a0=\u00a05 of 20 per title in 1 answer" in visit.page.inner_text(
            "#ledger-words"
        )
        assert "Everything that left this browser, 1 answer" in visit.page.inner_text("#everything")
        assert "nothing was spent" in visit.ask()
        assert visit.bodies == [body, body]
        assert visit.complaints == []
        visit.page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "screen", [_PHONE, {"width": 1400, "height": 900}], ids=["phone", "endpoint"]
)
def test_it_fits_the_screen_and_every_text_has_contrast(browser, site, scheme, screen):
    visit = Visit(browser, site, viewport=screen, color_scheme=scheme)
    visit.pick("space", "violin", "garden")
    visit.ask()
    visit.page.click("#ledger-part summary")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= screen["width"]
    contrasts = visit.page.evaluate(CONTRASTS)
    assert len(contrasts) > 60
    assert [(ratio, what) for ratio, what in contrasts if ratio < 4.5] == []
    assert visit.complaints == []
    visit.page.context.close()


def test_focus_is_seen_and_everything_has_a_name(visit):
    visit.pick("space")
    for wanted in ("search", "epsilon", "category", "ask", "forget"):
        visit.tab_to(wanted)
        outline = visit.page.evaluate(
            "(([s]) => [s.outlineStyle, "
            "parseFloat(s.outlineWidth)])([getComputedStyle(document.activeElement)])"
        )
        assert outline == ["solid", 3]
    unnamed = "(e) => !(e.labels?.length || e.ariaLabel || e.textContent.trim())"
    assert (
        visit.page.evaluate(
            f"[...document.querySelectorAll('button, input, select')].filter({unnamed}).length"
        )
        == 0
    )


def test_a_server_that_is_gone_is_said_and_the_answer_is_not_lost(browser, site):
    visit = Visit(browser, site)
    visit.pick("space")
    visit.page.route("**/v1/recommend", lambda route: route.abort())
    assert "cannot be reached" in visit.ask()
    visit.page.unroute("**/v1/recommend")
    assert "nothing was spent" in visit.ask()
    first, second = visit.bodies
    assert first == second
    visit.page.context.close()


def test_a_new_model_is_loaded_and_asking_it_is_a_new_question(browser, serve, planted_files):
    old, new, folder = planted_files
    with serve(folder, settings="[models]\nkept = 0\nwatch_s = 0.1\n") as site:
        visit = Visit(browser, site)
        visit.pick("space", "violin")
        visit.ask()
        (folder / "new").replace(folder / FILE)
        _until_newest(visit, new)
        assert "new model" in visit.ask()
        assert "cost ε\u00a0=\u00a05" in visit.ask()
        versions = [json.loads(body)["version"] for body in visit.bodies]
        # the second was refused, and was the first again: it cost nothing
        assert versions == [old, old, new]
        assert "2 answers" in visit.page.inner_text("#ledger-words")
        visit.page.context.close()


@pytest.fixture
def planted_files(bundle_path, tmp_path):
    """The versions of two bundles, and a run folder that holds the first, with the second beside it
    as "new"."""
    old = bundle.read(bundle_path)
    (tmp_path / FILE).write_bytes(bundle_path.read_bytes())
    version = bundle.write(
        tmp_path / "new", old.about.model_copy(update={"name": "newer"}), load_file(bundle_path)
    )
    return old.version, version, tmp_path


def _until_newest(visit, version):
    until(
        lambda: visit.page.request.get(f"{visit.site}v1/models").json()["newest"] == version,
        "the server takes the new bundle",
    )


def test_the_page_runs_under_its_own_strict_policy():
    html = (_PAGE / "index.html").read_text()
    assert re.search(
        (
            r'http-equiv="Content-Security-Policy" content="default-src \'none\'; script-src '
            r"\'self\'; style-src \'self\'"
        ),
        html,
    )
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]* src=)", html)
    modules = "".join(module.read_text() for module in _PAGE.glob("*.js"))
    assert not re.search(
        r"\beval\(|new Function|innerHTML|insertAdjacentHTML|https?://(?!www\.w3\.org)", modules
    )


def test_a_site_without_a_training_says_so(browser, site):
    page = browser.new_page()
    page.goto(f"{site.rstrip(chr(47))}/training")
    expect(page.locator("#training")).to_have_text("This site has no training to take part in.")
    page.context.close()
