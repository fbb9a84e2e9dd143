"""`fedrec forget` beside real parties, killed in its middle: a person who left is in no later
round, and each aggregator's signed statement says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedrec.storage import read_json, write_json
from fedrec_client.ledger import DEPARTED, read_entries
from fedrec_client.store import read_shard
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.processes
LEAVES = 2


def test_a_person_who_leaves_in_the_middle_of_a_training_is_in_no_later_round(
    play: Any, stage: Callable[..., Any]
) -> None:
    """Round 0 holds her report already, and round 1 does not. Meanwhile `fedrec forget` and the
    aggregator are killed by -9."""
    run = stage(
        more={"aggregator": {"limits": {"min_cohort": 2}}, "server": {"rounds": {"min_share": 0.5}}}
    )
    run.start()
    run.until(run.is_planned, "plan")
    os.kill(run.pid("client-2"), signal.SIGSTOP)  # from here on round 0 cannot end
    run.until(lambda: run.reporters(0) == {"client-1"}, "report of the client that does not hang")
    user = read_shard(next(iter(run.files.root.glob("shards/client-1*")))).user_ids[LEAVES]
    run.kill("client-1")
    os.kill(run.pid("aggregator"), signal.SIGSTOP)
    first = subprocess.Popen(_forget(run, "--user", user), stderr=subprocess.DEVNULL)
    ledger = run.files.state("client-1") / "ledger.sqlite"
    until(lambda: [entry for entry in read_entries(ledger) if entry.run == DEPARTED])
    first.kill()
    first.wait()
    os.kill(run.pid("aggregator"), signal.SIGCONT)
    second = subprocess.run(
        _forget(run, "--user", user), capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (second.returncode, second.stderr) == (0, "")
    words = second.stdout
    assert "signed with the key" in words
    run.kill("aggregator")
    os.kill(run.pid("client-2"), signal.SIGCONT)
    list(run.states())
    people = play.job.data.num_users
    assert [line["reported"] for line in run.rounds()][-1] == people - 1
    path = Path(words.splitlines()[0])
    check = _forget(run, "--check", str(path))
    assert subprocess.run(check, timeout=HANG_S, check=False).returncode == 0
    told = read_json(path)
    told["statements"][0]["statement"] = told["statements"][0]["statement"].replace("e", "f", 1)
    write_json(path, told)
    assert subprocess.run(check, timeout=HANG_S, check=False).returncode == 6


def _forget(run: Any, *words: str) -> list[str]:
    verb = ["forget", "--settings", str(run.files.settings("client-1")), *words]
    return [sys.executable, "-m", "fedrec.cli", *verb]
