"""`fedrec simulate`: one scenario from a data file to a released model, a guarantee, numbers beside their controls, and a report."""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrec import __version__
from fedrec.data.dataset import Dataset
from fedrec.data.splits import Split
from fedrec.errors import SettingsError
from fedrec.evaluation.item_item import ITEM_ITEM, MOST_EVENTS, evenly, item_item
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.model import Model
from fedrec.factorization.released import save
from fedrec.serving.exporting import Origin, PublicItems
from fedrec.serving.model_bundles import ServingFacts, bundle_of, write_bundle
from fedrec.settings import Scenario
from fedrec.storage import finite, write_bytes, write_json
from fedrec_simulations import statement
from fedrec_simulations.api.released import write_facts
from fedrec_simulations.console import progress_bar, stage
from fedrec_simulations.data.budget import DataBudget, budget_of
from fedrec_simulations.data.datasets import load_dataset, load_split, public_facts
from fedrec_simulations.experiments.ceiling import ALS, als_model
from fedrec_simulations.model_card import write_card
from fedrec_simulations.outcomes import Outcome, baselines, evaluate, ranked, ranked_fold
from fedrec_simulations.run import BY_RULE, Run, promise_in_short
from fedrec_simulations.run_folder import RESULT, open_folder
from fedrec_simulations.runtimes.choice import LOOPBACK, RuntimeChoice
from fedrec_simulations.runtimes.job import Runtime
from fedrec_simulations.training import RoundRecord, Trained, Training

OnRound = Callable[[RoundRecord], None]


