"""One JSON object a line: what happened, when, to which party, run, round and report; never a value
of a user.

Only the fields listed in `FIELDS` can be written at all, so that a log line cannot carry what
nobody thought about. An error line has the cause and the remedy: in our own words where the error
is one of ours that reads no data, else by type, place and the system's error number, since the
words of others may quote data.

A log file is rotated by size, and opened again after SIGHUP or when another program has moved it
away. Every line goes to the file in one write, and files are only renamed, so that ending the
process at any moment, by kill -9 too, loses no line that was written.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from types import FrameType

from fedrec.errors import DataError, FedRecError, MalformedRowError, SettingsError

FIELDS = frozenset(
    {
        *("run", "round", "attempt", "step", "phase", "report", "sender"),
        *("role", "code", "place", "error", "cause", "remedy"),
        *(
            "users",
            "enrolled",
            "joined",
            "quorum",
            "missing",
            "accepted",
            "rejected",
            "clipped",
            "events",
            "unknown_events",
            "bytes_in",
            "bytes_out",
        ),
        *("clients", "needed", "there"),
        *("took_s", "wait_s", "address", "pid", "node", "nodes", "version", "exit_status"),
        *("certificate", "epsilon_spent", "epsilon_left", "ledger_head", "sha256"),
    }
)
"""Names of everything that may stand in a log line beside time, level, party and event: ids,
counts, sizes, times, codes."""

MAX_BYTES = 64 * 2**20
KEPT = 4
"""Default size at which a log file is rotated, and how many rotated ones are kept."""

_LONGEST = 200
_LONGEST_REASON = 800
"""Characters of a field: a line stays readable, whatever a peer sent. Causes and remedies are
sentences."""
_UNQUOTED = (
    "an error that was met while private data were read",
    "The place in this line says where; `fedrec doctor` on this machine says more.",
)

_SHARED = logging.getLogger("fedrec")
"""What parties share says it here, such as that a client's server does not answer."""

Field = str | int | float | Mapping[str, int] | None


class _JsonLines(logging.Formatter):
    def __init__(self, party: str) -> None:
        super().__init__()
        self._party = party

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time,
            "level": record.levelname.lower(),
            "party": self._party,
            "event": record.getMessage()[:_LONGEST],
        }
        return json.dumps(line | getattr(record, "fields", {}), separators=(",", ":"))


def configure(
    party: str,
    *,
    file: Path | None = None,
    level: int = logging.INFO,
    max_bytes: int = MAX_BYTES,
    kept: int = KEPT,
) -> logging.Logger:
    """The log of one party, which is that of its package `fedrec_<party>` and of what parties
    share: lines on standard error, or in `file`, which is rotated at `max_bytes` (0: never), `kept`
    older ones beside it.

    Called again for the same party, the new destination replaces the old one. Raises SettingsError
    where the file cannot be written.
    """
    log = logging.getLogger(f"fedrec_{party}")
    close(log)
    log.setLevel(level)
    log.propagate = False
    handler = _handler(file, max_bytes, kept)
    seen = file is None and sys.stderr.isatty()
    handler.setFormatter((_PlainLines if seen else _JsonLines)(party))
    log.addHandler(handler)
    _SHARED.addHandler(handler)
    return log


@contextmanager
def party_log(
    party: str, *, file: Path | None = None, max_bytes: int = MAX_BYTES, kept: int = KEPT
) -> Iterator[logging.Logger]:
    """The log of a party while the body runs: an error that ends it is the last line,
    `<party>-failed`; SIGHUP opens the file again.

    Raises SettingsError where the file cannot be written.
    """
    log = configure(party, file=file, max_bytes=max_bytes, kept=kept)
    try:
        with _reopened_on_hangup(log):
            yield log
    except Exception as failure:
        say_failure(log, f"{party}-failed", failure)
        raise
    finally:
        close(log)


def reopen(log: logging.Logger) -> None:
    """Open the log's file again before its next line. Safe in a signal handler."""
    for handler in log.handlers:
        if isinstance(handler, _LogFile):
            handler.told = True


def close(log: logging.Logger) -> None:
    """Let go of the log's file."""
    for handler in list(log.handlers):
        log.removeHandler(handler)
        _SHARED.removeHandler(handler)
        handler.close()


