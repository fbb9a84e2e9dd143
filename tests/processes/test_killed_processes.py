"""kill -9 of every process of a training in the middle of a round, and a client that hangs
meanwhile: the same bytes."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.processes


def test_whoever_is_killed_in_the_middle_of_a_round_while_a_client_hangs_the_model_is_the_same(
    play: Any, stage: Callable[..., Any]
) -> None:
    run = stage()
    run.start()
    run.until(run.is_planned, "plan")
    hanging = run.pid("client-2")
    os.kill(hanging, signal.SIGSTOP)  # from here on round 0 cannot end
    run.until(lambda: run.reporters(0) == {"client-1"}, "report of the client that does not hang")
    _kill_and_wait(run, "client-1")
    os.kill(hanging, signal.SIGCONT)
    states = run.states()
    first = next(states)
    _kill_and_wait(run, "aggregator", "client-2", "server")
    assert [first, *states] == play.states
    assert [(line["round"], line["reported"]) for line in run.rounds()] == [
        (n, play.job.data.num_users) for n in (0, 1)
    ]
    run.company.stop()
    assert run.charges() == [name for line in run.rounds() for name in line["releases"]]


def _kill_and_wait(run: Any, *names: str) -> None:
    """Until each is there again, as another process."""
    before = {name: run.pid(name) for name in names}
    run.kill(*names)
    run.until(
        lambda: all(run.pid(name) not in {0, old} for name, old in before.items()),
        f"new {', '.join(names)}",
    )
