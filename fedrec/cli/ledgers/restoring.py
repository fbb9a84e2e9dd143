"""`fedrec restore`: a backup examined byte by byte, and put back into a state folder that holds
nothing of a party.

Everything is written into a folder within the state folder first and then moved, what guards a
ledger before it, the ledger last: where that is cut off, the folder is not empty and has no ledger,
and nothing goes on from it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fedrec.cli.ledgers.backup import (
    FORMAT,
    LEDGERS,
    MANIFEST,
    PIECE,
    SEEN,
    Backup,
    Party,
    party_of,
    synced,
)
from fedrec.errors import FedRecError, RunError
from fedrec.ledgers.sqlite_ledger import opened_to_look
from fedrec.output_folders import MARKER, clear, discard, note, require_ours
from fedrec.storage import lock, parsed_json, read_json, write_bytes

_MOST_MANIFEST_BYTES = 64 << 20
"""A line for each of half a million files."""
_DEEPEST = 64
"""Folders within each other: a party makes fewer than ten."""
_ANOTHER_FOLDER = (
    "Move that folder away first, and keep it: nothing that a party has written is overwritten."
)


def contents(archive: Path) -> Backup:
    """What a backup holds, every byte of it examined.

    Raises RunError where it is none, is cut off, or was changed."""
    digests = dict[str, str]()
    links = dict[str, str]()
    manifest = None
    try:
        with opened(archive) as tar:
            for member in tar:
                name = _safe(member)
                if name in digests or name in links:
                    raise ValueError(f"{member.name!r} is there twice")
                if member.issym():
                    links[name] = member.linkname
                elif member.isreg() and member.name == MANIFEST:
                    if member.size > _MOST_MANIFEST_BYTES:
                        raise ValueError("its manifest is too large")
                    manifest = parsed_json(_of(tar, member).read())
                elif member.isreg():
                    digests[name] = _digest(_of(tar, member))
    except (OSError, tarfile.TarError, ValueError, EOFError) as failure:
        raise RunError(
            f"{archive} cannot be read: {failure}",
            "Take another backup: this one is none, or was cut off.",
        ) from None
    if not isinstance(manifest, dict) or manifest.pop("format", None) != FORMAT:
        raise RunError(
            f"{archive} is no backup in format {FORMAT}, or was cut off", "Take another one."
        )
    try:
        found = Backup(**manifest)
        kinds = {"entries": int, "time_s": float, "files": dict, "links": dict}
        if not all(type(getattr(found, key)) is kinds.get(key, str) for key in vars(found)):
            raise TypeError
        if not all(str(word).isprintable() for word in vars(found).values()):
            raise TypeError  # it is printed: a terminal carries out what it takes for commands
    except TypeError:
        raise RunError(f"{archive} is no backup in format {FORMAT}", "Take another one.") from None
    if (found.files, found.links) != (digests, links):
        raise RunError(
            f"{archive} does not hold what it says: it was changed or damaged", "Take another one."
        )
    return found


@contextmanager
def opened(archive: Path) -> Iterator[tarfile.TarFile]:
    """A plain, uncompressed archive: no member of it is larger than the file, whatever its header
    says, so that reading it takes no more memory or time than its size.

    Raises OSError, ValueError, TarError."""
    with open(os.open(archive, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        kind = os.fstat(file.fileno())
        if not stat.S_ISREG(kind.st_mode):
            raise ValueError("it is no plain file")
        with tarfile.open(fileobj=_Within(file, kind.st_size), mode="r:") as tar:  # type: ignore[call-overload]
            yield tar


@dataclass
class _Within:
    """A file that is never asked for more than it has: a header's size is believed by tarfile."""

    file: IO[bytes]
    size: int

    def read(self, size: int = -1) -> bytes:
        """Bytes of the archive, no more than there are."""
        if not 0 <= size <= self.size:
            raise ValueError("a part of it says that it is larger than the whole")
        return self.file.read(size)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the archive."""
        if not 0 <= place <= self.size + tarfile.RECORDSIZE:
            raise ValueError("a part of it says that it is larger than the whole")
        return self.file.seek(place, whence)

    def tell(self) -> int:
        """Where in the archive the next byte is."""
        return self.file.tell()


def restore(settings: Path, archive: Path) -> Backup:
    """Put a backup back into the state folder of the party that it is of, which must hold no ledger
    and not run. Raises RunError."""
    party = party_of(settings)
    found = contents(archive)
    if (found.party, found.name) != (party.kind, party.name):
        cause = (
            f"{archive} is of {Party(found.party, found.name, archive).words}, the settings of "
            f"{party.words}"
        )
        raise RunError(cause, "Give the settings of the party that the backup is of.")
    try:
        party.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _held(party.state):
            _require_empty(party.state, found)
            # of a restore that ended before it moved anything
            for left in party.state.glob(".restoring-*"):
                require_ours(left, "restoring")
                discard(left, "restoring")
            _put_back(party, archive, found)
    except OSError as failure:
        remedy = (
            f"Free space or correct permissions, empty {party.state} and restore again before "
            "the party is started."
        )
        raise RunError(
            f"{party.state} cannot be restored: {failure.strerror or failure}", remedy
        ) from None
    return found


def _require_empty(state: Path, found: Backup) -> None:
    """Raises RunError where something of a party lies there; of a ledger it says whether it goes
    further than the backup."""
    there = [
        path
        for path in state.iterdir()
        if not (path.name.endswith((".lock", ".log", ".log.1")) or path.name in ("lock", "flower"))
    ]
    there = [path for path in there if not path.name.startswith(".restoring")]
    if not there:
        return
    entries = -1
    with suppress(FedRecError, KeyError, TypeError, ValueError):
        entries = (
            int(read_json(state / SEEN)["number"])
            if found.party == "server"
            else _entries_in(state)
        )
    beside = ""
    if entries >= 0:
        beside = f": its ledger has {entries} entries, that of the backup {found.entries}"
        beside += ", so it is newer, and is what to go on with" if entries > found.entries else ""
    raise RunError(f"{state} is not empty{beside}", _ANOTHER_FOLDER)


def _entries_in(state: Path) -> int:
    with suppress(sqlite3.Error):
        for name in LEDGERS:
            if (state / name).exists():
                with closing(opened_to_look(state / name)) as database:
                    return int(database.execute("SELECT count(*) FROM entries").fetchone()[0])
    return -1


def _put_back(party: Party, archive: Path, found: Backup) -> None:
    """Everything into a folder within the state folder first; then moved, what guards the ledger
    before it, the ledger last."""
    beside = party.state / f".restoring-{os.getpid()}"
    clear(beside, "restoring", private=True)
    note(beside, "restoring", [*found.files, *found.links])
    with opened(archive) as tar:
        for member in tar:
            if not member.name.startswith("files/"):
                continue
            place = beside / _safe(member)
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if member.issym():
                os.symlink(member.linkname, place)
                continue
            with os.fdopen(
                os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                source = _of(tar, member)
                while piece := source.read(PIECE):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
    inside = party.seen == party.state / SEEN
    if party.seen is not None and not inside and (beside / SEEN).exists():
        _keep_newer(beside / SEEN, party.seen)
    for path in sorted(
        (path for path in beside.iterdir() if path.name != MARKER),
        key=lambda path: (path.name in LEDGERS, not path.name.endswith(".head.json"), path.name),
    ):
        os.replace(path, party.state / path.name)
    (beside / MARKER).unlink()
    beside.rmdir()
    synced(party.state)


def _keep_newer(restored: Path, there: Path) -> None:
    """What was seen of the aggregator's ledger never goes back: the file of the settings stays
    where it knows more."""
    if not there.exists() or int(read_json(there)["number"]) < int(read_json(restored)["number"]):
        write_bytes(there, restored.read_bytes())
    restored.unlink()


@contextmanager
def _held(state: Path) -> Iterator[None]:
    """The locks of every kind of party, so that none starts meanwhile.

    Raises RunError where one runs."""
    with ExitStack() as stack:
        for name in ("lock", "client.lock", "ledger.lock", "clicks.lock"):
            new = not (state / name).exists()
            file = stack.enter_context(open(state / name, "a"))
            try:
                lock(file.fileno())
            except OSError:
                raise RunError(f"a party is at work in {state}", "Stop it first.") from None
            if new:
                stack.callback((state / name).unlink, missing_ok=True)
        yield


def _safe(member: tarfile.TarInfo) -> str:
    """The member's path in a state folder. Raises ValueError on one that could lead out of it."""
    if member.name == MANIFEST:
        return member.name
    path = PurePosixPath(member.name)
    parts: Sequence[str] = path.parts
    deep = not 2 <= len(parts) <= _DEEPEST
    if path.is_absolute() or ".." in parts or deep or parts[0] != "files":
        raise ValueError(f"{member.name!r} is no file of a backup")
    if member.issym() and (
        member.linkname.startswith("/") or ".." in PurePosixPath(member.linkname).parts
    ):
        raise ValueError(f"{member.name!r} leads out of the folder")
    if not (member.issym() or member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
        raise ValueError(f"{member.name!r} is no plain file")
    return str(PurePosixPath(*parts[1:]))


def _of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    source: Any = tar.extractfile(member)
    if source is None:
        raise ValueError(f"{member.name!r} has no content")
    content: IO[bytes] = source
    return content


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while piece := file.read(PIECE):
        digest.update(piece)
    return digest.hexdigest()
