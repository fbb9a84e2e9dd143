"""Public facts, which everybody knows before a run."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.data.features import PublicFeatures
from fedrec.data.kinds import KINDS, Kind
from fedrec.factorization.earlier import Earlier
from fedrec.randomness import Streams


@dataclass(frozen=True)
class PublicFacts:
    """What everybody knows before the run: sizes, the value scale, features, the run's seed, and
    what an earlier training released."""

    num_users: int
    num_items: int
    kind: Kind
    value_range: tuple[float, float]
    features: PublicFeatures | None
    streams: Streams
    earlier: Earlier | None = None

    @property
    def rated(self) -> bool:
        """Whether the data that is learned from is rated, as `Interactions.rated` says."""
        return KINDS[self.kind].rated
