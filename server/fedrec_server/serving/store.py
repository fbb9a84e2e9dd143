"""Versions that answer: the bundle at each path, the newest of them by default, and those it has
replaced until they are retired.

A model is loaded beside the ones that answer and takes its place in one step, so no request falls
between two versions. Its file is kept open: whoever downloads it gets the version that was asked
for, also after the path holds another.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedrec.errors import RefusedError, RunError
from fedrec.serving.bundle import FILE, Ranked, read_ranked, sha256_of
from fedrec.serving.ranking import Exact, Query, Ranker
from fedrec_server.serving.refusals import Code, refused
from fedrec_server.serving.settings import ModelsTable

_TRIES = 5
"""A training replaces its bundle once: five replacements in a row are another program's."""
_SMALL_BYTES = 1 << 24
"""Item vectors that are ranked as they are; more are coded in 8 bits."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One version in memory and its file. written_s: when the file was written; categories: bit of
    each by name."""

    ranked: Ranked
    rank: Ranker
    sha256: str
    size: int
    written_s: float
    descriptor: int
    categories: Mapping[str, int]

    @property
    def version(self) -> str:
        """16 hexadecimal digits."""
        return self.ranked.version

    @property
    def coefficients(self) -> int:
        """B."""
        return int(self.ranked.users.linear.shape[0])

    def piece(self, start: int, length: int) -> bytes:
        """Bytes of the bundle."""
        return os.pread(self.descriptor, length, start)


@dataclass(frozen=True)
class _Found:
    """A file as it was when it was looked at."""

    inode: int
    size: int
    written_ns: int


def bundle_path(path: Path) -> Path:
    """The bundle of a run folder, or the file itself."""
    return path / FILE if path.is_dir() else path


def found(path: Path) -> _Found | None:
    """The file there, if any."""
    try:
        state = os.stat(bundle_path(path))
    except OSError:
        return None
    return _Found(state.st_ino, state.st_size, state.st_mtime_ns)


def load(path: Path, *, demo: bool = False) -> ServedModel:
    """Read a bundle. demo: one of an experiment too.

    Raises RunError where there is none, or it cannot be served."""
    place = bundle_path(path)
    for _ in range(_TRIES):  # a bundle that was replaced while it was read is read again
        try:
            # a pipe is opened without waiting for who writes to it, and then refused
            descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as failure:
            raise RunError(
                f"{place} cannot be read: {failure.strerror}",
                (
                    "Name the folder of a finished training, of simulate or of a server; --wait "
                    "waits for it."
                ),
            ) from None
        before = found(place)
        state = os.fstat(descriptor)
        try:
            ranked = _slim(_for_release(read_ranked(place), place, demo=demo))
            sha256 = sha256_of(place)
        except BaseException:
            os.close(descriptor)
            raise
        if before == found(place) == _Found(state.st_ino, state.st_size, state.st_mtime_ns):
            break
        # it was replaced meanwhile: what was read and what is open may be two versions
        os.close(descriptor)
    else:
        raise RunError(
            f"{place} changes while it is read",
            "Write a bundle once, and whole: beside its place, then moved there.",
        )
    categories = {name: bit for bit, name in enumerate(ranked.about.categories)}
    model = ServedModel(
        ranked,
        _ranker(ranked),
        sha256,
        state.st_size,
        state.st_mtime,
        descriptor,
        categories,
    )
    weakref.finalize(model, os.close, descriptor)
    return model


def _for_release(ranked: Ranked, place: Path, *, demo: bool) -> Ranked:
    if ranked.about.experiment and not demo:
        cause = (
            f"{place} is of an experiment: its model was trained with seeded noise, which "
            "whoever knows the seed can remove"
        )
        raise RunError(
            cause,
            (
                'Train it with privacy.noise = "system", or serve it with --demo, which tells '
                "everybody."
            ),
        )
    return ranked


def _slim(ranked: Ranked) -> Ranked:
    """With the fewest bytes an item that hold its categories."""
    return replace(
        ranked,
        categories=ranked.categories.astype(
            np.min_scalar_type(2 ** len(ranked.about.categories) - 1)
        ),
    )


def _ranker(ranked: Ranked) -> Ranker:
    if ranked.items.nbytes <= _SMALL_BYTES:
        return Exact(ranked)
    from fedrec.serving.compressed import Compressed  # brings compiled code

    rank = Compressed(ranked)
    rank([Query(np.zeros(len(ranked.users.linear), np.float32), 1)])  # compiles, or loads
    return rank


class ModelStore:
    """Used on the event loop alone. `clock` in seconds."""

    def __init__(self, bounds: ModelsTable, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._clock = clock
        self._at: dict[Path, ServedModel] = {}
        self._replaced_s: dict[str, float] = {}
        self._models: dict[str, ServedModel] = {}

    def __bool__(self) -> bool:
        return bool(self._at)

    @property
    def newest(self) -> ServedModel:
        """Written last of those that stand at a path. Raises RefusedError where none does."""
        if not self._at:
            raise refused(Code.DRAINING, "no model is loaded", "Ask again in a moment.")
        return max(self._at.values(), key=lambda model: model.written_s)

    def put(self, path: Path, model: ServedModel) -> None:
        """What stands at `path` now."""
        before = self._at.get(path)
        self._at[path] = model
        self._models[model.version] = model
        if before is not None:
            self._replaced_s.setdefault(before.version, self._clock())
        for standing in self._at.values():
            self._replaced_s.pop(standing.version, None)
        self.retire()

    def get(self, version: str) -> ServedModel:
        """Raises RefusedError (`WRONG_VERSION`), which names the newest."""
        model = self._models.get(version)
        if model is None:
            newest = self.newest.version
            raise refused(
                Code.WRONG_VERSION,
                f"this version is not served; the newest is {newest}",
                "Get the newest bundle and ask with it.",
            )
        return model

    def all(self) -> list[tuple[ServedModel, bool]]:
        """Every version that answers, the newest first, and whether it is to be retired."""
        newest = self.newest
        order = sorted(
            self._models.values(),
            key=lambda model: (model is newest, model.written_s),
            reverse=True,
        )
        return [(model, model.version in self._replaced_s) for model in order]

    def retire(self) -> list[str]:
        """Let go of versions that were replaced too long ago, or of the oldest where they are too
        many; their names."""
        since = sorted(self._replaced_s.items(), key=lambda item: item[1], reverse=True)
        late = self._clock() - self._bounds.retire_s
        gone = [
            version
            for place, (version, when) in enumerate(since)
            if place >= self._bounds.kept or when <= late
        ]
        for version in gone:
            del self._models[version], self._replaced_s[version]
        return gone


def newest_hint(store: ModelStore, refusal: RefusedError) -> str:
    """The newest version, where that is what the caller needs to know; else empty."""
    return store.newest.version if refusal.code == Code.WRONG_VERSION else ""
