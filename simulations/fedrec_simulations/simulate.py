"""`fedrec simulate`: one scenario from a data file to a released model, a guarantee, numbers beside their controls, and a report."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedrec import __version__
from fedrec.checkpoint import finite, write_arrays, write_bytes, write_json
from fedrec.data.dataset import Dataset
from fedrec.data.splits import Split
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.model import Model
from fedrec.settings import Scenario
from fedrec.streams import Streams
from fedrec_simulations.ceiling import als_model
from fedrec_simulations.datasets import load_dataset, load_split
from fedrec_simulations.outcomes import Outcome, baselines, evaluate
from fedrec_simulations.run_folder import RESULT, open_folder
from fedrec_simulations.training import Trained, Training

Say = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """Everything a finished run knows; the report and the result are views of it."""

    scenario: Scenario
    folder: Path
    dataset: Dataset
    split: Split
    trained: dict[float, Trained]
    outcomes: dict[float, Outcome]
    rivals: dict[str, Outcome]
    rival_models: dict[str, Model]
    seconds: float

    @property
    def main(self) -> Trained:
        """The training that the scenario is about."""
        return self.trained[self.scenario.privacy.epsilon]

    @property
    def outcome(self) -> Outcome:
        """What that training is worth on test."""
        return self.outcomes[self.scenario.privacy.epsilon]


def run(scenario: Scenario, *, name: str, resume: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Do everything and return what `--json` prints. Raises FedRecError."""
    from fedrec_simulations.findings import report_content  # pulls in the plotting library
    from fedrec_simulations.report.page import write
    from fedrec_simulations.report.table import methods_table

    console = Console(stderr=True, quiet=quiet)
    started = time.perf_counter()
    folder = open_folder(scenario, name, resume=resume)
    with _stage(console, "reading data"):
        dataset = load_dataset(scenario)
        split = load_split(scenario, dataset)
    write_json(folder / "data.json", {"provenance": dataset.provenance.describe(), "split": split.describe()})
    facts = _facts(scenario, dataset, split)
    trained = {e: _train(scenario.with_epsilon(e), facts, split, folder, console) for e in _epsilons(scenario)}
    with _stage(console, "evaluating"):
        outcomes = {e: _evaluate(scenario, t.model, split, controls=e == scenario.privacy.epsilon) for e, t in trained.items()}
    rivals, models = _rivals(scenario, split, console)
    done = Run(scenario, folder, dataset, split, trained, outcomes, rivals, models, time.perf_counter() - started)
    _write_model(done)
    write_bytes(folder / "metrics.jsonl", _metric_lines(done).encode())
    with _stage(console, "drawing the report"):
        content = report_content(done)
        write(folder / "report.html", content)
    result = _result(done)
    write_json(folder / RESULT, result)
    if not quiet:
        Console().print(methods_table(content))
        Console().print(f"report  {folder / 'report.html'}\nmodel   {folder / 'model'}", soft_wrap=True, highlight=False)
    return result


def _epsilons(scenario: Scenario) -> list[float]:
    return list(dict.fromkeys([scenario.privacy.epsilon, *scenario.compare.epsilons]))


def _facts(scenario: Scenario, dataset: Dataset, split: Split) -> PublicFacts:
    train = split.train
    features = dataset.features if dataset.features.bags else None
    return PublicFacts(train.num_users, train.num_items, train.kind, train.value_range, features, Streams(scenario.seed))


def _train(scenario: Scenario, facts: PublicFacts, split: Split, folder: Path, console: Console) -> Trained:
    training = Training(scenario, facts, split.train, split.validation, folder / f"epsilon-{scenario.privacy.epsilon:g}")
    plan = training.prepared.plan
    with _progress(console) as progress:
        task = progress.add_task(f"training, {plan.guarantee}", total=None)
        for record in training.run():
            progress.update(task, description=f"training, {plan.guarantee}: round {record.round}, validation {record.validation:.4f}")
    return training.result


def _evaluate(scenario: Scenario, model: Model, split: Split, *, controls: bool) -> Outcome:
    chosen = scenario.evaluation
    return evaluate(model, split.test, split.train, cutoffs=chosen.cutoffs, ranking=chosen.ranking and controls, controls=controls)


def _rivals(scenario: Scenario, split: Split, console: Console) -> tuple[dict[str, Outcome], dict[str, Model]]:
    rivals, models = dict[str, Outcome](), dict[str, Model]()
    if scenario.compare.baselines:
        with _stage(console, "baselines"):
            rivals |= baselines(split.test, split.train, cutoffs=scenario.evaluation.cutoffs)
    if scenario.compare.als:
        with _stage(console, "non-private ALS"):
            models["non-private ALS"] = als_model(split, scenario)
            rivals["non-private ALS"] = _evaluate(scenario, models["non-private ALS"], split, controls=False)
    return rivals, models


def _write_model(done: Run) -> None:
    plan = done.main.prepared.plan
    digest = write_arrays(done.folder / "model" / "model.safetensors", done.main.model.arrays())
    manifest = {
        "format": "fedrec/1",
        "recipe": done.scenario.recipe,
        "fedrec": __version__,
        "sha256": digest,
        "guarantee": asdict(plan.guarantee),
        "plan": plan.digest(),
        "items": list(done.dataset.catalogue.item_ids),
    }
    write_json(done.folder / "model" / "manifest.json", manifest)


def _result(done: Run) -> dict[str, Any]:
    plan = done.main.prepared.plan
    opinions = plan.opinions()
    guarantee = asdict(plan.guarantee)
    write_json(done.folder / "guarantee.json", {**guarantee, "accountants": asdict(opinions), "plan": plan.digest()})
    comparison = {name: outcome.metrics() for name, outcome in done.rivals.items()}
    curve = [{"epsilon": e, "metrics": outcome.metrics()} for e, outcome in done.outcomes.items()]
    rounds = done.main.rounds
    content = {
        "metrics": done.outcome.metrics(),
        "guarantee": guarantee,
        "second_opinion": {"pld": opinions.pld, "rdp": opinions.rdp},
        "verdicts": [verdict.as_dict() for verdict in done.outcome.verdicts],
        "curve": curve,
        "baselines": comparison,
        "bytes_up_per_client": sum(r.bytes_up for r in rounds),
        "bytes_down_per_client": sum(r.bytes_down for r in rounds),
        "training_seconds": sum(r.seconds for r in rounds),
        "seconds": done.seconds,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "run_dir": str(done.folder),
    }
    return dict(finite(content))


def _metric_lines(done: Run) -> str:
    import json

    rows: list[dict[str, object]] = [{"name": f"epsilon {e:g}", **outcome.metrics()} for e, outcome in done.outcomes.items()]
    rows += [{"name": name, **outcome.metrics()} for name, outcome in done.rivals.items()]
    return "".join(json.dumps(finite(row)) + "\n" for row in rows)


def versions() -> dict[str, str]:
    """Of fedrec and of what decides its numbers."""
    return {"fedrec": __version__} | {name: metadata.version(name) for name in ("numpy", "scipy", "numba", "dp-accounting", "polars")}


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=False) as progress:
        yield progress


@contextmanager
def _stage(console: Console, words: str) -> Iterator[None]:
    with _progress(console) as progress:
        task = progress.add_task(words, total=1)
        yield
        progress.update(task, completed=1)
