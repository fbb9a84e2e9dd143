"""Files that are whole or absent: everything a run keeps is written beside its place, synced, and
moved there."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrec.errors import RunError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Arrays = Mapping[str, "npt.NDArray[np.generic]"]


MOST_TEXT = 1 << 28
"""Bytes of a file that is read as text: ids of ten million items have fewer."""
MOST_BYTES = 1 << 36
"""Bytes of a file of arrays, more than memory holds; a file of holes says any number."""
PRIVATE = 0o600
"""Mode of files that their owner alone reads."""


def write_bytes(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace `path` atomically and durably: after a crash it holds the old bytes or the new ones.

    mode: what the user's umask takes from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb", opener=partial(os.open, mode=mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as failure:  # a full disk does not say of which file
        failure.filename = failure.filename or str(path)
        raise
    finally:
        beside.unlink(missing_ok=True)  # a full disk is not filled further by what did not fit
    _sync_folder(path.parent)


def open_plain(path: Path, most_bytes: int = MOST_BYTES) -> BufferedReader:
    """A file that somebody else may have made, opened: of no more than so many bytes, and plain,
    since a pipe or a device never ends. A link is what it leads to: caches of models are links.

    Raises OSError."""
    # a pipe is opened without waiting for who writes to it
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    kind = os.fstat(file.fileno())
    if stat.S_ISREG(kind.st_mode) and kind.st_size <= most_bytes:
        return file
    file.close()
    if stat.S_ISREG(kind.st_mode):
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    raise OSError(errno.EINVAL, "it is no plain file", str(path))


def bounded_bytes(path: Path, most_bytes: int = MOST_TEXT) -> bytes:
    """All bytes of a file that somebody else may have made. Raises OSError, as `open_plain`."""
    with open_plain(path, most_bytes) as file:
        return file.read(most_bytes)  # of a file that grows meanwhile, no more


def sha256_of(path: Path) -> str:
    """SHA-256 of a plain file. Raises OSError."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object with each key once: of a doubled one parsers keep one in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} comes twice")
    return found


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


_STRICT = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number)


