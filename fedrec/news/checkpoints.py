"""Checkpoints of a training of news, so that one that is stopped goes on after its last step to the
same bytes: files, or nothing.

Keys of devices' noise: one for each user, purpose and round, and for each question where there
is one.

A user's draws depend on no other user, on no number that a server gives out, and not on who else is
asked: neither dividing the users among sites nor asking them in another order or company makes a
draw again. In a deployment the source is a site's secret for one run (`fedrec_client.news`), and
users are pseudonyms; in an experiment it is the seed, and users are their numbers among all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.federation.messages import Release
from fedrec.federation.wire import pack_release
from fedrec.randomness import SecretStreams, Streams, SystemStreams
from fedrec.storage import Checkpoints, read_arrays, release_file, write_arrays, write_bytes

State = Mapping[str, npt.NDArray[Any]]

_LAST = 2  # states; a model may have 20 MB, and a training thousands of rounds
_LARGE = 2**23  # bytes; such a state takes as long as a round
Source = Streams | SystemStreams | SecretStreams


@dataclass(frozen=True)
class Kept:
    """States under `folder/checkpoints` and what is made once beside them; None keeps nothing.

    pause_s: of rounds that anybody can repeat to the same bytes, how many seconds at least lie
    between two large states."""

    folder: Path | None = None
    pause_s: float = 0.0

    def latest(self) -> dict[str, npt.NDArray[Any]] | None:
        """The newest state, None before the first step. Raises RunError where it is damaged."""
        return None if self.folder is None else Checkpoints(self.folder / "checkpoints").latest()

    def save(self, state: State, *, step: int, last: bool = True) -> None:
        """Durable when this returns; the newest two stay. last: whether nothing comes after it, and
        it is kept in any case."""
        if self.folder is None:
            return
        checkpoints = Checkpoints(self.folder / "checkpoints")
        newest = checkpoints.newest
        large = sum(array.nbytes for array in state.values()) > _LARGE
        if large and not last and newest and time.time() - newest.stat().st_mtime < self.pause_s:
            return
        checkpoints.save(state, round=step)
        checkpoints.prune(_LAST)

    def release(self, round: int, answer: Release) -> None:
        """Keep what was released, where a server has not kept the bytes that came."""
        path = None if self.folder is None else release_file(self.folder, round)
        if path is not None and not path.exists():
            write_bytes(path, pack_release(answer))

    def once(self, name: str, make: Callable[[], State]) -> State:
        """What `make` gives, or what it gave before it was stopped."""
        if self.folder is None:
            return make()
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            write_arrays(path, make())
        return read_arrays(path)


NOTHING = Kept()
"""For trainings that nobody wants to resume."""


def packed(text: str) -> npt.NDArray[np.uint8]:
    """Text among arrays."""
    return np.frombuffer(text.encode(), np.uint8).copy()


@dataclass(frozen=True)
class DeviceNoise:
    """users: a name for each. question: the digest of what is being answered; "" where draws belong
    to the whole run. kept: where draws of the whole run are kept, of a source that does not draw
    them again."""

    source: Source
    users: tuple[str, ...]
    question: str = ""
    kept: Kept = NOTHING

    @staticmethod
    def numbered(source: Source, users: int) -> DeviceNoise:
        """Noise of users who are named by their numbers."""
        return DeviceNoise(source, tuple(map(str, range(users))))

    def key(self, user: int, purpose: str, *, round: int = 0) -> bytes:
        """32 bytes of this user's own."""
        return self.source.key(f"{purpose}/{self.question}/{self.users[user]}", round=round)

    def keys(
        self,
        users: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.integer]],
        purpose: str,
        *,
        round: int = 0,
    ) -> list[bytes]:
        """One for each of these users."""
        return [self.key(int(user), purpose, round=round) for user in users]

    def numpy(self, user: int, purpose: str) -> np.random.Generator:
        """A generator of this user's own, for choices that need no exact law."""
        return np.random.Generator(
            np.random.Philox(key=np.frombuffer(self.key(user, purpose)[:16], np.uint64))
        )
