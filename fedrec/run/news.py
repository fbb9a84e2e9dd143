"""News as the workload of a run: from impressions to a trained recommender, served at several
epsilons, beside its controls."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from fedrec import __version__
from fedrec.certificates.writing import certify_news
from fedrec.data.clicklog import liked_in
from fedrec.data.impressions import Impressions
from fedrec.data.interactions import Dataset, FileDigest
from fedrec.errors import SettingsError
from fedrec.evaluation.controls import SHUFFLED, in_one_line
from fedrec.evaluation.impressions import ImpressionMetrics, evaluate_impressions, history_swap
from fedrec.news.checkpoints import Kept
from fedrec.news.person import require_user_limit
from fedrec.news.prior import public_prior
from fedrec.news.trained import Catalogue, TrainedNews, public_table
from fedrec.news.variant import of, promised
from fedrec.numerics.threads import peak_rss_mb
from fedrec.output_folders import clear, finish
from fedrec.privacy.guarantee import with_sound_delta
from fedrec.randomness import Streams
from fedrec.report.content import ReportContent
from fedrec.report.news import report_content
from fedrec.report.news_person import for_a_person
from fedrec.run import statement
from fedrec.run.account import releases_of
from fedrec.run.data.budget import DataBudget, files_of
from fedrec.run.data.news import NewsData, catalogue_of, load_news
from fedrec.run.job import Runtime, RuntimeChoice
from fedrec.run.news_run import _NOISED, NewsJob, NewsOutcome, NewsRun, loopback, serving_guarantee
from fedrec.run.progress import progress_bar, stage
from fedrec.run.training import epsilons_of
from fedrec.run.workload import Setting, cautions
from fedrec.serving.bundle import FILE, read
from fedrec.serving.exporting import Export, Origin
from fedrec.serving.news_bundles import news_bundle
from fedrec.settings import NewsScenario, Scenario
from fedrec.storage import finite, write_arrays, write_bytes, write_json

_FINISHED = "finished.json"
"""Of a training that has made its last step: with its last state beside it, going on draws
nothing."""


@dataclass(frozen=True)
class News:
    """See `workload.Workload`."""

    scenario: Scenario
    data: NewsData
    catalogue: Catalogue

    @staticmethod
    def require_carried(scenario: NewsScenario, choice: RuntimeChoice) -> None:
        """See `Workload`."""
        news = scenario.news
        if choice.runtime == "loopback":
            return
        if not of(scenario).on_devices:
            raise SettingsError(
                f'news.variant = "{news.variant}" has no devices: it collects the clicks',
                "Run it without --runtime.",
            )
        if news.word_vectors or news.language_model:
            named = "word_vectors" if news.word_vectors else "language_model"
            raise SettingsError(
                f"--runtime {choice.runtime} does not send news.{named} to clients",
                "Leave out one of the two.",
            )

    @classmethod
    def load(cls, scenario: Scenario, given: Dataset | None) -> News:
        """See `Workload`: nothing is given. Raises PrivacyError where a person's limit is
        passed."""
        # sums depend on their number: the same scenario gives the same bytes everywhere
        torch.set_num_threads(1)
        data = load_news(scenario)
        train = data.log.train
        labels = int(np.bincount(train.users, minlength=1).max())
        require_user_limit(scenario, users=train.num_users, labels=labels)
        return cls(scenario, data, catalogue_of(scenario, data))

    @cached_property
    def files(self) -> tuple[FileDigest, ...]:
        """See `Workload`."""
        return files_of(self.scenario.data.path)

    @property
    def people(self) -> None:
        """See `Workload`: nobody, budgets of news are by click."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """See `Workload`."""
        return {"news": self.catalogue, "clicks": self.data.digest()}

    def described(self) -> Mapping[str, object]:
        """See `Workload`."""
        split = self.scenario.split
        return {
            **self.data.describe(),
            "provenance": {"files": [asdict(file) for file in self.files]},
            "split": {"kind": split.kind, "seed": split.seed, "sha256": self.data.digest()},
        }

    def train(self, setting: Setting) -> dict[float, tuple[TrainedNews, float]]:
        """See `Workload`: with the seconds that each took."""
        found = dict[float, tuple[TrainedNews, float]]()
        runtime = setting.choice.carrier(None, loopback)
        users = self.data.log.train.num_users
        allowed = self.scenario.privacy.allow_large_delta
        for epsilon in epsilons_of(self.scenario.privacy, self.scenario.compare):
            started = time.perf_counter()
            job = NewsJob(
                self.scenario.with_epsilon(epsilon),
                self.catalogue,
                self.data.log.train,
                setting.folder / f"epsilon-{epsilon:g}",
            )
            # before anything is drawn
            with_sound_delta(promised(job.scenario), users, allowed=allowed)
            _charge(job, setting.budget)
            done = _train(job, runtime, setting.console)
            write_json(job.folder / _FINISHED, {})
            sound = with_sound_delta(done.guarantee, users, allowed=allowed)
            found[epsilon] = replace(done, guarantee=sound), time.perf_counter() - started
        return found

    def evaluate(
        self, setting: Setting, trained: dict[float, tuple[TrainedNews, float]]
    ) -> FinishedNews:
        """See `Workload`."""
        scenario = self.scenario
        data = self.data
        with stage(setting.console, "evaluating"):
            outcomes = {e: _evaluate(scenario, t, data.log.test) for e, (t, _) in trained.items()}
            baselines = (
                _baselines(scenario, data, self.catalogue) if scenario.compare.baselines else {}
            )
        models = {e: model for e, (model, _) in trained.items()}
        seconds = {e: took for e, (_, took) in trained.items()}
        run = NewsRun(
            scenario, setting.folder, data, models, outcomes, baselines, seconds, setting.budget
        )
        return FinishedNews(run, self.catalogue, setting.console)


def _charge(job: NewsJob, budget: DataBudget | None) -> None:
    """A training that may draw is charged in full, also one that goes on; one whose reports or last
    state are kept draws no more."""
    reports = (job.folder / "reports.safetensors").exists()
    done = (job.folder / _FINISHED).exists() and Kept(job.folder).latest() is not None
    if budget is not None and not reports and not done:
        events = releases_of(job.scenario, job.train.num_users)
        budget.charge(
            f"{job.folder.parent.name}/{job.folder.name}", job.scenario.privacy.noise, events
        )


def _train(job: NewsJob, runtime: Runtime[NewsJob, Any], console: Console) -> TrainedNews:
    with progress_bar(console) as progress:
        task = progress.add_task("training", total=None)
        for done in runtime(job):
            if isinstance(done, TrainedNews):
                return done
            words = f"{statement.promise_in_short(promised(job.scenario))}, {done.words}"
            progress.update(task, completed=done.step, total=done.steps, description=words)
    raise AssertionError("a training ended without a model")


def _evaluate(scenario: NewsScenario, trained: TrainedNews, test: Impressions) -> NewsOutcome:
    delta = scenario.privacy.delta
    streams = Streams(scenario.seed)

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
    scenario: NewsScenario, data: NewsData, catalogue: Catalogue
) -> dict[str, ImpressionMetrics]:
    """Popularity, counted without noise, and public rows of every kind without any training,
    directions at every serving epsilon."""
    test = data.log.test
    train = data.log.train
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


@dataclass
class FinishedNews:
    """See `workload.Finished`."""

    run: NewsRun
    catalogue: Catalogue
    console: Console

    def keep(self) -> None:
        """See `Finished`."""
        done = self.run
        main = self.run.main
        noise = self.run.scenario.privacy.noise
        clear(done.folder / "model", "model")
        write_arrays(done.folder / "model" / "model.safetensors", main.parameters)
        about = {
            "recipe": "privaterec",
            "variant": done.scenario.news.variant,
            "fedrec": __version__,
            "guarantee": asdict(main.guarantee),
            "noise": noise,
        }
        write_json(done.folder / "model" / "manifest.json", about)
        finish(done.folder / "model", "model")
        training = done.folder / f"epsilon-{done.scenario.privacy.epsilon:g}"
        run = f"{done.scenario.news.variant}-{done.scenario.digest()[:16]}"
        certify_news(
            done.folder / "model", done.scenario, self.catalogue, training, run=run, noise=noise
        )
        said = {"spent": main.spent, "noise": noise, **_stated(done)}
        write_json(done.folder / "guarantee.json", {**asdict(main.guarantee), **said})
        lines = "".join(json.dumps(finite(row)) + "\n" for row in _rows(done))
        write_bytes(done.folder / "metrics.jsonl", lines.encode())

    def bundle(self) -> Export:
        """See `Finished`."""
        done = self.run
        main = self.run.main
        privacy = self.run.scenario.privacy
        origin = Origin(
            done.folder.name,
            privacy.delta,
            main.guarantee,
            main.spent,
            privacy.noise,
            not_covered=done.data.not_covered,
        )
        return news_bundle(
            main.recommender, done.data.news, origin, liked=liked_in(done.scenario.data.format)
        )

    def report(self, serving: Mapping[str, object]) -> ReportContent:
        """See `Finished`: linkage is measured with the bundle that was written."""
        log = self.run.data.log
        bundle = self.run.folder / FILE
        with stage(self.console, "linking answers"):
            self.person = for_a_person(
                self.run.scenario,
                log.train,
                log.test,
                None if "refused" in serving else read(bundle),
            )
        return report_content(self.run, self.person)

    def result(self, serving: Mapping[str, object]) -> dict[str, Any]:
        """See `Finished`."""
        done = self.run
        main = self.run.main
        privacy = self.run.scenario.privacy
        answers = [{"epsilon": e, "metrics": m.as_dict()} for e, m in done.outcome.served.items()]
        curve = [
            {"epsilon": e, "metrics": o.headline.as_dict(), "history_swap_auc": o.swapped.auc}
            for e, o in done.outcomes.items()
        ]
        return {
            "variant": done.scenario.news.variant,
            "metrics": done.outcome.headline.as_dict(),
            "controls": {"history_swap_auc": done.outcome.swapped.auc},
            "guarantee": asdict(main.guarantee),
            **_stated(done),
            "spent_epsilon": main.spent,
            "noise": privacy.noise,
            "serving": {
                "unit": "click",
                "neighbours": "replace",
                "delta": privacy.delta,
                "answers": answers,
                **serving,
            },
            "answer": in_one_line(done.verdicts),
            "verdicts": [verdict.as_dict() for verdict in done.verdicts],
            "curve": curve,
            "baselines": {name: metrics.as_dict() for name, metrics in done.baselines.items()},
            "rounds": main.rounds,
            "bytes_up_per_client": main.bytes_up,
            "bytes_down_per_client": main.bytes_down,
            "training_seconds": done.seconds[privacy.epsilon],
            "peak_rss_mb": peak_rss_mb(),
            "run_dir": str(done.folder),
            "person": self.person.as_dict(),
        }

    def lines(self) -> list[str]:
        """See `Finished`."""
        done = self.run
        seeded = self.run.scenario.privacy.noise == "seeded"
        private = done.main.guarantee.private
        return cautions(done.budget, (), seeded=private and seeded)


def _stated(done: NewsRun) -> dict[str, Any]:
    """What is promised of training, for files."""
    plan = of(done.scenario).plan
    return {
        **statement.stated(done.main.guarantee, done.budget, done.data.not_covered),
        **({} if plan is None else statement.three_party(plan(done.scenario))),
    }


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
