"""Checkpoints of a training of news, so that one that is stopped goes on after its last step to the
same bytes: files, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.federation.messages import Release
from fedrec.federation.wire import pack_release
from fedrec.storage import Checkpoints, read_arrays, release_file, write_arrays, write_bytes

State = Mapping[str, npt.NDArray[Any]]

_LAST = 2  # states; a model may have 20 MB, and a training thousands of rounds
_LARGE = 2**23  # bytes; such a state takes as long as a round


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
