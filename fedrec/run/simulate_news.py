"""`fedrec simulate` for news: from impressions to a trained recommender, served at several
epsilons, beside its controls."""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from fedrec import __version__
from fedrec.data.clicklog import ClickLogProtocol
from fedrec.data.impressions import Impressions
from fedrec.evaluation.controls import SHUFFLED
from fedrec.evaluation.impressions import ImpressionMetrics, evaluate_impressions, history_swap
from fedrec.news.checkpoints import Kept
from fedrec.news.person_plans import require_user_limit
from fedrec.news.prior import public_prior
from fedrec.news.trained import Catalogue, TrainedNews, public_table
from fedrec.news.variant import of, promised
from fedrec.privacy.guarantee import with_sound_delta
from fedrec.randomness import Streams
from fedrec.run import statement
from fedrec.run.console import progress_bar, stage
from fedrec.run.data.budget import DataBudget, budget_of, files_of
from fedrec.run.data.news import NewsData, catalogue_of, load_news
from fedrec.run.finished import promise_in_short
from fedrec.run.news_job import NewsJob, NewsRuntime
from fedrec.run.news_run import _NOISED, NewsOutcome, NewsRun, serving_guarantee
from fedrec.run.news_runtimes import carrier
from fedrec.run.run_folder import RESULT, open_folder
from fedrec.run.runtime_choice import LOOPBACK, RuntimeChoice
from fedrec.serving.bundle import FILE, read
from fedrec.serving.exporting import Export, Origin
from fedrec.serving.model_bundles import write_bundle
from fedrec.serving.news_bundles import news_bundle
from fedrec.settings import Scenario
from fedrec.storage import finite, write_arrays, write_bytes, write_json
from fedrec_simulations.leaderboard import record


