"""Callbacks of training: what an experiment tracker is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.storage import finite, writing

Callback = Callable[[Mapping[str, Any]], None]
"""Told of every round (`event` "round": round, step, releases, bytes, seconds, validation), and of
the end: "fit", the recipe and the guarantee of the model; or "simulate", the same and the metrics
on test."""


def require_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """Before anything is trained: whether each can be called, and files can be written.

    Raises SettingsError and RunError."""
    if callable(callbacks) or not isinstance(callbacks, Iterable):
        raise SettingsError(
            f"callbacks is {callbacks!r}, no list", "For example callbacks=[print]."
        )
    told = tuple(callbacks)
    for callback in told:
        if not callable(callback):
            raise SettingsError(
                f"the callback {callback!r} cannot be called",
                'For example callbacks=[fedrec.JsonLines("rounds.jsonl")].',
            )
        if isinstance(callback, JsonLines):
            with writing(callback.path, "Name another file."), callback.path.open("a"):
                pass
    return told


class JsonLines:
    """Appends one JSON object a line to a file.

    Args:
        path: The file, which is appended to.

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
