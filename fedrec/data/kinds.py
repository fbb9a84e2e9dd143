"""Kinds of data: ratings on a public scale, and clicks; what follows from each, said once.

Files, settings and messages name a kind by a string. `KINDS` gives the object behind it, and
`assumed` the kind that a scenario means before its data is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["ratings", "clicks"]


@dataclass(frozen=True)
class DataKind:
    """What is known of all data of a kind.

    rated: whether an event has a value on a public scale; without one, an event says of itself that
    an item was liked. duplicates: what is done with a second event of one user and item where
    nobody chose; of clicks only whether there was one counts, a second rating contradicts the
    first.

    >>> KINDS["clicks"].scale((1.0, 5.0)), KINDS["ratings"].scale((1.0, 5.0))
    ((0.0, 1.0), (1.0, 5.0))
    """

    name: Kind
    rated: bool
    duplicates: Literal["refuse", "last"]

    def scale(self, stated: tuple[float, float]) -> tuple[float, float]:
        """Lowest and highest value: what is stated, or of clicks 0 and 1."""
        return stated if self.rated else (0.0, 1.0)

    def ranked(self, asked: bool) -> bool:
        """Whether models are tested by lists: where a scenario asks, and always where no value can
        be predicted."""
        return asked or not self.rated


KINDS: Mapping[str, DataKind] = {
    kind.name: kind
    for kind in (DataKind("ratings", True, "refuse"), DataKind("clicks", False, "last"))
}
"""By the name in files, settings and messages."""


def assumed(chosen: str) -> Kind:
    """The kind that `data.kind` means where no data is there to say: ratings, unless clicks are
    chosen.

    >>> assumed("auto"), assumed("clicks")
    ('ratings', 'clicks')
    """
    return KINDS[chosen].name if chosen in KINDS else "ratings"