def run(
    scenario: Scenario,
    *,
    name: str,
    choice: RuntimeChoice = LOOPBACK,
    resume: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Do everything and return what `--json` prints. Raises FedRecError."""
    from fedrec.report.table import print_methods

    runtime = carrier(scenario, choice)
    # sums depend on their number: the same scenario gives the same bytes everywhere
    torch.set_num_threads(1)
    console, started = Console(stderr=True, quiet=quiet), time.perf_counter()
    with open_folder(scenario, name, choice, resume=resume) as folder:
        done, content, result = _run(scenario, folder, console, runtime)
        result = {**result, "runtime": choice.described, "seconds": time.perf_counter() - started}
        write_json(folder / RESULT, result)
        record.finish(folder)
    if not quiet:
        print_methods(Console(), content)
        _print(done)
    return result


def _run(
    scenario: Scenario, folder: Path, console: Console, runtime: NewsRuntime
) -> tuple[NewsRun, Any, dict[str, Any]]:
    """The finished run, the content of its report, and its result."""
    from fedrec.report.news import report_content
    from fedrec.report.news_person import for_a_person
    from fedrec.report.page import write

    record.begin(folder)
    with stage(console, "reading data"):
        data = load_news(scenario)
        catalogue = catalogue_of(scenario, data)
    train = data.log.train
    require_user_limit(
        scenario, users=train.num_users, labels=int(np.bincount(train.users, minlength=1).max())
    )
    files = [asdict(file) for file in files_of(scenario.data.path)]
    split = {"kind": scenario.split.kind, "seed": scenario.split.seed, "sha256": data.digest()}
    write_json(
        folder / "data.json", {**data.describe(), "provenance": {"files": files}, "split": split}
    )
    done = _finish(scenario, folder, data, catalogue, console, runtime)
    _keep(done)
    bundle = write_bundle(folder, lambda: _bundle(done))
    with stage(console, "linking answers"):
        found = for_a_person(
            scenario,
            data.log.train,
            data.log.test,
            None if "refused" in bundle else read(folder / FILE),
        )
    with stage(console, "drawing the report"):
        content = report_content(done, found)
        write(folder / "report.html", content)
    result = {**_result(done), "person": finite(found.as_dict())}
    result["serving"] |= bundle
    return done, content, result


def _print(done: NewsRun) -> None:
    for verdict in done.verdicts:
        Console().print(
            verdict.sentence,
            highlight=False,
            style="" if verdict.outcome == "better" else "bold",
        )
    lines = [f"report  {done.folder / 'report.html'}"]
    lines += [f"beyond  not covered by the guarantee: {what}" for what in done.data.not_covered]
    lines += [
        f"budget  of all runs on this data: {words}" for words in statement.spent_words(done.budget)
    ]
    if done.main.guarantee.private and done.scenario.privacy.noise == "seeded":
        lines.append(
            "noise   seeded: an experiment. Whoever knows the seed can remove the noise: "
            "do not release this model."
        )
    Console().print("\n".join(lines), soft_wrap=True, highlight=False)


def _finish(
    scenario: Scenario,
    folder: Path,
    data: NewsData,
    catalogue: Catalogue,
    console: Console,
    runtime: NewsRuntime,
) -> NewsRun:
    budget = budget_of(scenario.privacy, files_of(scenario.data.path))
    trained, seconds = dict[float, TrainedNews](), dict[float, float]()
    users, allowed = data.log.train.num_users, scenario.privacy.allow_large_delta
    for epsilon in dict.fromkeys([scenario.privacy.epsilon, *scenario.compare.epsilons]):
        started = time.perf_counter()
        job = NewsJob(
            scenario.with_epsilon(epsilon),
            catalogue,
            data.log.train,
            folder / f"epsilon-{epsilon:g}",
        )
        with_sound_delta(promised(job.scenario), users, allowed=allowed)  # before anything is drawn
        _charge(job, budget)
        done = _train(job, runtime, console)
        write_json(job.folder / _FINISHED, {})
        trained[epsilon] = replace(
            done, guarantee=with_sound_delta(done.guarantee, users, allowed=allowed)
        )
        seconds[epsilon] = time.perf_counter() - started
    record.trained(folder)  # before the test impressions are read
    with stage(console, "evaluating"):
        outcomes = {e: _evaluate(scenario, t, data.log.test) for e, t in trained.items()}
        baselines = _baselines(scenario, data, catalogue) if scenario.compare.baselines else {}
    return NewsRun(scenario, folder, data, trained, outcomes, baselines, seconds, budget)


_FINISHED = "finished.json"
"""Of a training that has made its last step: with its last state beside it, going on draws
nothing."""


def _charge(job: NewsJob, budget: DataBudget | None) -> None:
    """A training that may draw is charged in full, also one that goes on; one whose reports or last
    state are kept draws no more."""
    from fedrec.run.account_news import releases_of

    reports = (job.folder / "reports.safetensors").exists()
    done = (job.folder / _FINISHED).exists() and Kept(job.folder).latest() is not None
    if budget is not None and not reports and not done:
        events = releases_of(job.scenario, job.train.num_users)
        budget.charge(
            f"{job.folder.parent.name}/{job.folder.name}", job.scenario.privacy.noise, events
        )


def _train(job: NewsJob, runtime: NewsRuntime, console: Console) -> TrainedNews:
    with progress_bar(console) as progress:
        task = progress.add_task("training", total=None)
        for done in runtime(job):
            if isinstance(done, TrainedNews):
                return done
            words = f"{promise_in_short(promised(job.scenario))}, {done.words}"
            progress.update(task, completed=done.step, total=done.steps, description=words)
    raise AssertionError("a training ended without a model")


def _evaluate(scenario: Scenario, trained: TrainedNews, test: Impressions) -> NewsOutcome:
    delta, streams = scenario.privacy.delta, Streams(scenario.seed)

    def scores(asked: Impressions, epsilon: float) -> npt.NDArray[np.float32]:
        key = streams.key(f"serving/{epsilon:g}")
        return trained.recommender.serve(
            asked, guarantee=serving_guarantee(epsilon, delta), key=key
        )

    epsilons = scenario.news.serving_epsilons
    served = {e: evaluate_impressions(scores(test, e), test) for e in epsilons}
    swapped = history_swap(
        lambda asked: scores(asked, epsilons[0]), test, rng=streams.numpy("news-history-swap")
    )
    return NewsOutcome(served, swapped)


def _baselines(
    scenario: Scenario, data: NewsData, catalogue: Catalogue
) -> dict[str, ImpressionMetrics]:
    """Popularity, counted without noise, and public rows of every kind without any training,
    directions at every serving epsilon."""
    test, train = data.log.test, data.log.train
    counts = np.bincount(train.candidates[train.clicked], minlength=train.num_news).astype(
        np.float32
    )
    found = {"popularity": evaluate_impressions(counts[test.candidates], test)}
    for rows in _UNTRAINED:
        if rows.where_chosen and rows.topics != scenario.news.topics:
            continue
        prior = public_prior(
            public_table(rows.topics, scenario, catalogue),
            catalogue.vectors,
            history=scenario.news.history,
        )
        noised = filter(math.isfinite, scenario.news.serving_epsilons if rows.noised else ())
        for epsilon in (math.inf, *noised):
            asked = serving_guarantee(epsilon, scenario.privacy.delta)
            scores = prior.scores(
                test, guarantee=asked, key=Streams(scenario.seed).key(f"untrained/{epsilon:g}")
            )
            served = "" if math.isinf(epsilon) else f"{_NOISED}{epsilon:g}"
            found[f"untrained public {rows.name}{served}"] = evaluate_impressions(scores, test)
    return found


@dataclass(frozen=True)
class _PublicRows:
    """Public rows as a model without training. topics: the value of news.topics. name: in results.
    noised: measured with noise too. where_chosen: measured only where the scenario has them."""

    topics: str
    name: str
    noised: bool = False
    where_chosen: bool = False


_UNTRAINED = (
    _PublicRows("directions", "directions", noised=True),
    _PublicRows("text", "topics"),
    _PublicRows("categories", "categories", where_chosen=True),
)


def _keep(done: NewsRun) -> None:
    main = done.main
    write_arrays(done.folder / "model" / "model.safetensors", main.parameters)
    about = {
        "recipe": "privaterec",
        "variant": done.scenario.news.variant,
        "fedrec": __version__,
        "guarantee": asdict(main.guarantee),
    }
    write_json(
        done.folder / "model" / "manifest.json", {**about, "noise": done.scenario.privacy.noise}
    )
    said = {
        "spent": main.spent,
        "noise": done.scenario.privacy.noise,
        **statement.stated(main.guarantee, done.budget, done.data.not_covered),
        **_three_party(done.scenario),
    }
    write_json(done.folder / "guarantee.json", {**asdict(main.guarantee), **said})
    lines = "".join(json.dumps(finite(row)) + "\n" for row in _rows(done))
    write_bytes(done.folder / "metrics.jsonl", lines.encode())


def _three_party(scenario: Scenario) -> dict[str, Any]:
    return {} if (plan := of(scenario).plan) is None else statement.three_party(plan(scenario))


def _bundle(done: NewsRun) -> Export:
    main, privacy = done.main, done.scenario.privacy
    origin = Origin(done.folder.name, privacy.delta, main.guarantee, main.spent, privacy.noise)
    liked = ClickLogProtocol().liked if done.scenario.data.format == "click-log" else 0.0
    return news_bundle(main.recommender, done.data.news, origin, liked=liked)


def _rows(done: NewsRun) -> Iterator[dict[str, object]]:
    for epsilon, outcome in done.outcomes.items():
        for serving, metrics in outcome.served.items():
            yield {
                "name": f"{done.scenario.news.variant}",
                "epsilon": epsilon,
                "serving_epsilon": serving,
                **metrics.as_dict(),
            }
        yield {
            "name": SHUFFLED,
            "epsilon": epsilon,
            "serving_epsilon": next(iter(outcome.served)),
            **outcome.swapped.as_dict(),
        }
    for name, metrics in done.baselines.items():
        yield {"name": name, **metrics.as_dict()}


def _result(done: NewsRun) -> dict[str, Any]:
    main, epsilon = done.main, done.scenario.privacy.epsilon
    serving = [{"epsilon": e, "metrics": m.as_dict()} for e, m in done.outcome.served.items()]
    curve = [
        {"epsilon": e, "metrics": o.headline.as_dict(), "history_swap_auc": o.swapped.auc}
        for e, o in done.outcomes.items()
    ]
    content = {
        "variant": done.scenario.news.variant,
        "metrics": done.outcome.headline.as_dict(),
        "controls": {"history_swap_auc": done.outcome.swapped.auc},
        "guarantee": asdict(main.guarantee),
        **statement.stated(main.guarantee, done.budget, done.data.not_covered),
        **_three_party(done.scenario),
        "spent_epsilon": main.spent,
        "noise": done.scenario.privacy.noise,
        "serving": {
            "unit": "click",
            "neighbours": "replace",
            "delta": done.scenario.privacy.delta,
            "answers": serving,
        },
        "verdicts": [verdict.as_dict() for verdict in done.verdicts],
        "curve": curve,
        "baselines": {name: metrics.as_dict() for name, metrics in done.baselines.items()},
        "rounds": main.rounds,
        "bytes_up_per_client": main.bytes_up,
        "bytes_down_per_client": main.bytes_down,
        "training_seconds": done.seconds[epsilon],
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "run_dir": str(done.folder),
    }
    return dict(finite(content))
