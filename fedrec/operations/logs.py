"""One JSON object a line: what happened, when, to which party, run, round and report; never a value of a user.

Only the fields listed in `FIELDS` can be written at all, so that a log line cannot carry what nobody thought about.
Exceptions are logged by type and place: their words may quote data.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from fedrec.errors import SettingsError

FIELDS = frozenset(
    {
        *("run", "round", "attempt", "step", "phase", "report", "sender"),
        *("role", "code", "place", "error"),
        *("users", "enrolled", "accepted", "rejected", "clipped", "bytes_in", "bytes_out"),
        *("took_s", "wait_s", "address", "pid", "node", "nodes", "version", "exit_status"),
        *("certificate", "epsilon_spent", "epsilon_left", "ledger_head", "sha256"),
    }
)
"""Names of everything that may stand in a log line beside time, level, party and event: ids, counts, sizes, times, codes."""

_LONGEST = 200
_MAX_BYTES, _KEPT = 64 * 2**20, 4

Field = str | int | float | Mapping[str, int] | None


class _JsonLines(logging.Formatter):
    def __init__(self, party: str) -> None:
        super().__init__()
        self._party = party

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "party": self._party, "event": record.getMessage()[:_LONGEST]}
        return json.dumps(line | getattr(record, "fields", {}), separators=(",", ":"))


def configure(party: str, *, file: Path | None = None, level: int = logging.INFO) -> logging.Logger:
    """The log of one party, which is that of its package `fedrec_<party>`: lines on standard error, or in `file`
    (rotated at 64 MiB, four kept).

    Called again for the same party, the new destination replaces the old one. Raises SettingsError where the file cannot be written.
    """
    log = logging.getLogger(f"fedrec_{party}")
    close(log)
    log.setLevel(level)
    log.propagate = False
    handler = _handler(file)
    handler.setFormatter(_JsonLines(party))
    log.addHandler(handler)
    return log


def close(log: logging.Logger) -> None:
    """Let go of the log's file."""
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()


def say(log: logging.Logger, event: str, *, level: int = logging.INFO, **fields: Field) -> None:
    """Write one line. Raises ValueError on a field that is not in `FIELDS`; fields that are None are left out."""
    if unknown := fields.keys() - FIELDS:
        raise ValueError(f"a log line may not carry {sorted(unknown)}; logs.FIELDS lists what it may")
    log.log(level, event, extra={"fields": {name: _short(value) for name, value in fields.items() if value is not None}})


def say_failure(log: logging.Logger, event: str, failure: BaseException, **fields: Field) -> None:
    """An error's type and the place it comes from, without its words: they may quote data."""
    frames = traceback.extract_tb(failure.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
    say(log, event, level=logging.ERROR, error=type(failure).__name__, place=place, **fields)


def _handler(file: Path | None) -> logging.Handler:
    if file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return logging.handlers.RotatingFileHandler(file, maxBytes=_MAX_BYTES, backupCount=_KEPT, encoding="utf-8")
    except OSError as failure:
        raise SettingsError(f"{file}: {failure.strerror or failure}", "Name a log file that this user may write.") from None


def _short(value: Field) -> Field:
    return value[:_LONGEST] if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else value
