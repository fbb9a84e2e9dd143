"""Public item features: sparse bags per category (year, genre, person, word ...). Public by type: may go anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from scipy import sparse


@dataclass(frozen=True)
class FeatureBag:
    """One category: `counts` (m x p CSR float32) of how often each of the p named values occurs on each item."""

    vocabulary: tuple[str, ...]
    counts: sparse.csr_matrix


@dataclass(frozen=True)
class PublicFeatures:
    """What anybody may know of m items: named feature bags, each with m rows."""

    bags: dict[str, FeatureBag]

    def __post_init__(self) -> None:
        rows = {name: bag.counts.shape[0] for name, bag in self.bags.items()}
        if len(set(rows.values())) > 1:
            raise ValueError(f"all bags must have one row per item, found {rows}")
