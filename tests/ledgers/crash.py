"""A process that ends in the middle of a write, as kill -9 or a power cut leaves its ledger."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN")
database.execute("CREATE TABLE unfinished (x TEXT)")
for n in range(400):
    database.execute("INSERT INTO unfinished VALUES (?)", ("r" * 900,))
os._exit(9)
"""


def crash_in_a_write(path: Path) -> Path:
    """Pages of a transaction that never ended are in the database, and SQLite's journal, which is
    returned, holds what they were."""
    subprocess.run([sys.executable, "-c", _PROGRAM, str(path)], check=False)
    journal = path.with_name(f"{path.name}-journal")
    assert journal.stat().st_size
    return journal
