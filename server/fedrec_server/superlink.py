"""Flower's SuperLink as a child process: started, watched, started again, ended.

It listens on loopback alone, starts no process of its own, gives the run's task to nobody but the
holder of the secret, and keeps nodes, runs and messages in a database, so that a run goes on when
it is killed and started again.
"""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from fedrec.errors import RunError, SettingsError
from fedrec.operations.flower_process import FlowerProcess, flower_program


@dataclass
class SuperLink(FlowerProcess):
    """One SuperLink; a context that ends it. It keeps its port, which the run in progress knows.
    `changed` is told when it answers for the first time, and when another child takes its place.
    """

    name = "superlink"

    database: Path
    _: KW_ONLY
    max_bytes: int = 16 * 2**30
    longest_pause_s: float = 30.0
    grace_s: float = 5.0
    start_s: float = 120.0
    _was_up: bool = field(default=False, init=False, repr=False)

    def __enter__(self) -> Self:
        """Start the child, without waiting for it.

        Raises SettingsError where Flower's command is missing, or its files cannot be kept."""
        if not flower_program("superlink").exists():
            raise SettingsError(
                f"{flower_program('superlink')} is not there",
                "Install fedrec again, with its dependencies.",
            )
        try:
            self.database.parent.mkdir(parents=True, exist_ok=True)
            self._watched()
        except OSError as failure:
            remedy = "Name a state folder and a database that this user may write."
            raise SettingsError(
                f"the SuperLink's files cannot be kept: {failure}", remedy
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_until_up(self) -> None:
        """Until it answers. Raises RunError where it never does."""
        deadline = time.monotonic() + self.start_s
        while not self._answers():
            if time.monotonic() > deadline or self.starts > 2:
                raise RunError(
                    "Flower's SuperLink does not start",
                    f"Its own words are in {self.folder / 'superlink.log'}.",
                )
            self._stopping.wait(0.05)
        self._was_up = True
        self.changed()

    def _answers(self) -> bool:
        try:
            return (
                bool(self.address)
                and httpx.get(
                    f"http://{self.address}/health", timeout=2.0, trust_env=False
                ).is_success
            )
        except httpx.HTTPError:
            return False

    def _next_address(self) -> str:
        """A port that never answered is exchanged for another."""
        return self.address if self._was_up else super()._next_address()

    def _started(self) -> None:
        if self._was_up:
            self.changed()

    def _command(self, address: str) -> list[str]:
        host, _, port = address.rpartition(":")
        command = [str(flower_program("superlink")), "--insecure", "--host", host, "--port", port]
        command += ["--isolation", "process", "--database", str(self.database)]
        return [*command, "--superexec-auth-secret-file", str(self._secret_file)]
