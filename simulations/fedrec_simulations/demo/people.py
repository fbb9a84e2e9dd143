"""The people of a demonstration: invented, living at two sites, some of whose ratings arrive only
after the first training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.splits import Fold, Split
from fedrec.factorization.model import Model
from fedrec.randomness import Streams
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.outcomes import evaluate
from fedrec.settings import DataScenario
from fedrec.storage import write_bytes

EARLIER = 0.8
"""Share of the training events that are there at the first training."""
_ACTIVE = 0.75
"""The person who asks is the first who has more events than this share of all."""


@dataclass(frozen=True)
class People:
    """Everybody, what of their training events is there at the first training (`earlier`), and the
    number of the person who asks."""

    dataset: Dataset
    split: Split
    earlier: Interactions
    person: int

    def events(self, training: int) -> Interactions:
        """What the sites hold at a training, counted from 0."""
        return self.earlier if training == 0 else self.split.train

    def history(self, training: int) -> list[tuple[str, float]]:
        """Item ids and ratings of the person who asks, oldest first, at that time."""
        one = self.events(training).users_subset(np.array([self.person]))
        order = np.arange(len(one)) if one.times is None else np.argsort(one.times, kind="stable")
        return [
            (self.dataset.catalogue.item_ids[int(one.items[row])], float(one.values[row]))
            for row in order
        ]

    def metrics(self, model: Model, training: int) -> dict[str, float]:
        """Return the metrics of a model on the test events, measured outside the protocol and
        without noise."""
        fold = Fold(self.events(training), self.split.test.targets)
        found = evaluate(model, fold, fold.history, cutoffs=(20,), ranking=False).metrics()
        return {
            name: float(value)
            for name, value in found.items()
            if name in ("rmse", "ndcg@20") and value is not None
        }


def invented(scenario: DataScenario) -> People:
    """The people of a scenario. Raises DataError or SettingsError as its data and split do."""
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    train = split.train
    earlier = train.select(
        train.draws(Streams(scenario.seed).key("demo/earlier")) < np.uint64(EARLIER * 2**64)
    )
    counts = np.diff(earlier.user_ptr)
    return People(dataset, split, earlier, int(np.argmax(counts >= np.quantile(counts, _ACTIVE))))


def write_history(path: Path, history: Sequence[tuple[str, float]]) -> None:
    """Write a history as `fedrec recommend --history` reads it."""
    lines = ["item,rating", *(f"{item},{rating:g}" for item, rating in history)]
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode())
