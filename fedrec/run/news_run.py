"""Run of news: its job for a runtime, the runtime that needs no other process, and, when it is
finished, everything that its result and its report are views of."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

from fedrec.data.impressions import Impressions
from fedrec.evaluation.controls import SHUFFLED, Verdict, compare, paired
from fedrec.evaluation.impressions import ImpressionMetrics
from fedrec.news.attention import laplace_plan_as_printed
from fedrec.news.checkpoints import Kept
from fedrec.news.trained import Catalogue, Progress, TrainedNews
from fedrec.news.variant import PURE, THETA, of, promise, promised, train_news
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams, SystemStreams, noise_from
from fedrec.run.data.budget import DataBudget
from fedrec.run.data.news import NewsData
from fedrec.settings import NewsScenario, Scenario

_NOISED = ", served at "


@dataclass(frozen=True)
class NewsJob:
    """One training: its scenario, what is public, the private clicks of all users, and a folder for
    what the runtime keeps."""

    scenario: Scenario
    catalogue: Catalogue
    train: Impressions
    folder: Path

    @property
    def run(self) -> str:
        """The run's id: the same scenario is the same run."""
        return f"{self.scenario.news.variant}-{self.scenario.digest()[:16]}"

    @property
    def noise(self) -> Streams | SystemStreams:
        """Where the aggregator's noise comes from."""
        return noise_from(self.scenario.privacy.noise, self.scenario.seed)

    @property
    def limit(self) -> Guarantee:
        """What every party of a rehearsal allows: exactly this run, and anything where it only
        reproduces a paper."""
        guarantee = promised(self.scenario)
        epsilon = float("inf") if not promise(self.scenario).established else guarantee.epsilon
        return Guarantee(epsilon, guarantee.delta, guarantee.unit, guarantee.neighbours)


def loopback(job: NewsJob) -> Generator[Progress | TrainedNews, None, None]:
    """The runtime `loopback`: everybody in this process."""
    from fedrec.news.local_clients import LocalClients  # brings torch

    kept = Kept(job.folder, pause_s=5)
    clients = LocalClients(job.scenario, job.catalogue, job.train, kept)
    yield from train_news(job.scenario, job.catalogue, clients, kept=kept)


@dataclass(frozen=True)
class NewsOutcome:
    """What one training is worth on test: at each serving epsilon, and at the first with histories
    exchanged."""

    served: dict[float, ImpressionMetrics]
    swapped: ImpressionMetrics

    @property
    def headline(self) -> ImpressionMetrics:
        """At the scenario's first serving epsilon."""
        return next(iter(self.served.values()))


@dataclass(frozen=True)
class NewsRun:
    """Everything a finished run knows; the report and the result are views of it."""

    scenario: Scenario
    folder: Path
    data: NewsData
    trained: dict[float, TrainedNews]
    outcomes: dict[float, NewsOutcome]
    baselines: dict[str, ImpressionMetrics]
    seconds: dict[float, float]
    budget: DataBudget | None = None

    @property
    def main(self) -> TrainedNews:
        """The training that the scenario is about."""
        return self.trained[self.scenario.privacy.epsilon]

    @property
    def outcome(self) -> NewsOutcome:
        """What that training is worth on test."""
        return self.outcomes[self.scenario.privacy.epsilon]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """AUC beside exchanged histories and popularity, paired by impression."""
        ours = self.outcome.headline
        rivals = {SHUFFLED: self.outcome.swapped} | {
            name: m for name, m in self.baselines.items() if _NOISED not in name
        }
        return tuple(
            compare(
                "AUC",
                ours.auc,
                name,
                other.auc,
                stderr=paired(ours.influence, other.influence),
                lower_is_better=False,
            )
            for name, other in rivals.items()
        )


def serving_guarantee(epsilon: float, delta: float) -> Guarantee:
    """Return the guarantee that one answer's noise is calibrated for."""
    return (
        non_private(delta, "click", "replace")
        if math.isinf(epsilon)
        else Guarantee(epsilon, delta, "click", "replace")
    )


def answer_promise(epsilon: float, scenario: NewsScenario) -> Guarantee:
    """Return the guarantee of one served answer, and what is not established of it."""
    promised = serving_guarantee(epsilon, scenario.privacy.delta)
    news = scenario.news
    if news.serving_noise == "gaussian" or not promised.private:
        return promised
    if news.serving_noise == "laplace":
        return replace(promised, note=PURE)
    if (form := of(scenario).in_rounds) is not None and (basis := form.basis(scenario)):
        plan = laplace_plan_as_printed(
            promised, theta=news.clip or THETA, basis=basis, padding=news.padding
        )
        return plan.guarantee
    note = "vectors are clipped in L2: the true epsilon is the square root of their width times it"
    return replace(promised, established=False, note=note)
