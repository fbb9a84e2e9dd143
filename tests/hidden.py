"""What no log, span or metric of a deployment may hold: private keys, secrets of ledgers and
devices, pseudonyms of people and tokens of callers, read from the folders of its parties."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path


def hidden_words(*folders: Path) -> set[str]:
    """Each as it would be written: lines of keys, and bytes in hexadecimal digits and base 64."""
    return {word for folder in folders for word in _words(folder)}


def logs_with(folder: Path, words: set[str]) -> dict[str, list[str]]:
    """Logs under a folder that hold one of these words, and how the words begin."""
    logs = [path for path in folder.rglob("*.log*") if path.is_file()]
    assert logs
    said = {str(path): path.read_text(errors="replace") for path in logs}
    found = {path: [word[:12] for word in words if word in text] for path, text in said.items()}
    return {path: begins for path, begins in found.items() if begins}


def _words(folder: Path) -> Iterator[str]:
    for key in folder.rglob("*-key.pem"):
        yield from (line for line in key.read_text().split("\n") if line and line[0] != "-")
    for token in folder.rglob("*.token"):
        yield token.read_text().strip()
    for secret in folder.rglob("secret"):
        yield from _written(secret.read_bytes())
    for ledger in folder.rglob("ledger.sqlite"):
        with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as opened:
            tables = {name for (name,) in opened.execute("SELECT name FROM sqlite_master")}
            for table, column in (("secret", "value"), ("users", "token")):
                rows = opened.execute(f"SELECT {column} FROM {table}") if table in tables else ()
                for (value,) in rows:
                    yield from _written(value)


def _written(value: bytes) -> Iterator[str]:
    yield value.hex()
    yield base64.b64encode(value).decode().rstrip("=")
