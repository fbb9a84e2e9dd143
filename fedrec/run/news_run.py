"""A finished run of news: everything that its result and its report are views of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from fedrec.evaluation.controls import SHUFFLED, Verdict, compare, paired
from fedrec.evaluation.impressions import ImpressionMetrics
from fedrec.news.trained import TrainedNews
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.run.data.budget import DataBudget
from fedrec.run.data.news import NewsData
from fedrec.settings import Scenario


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
    """Of one served answer."""
    return (
        non_private(delta, "click", "replace")
        if math.isinf(epsilon)
        else Guarantee(epsilon, delta, "click", "replace")
    )


_NOISED = ", served at "
