"""Callbacks of training: what an experiment tracker is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedrec.storage import finite

Callback = Callable[[Mapping[str, Any]], None]
"""Told of every round (`event` "round": round, step, releases, bytes, seconds, validation) and of the end ("fit": the guarantee)."""


class JsonLines:
    """Appends one JSON object a line to a file.

    >>> import fedrec, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rounds.jsonl"
    >>> fedrec.JsonLines(path)({"event": "round", "round": 0})
    >>> path.read_text()
    '{"event": "round", "round": 0}\\n'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Write one event."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(event)) + "\n")