def run(
    scenario: Scenario,
    *,
    name: str,
    cast: RuntimeChoice = LOOPBACK,
    resume: bool = False,
    quiet: bool = False,
    given: Dataset | None = None,
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Do everything and return what `--json` prints. `cast` decides who carries the messages, and no number. Raises FedRecError.

    given: a data set in memory, in the place of the one that the scenario's data table names. on_round: called after every round.
    """
    if cast.partitioned:
        from fedrec_simulations.partitions.run import run as run_partitioned

        return run_partitioned(scenario, name=name, cast=cast, resume=resume, quiet=quiet, on_round=on_round)
    console = Console(stderr=True, quiet=quiet)
    if scenario.privacy.shares == "real" and cast.runtime != "loopback":
        raise SettingsError(f"privacy.shares says nothing to --runtime {cast.runtime}, which always shares", "Leave one of the two out.")
    started = time.perf_counter()
    folder = open_folder(scenario, name, cast, resume=resume)
    with stage(console, "reading data"):
        dataset = given or load_dataset(scenario)
        split = load_split(scenario, dataset)
    write_json(folder / "data.json", {"provenance": dataset.provenance.describe(), "split": split.describe()})
    facts = public_facts(scenario, dataset, split)
    if scenario.compare.published and facts.kind == "clicks":  # before anything is trained
        raise SettingsError("compare.published is for ratings, but this data holds clicks", "Leave it out.")
    runtime, budget = cast.carrier(dataset.catalogue), budget_of(scenario.privacy, dataset.provenance.files)
    work = Work(facts, split, folder, console, runtime, budget, on_round)
    trained = {e: train_one(scenario.with_epsilon(e), work, folder) for e in epsilons_of(scenario)}
    rivals, models, limits = rivals_of(scenario, split, console)
    published = _published(scenario, work, rivals)
    with stage(console, "evaluating"):
        outcomes = {e: _evaluate(scenario, t.model, split, rivals | _beside(published, e)) for e, t in trained.items()}
    shown = {name: rival for name, rival in rivals.items() if scenario.compare.baselines or name in {ALS, ITEM_ITEM}}
    done = Run(scenario, cast, folder, dataset, split, trained, outcomes, shown, models, published, budget, limits)
    return write_run(done, facts, console, started=started, quiet=quiet)


def write_run(done: Run, facts: PublicFacts, console: Console, *, started: float, quiet: bool) -> dict[str, Any]:
    """Everything that a finished run leaves in its folder and on the terminal; what `--json` prints. started: by `perf_counter`."""
    from fedrec_simulations.report.findings import report_content, shortcomings
    from fedrec_simulations.report.page import write
    from fedrec_simulations.report.table import methods_table

    folder = done.folder
    keep_model(folder / "model", done.scenario, done.dataset, facts, done.main, name=folder.name.removesuffix(done.cast.suffix))
    write_bytes(folder / "metrics.jsonl", _metric_lines(done).encode())
    with stage(console, "drawing the report"):
        content = report_content(done)
        write(folder / "report.html", content)
    with stage(console, "making the serving bundle"):
        serving = write_bundle(folder, lambda: bundle_of(folder / "model"))
    result = {**_result(done), "serving": serving, "seconds": time.perf_counter() - started}
    write_json(folder / RESULT, result)
    if not quiet:
        Console().print(methods_table(content))
        for verdict in shortcomings(done, of_main=True):
            Console().print(verdict.sentence, highlight=False, style="bold")
        for beside in done.outcome.by_popularity:
            if not beside.better:
                Console().print(beside.sentence, highlight=False)
        Console().print(_last_words(done), soft_wrap=True, highlight=False)
    return result


def epsilons_of(scenario: Scenario) -> list[float]:
    """At which a run trains, the scenario's own first."""
    return list(dict.fromkeys([scenario.privacy.epsilon, *scenario.compare.epsilons]))


@dataclass(frozen=True)
class Work:
    """What every training of a run is given."""

    facts: PublicFacts
    split: Split
    folder: Path
    console: Console
    runtime: Runtime
    budget: DataBudget | None
    on_round: OnRound | None = None
    validate: Callable[[Model], float] | None = None


def train_one(scenario: Scenario, work: Work, folder: Path) -> Trained:
    """One training, kept in a folder of its own under `folder`, charged to the data's budget before its noise is drawn."""
    kept, split, budget = folder / f"epsilon-{scenario.privacy.epsilon:g}", work.split, work.budget
    name, noise = f"{work.folder.name}/{kept.relative_to(work.folder)}", scenario.privacy.noise
    charge = None if budget is None or noise == "seeded" else partial(budget.charge, name, noise)
    training = Training(
        scenario, work.facts, split.train, split.validation, kept, runtime=work.runtime, charge=charge, validate=work.validate
    )
    plan, metric = training.prepared.plan, "RMSE" if split.train.kind == "ratings" else "NDCG@20"
    if budget is not None and charge is not None:
        budget.require_room(training.unreleased())
    elif budget is not None:
        budget.charge(name, noise, training.unreleased())
    with progress_bar(work.console) as progress:
        task, released = progress.add_task(promise_in_short(plan.guarantee), total=len(plan.releases)), 0
        for record in training.run():
            released += len(record.releases)
            words = f"{promise_in_short(plan.guarantee)}, release {released}/{len(plan.releases)}"
            measured = f": validation {metric} {record.validation:.3f}" if math.isfinite(record.validation) else ""
            progress.update(task, completed=released, description=words + measured)
            if work.on_round is not None:
                work.on_round(record)
    return training.result


def _published(scenario: Scenario, work: Work, rivals: Mapping[str, Outcome]) -> dict[float, tuple[Trained, Outcome]]:
    """`recipe = "published"` at the same epsilons, with verdicts of its own, where the scenario asks for it."""
    if not scenario.compare.published:
        return {}
    theirs = scenario.as_published(features=work.facts.features is not None)
    trained = {e: train_one(theirs.with_epsilon(e), work, work.folder / "published") for e in epsilons_of(scenario)}
    return {e: (t, _evaluate(theirs, t.model, work.split, rivals)) for e, t in trained.items()}


def _beside(published: Mapping[float, tuple[Trained, Outcome]], epsilon: float) -> dict[str, Outcome]:
    """The published recipe at the same epsilon, for verdicts."""
    return {BY_RULE: published[epsilon][1]} if epsilon in published else {}


def _evaluate(scenario: Scenario, model: Model, split: Split, rivals: Mapping[str, Outcome] | None) -> Outcome:
    """Ranked too where the scenario asks for it; with verdicts beside `rivals` where there are any."""
    chosen = scenario.evaluation
    return evaluate(model, split.test, split.train, cutoffs=chosen.cutoffs, ranking=chosen.ranking, rivals=rivals)


def rivals_of(scenario: Scenario, split: Split, console: Console) -> tuple[dict[str, Outcome], dict[str, Model], dict[str, str]]:
    """Everything without privacy that a model is set beside, the models among it whose item vectors are shown, and their limits."""
    cutoffs, models, limits = scenario.evaluation.cutoffs, dict[str, Model](), dict[str, str]()
    ranking = scenario.evaluation.ranking or split.train.kind == "clicks"
    with stage(console, "baselines"):
        rivals = baselines(split.test, split.train, cutoffs=cutoffs, ranking=ranking)
    if scenario.compare.als and ranking:
        with stage(console, "item-item without privacy"):
            similar, fold = item_item(split.train, split.validation), ranked_fold(split.test)
            limits |= {ITEM_ITEM: similar.limits} if similar.limits else {}
            rivals[ITEM_ITEM] = Outcome(None, (), ranked(similar.scores(fold.history), fold, split.train, cutoffs=cutoffs))
    if scenario.compare.als:
        with stage(console, "ALS without privacy"):
            models[ALS] = als_model(split, scenario, ranking=ranking)
            rivals[ALS] = _evaluate(scenario, models[ALS], split, None)
        learned = evenly(split.train, most_events=MOST_EVENTS).num_users
        if ranking and split.train.kind == "ratings" and learned < split.train.num_users:
            limits[ALS] = f"its lists learned from {learned:,} users"
    return rivals, models, limits


def _last_words(done: Run) -> str:
    """Where things are, and what must not be done with them."""
    lines = [f"report  {done.folder / 'report.html'}", f"model   {done.folder / 'model'}"]
    lines += [f"data    {words}" for words in done.words_of_data]
    lines += [f"limits  {name}: {words}" for name, words in done.limits.items()]
    lines += [f"beyond  not covered by the guarantee: {what}" for what in done.split.not_covered]
    lines += [f"budget  of all runs on this data: {words}" for words in statement.spent_words(done.budget)]
    lines += statement.three_party_lines(statement.three_party(done.main.prepared.plan))
    if done.main.prepared.plan.guarantee.private and done.scenario.privacy.noise == "seeded":
        lines.append("noise   seeded: an experiment. Whoever knows the seed can remove the noise: do not release this model.")
    return "\n".join(lines)


def keep_model(folder: Path, scenario: Scenario, dataset: Dataset, facts: PublicFacts, trained: Trained, *, name: str) -> None:
    """Write the released model, its manifest, what a serving bundle is made with, and what `fedrec.load` reads.

    name: of the run, the same whoever carried the rounds: the bundle is the same too.
    """
    plan, catalogue = trained.prepared.plan, dataset.catalogue
    about = {
        "recipe": scenario.recipe,
        "fedrec": __version__,
        "guarantee": asdict(plan.guarantee),
        "noise": scenario.privacy.noise,
        "plan": plan.digest(),
        "items": list(catalogue.item_ids),
    }
    save(folder, trained.model, about=about)
    titles = catalogue.titles
    write_facts(folder, scenario, facts.kind, facts.value_range, titles, asdict(trained.opinions()))
    promised, noise = plan.guarantee, scenario.privacy.noise
    write_card(folder, recipe=scenario.recipe, kind=facts.kind, items=catalogue.item_ids, guarantee=promised, noise=noise)
    if "counts" not in trained.state:  # no bundle can be made
        return
    guarantee = plan.guarantee
    origin = Origin(name, guarantee.delta, guarantee, guarantee.epsilon, scenario.privacy.noise)
    public = PublicItems.of_features(catalogue.item_ids, catalogue.titles, dataset.features)
    ServingFacts.of(trained.prepared.recipe, trained.state, facts, scenario, public, origin).keep(folder, trained.state)


def _result(done: Run) -> dict[str, Any]:
    plan = done.main.prepared.plan
    opinions = done.main.opinions()
    guarantee = asdict(plan.guarantee)
    stated = statement.stated(plan.guarantee, done.budget, done.split.not_covered) | statement.three_party(plan)
    about = {"noise": done.scenario.privacy.noise, "accountants": asdict(opinions), "plan": plan.digest()}
    write_json(done.folder / "guarantee.json", {**guarantee, **about, **stated})
    comparison = {name: outcome.metrics() for name, outcome in done.rivals.items()}
    curve = [
        {"epsilon": e, "metrics": outcome.metrics(), "verdicts": [verdict.as_dict() for verdict in outcome.verdicts]}
        for e, outcome in done.outcomes.items()
    ]
    published = [
        {"epsilon": e, "metrics": outcome.metrics(), "verdicts": [verdict.as_dict() for verdict in outcome.verdicts]}
        for e, (_, outcome) in done.published.items()
    ]
    rounds = done.main.rounds
    content = {
        "runtime": done.cast.described,
        "metrics": done.outcome.metrics(),
        "guarantee": guarantee,
        **stated,
        "noise": done.scenario.privacy.noise,
        "second_opinion": {"pld": opinions.pld, "rdp": opinions.rdp},
        "verdicts": [verdict.as_dict() for verdict in done.outcome.verdicts],
        "verdicts_by_popularity": [beside.as_dict() for beside in done.outcome.by_popularity],
        "curve": curve,
        "published": published,
        "baselines": comparison,
        "bytes_up_per_client": sum(r.bytes_up for r in rounds),
        "bytes_down_per_client": done.terms_bytes + sum(r.bytes_down for r in rounds),
        "training_seconds": sum(r.seconds for r in rounds),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "run_dir": str(done.folder),
    }
    return dict(finite(content))


def _metric_lines(done: Run) -> str:
    rows: list[dict[str, object]] = [{"name": f"epsilon {e:g}", **outcome.metrics()} for e, outcome in done.outcomes.items()]
    rows += [{"name": f"{BY_RULE}, epsilon {e:g}", **outcome.metrics()} for e, (_, outcome) in done.published.items()]
    rows += [{"name": name, **outcome.metrics()} for name, outcome in done.rivals.items()]
    return "".join(json.dumps(finite(row)) + "\n" for row in rows)
