"""Public arrays of the last question, which a client keeps so that the next sends only what
differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedrec.arrays import Array
from fedrec.errors import RunError
from fedrec.federation.coding import Announced, announced
from fedrec.storage import read_arrays, write_arrays


@dataclass
class HeldArrays:
    """In memory, and in `path` where it is given.

    The next question sends what differs from these. They lie in the client's state, so that a
    device that starts for a round and stops after it downloads no more than one that stays. Losing
    the file costs one more download. Whether a client has it tells the server no more than whether
    the client got the last question.
    """

    path: Path | None = None
    _arrays: dict[Announced, Array] | None = field(default=None)

    def arrays(self) -> Mapping[Announced, Array]:
        """What was kept last; nothing where the file is missing or damaged.

        Each is named by what it holds, not by what it was called."""
        if self._arrays is None:
            try:
                found = {} if self.path is None else read_arrays(self.path)
            except RunError:
                found = {}
            self._arrays = {announced(array): array for array in found.values()}
        return self._arrays

    def keep(self, public: Mapping[str, Array]) -> None:
        """Instead of what was kept.

        A copy: steps may write into theirs. A disk that is full costs a download, not the round."""
        kept = {announced(array): array.copy() for array in public.values()}
        if self.path is not None and kept.keys() != self.arrays().keys():
            try:
                write_arrays(
                    self.path, {str(number): array for number, array in enumerate(kept.values())}
                )
            except OSError:
                self.path.unlink(missing_ok=True)
        self._arrays = kept
