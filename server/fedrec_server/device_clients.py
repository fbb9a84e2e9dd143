"""Light devices as one more client of a broadcast: a question is published for all of them, and
they report when they look.

    FOLDER/v1/round             the round that is open, as JSON; "{}" for none
    FOLDER/v1/content/SHA256    question's header, arrays, plan and terms, each under its digest

The files are the same for everybody and, but for `round`, never change: any web server, object
store or cache may serve the folder. An aggregator's table `devices` serves it beside its intake.
Files of the round before stay, for devices that read it just now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedrec.errors import RunError
from fedrec.federation.protocol import Answer, Broadcast, Invitation, Phase, ReleaseEndpoint, Terms
from fedrec.federation.wire import described
from fedrec.storage import write_bytes

NAME = "light-devices"
"""What the answers of all light devices together are called."""


class Publication:
    """The folder, written one file after the other, the round last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "v1"
        self._before = set[str]()

    def publish(self, terms: Terms, invitation: Invitation) -> None:
        """Let devices answer this round, in the place of the one before. Raises RunError."""
        files, told = described(terms, invitation)
        try:
            for name, content in files.items():
                if not (path := self._folder / "content" / name).exists():
                    write_bytes(path, content)
            write_bytes(self._folder / "round", told)
            for path in (self._folder / "content").iterdir():
                if path.name not in files.keys() | self._before:
                    path.unlink()
        except OSError as failure:
            raise RunError(
                f"the round cannot be published to devices: {failure}",
                "Free disk space, and go on.",
            ) from failure
        self._before = set(files)

    def withdraw(self) -> None:
        """No round is open."""
        write_bytes(self._folder / "round", b"{}")


@dataclass
class DeviceClients:
    """A `Broadcast` to clients and to light devices. users: devices that are counted on; window_s:
    for them to report in a round.

    endpoint: says who is enrolled and has reported, devices and clients together.
    """

    clients: Broadcast
    endpoint: ReleaseEndpoint
    publication: Publication
    users: int
    window_s: float
    pause_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _terms: Terms | None = field(default=None, init=False)
    _joined: int = field(default=0, init=False)

    def join(self, terms: Terms) -> Sequence[Answer]:
        """Implements `Broadcast.join`; of devices, those are there who enrolled and are no
        client's."""
        answers = list(self.clients.join(terms))
        self._terms = terms
        theirs = sum(answer.users for answer in answers if not answer.refusal)
        self._joined = max(0, min(self.users, self.endpoint.enrolled() - theirs))
        return [*answers, Answer(NAME, self._joined)] if self._joined else answers

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        """Implements `Broadcast.ask`; when clients have answered, devices are waited for until all
        have reported or the window is over."""
        if self._terms is None or not self._joined:
            return self.clients.ask(invitation)
        until_s = self.clock() + self.window_s
        self.publication.publish(self._terms, invitation)
        answers = list(self.clients.ask(invitation))
        theirs = sum(answer.accepted for answer in answers)
        run = invitation.run
        round = invitation.question.round
        while True:
            status = self.endpoint.status(run, round)
            counted = max(0, min(self._joined, status.reported - theirs))
            if counted == self._joined or status.phase is not Phase.OPEN or self.clock() >= until_s:
                return [*answers, Answer(NAME, self._joined, counted)]
            self.sleep(self.pause_s)
