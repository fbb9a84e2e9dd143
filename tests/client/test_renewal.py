"""What a client reports is what its people hold when a run begins; what its limit does not hold it
refuses before anybody is charged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.errors import RunError
from fedrec.federation.protocol import Refusal, Terms
from fedrec.privacy.guarantee import Guarantee
from fedrec_client.opened import Renewal


def test_files_are_read_again_only_where_they_changed(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    read = list[str]()

    def content() -> str:
        read.append(file.read_text())
        return read[-1]

    file.write_text("one")
    renewal = Renewal(tmp_path, content)
    assert renewal() is None
    file.write_text("another")
    assert [renewal(), renewal()] == ["another", None]
    (tmp_path / "new").write_text("another beside it: exported in one step, with an old time")
    os.utime(tmp_path / "new", ns=(0, 0))
    os.replace(tmp_path / "new", file)
    assert renewal() is not None
    assert len(read) == 2


def test_data_that_cannot_be_read_any_more_says_so_without_its_words(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("user 17 rated film 3")

    renewal = Renewal(tmp_path, fail)
    (tmp_path / "data.csv").write_text("")
    for _ in range(2):  # it stays so until it can be read
        with pytest.raises(RunError) as caught:
            renewal()
        assert "rated film" not in f"{caught.value.cause}{caught.value.remedy}"
        assert caught.value.__suppress_context__


def test_a_new_run_asks_what_people_hold_then_and_enrols_who_joined(
    make_site: Callable[..., Any], run: Any
) -> None:
    site = make_site(run.users, limit=Guarantee(20.0, 1e-5))
    found = list[Any]()
    site.participant._renew = lambda: found.pop() if found else None
    site.participant.join(run.terms)
    before = site.participant.users
    events = before.events
    more = Interactions.from_columns(
        np.append(events.users, events.num_users),
        np.append(events.items, 0),
        np.append(events.values, events.value_range[1]),
        num_users=events.num_users + 1,
        num_items=events.num_items,
        value_range=events.value_range,
    )
    found.append(replace(before, events=more, user_ids=(*before.user_ids, "newcomer")))
    site.participant.join(run.terms)
    # a run goes on with what it began with
    assert (site.participant.users, len(found)) == (before, 1)
    answer = site.participant.join(replace(run.terms, run="run-2"))
    assert (answer.users, answer.refusal) == (before.num_users + 1, "")
    assert site.participant.users.user_ids[-1] == "newcomer"


def test_a_run_that_the_limit_does_not_hold_is_refused_before_anybody_enrols(
    make_site: Callable[..., Any], run: Any
) -> None:
    site = make_site(run.users, limit=Guarantee(4.99, 1e-5))
    answer = site.participant.join(run.terms)
    assert (answer.refusal, site.participant.ledger.entries) == (Refusal.BUDGET, ())
    assert not site.endpoint.enrolled


def test_terms_that_promise_less_than_the_plan_takes_do_not_pass_the_limit(
    make_site: Callable[..., Any], run: Any
) -> None:
    """A server may write anything into the terms: the plan decides at every charge."""
    site = make_site(run.users, limit=Guarantee(4.99, 1e-5))
    recipe = json.loads(run.terms.recipe)
    recipe["privacy"]["epsilon"] = 0.1
    lying: Terms = replace(run.terms, recipe=json.dumps(recipe, sort_keys=True))
    assert site.participant.join(lying).refusal == ""
    answer = site.participant.answer(run.invitation(run.questions()[0]))
    assert (answer.refusal, answer.accepted, site.participant.ledger.entries) == (
        Refusal.BUDGET,
        0,
        (),
    )
