"""A client that hangs for a whole round: the round goes on at its deadline without it and says so;
back again, it takes part again."""

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.waiting import with_more_time

pytestmark = pytest.mark.processes


def test_a_round_goes_on_at_its_deadline_without_a_silent_client_says_who_it_was_and_takes_it_back(
    play: Any, stage: Callable[..., Any]
) -> None:
    with_more_time(lambda deadline_s: silent_round(play, stage, deadline_s), 15.0, 60.0, 240.0)


def silent_round(play: Any, stage: Callable[..., Any], deadline_s: float) -> None:
    others = play.job.data.num_users // 2  # of client-1
    patience = {"rounds": {"timeout_s": deadline_s, "absent_s": 0.0, "min_share": 0.5}}
    run = stage(more={"server": patience, "aggregator": {"limits": {"min_cohort": others}}})
    run.start()
    run.until(run.is_planned, "plan")
    silent = run.pid("client-2")
    other = run.pid("client-1")
    os.kill(silent, signal.SIGSTOP)
    states = run.states()
    try:
        run.until(lambda: run.said("client-1", "answered", round=0), "answer of the other")
        os.kill(other, signal.SIGSTOP)  # it has answered round 0, and round 1 waits for it
        first = next(states)
        os.kill(silent, signal.SIGCONT)
        run.until(lambda: run.reporters(1) == {"client-2"}, "report of the client that is back")
    finally:
        os.kill(silent, signal.SIGCONT)
        os.kill(other, signal.SIGCONT)
    assert len(list(states)) == 1
    lines = run.rounds()
    assert first == play.first_state_of(play.job.data.users_subset(np.arange(others)))
    assert [line["reported"] for line in lines] == [others, play.job.data.num_users]
    assert {answer["client"]: answer["refusal"] for answer in lines[0]["answers"]} == {
        "client-1": "",
        "client-2": "unreachable",
    }
