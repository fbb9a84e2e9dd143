"""Guarantees: (epsilon, delta) with the unit it protects and the neighbours it compares.

"user, add/remove": nobody can tell the output from the one without any single user's data, all of
it removed. "example, add/remove": the same for one rating or click. "click, replace": one click of
a history exchanged for another. Of add/remove the number of users is public: neighbours have the
same, and a recipe's sizes may depend on it. Guarantees of different units or neighbours never add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from fedrec.errors import PrivacyError, UnitMismatchError

Unit = Literal["user", "example", "click"]
Neighbours = Literal["add/remove", "replace"]
_ROUNDING = 1e-9
"""Relative: a number that is one of four digits but for the last bits of a float is said as
that."""


def compared(unit: Unit, neighbours: Neighbours) -> str:
    """The words that stand beside every epsilon: per user (add/remove, number of users public)."""
    public = ", number of users public" if neighbours == "add/remove" else ""
    return f"per {unit} ({neighbours}{public})"


def said_down(epsilon: float) -> str:
    """Four digits, never more than it is: of what is still possible, so that whoever asks for what
    was said is not refused."""
    return _four_digits(epsilon * (1 + _ROUNDING), math.floor)


def said_up(epsilon: float) -> str:
    """Four digits, never less than it is: of what is needed."""
    return _four_digits(epsilon * (1 - _ROUNDING), math.ceil)


def _four_digits(epsilon: float, rounded: Callable[[float], int]) -> str:
    if epsilon == 0 or math.isinf(epsilon):
        return f"{epsilon:g}"
    # the place of the fourth digit
    place = 10.0 ** (3 - math.floor(math.log10(epsilon)))
    return f"{rounded(epsilon * place) / place:.4g}"


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy for `unit` under `neighbours`.

    Args:
        epsilon: At least 0; infinite for no privacy.
        delta: In (0, 1); 0 for pure privacy.
        unit: Who or what is protected.
        neighbours: What two neighbouring data sets differ by.
        established: False for mechanisms kept only to reproduce a paper whose proof does not
            hold.
        note: Why not, or else what the guarantee leaves out.
    """

    epsilon: float
    delta: float
    unit: Unit = "user"
    neighbours: Neighbours = "add/remove"
    established: bool = True
    note: str = ""

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(
                f"epsilon must be positive (or inf for no privacy), found {self.epsilon!r}"
            )
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, found {self.delta!r}")

    @property
    def private(self) -> bool:
        """False where epsilon is infinite: nothing is promised."""
        return math.isfinite(self.epsilon)

    @property
    def compared(self) -> str:
        """Unit and neighbours in words."""
        return compared(self.unit, self.neighbours)

    def require_same_unit(self, other: Guarantee) -> None:
        """Refuse to add guarantees of different units or neighbours.

        Args:
            other: What is to be added.

        Raises:
            UnitMismatchError: They do not protect the same unit against the same neighbours.
        """
        mine = (self.unit, self.neighbours)
        theirs = (other.unit, other.neighbours)
        if mine != theirs:
            raise UnitMismatchError(
                f"a guarantee {self.compared} cannot be combined with one {other.compared}",
                "Account for the two separately, and print both.",
            )

    def __str__(self) -> str:
        if not self.private:
            return f"no privacy (epsilon infinite, {self.compared})"
        words = f"epsilon {self.epsilon:g} at delta {self.delta:g} {self.compared}"
        if self.established:
            return f"{words}; {self.note}" if self.note else words
        return f"{words}: NOT ESTABLISHED, {self.note or 'kept for reproduction only'}"


def non_private(
    delta: float, unit: Unit = "user", neighbours: Neighbours = "add/remove"
) -> Guarantee:
    """No privacy, spelled out: costs infinity and prints so."""
    return Guarantee(math.inf, delta, unit, neighbours)


def with_sound_delta(guarantee: Guarantee, users: int, *, allowed: bool) -> Guarantee:
    """The guarantee, whose note warns where delta >= 1 / users: publishing one user's data with
    that probability would keep it.

    Raises PrivacyError from 1 / sqrt(users) on, unless `allowed`.
    """
    delta = guarantee.delta
    if not guarantee.private or users < 1 or delta < 1 / users:
        return guarantee
    if delta >= users**-0.5 and not allowed:
        raise PrivacyError(
            (
                f"delta {delta:g} promises nothing among {users:,} users: it is not below "
                f"1/sqrt({users}) = {users**-0.5:.2g}"
            ),
            (
                f"Set privacy.delta far below 1/{users} = {1 / users:.2g}, or "
                "privacy.allow_large_delta = true for an experiment."
            ),
        )
    warning = (
        f"delta {delta:g} is not below 1/{users}: publishing one user's data with that "
        "probability would keep it"
    )
    return replace(guarantee, note="; ".join(filter(None, (guarantee.note, warning))))
