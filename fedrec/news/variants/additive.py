"""`additive`, the default: one noised report a user and randomised labels, once; `reports_training`
proves its guarantee."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.news.checkpoints import Kept
from fedrec.news.trained import Catalogue, Progress, Sent, TrainedNews, topics_of
from fedrec.news.variant import NewsVariant, promised
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.bounded_mean import noise_std
from fedrec.privacy.click_accounting import Costs, TrainingPlan, plan_training
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.settings import NewsScenario

if TYPE_CHECKING:
    from fedrec.news.clients import NewsClients
    from fedrec.news.reports_training import Trained
    from fedrec.news.trainer_state import ReportModelSettings


@dataclass(frozen=True)
class AdditiveRecommender:
    """Ranks from one noised report per user."""

    trained: Trained

    def serve(
        self, asked: Impressions, *, guarantee: Guarantee, key: bytes
    ) -> npt.NDArray[np.float32]:
        """See `Recommender`."""
        from fedrec.news import reports_training

        return reports_training.serve(
            self.trained, asked, mu=mu_for(guarantee.epsilon, guarantee.delta), key=key
        ).scores


def train(
    scenario: NewsScenario, catalogue: Catalogue, clients: NewsClients, kept: Kept
) -> Iterator[Progress | TrainedNews]:
    """On reports that are collected once."""
    from fedrec.news import co_clicks, reports_training
    from fedrec.news.reports_training import collected_arrays, collected_of

    table = topics_of(scenario, catalogue)
    news = scenario.news
    guarantee = promised(scenario)
    plan = plan_of(scenario)
    settings = _report_settings(scenario)
    # drawn once, whatever stops the training
    kept_reports = kept.once("reports", lambda: collected_arrays(clients.reports(table, plan)))
    got = collected_of(
        kept_reports,
        plan,
        noise_std=noise_std(table, news.history, mu=plan.report_mu),
        told=table.told,
    )
    serving = [
        noise_std(table, news.history, mu=mu_for(e, scenario.privacy.delta))
        for e in news.serving_epsilons
    ]
    levels = reports_training.NoiseLevels.of(got.coefficients.noise_std, serving)
    streams = Streams(scenario.seed)
    history = news.history
    fitted = reports_training.fit(
        got,
        table,
        catalogue.vectors,
        settings,
        history=history,
        levels=levels,
        streams=streams,
        kept=kept,
    )
    for done in fitted:
        if isinstance(done, reports_training.EpochDone):
            yield Progress(
                done.epoch,
                settings.epochs,
                f"epoch {done.epoch}/{settings.epochs}: loss {done.loss:.4f}",
            )
            continue
        B = table.topics
        answers = len(got.users) / max(len(got.coefficients.values), 1)
        sent = (
            Sent(
                "coefficients",
                f"{B} numbers",
                "the mean of the history's topics, noised on the device",
                4.0 * B,  # bytes, as float32
                got.coefficients.noise_std,
            ),
            Sent(
                "labels",
                f"{answers:.1f} answers",
                "which candidate was clicked, randomised on the device",
                got.bytes_up - 4.0 * B,
                0.0,
            ),
        )
        arrays = {name: p.detach().numpy() for name, p in done.model.named_parameters()}
        spent = got.ledger.epsilon if guarantee.private else guarantee.epsilon
        recommender = AdditiveRecommender(co_clicks.with_untold(done, got))
        yield TrainedNews(recommender, guarantee, spent, 1, sent, 0.0, arrays)


def plan_of(scenario: NewsScenario) -> TrainingPlan:
    """Plan of the report and the labels."""
    return plan_training(promised(scenario), no_click=scenario.news.no_click == "report")


def costs(scenario: NewsScenario, passes: int) -> Costs:
    """One report, and each label once."""
    return plan_of(scenario).costs


def _report_settings(scenario: NewsScenario) -> ReportModelSettings:
    """Under much noise a short and slow training, which stays near the public prior it begins at: a
    function of epsilon alone."""
    from fedrec.news.trainer_state import ReportModelSettings

    epsilon = scenario.privacy.epsilon
    news = scenario.news
    speed = min(1.0, (epsilon / 5) ** 1.4)
    return ReportModelSettings(
        epochs=news.epochs or (8 if epsilon >= 3 else 4),
        learning_rate=news.learning_rate or 3e-3 * speed,
    )


VARIANT = NewsVariant(
    name="additive",
    train=train,
    noise_on="reports",
    costs=costs,
    encoders=False,
    keys=frozenset({"open_categories", "no_click"}),
)
