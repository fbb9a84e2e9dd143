"""A finished run of ratings or clicks: everything that its result and its report are views of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path

from fedrec import __version__
from fedrec.data.dataset import Dataset
from fedrec.data.splits import Split
from fedrec.factorization.model import Model
from fedrec.federation.coding import deflated
from fedrec.federation.protocol import Terms
from fedrec.federation.wire import pack_terms
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import client_recipe
from fedrec.settings import Scenario
from fedrec_simulations.data.budget import DataBudget
from fedrec_simulations.outcomes import Outcome
from fedrec_simulations.runtimes.choice import RuntimeChoice
from fedrec_simulations.runtimes.job import run_id
from fedrec_simulations.training import Trained

BY_RULE = "published recipe, settings by rule"
"""What tables call the line of `compare.published`: AM-SSP, or Ada-DPALS without features, with `factorization.published_choices`."""


@dataclass(frozen=True)
class Run:
    """Everything a finished run knows; the report and the result are views of it."""

    scenario: Scenario
    cast: RuntimeChoice
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
        """What a client downloads before the first question: the run's terms, most of which are the ids of the items."""
        data, recipe, run = self.split.train, client_recipe(self.scenario), run_id(self.scenario)
        return len(deflated(pack_terms(Terms(run, recipe, data.kind, data.value_range, self.dataset.catalogue.item_ids))))


def promise_in_short(guarantee: Guarantee) -> str:
    """For a line of progress: an epsilon with its unit and neighbours."""
    if not guarantee.private:
        return "no privacy"
    nominal = "" if guarantee.established else "nominal "
    return f"{nominal}epsilon {guarantee.epsilon:g} {guarantee.compared}"


def versions() -> dict[str, str]:
    """Of fedrec and of what decides its numbers."""
    return {"fedrec": __version__} | {name: metadata.version(name) for name in ("numpy", "scipy", "numba", "dp-accounting", "polars")}
