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

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privaterec import central, federated, reports_training
from fedrec.privaterec.additive import noise_std
from fedrec.privaterec.report_model import ReportModelSettings
from fedrec.privaterec.spending import plan_training
from fedrec.privaterec.trained import Catalogue, Progress, Sent, TrainedNews, Training, noise_of, promised, topics_of
from fedrec.settings import Scenario
from fedrec.streams import Streams

__all__ = ["VARIANTS", "Catalogue", "Progress", "Sent", "TrainedNews", "promised", "topics_of", "train_news"]

Float32s = npt.NDArray[np.float32]


def train_news(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Iterator[Progress | TrainedNews]:
    """Train the scenario's variant, yielding progress and, last, the trained model. Raises PrivacyError where a ledger refuses."""
    return VARIANTS[scenario.news.variant](scenario, catalogue, train)


@dataclass(frozen=True)
class AdditiveRecommender:
    """Ranks from one noised report per user."""

    trained: reports_training.Trained

    def serve(self, asked: Impressions, *, guarantee: Guarantee, key: bytes) -> Float32s:
        """See `Recommender`."""
        return reports_training.serve(self.trained, asked, mu=mu_for(guarantee.epsilon, guarantee.delta), key=key).scores


def additive(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Iterator[Progress | TrainedNews]:
    """The default; `reports_training` proves its guarantee."""
    table, news, guarantee = topics_of(scenario, catalogue), scenario.news, promised(scenario)
    plan, settings = plan_training(guarantee), _report_settings(scenario)
    got = reports_training.collect(train, table, plan, history=news.history, noise=noise_of(scenario))
    serving = [noise_std(table, news.history, mu=mu_for(e, scenario.privacy.delta)) for e in news.serving_epsilons]
    levels = reports_training.NoiseLevels.of(got.coefficients.noise_std, serving)
    streams = Streams(scenario.seed)
    for done in reports_training.fit(got, table, catalogue.vectors, settings, history=news.history, levels=levels, streams=streams):
        if isinstance(done, reports_training.EpochDone):
            yield Progress(done.epoch, settings.epochs, f"epoch {done.epoch}/{settings.epochs}: loss {done.loss:.4f}")
            continue
        B, answers = table.topics, len(train) / max(train.num_users, 1)
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


def central_training(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Iterator[Progress | TrainedNews]:
    """See `central`."""
    table, news, guarantee = topics_of(scenario, catalogue), scenario.news, promised(scenario)
    chosen = {"rounds": news.rounds, "clip": news.clip, "learning_rate": news.learning_rate}
    settings = replace(central.CentralSettings(), **{name: value for name, value in chosen.items() if value})  # type: ignore[arg-type]
    plan = central.plan_of(guarantee, settings)
    done = None
    for done in central.train(train, table, catalogue.vectors, plan, settings, history=news.history, noise=noise_of(scenario)):
        yield Progress(done.round, done.rounds, f"round {done.round}/{done.rounds}")
    assert done is not None
    shape = f"{table.topics + 1} and {done.model.W.shape[1]} numbers"
    words = "a gradient as two vectors; bounded, summed with everybody's, then noised"
    sent = (Sent("gradient, every round", shape, words, done.bytes_up, done.noise_stds["gradient/1"]),)
    spent = done.ledger.epsilon if guarantee.private else guarantee.epsilon
    yield TrainedNews(done.model, guarantee, spent, done.rounds + 1, sent, done.bytes_down, {"W": done.model.W.astype(np.float32)})


VARIANTS: dict[str, Training] = {
    "additive": additive,
    "central": central_training,
    "local": federated.local,
    "printed": federated.printed,
    "dp-fedrec": federated.dp_fedrec,
    "fedrec": federated.fedrec,
    "centralized": federated.centralized,
}
"""By the name a scenario gives."""
