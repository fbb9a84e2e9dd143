"""`fedrec simulate`: one scenario from a data file to a released model, a guarantee, numbers beside
their controls, and a report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrec.data.dataset import Dataset
from fedrec.data.kinds import KINDS
from fedrec.data.splits import Split
from fedrec.errors import SettingsError
from fedrec.evaluation.item_item import ITEM_ITEM, MOST_EVENTS, evenly, item_item
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.model import Model
from fedrec.run.console import stage
from fedrec.run.data.budget import budget_of
from fedrec.run.data.datasets import load_dataset, load_split, public_facts
from fedrec.run.finished import BY_RULE, Run
from fedrec.run.outcomes import Outcome, baselines, evaluate, ranked, ranked_fold
from fedrec.run.run_folder import open_folder
from fedrec.run.run_output import write_run
from fedrec.run.run_training import OnRound, Work, epsilons_of, train_one
from fedrec.run.runtime_choice import LOOPBACK, RuntimeChoice
from fedrec.run.training import Trained
from fedrec.settings import Scenario
from fedrec.storage import write_json
from fedrec_simulations.experiments.ceiling import ALS, als_model
from fedrec_simulations.leaderboard import record


def run(
    scenario: Scenario,
    *,
    name: str,
    choice: RuntimeChoice = LOOPBACK,
    resume: bool = False,
    quiet: bool = False,
    given: Dataset | None = None,
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Do everything and return what `--json` prints. `choice` decides who carries the messages, and
    no number. Raises FedRecError.

    given: a data set in memory, in the place of the one that the scenario's data table names.
    on_round: called after every round.
    """
    _require_runtime_fits(scenario, choice)
    console, started = Console(stderr=True, quiet=quiet), time.perf_counter()
    with open_folder(scenario, name, choice, resume=resume) as folder:
        done, facts = _run(scenario, choice, folder, console, given, on_round)
        result = write_run(done, facts, console, started=started, quiet=quiet)
        record.finish(folder)
    return result


def _run(
    scenario: Scenario,
    choice: RuntimeChoice,
    folder: Path,
    console: Console,
    given: Dataset | None,
    on_round: OnRound | None,
) -> tuple[Run, PublicFacts]:
    """Train at every epsilon, and evaluate everything."""
    record.begin(folder)
    with stage(console, "reading data"):
        dataset = given or load_dataset(scenario)
        split = load_split(scenario, dataset)
    write_json(
        folder / "data.json",
        {"provenance": dataset.provenance.describe(), "split": split.describe()},
    )
    facts = public_facts(scenario, dataset, split)
    if scenario.compare.published and not facts.rated:  # before anything is trained
        raise SettingsError(
            "compare.published is for ratings, but this data holds clicks", "Leave it out."
        )
    runtime, budget = (
        choice.carrier(dataset.catalogue),
        budget_of(scenario.privacy, dataset.provenance.files),
    )
    work = Work(facts, split, folder, console, runtime, budget, on_round)
    trained = {e: train_one(scenario.with_epsilon(e), work, folder) for e in epsilons_of(scenario)}
    record.trained(folder)  # before the test rows are read
    rivals, models, limits = rivals_of(scenario, split, console)
    published = _published(scenario, work, rivals)
    with stage(console, "evaluating"):
        outcomes = {
            e: _evaluate(scenario, t.model, split, rivals | _beside(published, e))
            for e, t in trained.items()
        }
    shown = {
        name: rival
        for name, rival in rivals.items()
        if scenario.compare.baselines or name in {ALS, ITEM_ITEM}
    }
    done = Run(
        scenario,
        choice,
        folder,
        dataset,
        split,
        trained,
        outcomes,
        shown,
        models,
        published,
        budget,
        limits,
    )
    return done, facts


def _require_runtime_fits(scenario: Scenario, choice: RuntimeChoice) -> None:
    if scenario.privacy.shares == "real" and choice.runtime != "loopback":
        raise SettingsError(
            f"privacy.shares has no effect with --runtime {choice.runtime}, which always shares",
            "Leave one of the two out.",
        )
    if scenario.privacy.limits and choice.runtime in {"flower", "processes"}:
        cause = (
            f"privacy.personal_epsilons: clients of --runtime {choice.runtime} have one limit "
            "each, their own setting"
        )
        raise SettingsError(
            cause, "Leave --runtime out, or give machines privacy.personal_epsilon."
        )


def _published(
    scenario: Scenario, work: Work, rivals: Mapping[str, Outcome]
) -> dict[float, tuple[Trained, Outcome]]:
    """`recipe = "published"` at the same epsilons, with verdicts of its own, where the scenario
    asks for it."""
    if not scenario.compare.published:
        return {}
    theirs = scenario.as_published(features=work.facts.features is not None)
    trained = {
        e: train_one(theirs.with_epsilon(e), work, work.folder / "published")
        for e in epsilons_of(scenario)
    }
    return {e: (t, _evaluate(theirs, t.model, work.split, rivals)) for e, t in trained.items()}


def _beside(
    published: Mapping[float, tuple[Trained, Outcome]], epsilon: float
) -> dict[str, Outcome]:
    """The published recipe at the same epsilon, for verdicts."""
    return {BY_RULE: published[epsilon][1]} if epsilon in published else {}


def _evaluate(
    scenario: Scenario, model: Model, split: Split, rivals: Mapping[str, Outcome] | None
) -> Outcome:
    """Ranked too where the scenario asks for it; with verdicts beside `rivals` where there are
    any."""
    chosen = scenario.evaluation
    return evaluate(
        model,
        split.test,
        split.train,
        cutoffs=chosen.cutoffs,
        ranking=chosen.ranking,
        rivals=rivals,
    )


def rivals_of(
    scenario: Scenario, split: Split, console: Console
) -> tuple[dict[str, Outcome], dict[str, Model], dict[str, str]]:
    """Everything without privacy that a model is set beside, the models among it whose item vectors
    are shown, and their limits."""
    cutoffs, models, limits = scenario.evaluation.cutoffs, dict[str, Model](), dict[str, str]()
    ranking = KINDS[split.train.kind].ranked(scenario.evaluation.ranking)
    with stage(console, "baselines"):
        rivals = baselines(split.test, split.train, cutoffs=cutoffs, ranking=ranking)
    if scenario.compare.als and ranking:
        with stage(console, "item-item without privacy"):
            similar, fold = item_item(split.train, split.validation), ranked_fold(split.test)
            limits |= {ITEM_ITEM: similar.limits} if similar.limits else {}
            rivals[ITEM_ITEM] = Outcome(
                None, (), ranked(similar.scores(fold.history), fold, split.train, cutoffs=cutoffs)
            )
    if scenario.compare.als:
        with stage(console, "ALS without privacy"):
            models[ALS] = als_model(split, scenario, ranking=ranking)
            rivals[ALS] = _evaluate(scenario, models[ALS], split, None)
        learned = evenly(split.train, most_events=MOST_EVENTS).num_users
        if ranking and split.train.rated and learned < split.train.num_users:
            limits[ALS] = f"its lists learned from {learned:,} users"
    return rivals, models, limits
