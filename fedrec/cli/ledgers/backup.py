"""`fedrec backup` and `fedrec restore`: the state folder of a party as one file, taken also while
the party runs.

    tar: files/<path in the state folder> ..., then manifest.json: party, version, time, how far the
        ledger reached, SHA-256 of every file

What is taken is a state that the folder could have been left in by a crash, from which every party
goes on (docs/deploy.md, what goes wrong): SQLite's own backup of a ledger first, then the files
that it speaks of, each written whole or not at all. A client's head file is written anew for the
ledger that was taken. What belongs to the process and not to its state is left out: Flower's files,
logs, locks.

A backup is written beside its place and moved there when it is whole. It is as secret as the state
folder (a client's holds the secret of its users' pseudonyms), and is for the newest only: what was
released or spent since an older one is not in it. `restore` writes into a folder without a ledger
only; the other parties refuse what is older than they have seen.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from fedrec import __version__
from fedrec.errors import RunError, SettingsError
from fedrec.ledgers.sqlite_ledger import opened_to_look
from fedrec.operations.settings_files import kind_of
from fedrec_aggregator.chain import RoundReleased, read
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_client.settings import load as load_client
from fedrec_server.settings import load as load_server

FORMAT = "fedrec-backup/1"
MANIFEST = "manifest.json"
LEDGERS = ("ledger.sqlite", "clicks.sqlite")
SEEN = "aggregator-ledger.json"
_NOT_STATE = frozenset(
    {
        "address.json",
        "server.json",
        "client.json",
        "serving.json",
        "train-again.json",
        "lock",
        "runtime.secret",
    }
)
# a party at work writes an entry a round: one of so many attempts falls between two entries
_TRIES = 8
_PAUSE_S = 0.2
PIECE = 2**20  # bytes read at a time: files of any size are copied in little memory


@dataclass(frozen=True)
class Backup:
    """What a backup says of itself. entries, head: of the ledger, or of what a server has seen of
    the aggregator's. files: SHA-256."""

    party: str
    name: str
    version: str
    time_s: float
    entries: int
    head: str
    files: dict[str, str]
    links: dict[str, str]


@dataclass(frozen=True)
class Party:
    """Whose state is taken or put back. name: of a client. seen: the file in which a server keeps
    what it has seen of the aggregator's ledger."""

    kind: str
    name: str
    state: Path
    seen: Path | None = None

    @property
    def words(self) -> str:
        """Kind and name, for messages."""
        return f"{self.kind} {self.name}".strip()


class _ChangedError(Exception):
    """What was being read was removed or replaced: begin again."""


def backup(settings: Path, output: Path, *, clock: Callable[[], float] = time.time) -> Backup:
    """Write a party's state to `output`, readable by its owner alone; what was there is replaced
    when the new file is whole.

    Raises RunError where there is no state, its ledger is damaged, or the file cannot be written:
    then nothing is left of it.
    """
    party = party_of(settings)
    if not party.state.is_dir():
        raise RunError(
            f"{party.state} is not there", "Run this on the machine of the party, as its user."
        )
    # a file that changed while it was copied may be of two states: the archive is made again
    for attempt in range(_TRIES):
        try:
            with _beside(output) as file:
                return _written(party, file, clock())
        except _ChangedError:
            # each pause is longer, until the party has done what it does
            time.sleep(_PAUSE_S * attempt)
        except OSError as failure:
            cause = f"the backup {output} cannot be written: {failure.strerror or failure}"
            raise RunError(
                cause,
                (
                    "Free space, or name another place: nothing is left of it, and older backups "
                    "are as they were."
                ),
            ) from None
    raise RunError(f"{party.state} changes too fast to be copied", "Try again between two rounds.")


def party_of(settings: Path) -> Party:
    """The party of a settings file. Raises SettingsError where it keeps no state."""
    match kind_of(settings):
        case "aggregator":
            aggregator = load_aggregator(settings)
            if aggregator.postgres:
                raise SettingsError(
                    f"the ledger of {settings} lies in PostgreSQL",
                    "Back the database up and restore it by its own means (pg_basebackup with "
                    "its log, or pg_dump).",
                )
            return Party("aggregator", "", Path(aggregator.state))
        case "client":
            client = load_client(settings)
            return Party("client", client.name, Path(client.state))
        case "server":
            server = load_server(settings)
            state = Path(server.state)
            return Party("server", "", state, Path(server.seen_ledger or state / SEEN))
    raise SettingsError(
        f"{settings} is of serving, which keeps nothing",
        "Its bundles come from the server: back that up.",
    )


