"""The runner: train one scenario, test it once, and say what it cost.

Every row of research that trains is made of `fitted` (or of a model made otherwise) and `on_test`.
Test events stay under the seal of `data.sealed` until the model is finished.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.splits import Fold, Split, check_no_leak
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.facts import PublicFacts, predict, public_facts
from fedrec.factorization.rankers import Model
from fedrec.federation.messages import RoundDone, State, train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.run.job import limit_of
from fedrec.run.outcomes import Outcome, evaluate
from fedrec.settings import Scenario
from fedrec_research.sealed import SealedSplit, load_sealed
from fedrec_research.trials import Row


@dataclass(frozen=True)
class Fitted:
    """A finished model, what its guarantee is, and the seconds that training took."""

    model: Model
    guarantee: Guarantee | str
    seconds: float = 0.0
    plan: Plan | None = None

    @property
    def costs(self) -> Row:
        """Costs of the training for a row."""
        return {"guarantee": str(self.guarantee), "seconds": self.seconds}

    @property
    def exact_costs(self) -> Row:
        """The guarantee in parts, with what other accountants say of it."""
        assert isinstance(self.guarantee, Guarantee)
        opinions = asdict(self.plan.opinions()) if self.plan else {}
        return {"guarantee": asdict(self.guarantee), "accountants": opinions}


def rounds(made: Prepared, events: Interactions, seed: int) -> Iterator[RoundDone]:
    """Every round over all users, with the noise of this seed."""
    link = Loopback(events, made.steps, made.plan, Streams(seed), Ledger(limit_of(made.plan)))
    return train(made.recipe, link, made.recipe.begin())


def trained(scenario: Scenario, facts: PublicFacts, events: Interactions) -> tuple[Prepared, State]:
    """The recipe, and its state after the last round.

    Raises SettingsError where the recipe refuses its settings."""
    made = prepare(scenario, facts)
    *_, last = rounds(made, events, scenario.seed)
    return made, last.state


def fitted(scenario: Scenario, facts: PublicFacts, events: Interactions) -> Fitted:
    """What `fedrec simulate` trains, with the noise of the scenario's seed."""
    started = time.perf_counter()
    made, state = trained(scenario, facts, events)
    plan = made.plan
    seconds = time.perf_counter() - started
    return Fitted(made.recipe.model(state), plan.guarantee, seconds, plan)


def sealed_and_fitted(
    scenario: Scenario, *, data: Scenario | None = None
) -> tuple[Dataset, SealedSplit, Fitted]:
    """The scenario's data under a seal, or that of another one, and what the scenario trains."""
    dataset, sealed = load_sealed(data or scenario)
    return (
        dataset,
        sealed,
        fitted(scenario, public_facts(scenario.seed, dataset, sealed), sealed.train),
    )


def load_whole(scenario: Scenario) -> tuple[Dataset, SealedSplit]:
    """Load the data; where test events come with it, all other events are training set and history,
    and none are for validation: they were for choices."""
    dataset, sealed = load_sealed(scenario)
    if dataset.given_test is None:
        return dataset, sealed
    events = dataset.interactions
    test = dataset.given_test
    none = Fold(events, test.select(np.zeros(len(test), np.bool_)))
    split = Split("given", 0, events, none, Fold(events, test))
    check_no_leak(split)
    return dataset, SealedSplit(split)


def on_test(
    found: Fitted,
    sealed: SealedSplit,
    *,
    cutoffs: tuple[int, ...] = (20,),
    ranking: bool = False,
    known: Interactions | None = None,
) -> tuple[Row, Outcome, Split]:
    """Open the seal, measure on test, once: costs, the model's SHA-256 and metrics as a row, with
    the outcome and the split that they were measured on.

    known: everything that was trained on, where that is more than the split's train."""
    opened = sealed.open(found.model.arrays())
    split = opened.split
    test = replace(split.test, history=known) if known is not None else split.test
    train = split.train if known is None else known
    outcome = evaluate(found.model, test, train, cutoffs=cutoffs, ranking=ranking)
    row = {**found.costs, "model_sha256": opened.model_sha256, **outcome.metrics()}
    return row, outcome, split


def row_of(scenario: Scenario, **how: Any) -> Row:
    """Train one scenario, test it once: the row."""
    _, sealed, found = sealed_and_fitted(scenario)
    return on_test(found, sealed, **how)[0]


def on_validation(model: Model, sealed: SealedSplit, metric: str) -> float:
    """What choices are made by; the seal stays."""
    found = evaluate(model, sealed.validation, sealed.train, cutoffs=(20,), ranking=False)
    value = found.metrics()[metric]
    assert value is not None
    return float(value)


def rmse(model: Model, fold: Fold) -> float:
    """Return the RMSE of predictions for a fold of ratings."""
    return rating_metrics(predict(model, fold.history, fold.targets), fold.targets).rmse


def item_counts(train: Interactions) -> npt.NDArray[np.int64]:
    """(m,) events of each item."""
    return np.bincount(train.items, minlength=train.num_items)


def means(rows: Mapping[str, Any]) -> Row:
    """A row of lists as one of means."""
    return {name: float(np.mean(values)) for name, values in rows.items()}


def peak_rss_mb() -> float:
    """Return the peak resident memory of this process, in MB; nan where the system does not say.

    VmHWM: Linux hands ru_maxrss down from the parent."""
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    except OSError:
        return float("nan")
    return int(found.group(1)) / 1024 if found else float("nan")