def say(log: logging.Logger, event: str, *, level: int = logging.INFO, **fields: Field) -> None:
    """Write one line. Raises ValueError on a field that is not in `FIELDS`, and on an error without
    cause and remedy; fields that are None are left out."""
    if unknown := fields.keys() - FIELDS:
        raise ValueError(
            f"a log line may not carry {sorted(unknown)}; logs.FIELDS lists what it may"
        )
    if level >= logging.ERROR and not (fields.get("cause") and fields.get("remedy")):
        raise ValueError(f"{event!r} is an error without cause and remedy")
    log.log(
        level,
        event,
        extra={
            "fields": {
                name: _short(name, value) for name, value in fields.items() if value is not None
            }
        },
    )


def say_failure(
    log: logging.Logger, event: str, failure: BaseException, *, quoted: bool = True, **fields: Field
) -> None:
    """An error line: type, place, cause and remedy (`reason`). quoted: False where an error's own
    words may quote private data."""
    frames = traceback.extract_tb(failure.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
    cause, remedy = reason(failure) if quoted else _UNQUOTED
    say(
        log,
        event,
        level=logging.ERROR,
        error=type(failure).__name__,
        place=place,
        cause=cause,
        remedy=remedy,
        **fields,
    )


def reason(failure: BaseException) -> tuple[str, str]:
    """Cause and remedy of an error, without anything that was read from data."""
    match failure:
        case MalformedRowError():
            return (
                f"{failure.path}, line {failure.line}: expected {failure.expected}",
                failure.remedy,
            )
        case DataError():
            return (
                "data cannot be read, or do not fit",
                "`fedrec doctor` says which, on the terminal of who may see them.",
            )
        case FedRecError():
            return failure.cause, failure.remedy
        case MemoryError():
            return "no memory is left", "Give the process more memory, or less to do at once."
        case OSError(errno=int(number)):
            return (
                os.strerror(number),
                (
                    "Free disk space, correct permissions or the network, whichever it names; "
                    "then start it again."
                ),
            )
        case _:
            return (
                f"an unexpected {type(failure).__name__}",
                "If it comes again, report it as a defect, with the place in this line.",
            )


class _LogFile(logging.handlers.RotatingFileHandler):
    """A log file that goes on where it stopped: after a rename by another program, after SIGHUP,
    after a line cut off by a full disk."""

    def __init__(self, file: Path, max_bytes: int, kept: int) -> None:
        self.told = False
        self._failing = False
        super().__init__(file, maxBytes=max_bytes, backupCount=kept, encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.stream is not None and (self.told or self._moved(self.stream)):
                self.told = False
                self.stream.close()
                self.stream = self._open()
        except OSError:
            self.handleError(record)
            return
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base's name
        """A log that cannot be written ends no party; it is said once.

        The next line begins with the file opened again."""
        stream = self.stream
        self.stream = None
        with suppress(OSError, ValueError):
            if stream is not None:
                stream.close()
        if not self._failing:
            self._failing = True
            failure = sys.exc_info()[1]
            sys.stderr.write(
                f"{self.baseFilename} cannot be written: "
                f"{reason(failure)[0] if failure else record.getMessage()}\n"
            )

    def _open(self) -> TextIOWrapper:
        stream: TextIOWrapper = super()._open()
        with open(self.baseFilename, "rb") as file:
            if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                stream.write("\n")
        return stream

    def _moved(self, stream: TextIOWrapper) -> bool:
        try:
            there = os.stat(self.baseFilename)
        except OSError:
            return True
        mine = os.fstat(stream.fileno())
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)


@contextmanager
def _reopened_on_hangup(log: logging.Logger) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        yield
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        reopen(log)

    before = signal.signal(signal.SIGHUP, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class _PlainLines(_JsonLines):
    """Lines for a person at a terminal: time, event, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        content = json.loads(super().format(record))
        time_of_day = str(content.pop("time"))[11:19]
        event = content.pop("event", "")
        told = [f"{name} {value}" for name, value in content.items() if name != "party"]
        return f"{time_of_day} {event}: {', '.join(told)}"


def _handler(file: Path | None, max_bytes: int, kept: int) -> logging.Handler:
    if file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        # it may be the first file of a state folder
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _LogFile(file, max_bytes, kept)
    except OSError as failure:
        raise SettingsError(
            f"{file}: {failure.strerror or failure}", "Name a log file that this user may write."
        ) from None


def _short(name: str, value: Field) -> Field:
    most = _LONGEST_REASON if name in {"cause", "remedy"} else _LONGEST
    return (
        value[:most]
        if isinstance(value, str)
        else dict(value)
        if isinstance(value, Mapping)
        else value
    )
