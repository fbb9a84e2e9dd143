"""`fedrec demo --deployment --json` with real processes: what it says is what the parties' folders
hold, and nobody is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedrec_client.ledger import read_entries
from tests.demo.conftest import SMALLEST
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.processes


def test_it_trains_twice_and_gives_a_single_process_s_bytes_after_a_kill(
    demonstration: Any,
) -> None:
    content = demonstration.content
    assert len(set(content["trained"])) == 2
    assert content["same_bytes"] is True
    assert content["killed"]["signal"] == 9
    assert content["holds"]
    assert all(content["checks"].values())
    assert content["users"] == 300


def test_what_was_spent_is_what_every_ledger_says(demonstration: Any) -> None:
    spent = demonstration.content["spent"]
    assert 3.5 < spent["epsilon"] <= spent["limit"]
    assert spent["unit"].startswith("per user (add/remove")
    charged = [
        entry.run for entry in read_entries(demonstration.folder / "client-1" / "ledger.sqlite")
    ]
    runs = [
        run["run"]
        for run in json.loads((demonstration.folder / "server" / "runs.json").read_text())["runs"]
    ]
    assert list(dict.fromkeys(charged)) == runs


def test_the_kill_is_in_the_log_and_no_process_of_it_is_left(demonstration: Any) -> None:
    victim = demonstration.content["killed"]["party"]
    said = [
        json.loads(line)
        for line in (demonstration.folder / victim / "process.log").read_text().splitlines()
        if line.startswith("{")
    ]
    assert sum(line["event"] == "listening" for line in said) >= 2
    assert running(demonstration.folder) == []


def test_ctrl_c_ends_every_process_and_frees_the_ports(tmp_path: Path) -> None:
    words = [word for key in SMALLEST for word in ("--set", key)]
    command = [sys.executable, "-m", "fedrec.cli", "demo", "--deployment", "--keep", "kept", *words]
    # a shell's background job, and so this process, may ignore it
    listens = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listens,
    )
    told = tmp_path / "kept" / "aggregator" / "address.json"
    until(lambda: told.exists() or process.poll() is not None, "an aggregator that listens")
    host, port = json.loads(told.read_text())["address"].split(":")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "Traceback" not in errors
    # a process that was just being started ends by the death of its parent, a moment later
    until(lambda: running(tmp_path) == [], "the end of every process")
    with socket.create_server((host, int(port))):
        pass


def running(folder: Path) -> list[str]:
    """Processes whose command line names the folder."""
    found = list[str]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words and int(path.parent.name) != os.getpid():
            found.append(words)
    return found