def parsed_json(content: bytes | str) -> Any:
    """Strict JSON: numbers that are numbers, each key once.

    Raises ValueError, also on what nests too deep."""
    try:
        return _STRICT.decode(content if isinstance(content, str) else content.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("it nests too deep") from None


def told_json(content: bytes | str) -> Any:
    """JSON of another party, whose numbers may be Infinity, as a guarantee's are.

    Raises ValueError, also on what nests too deep."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it nests too deep") from None


@contextmanager
def writing(place: Path, remedy: str) -> Iterator[None]:
    """Raises RunError in the place of OSError, where the block cannot write to a file or folder."""
    try:
        yield
    except OSError as failure:
        cause = f"{place} cannot be written: {failure.strerror or failure}"
        raise RunError(cause, remedy) from None


def remove(path: Path) -> None:
    """Remove a file durably; one that is not there is nothing."""
    if path.parent.is_dir():
        path.unlink(missing_ok=True)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a new name in `folder` survive a power cut, where the system can open folders."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """`write_bytes` of readable JSON; infinite numbers become the string "inf"."""
    write_bytes(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """The one JSON file that fedrec writes of a content."""
    return (json.dumps(finite(content), indent=2, sort_keys=True) + "\n").encode()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Files of a folder, by name, each as `write_bytes`."""
    for name, content in files.items():
        write_bytes(folder / name, content)


def finite(content: Any) -> Any:
    """The structure with "inf" and "nan" as strings, so that any JSON parser reads it."""
    if isinstance(content, Mapping):
        return {str(k): finite(v) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [finite(v) for v in content]
    if (numpy := sys.modules.get("numpy")) and isinstance(content, numpy.generic):
        content = content.item()
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    return content


class UnreadableError(RunError):
    """A file that is there, and that the system does not let this process read: whoever does
    without a missing or damaged file must not do without this one."""


def unreadable(path: Path, failure: Exception, remedy: str) -> RunError:
    """What to raise where a file cannot be read. remedy: where it is missing or damaged."""
    cause = f"{path} cannot be read: {failure}"
    if not isinstance(failure, OSError):
        return RunError(cause, remedy)
    if isinstance(failure, FileNotFoundError):
        if not os.path.exists(path):
            return RunError(cause, remedy)
        cause = f"{path} cannot be opened"  # safetensors says the same of whatever the system says
    said = "Check its permissions, the disk and how many files are open; the file may be whole."
    return UnreadableError(cause, said)


def read_json(path: Path, kind: type = dict) -> Any:
    """What a file holds: an object, or a list where that is its `kind`.

    Raises RunError where the file is missing or holds none, UnreadableError where it may be
    whole."""
    try:
        if isinstance(found := parsed_json(bounded_bytes(path)), kind):
            return found
        raise ValueError(f"it holds no JSON {'object' if kind is dict else 'list'}")
    except (OSError, ValueError) as failure:
        raise unreadable(path, failure, "Start the run again without --resume.") from failure


def write_arrays(path: Path, arrays: Arrays) -> str:
    """Named arrays as safetensors, atomically; returns the SHA-256 of the file."""
    content = packed_arrays(arrays)
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def packed_arrays(arrays: Arrays) -> bytes:
    """Named arrays as the bytes of a safetensors file, the same for the same arrays."""
    import numpy as np  # here, as the next: a process that writes no arrays does without
    from safetensors.numpy import save

    return save({name: np.asarray(array, order="C") for name, array in sorted(arrays.items())})


def read_arrays(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """Raises RunError where the file is missing or damaged, UnreadableError where it may be
    whole."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        open_plain(path).close()  # safetensors would wait for a pipe
        return dict(load_file(path))
    except (OSError, SafetensorError, MemoryError) as failure:
        raise unreadable(path, failure, "Start the run again without --resume.") from failure


def release_file(folder: Path, round: int) -> Path:
    """Where a training keeps what was released in a round."""
    return folder / "releases" / f"round-{round:03d}.safetensors"


class Checkpoints:
    """The states of one training, one file a round; the newest readable one is where it
    continues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, state: Arrays, *, round: int) -> None:
        """Keep `state` after `round` answers."""
        write_arrays(self.folder / f"round-{round:03d}.safetensors", state)

    def prune(self, newest: int) -> None:
        """Remove all states but so many."""
        files = sorted(self.folder.glob("round-*.safetensors"), key=_by_round)
        for older in files[:-newest]:
            older.unlink(missing_ok=True)

    def all(self) -> list[dict[str, npt.NDArray[np.generic]]]:
        """Every state kept, oldest first."""
        return [
            read_arrays(file)
            for file in sorted(self.folder.glob("round-*.safetensors"), key=_by_round)
        ]

    def at(self, round: int) -> dict[str, npt.NDArray[np.generic]] | None:
        """The state after `round` answers, None where it is not kept."""
        file = self.folder / f"round-{round:03d}.safetensors"
        return read_arrays(file) if file.exists() else None

    def latest(self) -> dict[str, npt.NDArray[np.generic]] | None:
        """The newest state, or None before the first round."""
        return None if self.newest is None else read_arrays(self.newest)

    @property
    def newest(self) -> Path | None:
        """Its file."""
        return max(self.folder.glob("round-*.safetensors"), key=_by_round, default=None)


def _by_round(path: Path) -> tuple[int, str]:
    """In order past round 999 too."""
    return len(path.name), path.name


def posix_locks() -> Any:
    """Python's module of POSIX's locks of files; None on a system without them."""
    try:
        return import_module("fcntl")
    except ModuleNotFoundError:
        return None


def lock(file: int, *, wait: bool = False) -> None:
    """Hold an open file among processes until it is closed. wait: for another process that has it.
    Raises BlockingIOError where another has it."""
    if posix := posix_locks():
        posix.flock(file, posix.LOCK_EX | (0 if wait else posix.LOCK_NB))
        return
    windows = import_module("msvcrt")
    try:
        windows.locking(file, windows.LK_LOCK if wait else windows.LK_NBLCK, 1)
    except OSError as failure:
        raise BlockingIOError(*failure.args) from None