def _written(party: Party, file: IO[bytes], now_s: float) -> Backup:
    """Ledgers first: what they speak of is there before they do.

    Of a server, the list of its trainings first and last."""
    files = dict[str, str]()
    links = dict[str, str]()
    trainings = _bytes_of(party.state / "runs.json")
    with tarfile.open(fileobj=file, mode="w") as tar:
        entries = 0
        head = ""
        wanted = None
        for name in LEDGERS:
            if (party.state / name).exists():
                content = _snapshot(party.state / name)
                ledger = _examined(party, name, content)
                entries = ledger.entries
                head = ledger.head
                wanted = ledger.releases
                _add(tar, files, name, content)
                if ledger.beside is not None:
                    _add(tar, files, str(Path(name).with_suffix(".head.json")), ledger.beside)
        for path in _kept(party.state):
            name = path.relative_to(party.state).as_posix()
            if wanted is not None and name.startswith("releases/") and name not in wanted:
                continue  # written, and not released yet: it is made again
            if path.is_symlink():
                _add_link(tar, links, name, os.readlink(path))
            else:
                _add(tar, files, name, _content_of(path))
        if party.seen is not None:
            known = _bytes_of(party.seen)
            if known is not None:
                entries = int(json.loads(known)["number"])
                head = str(json.loads(known)["head"])
                if SEEN not in files:
                    _add(tar, files, SEEN, known)
            if trainings != _bytes_of(party.state / "runs.json"):
                raise _ChangedError
        found = Backup(party.kind, party.name, __version__, now_s, entries, head, files, links)
        _add(
            tar,
            {},
            MANIFEST,
            json.dumps({"format": FORMAT, **asdict(found)}, sort_keys=True).encode(),
            folder="",
        )
    return found


def _kept(state: Path) -> Iterator[Path]:
    """Files of the state, those that others speak of after those that speak of them: notes of a
    round last, its checkpoint first."""
    paths = [
        path
        for path in state.rglob("*")
        if (path.is_file() or path.is_symlink()) and _is_state(path.relative_to(state))
    ]
    last = ("rounds.jsonl", "run.json", "runs.json", SEEN)
    return iter(
        sorted(
            paths, key=lambda path: (last.index(path.name) if path.name in last else -1, str(path))
        )
    )


def _is_state(path: Path) -> bool:
    name = path.name
    inside = path.parts[0] == "flower" or any(part.startswith(".restoring") for part in path.parts)
    process = name in _NOT_STATE or name.endswith(
        (".lock", ".part", ".log", ".log.1", ".head.json", "-journal", "-wal", "-shm")
    )
    return not (
        inside
        or process
        or ".jsonl." in name
        or name in LEDGERS
        or (name.endswith(".jsonl") and name != "rounds.jsonl")
    )


def _snapshot(path: Path) -> bytes:
    """The database as of one commit, by SQLite's own backup, also while its process writes.

    Raises RunError."""
    try:
        with closing(opened_to_look(path)) as source, closing(sqlite3.connect(":memory:")) as copy:
            source.backup(copy)
            return copy.serialize()
    except sqlite3.Error as failure:
        raise RunError(
            f"{path} cannot be copied: {failure}",
            "Run this as the party's user; a damaged ledger is not backed up.",
        ) from None


@dataclass(frozen=True)
class _Ledger:
    """What a copy of a ledger holds. releases: the files that an aggregator's speaks of. beside: a
    client's head file as of the copy."""

    entries: int
    head: str
    releases: frozenset[str] | None = None
    beside: bytes | None = None


def _examined(party: Party, name: str, content: bytes) -> _Ledger:
    """Raises RunError where the copy's chain is broken: that is no backup."""
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.deserialize(content)
            return _READERS[party.kind](party.state / name, database)
        except (sqlite3.Error, ValueError, TypeError, KeyError) as failure:
            cause = f"{party.state / name} is damaged: {failure}"
            raise RunError(
                cause, "Nothing was backed up; older backups are as they were."
            ) from None


def _aggregators(path: Path, database: sqlite3.Connection) -> _Ledger:
    links = read(database, path)
    done = [link.entry for link in links if isinstance(link.entry, RoundReleased)]
    files = frozenset(f"releases/{entry.run}/round-{entry.round:03d}.safetensors" for entry in done)
    return _Ledger(len(links), links[-1].head if links else "", releases=files)


def _clients(path: Path, database: sqlite3.Connection) -> _Ledger:
    from fedrec_client.click_ledger import CLICKS
    from fedrec_client.ledger import ROUNDS

    table = ROUNDS if path.name == "ledger.sqlite" else CLICKS
    entries = table.read(database, path)
    head = entries[-1].head if entries else ""
    beside = json.dumps({"number": len(entries), "head": head}).encode() if head else b""
    return _Ledger(len(entries), head, beside=beside)


_READERS = {"aggregator": _aggregators, "client": _clients}
"""By the party whose ledger it is; a server keeps none."""


def _content_of(path: Path) -> bytes:
    content = _bytes_of(path)
    if content is None:
        raise _ChangedError
    return content


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _add(
    tar: tarfile.TarFile,
    files: dict[str, str],
    name: str,
    content: bytes,
    *,
    folder: str = "files/",
) -> None:
    if not content:
        return
    member = tarfile.TarInfo(folder + name)
    member.size = len(content)
    member.mode = 0o600
    tar.addfile(member, io.BytesIO(content))
    files[name] = hashlib.sha256(content).hexdigest()


def _add_link(tar: tarfile.TarFile, links: dict[str, str], name: str, target: str) -> None:
    member = tarfile.TarInfo("files/" + name)
    member.type = tarfile.SYMTYPE
    member.linkname = target
    tar.addfile(member)
    links[name] = target


@contextmanager
def _beside(output: Path) -> Iterator[IO[bytes]]:
    """A new file beside `output`, moved there when the body ends well, and removed otherwise."""
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, output)
    finally:
        part.unlink(missing_ok=True)
    synced(output.parent)


def synced(folder: Path) -> None:
    """Make names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
