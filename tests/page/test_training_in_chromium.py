"""The page of a training in a real Chromium, on one site with an aggregator: a person rates, takes
part, and is counted once, with the bytes of the full client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("playwright", reason="playwright drives the browser")
from playwright.sync_api import Browser, Page, expect
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedrec.data.interactions import Interactions
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.federation.wire import question_digest, question_header, report_digest
from fedrec_client.ledger import report_ids, user_tokens
from fedrec_server.serving.http_api import page_routes
from tests.device.worlds import World, closed, listening, opened, world
from tests.page.test_in_chromium import CONTRASTS, KEPT, browser

__all__ = ["browser", "closed", "world"]

pytestmark = pytest.mark.browser
RATED = {3: 5.0, 17: 2.0, 40: 4.5}


async def _no_models(_: Request) -> Response:
    return JSONResponse({"newest": None, "models": []})


def expected_batch(world: World, number: int, secret: bytes) -> bytes:
    invitation = world.invitation(number)
    question = invitation.question
    header = question_header(question, run=invitation.run, plan=invitation.plan.digest())
    digest = question_digest(header)
    mine = Interactions(
        kind=world.data.kind,
        num_items=world.data.num_items,
        value_range=world.data.value_range,
        user_ptr=np.array([0, len(RATED)], np.int64),
        items=np.array(list(RATED), np.int32),
        values=np.array(list(RATED.values()), np.float32),
        times=None,
    )
    tokens = user_tokens(secret, ["me"])
    ids = report_ids(secret, tokens, run=invitation.run, round=question.round, digest=digest)
    reports = world.prepared.steps[question.step](question, mine)
    return pack_reports(Batch(ids, tokens, reports), report_digest(digest, 0))


def rate(page: Page, world: World) -> None:
    """By keyboard."""
    for item, value in RATED.items():
        page.locator("#search").fill(world.terms.items[item])
        page.keyboard.press("Enter")
        entry = page.locator("#rated li").filter(has_text=f"{world.terms.items[item]} ")
        entry.first.locator("input").fill(str(value))
        entry.first.locator("input").press("Tab")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_person_takes_part_from_the_page_and_is_counted_once(
    browser: Browser, world: World, tmp_path: Path, scheme: Any
) -> None:
    number = next(n for n, q in enumerate(world.questions) if q.step == "default/step")
    held = opened(world, tmp_path, number)
    complaints = list[str]()
    bodies = list[bytes]()
    with listening(held.intake, *page_routes(), Route("/v1/models", _no_models)) as address:
        page = browser.new_context(
            color_scheme=scheme, viewport={"width": 390, "height": 844}
        ).new_page()
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda failure: complaints.append(str(failure)))
        page.on(
            "request",
            lambda request: (
                bodies.append(request.post_data_buffer or b"")
                if "/v1/reports/" in request.url
                else None
            ),
        )
        page.goto(f"{address}/training")
        page.wait_for_selector("main:not([hidden])")
        rate(page, world)
        page.get_by_role("button", name="Take part").click()
        expect(page.locator("#said")).to_contain_text("was sent and counted")
        expect(page.locator("#ledger-words")).to_contain_text("1 round")
        kept = json.loads(page.evaluate(KEPT, "fedrec.training"))
        assert [ratio for ratio, _ in page.evaluate(CONTRASTS) if ratio < 4.5] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.reload()
        expect(page.locator("#rated li")).to_have_count(len(RATED))
        page.context.close()
    assert complaints == []
    assert held.aggregator.status(world.terms.run, world.questions[number].round).reported == 1
    expected = expected_batch(world, number, bytes.fromhex(kept["secret"]))
    assert bodies[0] == expected
    assert set(bodies) == {expected}
