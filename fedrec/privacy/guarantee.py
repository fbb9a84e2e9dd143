"""What is promised to whom: (epsilon, delta) with the unit it protects and the neighbours it compares.

"user, add/remove": nobody can tell the output from the one without any single user's data, all of it removed.
"example, add/remove": the same for one rating or click. "click, replace": one click of a history exchanged for another.
Guarantees of different units or neighbours never add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedrec.errors import UnitMismatchError

Unit = Literal["user", "example", "click"]
Neighbours = Literal["add/remove", "replace"]


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy for `unit` under `neighbours`.

    `established` is False for mechanisms kept only to reproduce a paper whose proof does not hold; `note` says why, or else what it
    leaves out.
    """

    epsilon: float
    delta: float
    unit: Unit = "user"
    neighbours: Neighbours = "add/remove"
    established: bool = True
    note: str = ""

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be positive (or inf for no privacy), found {self.epsilon!r}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, found {self.delta!r}")

    @property
    def private(self) -> bool:
        """False where epsilon is infinite: nothing is promised."""
        return math.isfinite(self.epsilon)

    def require_same_unit(self, other: Guarantee) -> None:
        """Raise UnitMismatchError unless both protect the same unit against the same neighbours."""
        mine, theirs = (self.unit, self.neighbours), (other.unit, other.neighbours)
        if mine != theirs:
            raise UnitMismatchError(
                f"a guarantee per {mine[0]} ({mine[1]}) cannot be combined with one per {theirs[0]} ({theirs[1]})",
                "Account for the two separately, and print both.",
            )

    def __str__(self) -> str:
        if not self.private:
            return f"no privacy (epsilon infinite, per {self.unit}, {self.neighbours})"
        words = f"epsilon {self.epsilon:g} at delta {self.delta:g} per {self.unit} ({self.neighbours})"
        if self.established:
            return f"{words}; {self.note}" if self.note else words
        return f"{words}: NOT ESTABLISHED, {self.note or 'kept for reproduction only'}"


def non_private(delta: float, unit: Unit = "user", neighbours: Neighbours = "add/remove") -> Guarantee:
    """No privacy, spelled out: costs infinity and prints so."""
    return Guarantee(math.inf, delta, unit, neighbours)
