"""Ways to train and serve a news recommender, by name, behind one pair of roles: what trains, and what ranks for those who ask.

| variant       | what leaves a client                                               | unit, neighbours |
|---------------|--------------------------------------------------------------------|------------------|
| `additive`    | noised topic coefficients and randomised labels, once              | click, replace   |
| `central`     | clipped gradients, to an aggregator that adds noise to their sum   | user, add/remove |
| `local`       | gradients behind noised attention and randomised labels            | click, replace   |
| `printed`     | the paper's gradients: NOT ESTABLISHED                             | click, replace   |
| `dp-fedrec`   | whole gradients, clipped and noised on the device                  | click, replace   |
| `fedrec`      | whole gradients, bare                                              | none             |
| `centralized` | the data                                                           | none             |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.news import central, federated, reports_training
from fedrec.news.checkpoints import NOTHING, Kept
from fedrec.news.clients import NewsClients
from fedrec.news.report_model import ReportModelSettings
from fedrec.news.reports_training import collected_arrays, collected_of
from fedrec.news.trained import Catalogue, Progress, Sent, TrainedNews, promised, topics_of
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.bounded_mean import noise_std
from fedrec.privacy.calibration import Plan, among_three
from fedrec.privacy.click_accounting import plan_training
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.settings import Scenario

__all__ = ["VARIANTS", "Catalogue", "Progress", "Sent", "TrainedNews", "promised", "topics_of", "train_news"]

Float32s = npt.NDArray[np.float32]


Training = Callable[[Scenario, Catalogue, NewsClients, Kept], Iterator[Progress | TrainedNews]]


def train_news(scenario: Scenario, catalogue: Catalogue, fleet: NewsClients, *, kept: Kept = NOTHING) -> Iterator[Progress | TrainedNews]:
    """Train the scenario's variant over a fleet, yielding progress and, last, the trained model; on from what is kept.

    Raises PrivacyError where a ledger refuses, and what the fleet raises.
    """
    return VARIANTS[scenario.news.variant](scenario, catalogue, fleet, kept)


@dataclass(frozen=True)
class AdditiveRecommender:
    """Ranks from one noised report per user."""

    trained: reports_training.Trained

    def serve(self, asked: Impressions, *, guarantee: Guarantee, key: bytes) -> Float32s:
        """See `Recommender`."""
        return reports_training.serve(self.trained, asked, mu=mu_for(guarantee.epsilon, guarantee.delta), key=key).scores


def additive(scenario: Scenario, catalogue: Catalogue, fleet: NewsClients, kept: Kept) -> Iterator[Progress | TrainedNews]:
    """The default; `reports_training` proves its guarantee."""
    table, news, guarantee = topics_of(scenario, catalogue), scenario.news, promised(scenario)
    plan, settings = plan_training(guarantee, no_click=news.no_click == "report"), _report_settings(scenario)
    kept_reports = kept.once("reports", lambda: collected_arrays(fleet.reports(table, plan)))  # drawn once, whatever stops the training
    got = collected_of(kept_reports, plan, noise_std=noise_std(table, news.history, mu=plan.report_mu), told=table.told)
    serving = [noise_std(table, news.history, mu=mu_for(e, scenario.privacy.delta)) for e in news.serving_epsilons]
    levels = reports_training.NoiseLevels.of(got.coefficients.noise_std, serving)
    streams, history = Streams(scenario.seed), news.history
    fitted = reports_training.fit(got, table, catalogue.vectors, settings, history=history, levels=levels, streams=streams, kept=kept)
    for done in fitted:
        if isinstance(done, reports_training.EpochDone):
            yield Progress(done.epoch, settings.epochs, f"epoch {done.epoch}/{settings.epochs}: loss {done.loss:.4f}")
            continue
        B, answers = table.topics, len(got.users) / max(len(got.coefficients.values), 1)
        sent = (
            Sent(
                "coefficients",
                f"{B} numbers",
                "the mean of the history's topics, noised on the device",
                4.0 * B,
                got.coefficients.noise_std,
            ),
            Sent("labels", f"{answers:.1f} answers", "which candidate was clicked, randomised on the device", got.bytes_up - 4.0 * B, 0.0),
        )
        arrays = {name: p.detach().numpy() for name, p in done.model.named_parameters()}
        spent = got.ledger.epsilon if guarantee.private else guarantee.epsilon
        yield TrainedNews(AdditiveRecommender(done), guarantee, spent, 1, sent, 0.0, arrays)


def _report_settings(scenario: Scenario) -> ReportModelSettings:
    """Under much noise a short and slow training, which stays near the public prior it begins at: a function of epsilon alone."""
    epsilon, news = scenario.privacy.epsilon, scenario.news
    speed = min(1.0, (epsilon / 5) ** 1.4)
    return ReportModelSettings(epochs=news.epochs or (8 if epsilon >= 3 else 4), learning_rate=news.learning_rate or 3e-3 * speed)


def central_training(scenario: Scenario, catalogue: Catalogue, fleet: NewsClients, kept: Kept) -> Iterator[Progress | TrainedNews]:
    """See `central`."""
    table, settings, plan, done = topics_of(scenario, catalogue), central_settings(scenario), central_plan(scenario), None
    guarantee = plan.guarantee
    recipe = central.CentralRecipe.of(plan, settings, table, catalogue.vectors, scenario.news.history)
    for done in central.over(recipe, fleet.link(plan, central.released(plan, kept.latest())), kept):
        yield Progress(done.round, done.rounds, f"round {done.round}/{done.rounds}")
    assert done is not None
    shape = f"{table.topics + 1} and {done.model.W.shape[1]} numbers"
    words = "a gradient as two vectors; bounded, summed with everybody's, then noised"
    sent = (Sent("gradient, every round", shape, words, done.bytes_up, done.noise_stds["gradient/1"]),)
    spent = done.ledger.epsilon if guarantee.private else guarantee.epsilon
    yield TrainedNews(done.model, guarantee, spent, done.rounds + 1, sent, done.bytes_down, {"W": done.model.W.astype(np.float32)})


def central_plan(scenario: Scenario) -> Plan:
    """Of all releases, for whoever aggregates."""
    plan, privacy = central.plan_of(promised(scenario), central_settings(scenario)), scenario.privacy
    return plan if privacy.aggregation == "trusted" else among_three(plan, calibrated_for=privacy.calibrate_for)


def central_settings(scenario: Scenario) -> central.CentralSettings:
    """What the scenario chooses, the rest as `central` has it."""
    news = scenario.news
    chosen = {"rounds": news.rounds, "clip": news.clip, "learning_rate": news.learning_rate}
    return replace(central.CentralSettings(), **{name: value for name, value in chosen.items() if value})  # type: ignore[arg-type]


VARIANTS: dict[str, Training] = {
    "additive": additive,
    "central": central_training,
    "local": federated.in_rounds,
    "printed": federated.in_rounds,
    "dp-fedrec": federated.in_rounds,
    "fedrec": federated.in_rounds,
    "centralized": federated.centralized,
}
"""By the name a scenario gives."""
