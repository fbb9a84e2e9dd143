"""A server that asks what no recipe asks: the client neither falls over, nor says anything that
depends on an event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.data.interactions import Interactions
from fedrec.errors import RefusedError
from fedrec.factorization.default_ratings.client import UNITS
from fedrec.federation.hostile_clients import on_checked_grid
from fedrec.federation.messages import Question
from fedrec.federation.protocol import Answer, Refusal
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.federation.reports import block, squared_norms
from fedrec.privacy.calibration import among_three
from fedrec.privacy.guarantee import Guarantee
from fedrec.settings import load
from fedrec.sharing.layout import plain_numbers, plan_layout
from fedrec_client.answering import AnswerBounds, answered, require_answerable
from fedrec_client.three_way import sharing_check

from .conftest import Run


@pytest.fixture
def joined(make_site: Any, run: Any) -> Any:
    site = make_site(run.users, limit=Guarantee(100.0, 1e-5))
    site.participant.join(run.terms)
    return site


def step_of(run: Any) -> Question:
    return next(question for question in run.questions() if question.step == "default/step")


def with_array(question: Question, name: str, array: Any) -> Question:
    return replace(question, public={**question.public, name: np.asarray(array)})


def with_block(question: Question, **changes: Any) -> Question:
    release = question.releases[0]
    return replace(
        question, releases=(replace(release, blocks=(replace(release.blocks[0], **changes),)),)
    )


CHANGES: dict[str, Any] = {
    "not a number": lambda q: with_array(q, "phi", np.full_like(q.public["phi"], np.nan)),
    "infinite": lambda q: with_array(q, "mean", np.inf),
    "too few rows": lambda q: with_array(q, "phi", q.public["phi"][:-1]),
    "too many rows": lambda q: with_array(q, "variance", np.ones(51, np.float32)),
    "a scalar for a matrix": lambda q: with_array(q, "phi", 1.0),
    "a vector for a matrix": lambda q: with_array(q, "phi", np.ones(50, np.float32)),
    "a cube": lambda q: with_array(q, "phi", np.ones((50, 2, 2), np.float32)),
    "a vector for a number": lambda q: with_array(q, "alpha", np.ones(50, np.float32)),
    "no array at all": lambda q: replace(q, public={}),
    "objects": lambda q: with_array(q, "phi", np.array([object()] * 50)),
    "texts": lambda q: with_array(q, "phi", np.array(["x"] * 50)),
    "negative width": lambda q: with_array(q, "width", -3),
    "enormous width": lambda q: with_array(q, "width", 2**40),
    "more columns than bounds": lambda q: with_array(q, "phi", np.ones((50, 1_025), np.float32)),
    "unknown step": lambda q: replace(q, step="default/everything"),
    "step of another recipe": lambda q: replace(q, step="published/statistics"),
    "release not in the plan": lambda q: replace(
        q, releases=(replace(q.releases[0], name="extra"),)
    ),
    "no release": lambda q: replace(q, releases=()),
    "twice the release": lambda q: replace(q, releases=q.releases * 2),
    "more blocks": lambda q: replace(
        q,
        releases=(
            replace(
                q.releases[0], blocks=(*q.releases[0].blocks, block("x", "linear", rows=1, width=1))
            ),
        ),
    ),
    "enormous blocks": lambda q: with_block(q, width=2**26),
    "more rows than items": lambda q: with_block(q, rows=2**31 - 1),
    "wider blocks": lambda q: with_block(q, width=q.blocks[0].width + 1),
    "steps below what floats hold": lambda q: with_block(q, vector_step=1e-300),
    "finer steps than 15 bits": lambda q: with_block(q, coefficient_step=2.0**-40),
    "radius of nothing": lambda q: replace(q, releases=(replace(q.releases[0], radius=1e-300),)),
    "negative radius": lambda q: replace(q, releases=(replace(q.releases[0], radius=-1.0),)),
    "infinite radius": lambda q: replace(
        q, releases=(replace(q.releases[0], radius=float("inf")),)
    ),
    "a radius its steps do not hold": lambda q: replace(
        q, releases=(replace(q.releases[0], radius=1e11),)
    ),
    "negative round": lambda q: replace(q, round=-1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_question_that_no_recipe_asks_is_refused_free_of_charge_and_nothing_leaves(
    joined, run, change: str
) -> None:
    answer = joined.participant.answer(run.invitation(CHANGES[change](step_of(run))))
    assert answer.refusal in {Refusal.MALFORMED, Refusal.TOO_LARGE, Refusal.WRONG_PLAN}, answer
    assert not joined.endpoint.batches
    assert not joined.participant.ledger.entries
    assert joined.participant.answer(run.invitation(step_of(run))).accepted == 30


def test_public_arrays_larger_than_this_machine_takes_are_refused(make_site, run) -> None:
    site = make_site(run.users, options={"bounds": AnswerBounds(public_bytes=1_000)})
    site.participant.join(replace(run.terms, items=run.terms.items))
    assert site.participant.answer(run.invitation(step_of(run))).refusal == Refusal.TOO_LARGE


@pytest.mark.parametrize("items", [[[1, 2]], [1, 1], [-1, 2], [0, 50], [0.5, 1.0]])
def test_a_list_of_items_that_is_none_is_refused(make_site, make_run, items: Any) -> None:
    run = make_run("privacy.epsilon=20", features=False)
    site = make_site(run.users, limit=Guarantee(100.0, 1e-5))
    site.participant.join(run.terms)
    tastes = next(question for question in run.questions() if question.step == "default/tastes")
    assert (
        site.participant.answer(run.invitation(with_array(tastes, "items", items))).refusal
        == Refusal.MALFORMED
    )


def test_arrays_that_fail_on_one_item_only_do_not_tell_the_server_who_has_it(joined, run) -> None:
    """A variance of zero has no inverse: the solve of whoever rated that item fails, and only
    theirs."""
    question = step_of(run)
    counts = np.bincount(run.events.items, minlength=50)
    item = int(np.flatnonzero((counts > 0) & (counts < 15))[-1])
    assert item >= 5, "not an item that the invented users have"
    variance = np.array(question.public["variance"])
    variance[item] = 0.0
    hostile = with_array(question, "variance", variance)
    assert joined.participant.answer(run.invitation(hostile)) == Answer("site", 30, accepted=30)
    (batch,) = run.decoded(hostile, joined.endpoint.batches)
    raters = np.isin(np.arange(30), run.events.users[run.events.items == item])
    silent = np.array([not any(part.any() for part in report_of(batch, k)) for k in range(30)])
    assert np.array_equal(silent, raters)


def report_of(batch: Any, user: int) -> list[Any]:
    start, end = batch.reports.user_ptr[user : user + 2]
    return [part.coefficients[start:end] for part in batch.reports.blocks]


def test_a_step_that_makes_too_large_a_report_leaves_that_user_silent(
    make_site, run, monkeypatch
) -> None:
    site = make_site(run.users)
    site.participant.join(run.terms)
    question = run.questions()[0]
    honest = run.prepared.steps[question.step]

    def greedy(question: Question, mine: Any) -> Any:
        reports = honest(question, mine)
        reports.blocks[0].coefficients[
            np.repeat(mine.user_words == run.events.user_words[17], np.diff(mine.user_ptr))
        ] *= 3
        return reports

    monkeypatch.setattr(
        "fedrec_client.run_record.client_steps", lambda recipe, kind: {question.step: greedy}
    )
    assert site.participant.answer(run.invitation(question)).accepted == 30
    (batch,) = run.decoded(question, site.endpoint.batches)
    assert [k for k in range(30) if not any(part.any() for part in report_of(batch, k))] == [17]


def test_bags_made_long_for_one_item_do_not_tell_the_server_who_has_it(make_site) -> None:
    """Reports of encoder-descent have a row for each feature, and the server says which item has which:
    with 1,024 of their own, twenty items make a report longer than an aggregator takes, and how
    many reports were turned away is told."""
    pointer = np.array([0, 20, 39], np.int64)
    items = np.r_[np.arange(20), np.arange(19)]
    mine = Interactions(pointer, items.astype(np.int32), np.full(39, 3.0, np.float32), 50, (1, 5))
    run = Run(load(None, ["recipe=encoder-descent", "privacy.epsilon=20"]), mine)
    site = make_site(run.users, limit=Guarantee(100.0, 1e-5))
    site.participant.join(run.terms)
    question = next(question for question in run.questions() if "bag_features" in question.public)
    features = np.arange(50 * 1_024).reshape(50, 1_024).astype(np.int32)
    hostile = with_block(with_array(question, "bag_features", features), rows=features.size)
    for name, value in (("bag_values", np.ones(features.shape)), ("num_features", features.size)):
        hostile = with_array(hostile, name, value)
    taken = Answer("site", 2, accepted=2)
    assert site.participant.answer(run.invitation(hostile)) == taken
    lengths = [
        int(length)
        for batch in run.decoded(hostile, site.endpoint.batches, most=50 * 1_024)
        for length in np.diff(batch.reports.user_ptr)
    ]
    assert lengths == [0, 19 * 1_024]


def test_a_report_that_three_could_not_share_is_silent_and_no_failure(run: Any) -> None:
    """A client that fails after its charge tells the server so, without noise: here whoever has one
    item would share a vector longer than its check allows, beside coefficients of zero."""
    plan = among_three(run.prepared.plan, calibrated_for="one-corrupt", hostile_clients="checked")
    question = on_checked_grid(run.questions()[0], plan)
    honest = run.prepared.steps[question.step]
    item = int(run.events.items[0])
    holders = np.unique(run.events.users[run.events.items == item])

    def lengthened(question: Question, mine: Any) -> Any:
        reports = honest(question, mine)
        for user in np.unique(mine.users[mine.items == item]):
            reports.blocks[0].vectors[user] = 2**15 - 1
            reports.blocks[0].coefficients[reports.user_ptr[user] : reports.user_ptr[user + 1]] = 0
        return reports

    step = lengthened
    users = np.arange(30)
    with pytest.raises(ValueError, match="numbers must lie in"):
        plain_numbers(answered(question, step, run.events, users), plan_layout(question, plan))
    reports = answered(question, step, run.events, users, check=sharing_check(question, plan))
    plain_numbers(reports, plan_layout(question, plan))
    assert 0 < len(holders) < 30
    silent = [k for k in range(30) if not reports.blocks[0].vectors[k].any()]
    assert silent == holders.tolist()


def test_blocks_of_different_rows_are_refused_before_anything_is_charged(
    run: Any, make_site: Any
) -> None:
    site = make_site(run.users)
    site.participant.join(run.terms)
    question = with_array(run.questions()[0], "items", np.arange(2))
    release = question.releases[0]
    blocks = tuple(
        replace(spec, rows=2) if k == 0 else replace(spec, rows=len(run.terms.items))
        for k, spec in enumerate(release.blocks)
    )
    hostile = replace(question, releases=(replace(release, blocks=blocks),))
    answer = site.participant.answer(run.invitation(hostile))
    assert (answer.refusal, site.participant.ledger.entries) == (Refusal.MALFORMED, ())
    assert "different numbers of rows" in answer.cause


NUMBERS = st.one_of(st.floats(-1e30, 1e30), st.sampled_from([0.0, -1.0, 1e-38, 3e38]))
NAMES = st.sampled_from(
    [
        "phi",
        "bias",
        "variance",
        "omega",
        "mean",
        "alpha",
        "width",
        "scales_energy",
        "most_ratings",
        *UNITS,
    ]
)


@pytest.fixture(scope="module")
def asked(run: Any) -> Question:
    return step_of(run)


def is_refused(question: Question, step: Any, terms: Any) -> bool:
    try:
        require_answerable(question, step, terms, AnswerBounds())
    except RefusedError:
        return True
    return False


@given(name=NAMES, number=NUMBERS, rows=st.integers(1, 50))
def test_whatever_the_public_numbers_every_user_has_one_report_within_its_radius(
    run, asked, name: str, number: float, rows: int
) -> None:
    array = np.array(asked.public[name], np.float64)
    array[(slice(rows),) if array.ndim else ()] = number
    question = with_array(
        asked, name, np.clip(array, -(2**40), 2**40).astype(np.int64) if name == "width" else array
    )
    step = run.prepared.steps[question.step]
    users = np.arange(30)
    if is_refused(question, step, run.terms):
        return
    reports = answered(question, step, run.events, users)
    assert reports.num_users == 30
    assert (squared_norms(reports, question.releases) <= question.releases[0].radius ** 2).all()
    pack_reports(
        Batch(np.zeros((30, 16), np.uint8), np.zeros((30, 16), np.uint8), reports),
        run.digest(question),
    )
