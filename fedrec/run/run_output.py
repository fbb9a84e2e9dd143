"""Files and last words of a finished run: the released model, the report, the serving bundle, and
what `--json` prints."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrec import __version__
from fedrec.api.released import write_facts
from fedrec.data.dataset import Dataset
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.released import save
from fedrec.run import statement
from fedrec.run.console import stage
from fedrec.run.finished import BY_RULE, Run, promise_in_short
from fedrec.run.model_card import write_card
from fedrec.run.run_folder import RESULT
from fedrec.run.training import Trained
from fedrec.serving.exporting import Origin, PublicItems
from fedrec.serving.model_bundles import ServingFacts, bundle_of, write_bundle
from fedrec.settings import Scenario
from fedrec.storage import finite, write_bytes, write_json


def write_run(
    done: Run, facts: PublicFacts, console: Console, *, started: float, quiet: bool
) -> dict[str, Any]:
    """Everything that a finished run leaves in its folder and on the terminal; what `--json`
    prints. started: by `perf_counter`."""
    from fedrec.report.findings import (
        report_content,
        shortcomings,
        shortcomings_by_popularity,
    )
    from fedrec.report.page import write
    from fedrec.report.table import print_methods

    folder = done.folder
    keep_model(
        folder / "model",
        done.scenario,
        done.dataset,
        facts,
        done.main,
        name=folder.name.removesuffix(done.choice.suffix),
        not_covered=done.split.not_covered,
    )
    write_bytes(folder / "metrics.jsonl", _metric_lines(done).encode())
    with stage(console, "drawing the report"):
        content = report_content(done)
        write(folder / "report.html", content)
    with stage(console, "making the serving bundle"):
        serving = write_bundle(folder, lambda: bundle_of(folder / "model"))
    result = {**_result(done), "serving": serving, "seconds": time.perf_counter() - started}
    write_json(folder / RESULT, result)
    if not quiet:
        print_methods(Console(), content)
        for metric, came in content.compared.items():
            if better := came.get("better than"):
                sentence = f"{metric} is better than {', '.join(better)}."
                promise = promise_in_short(done.main.prepared.plan.guarantee)
                Console().print(f"{promise}: {sentence}", highlight=False)
        for verdict in shortcomings(done, of_main=True):
            Console().print(verdict.sentence, highlight=False, style="bold")
        main = [done.scenario.privacy.epsilon]  # the report has every epsilon
        for sentence in shortcomings_by_popularity(done, main):
            Console().print(sentence, highlight=False)
        Console().print(_last_words(done), soft_wrap=True, highlight=False)
    return result


def _last_words(done: Run) -> str:
    """Where things are, and what must not be done with them."""
    lines = [f"report  {done.folder / 'report.html'}", f"model   {done.folder / 'model'}"]
    lines += [f"data    {words}" for words in done.words_of_data]
    lines += [f"limits  {name}: {words}" for name, words in done.limits.items()]
    lines += [f"beyond  not covered by the guarantee: {what}" for what in done.split.not_covered]
    lines += [
        f"budget  of all runs on this data: {words}" for words in statement.spent_words(done.budget)
    ]
    lines += statement.three_party_lines(statement.three_party(done.main.prepared.plan))
    lines += statement.personal_lines(
        statement.personal(done.main.prepared.plan, done.scenario.privacy.limits)
    )
    if done.main.prepared.plan.guarantee.private and done.scenario.privacy.noise == "seeded":
        lines.append(
            "noise   seeded: an experiment. Whoever knows the seed can remove the noise: do "
            "not release this model."
        )
    return "\n".join(lines)


def keep_model(
    folder: Path,
    scenario: Scenario,
    dataset: Dataset,
    facts: PublicFacts,
    trained: Trained,
    *,
    name: str,
    not_covered: Sequence[str],
) -> None:
    """Write the released model, its manifest, what a serving bundle is made with, and what
    `fedrec.load` reads.

    name: of the run, the same whoever carried the rounds: the bundle is the same too. not_covered:
    sentences on what reader and split took from everybody's rows.
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
    opinions = asdict(trained.opinions())
    write_facts(folder, scenario, facts.kind, facts.value_range, titles, opinions, not_covered)
    promised, noise = plan.guarantee, scenario.privacy.noise
    write_card(
        folder,
        recipe=scenario.recipe,
        kind=facts.kind,
        items=catalogue.item_ids,
        guarantee=promised,
        noise=noise,
        not_covered=not_covered,
    )
    if "counts" not in trained.state:  # no bundle can be made
        return
    guarantee = plan.guarantee
    origin = Origin(name, guarantee.delta, guarantee, guarantee.epsilon, scenario.privacy.noise)
    public = PublicItems.of_features(catalogue.item_ids, catalogue.titles, dataset.features)
    ServingFacts.of(trained.prepared.recipe, trained.state, facts, scenario, public, origin).keep(
        folder, trained.state
    )


def _result(done: Run) -> dict[str, Any]:
    plan = done.main.prepared.plan
    opinions = done.main.opinions()
    guarantee = asdict(plan.guarantee)
    stated = statement.stated(
        plan.guarantee, done.budget, done.split.not_covered
    ) | statement.three_party(plan)
    stated |= statement.personal(plan, done.scenario.privacy.limits)
    about = {
        "noise": done.scenario.privacy.noise,
        "accountants": asdict(opinions),
        "plan": plan.digest(),
    }
    write_json(done.folder / "guarantee.json", {**guarantee, **about, **stated})
    comparison = {name: outcome.metrics() for name, outcome in done.rivals.items()}
    curve = [
        {
            "epsilon": e,
            "metrics": outcome.metrics(),
            "verdicts": [verdict.as_dict() for verdict in outcome.verdicts],
            "verdicts_by_popularity": [beside.as_dict() for beside in outcome.by_popularity],
        }
        for e, outcome in done.outcomes.items()
    ]
    published = [
        {
            "epsilon": e,
            "metrics": outcome.metrics(),
            "verdicts": [verdict.as_dict() for verdict in outcome.verdicts],
        }
        for e, (_, outcome) in done.published.items()
    ]
    rounds = done.main.rounds
    content = {
        "runtime": done.choice.described,
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
    rows: list[dict[str, object]] = [
        {"name": f"epsilon {e:g}", **outcome.metrics()} for e, outcome in done.outcomes.items()
    ]
    rows += [
        {"name": f"{BY_RULE}, epsilon {e:g}", **outcome.metrics()}
        for e, (_, outcome) in done.published.items()
    ]
    rows += [{"name": name, **outcome.metrics()} for name, outcome in done.rivals.items()]
    return "".join(json.dumps(finite(row)) + "\n" for row in rows)
