"""Standard streams whose reader went away: a party goes on, and what it would print is dropped."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, TextIO, cast


def keep_on_without_streams() -> None:
    """A process goes on where nobody reads its standard output or error any more, or their disk is
    full: what cannot be written there is dropped."""
    sys.stdout = cast(TextIO, _Dropping(sys.stdout))
    sys.stderr = cast(TextIO, _Dropping(sys.stderr))


class _Dropping:
    """A standard stream that never fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()
