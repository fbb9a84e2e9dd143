"""A finished run of ratings or clicks: everything that its result and its report are views of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrec import __version__
from fedrec.data.interactions import Dataset
from fedrec.data.splits import Split
from fedrec.factorization.model import Model
from fedrec.federation.coding import deflated
from fedrec.federation.protocol import Terms
from fedrec.federation.wire import pack_terms
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import client_recipe
from fedrec.run.data.budget import DataBudget
from fedrec.run.data.datasets import words_of_data
from fedrec.run.job import run_id
from fedrec.run.outcomes import Outcome
from fedrec.run.runtime_choice import RuntimeChoice
from fedrec.run.training import Trained
from fedrec.settings import Scenario

BY_RULE = "published recipe, settings by rule"
"""What tables call the line of `compare.published`: AM-SSP, or Ada-DPALS without features, with
`factorization.published_choices`."""


@dataclass(frozen=True)
class RunSizes:
    """users, events, counts (m,) of items: of train. tests: events of test. able: users with test
    events. parts: 0 where not divided."""

    users: int
    events: int
    tests: int
    able: int
    counts: npt.NDArray[np.int64]
    parts: int = 0


@dataclass(frozen=True)
class Run:
    """Everything a finished run knows; the report and the result are views of it."""

    scenario: Scenario
    choice: RuntimeChoice
    folder: Path
    dataset: Dataset
    split: Split
    trained: dict[float, Trained]
    outcomes: dict[float, Outcome]
    rivals: dict[str, Outcome]
    rival_models: dict[str, Model]
    published: dict[float, tuple[Trained, Outcome]]
    budget: DataBudget | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    """Of a rival, what of the data it was not given."""
    partitioned: RunSizes | None = None
    """Of partitioned data, of which `split` holds some users only."""
    simple: Mapping[str, tuple[Guarantee, Outcome]] = field(default_factory=dict)
    """Simple private recipes at the scenario's epsilon, measured and dropped."""

    @cached_property
    def sizes(self) -> RunSizes:
        """Sizes of all of the data."""
        if self.partitioned is not None:
            return self.partitioned
        train = self.split.train
        test = self.split.test.targets
        counts = np.bincount(train.items, minlength=train.num_items)
        return RunSizes(
            train.num_users,
            len(train),
            len(test),
            int(np.count_nonzero(np.diff(test.user_ptr))),
            counts,
        )

    @property
    def words_of_data(self) -> list[str]:
        """What a person should know of how the data was read and divided."""
        words = words_of_data(self.dataset, self.split)
        return (
            words
            if self.partitioned is None
            else [f"in {self.partitioned.parts} partitions", *words]
        )

    @property
    def main(self) -> Trained:
        """The training that the scenario is about."""
        return self.trained[self.scenario.privacy.epsilon]

    @property
    def outcome(self) -> Outcome:
        """What that training is worth on test."""
        return self.outcomes[self.scenario.privacy.epsilon]

    @cached_property
    def terms_bytes(self) -> int:
        """What a client downloads before the first question: the run's terms, most of which are the
        ids of the items."""
        data = self.split.train
        recipe = client_recipe(self.scenario)
        run = run_id(self.scenario)
        return len(
            deflated(
                pack_terms(
                    Terms(run, recipe, data.kind, data.value_range, self.dataset.catalogue.item_ids)
                )
            )
        )


def versions() -> dict[str, str]:
    """Return the versions of fedrec and of what decides its numbers."""
    return {"fedrec": __version__} | {
        name: metadata.version(name)
        for name in ("numpy", "scipy", "numba", "dp-accounting", "polars")
    }
