"""Parts that bundles of both families share: the run they come from, the public catalogue, and the
arrays by their names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedrec import __version__
from fedrec.data.features import PublicFeatures
from fedrec.privacy.bounded_mean import Population, TopicTable
from fedrec.privacy.guarantee import Guarantee
from fedrec.serving.bundle import MOST_CATEGORIES, About, Texts
from fedrec.serving.user_map import UserMap
from fedrec.storage import finite

Arrays = dict[str, npt.NDArray[np.generic]]
Export = tuple[About, Arrays]

CATEGORY_BAGS = ("genre", "listed_genre", "category")
"""Feature bags that name a few broad kinds of items, the first that is there."""


@dataclass(frozen=True)
class Origin:
    """The run a bundle comes from. delta: of serving. spent: epsilon of training by its ledger.

    runs: how many trainings the guarantee is of, all together: those whose people answered before
    this model was made. not_covered: sentences on what was read off everybody's rows.
    """

    name: str
    delta: float
    guarantee: Guarantee
    spent: float
    noise: Literal["seeded", "system"]
    runs: int = 1
    not_covered: tuple[str, ...] = ()

    @property
    def training(self) -> dict[str, Any]:
        """Values for `About.training`; infinite numbers as strings."""
        return dict(
            finite(
                {**asdict(self.guarantee), "spent": self.spent}
                | ({"runs": self.runs} if self.runs > 1 else {})
                | ({"not_covered": self.not_covered} if self.not_covered else {})
            )
        )


@dataclass(frozen=True)
class PublicItems:
    """m items as anybody may know them: ids, titles (the ids where there are none, or blank
    where one has none), and the categories each is in."""

    ids: Sequence[str]
    titles: Sequence[str]
    listed: Sequence[Sequence[str]]

    @staticmethod
    def of_features(
        ids: Sequence[str], titles: Sequence[str] | None, features: PublicFeatures
    ) -> PublicItems:
        """Categories from the first bag of `CATEGORY_BAGS`."""
        bag = next((features.bags[name] for name in CATEGORY_BAGS if name in features.bags), None)
        if bag is None:
            return PublicItems(ids, titles or ids, [()] * len(ids))
        ptr = bag.counts.indptr
        columns = bag.counts.indices
        return PublicItems(
            ids,
            titles or ids,
            [[bag.vocabulary[c] for c in columns[ptr[j] : ptr[j + 1]]] for j in range(len(ids))],
        )

    @property
    def shown(self) -> list[str]:
        """What a list shows of each: its title, or the id of an item whose title is blank."""
        pairs = zip(self.ids, self.titles, strict=True)
        return [title if title.strip() else own for own, title in pairs]

    def categories(self) -> tuple[tuple[str, ...], npt.NDArray[np.uint64]]:
        """Names, sorted, of the 64 that most items have, and a bit for each on every item."""
        counts = Counter(name for names in self.listed for name in set(names))
        kept = tuple(
            sorted(sorted(counts, key=lambda name: (-counts[name], name))[:MOST_CATEGORIES])
        )
        bit = {name: 1 << k for k, name in enumerate(kept)}
        return kept, np.array(
            [sum(bit.get(name, 0) for name in set(names)) for names in self.listed], np.uint64
        )


@dataclass(frozen=True)
class Ranking:
    """How scores are made: users, items (m, D), bias (m,)."""

    users: UserMap
    items: npt.NDArray[np.floating]
    bias: npt.NDArray[np.floating]


@dataclass(frozen=True)
class Asking:
    """How a history becomes a query: public rows, the population that decodes it, H, the scale, and
    the least rating that counts."""

    table: TopicTable
    population: Population
    history: int
    scale: float = 1.0
    liked: float = 0.0


def additive_bundle(
    family: Literal["news", "ratings", "clicks"],
    origin: Origin,
    catalogue: PublicItems,
    asking: Asking,
    ranking: Ranking,
    *,
    more: Mapping[str, npt.NDArray[np.generic]] | None = None,
) -> Export:
    """About and arrays of a bundle with the additive form."""
    names, _ = catalogue.categories()
    about = About(
        name=origin.name,
        family=family,
        form="additive",
        history=asking.history,
        sensitivity=math.nextafter(asking.table.diameter / asking.history, math.inf),
        delta=origin.delta,
        scale=asking.scale,
        liked=asking.liked,
        categories=names,
        training=origin.training,
        noise=origin.noise,
        fedrec=__version__,
    )
    public = {
        "rows": asking.table.rows,
        "mean": asking.population.mean,
        "covariance": asking.population.covariance,
    }
    return about, bundle_arrays(catalogue, ranking, public) | dict(more or {})


def bundle_arrays(
    catalogue: PublicItems, ranking: Ranking, asking: Mapping[str, npt.NDArray[np.generic]]
) -> Arrays:
    """By the names of `bundle`, with its types. asking: rows, mean and covariance."""
    ids = Texts.of(catalogue.ids)
    titles = Texts.of(catalogue.shown)
    return {
        **ranking.users.arrays(),
        "items": np.asarray(ranking.items, np.float32),
        "bias": np.asarray(ranking.bias, np.float32),
        "categories": catalogue.categories()[1],
        "rows": np.asarray(asking["rows"], np.int32),
        "mean": np.asarray(asking["mean"], np.float64),
        "covariance": np.asarray(asking["covariance"], np.float64),
        **{
            "ids.content": ids.content,
            "ids.ptr": ids.ptr,
            "titles.content": titles.content,
            "titles.ptr": titles.ptr,
        },
    }
