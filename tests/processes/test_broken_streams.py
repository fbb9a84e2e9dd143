"""Parties whose standard output and error nobody reads any more go on: their logs are files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli import supervisor
from tests.processes.conftest import StageFiles

pytestmark = [pytest.mark.processes, pytest.mark.rare]  # streams that break

PARTIES = ("aggregator", "server", "client-1", "client-2")


class PipedFiles(StageFiles):
    """Each party has a log file; what else it says goes where `broken` leads."""

    def log(self, party: str) -> Path:
        return self.root / "logs" / f"{party}.jsonl"

    def _write(self, name: str, content: Any) -> None:
        log = {"log": str(self.log(name))} if name in PARTIES else {}
        super()._write(name, {**content, **log})


@pytest.mark.parametrize("broken", ["pipe", "full"])
def test_parties_with_broken_standard_streams_train_to_the_end(
    broken: str, play: Any, stage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = supervisor._started

    def start(verb: Sequence[str], log: Path) -> Any:
        if broken == "full":
            return started(verb, Path("/dev/full"))
        read, write = os.pipe()
        os.close(read)
        try:
            return started(verb, Path(f"/proc/self/fd/{write}"))
        finally:
            os.close(write)

    monkeypatch.setattr(supervisor, "_started", start)
    run = stage(files=PipedFiles, company=supervisor.Supervisor(most_starts=1))
    run.start()
    assert list(run.states()) == play.states
    assert run.said("server", "round-released", round=1)
