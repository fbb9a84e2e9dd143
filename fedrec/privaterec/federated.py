"""The variants that train a published news model in rounds (Alg. 3), and the two without a device: what each promises and sends.

Every user answers once a pass; `local` and `dp-fedrec` divide mu^2 evenly over a user's answers, which compose exactly. Each client's
ledger is charged for all of them before the first round, and refuses. The paper charges each round alone; `printed` does so too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedrec.data.impressions import Impressions
from fedrec.encoders.attention import Dropout
from fedrec.encoders.needed import needed_news
from fedrec.encoders.news_model import NewsModel
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event
from fedrec.privaterec import attention, labels, rounds
from fedrec.privaterec.fedadam import FedAdam
from fedrec.privaterec.labels import LabelReports
from fedrec.privaterec.local_update import Behind, Devices, NoisedGradients, Through
from fedrec.privaterec.models import ModelRecommender, news_model
from fedrec.privaterec.reports_training import report_loss
from fedrec.privaterec.spending import ClickLedger
from fedrec.privaterec.trained import Catalogue, Progress, Sent, TrainedNews, noise_of, promised
from fedrec.settings import Scenario
from fedrec.streams import Streams

BASIS, NEGATIVES = 5, 4
"""B and k of the paper's experiments."""
THETA, GRADIENT_CLIP, VECTOR_CLIP = 0.5, 0.005, 0.001
"""theta of attention (ours: the paper does not say), of DP-FedRec's gradients and of its user vectors (Sec. 4)."""

_BATCH = 256  # impressions of a step of `centralized`


@dataclass(frozen=True)
class _Setup:
    """What all of them need."""

    scenario: Scenario
    model: NewsModel
    train: Impressions
    guarantee: Guarantee
    schedule: rounds.Schedule

    @property
    def theta(self) -> float:
        return self.scenario.news.clip or THETA

    def recommender(self) -> ModelRecommender:
        news = self.scenario.news
        return ModelRecommender(self.model, news.history, self.theta, news.padding, VECTOR_CLIP)


def local(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Iterator[Progress | TrainedNews]:
    """Stop-gradient at the noised attention: what leaves a client is a function of what was released."""
    setup = _setup(scenario, catalogue, train, basis=scenario.news.basis or BASIS, passes=1)
    each = per_answer(setup.guarantee, setup.schedule.passes)
    plan = attention.gaussian_plan(each, theta=setup.theta, padding=scenario.news.padding)
    answers = labels.report_clicks(train, epsilon=setup.guarantee.epsilon, key=noise_of(scenario).key("news-labels"))
    ledger = _charged(setup, [plan.event] * setup.schedule.passes, answers)
    devices = Devices.of(train, history=scenario.news.history, labels=answers)
    update = Behind(devices, plan, noise_of(scenario))
    sent = (
        _gradient_sent(setup, "a function of noised attention and randomised labels", 0.0),
        Sent("attention", f"{scenario.news.basis or BASIS} numbers", "noised on the device", 0.0, plan.noise_std),
    )
    yield from _run(setup, update, sent, spent=ledger.epsilon if setup.guarantee.private else math.inf)


def printed(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Iterator[Progress | TrainedNews]:
    """The paper to the letter, but for l. 20, whose raw u would leave the mechanism unused. NOT ESTABLISHED."""
    setup = _setup(scenario, catalogue, train, basis=scenario.news.basis or BASIS, passes=1)
    note = "as printed: the gradient multiplies activations without noise and names the clicked news"
    promise = replace(setup.guarantee, established=False, note=note)
    each = Guarantee(setup.guarantee.epsilon, setup.guarantee.delta, "click", "replace")
    plan = attention.gaussian_plan_as_printed(each, theta=setup.theta, padding=scenario.news.padding) if each.private else None
    devices = as_printed_devices(train, scenario)
    sent = (_gradient_sent(setup, "the gradient of everything, noised in the forward pass only", 0.0),)
    yield from _run(replace(setup, guarantee=promise), Through(devices, plan, noise_of(scenario)), sent, spent=math.inf)


def as_printed_devices(train: Impressions, scenario: Scenario) -> Devices:
    """Alg. 3 l. 16-18: k negatives first, then the label permuted among the k + 1."""
    devices = Devices.of(train, history=scenario.news.history, labels=None)
    if not math.isfinite(scenario.privacy.epsilon):
        return devices
    places, _ = labels.as_printed(train, epsilon=scenario.privacy.epsilon, negatives=NEGATIVES, key=noise_of(scenario).key("news-labels"))
    candidates = np.take_along_axis(devices.candidates, places, 1)
    return replace(devices, candidates=candidates, labels=np.arange(places.shape[1]) == np.zeros((len(places), 1)))


def fedrec(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Iterator[Progress | TrainedNews]:
    """Federated averaging without privacy."""
    setup = _setup(scenario, catalogue, train, basis=scenario.news.basis, passes=2)
    devices = Devices.of(train, history=scenario.news.history, labels=None)
    sent = (_gradient_sent(setup, "the bare gradient", 0.0),)
    yield from _run(setup, Through(devices, None, noise_of(scenario)), sent, spent=math.inf)


def dp_fedrec(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Iterator[Progress | TrainedNews]:
    """The paper's baseline: noise on the whole gradient, on the device. Sound, at sensitivity 2 theta."""
    setup = _setup(scenario, catalogue, train, basis=0, passes=1)
    clip, each = scenario.news.clip or GRADIENT_CLIP, per_answer(setup.guarantee, setup.schedule.passes)
    mu = mu_for(each.epsilon, each.delta)
    event = GaussianEvent("gradient", mu, "click", "replace")
    ledger = _charged(setup, [event] * setup.schedule.passes, None)
    devices = Devices.of(train, history=scenario.news.history, labels=None).with_few(
        NEGATIVES, rng=Streams(scenario.seed).numpy("news-few")
    )
    update = NoisedGradients(devices, clip, 2 * clip / mu, noise_of(scenario))
    sent = (_gradient_sent(setup, "the whole gradient, clipped and noised on the device", update.noise_std),)
    yield from _run(setup, update, sent, spent=ledger.epsilon if setup.guarantee.private else math.inf)


def centralized(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Iterator[Progress | TrainedNews]:
    """Adam on the collected data: the ceiling of the federated ones. No privacy."""
    setup, epochs = _setup(scenario, catalogue, train, basis=scenario.news.basis, passes=1), scenario.news.epochs or 2
    devices, streams = Devices.of(train, history=scenario.news.history, labels=None), Streams(scenario.seed)
    optimiser = torch.optim.Adam(setup.model.parameters(), lr=scenario.news.learning_rate or 1e-3)
    dropout = Dropout(0.2, torch.Generator().manual_seed(int(streams.numpy("news-dropout").integers(2**62))))
    pieces = [
        p
        for t in range(epochs)
        for p in np.array_split(streams.numpy("news-batches", round=t).permutation(len(train)), max(1, len(train) // _BATCH))
    ]
    for at, rows in enumerate(pieces, start=1):
        step = needed_news(devices.history[devices.users[rows]], devices.candidates[rows], num_news=setup.model.news.anonymous)
        news = setup.model.encode_news(step.items, dropout)
        users = setup.model.interests(setup.model.encode_users(news, torch.from_numpy(step.history), dropout))
        scores = setup.model.scores(users, news, torch.from_numpy(step.candidates))
        loss = report_loss(scores, torch.from_numpy(devices.labels[rows]), weight=math.inf)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        yield Progress(at, len(pieces), f"step {at}/{len(pieces)}: loss {loss.item():.4f}")
    clicks = (len(train.history) + train.clicked.sum()) / max(train.num_users, 1)
    sent = (Sent("data", f"{clicks:.0f} clicks", "the history and every click", 4.0 * clicks, 0.0),)
    yield TrainedNews(setup.recommender(), setup.guarantee, math.inf, 1, sent, 0.0, {"parameters": setup.model.parameters_vector()})


def per_answer(guarantee: Guarantee, answers: int) -> Guarantee:
    """What each of so many Gaussian answers on the same data may cost, for all of them to have `guarantee`."""
    if not guarantee.private or answers == 1:
        return guarantee
    mu = mu_for(guarantee.epsilon, guarantee.delta) / math.sqrt(answers)
    return replace(guarantee, epsilon=epsilon_of(mu, guarantee.delta))


def _setup(scenario: Scenario, catalogue: Catalogue, train: Impressions, *, basis: int, passes: int) -> _Setup:
    """`rounds` decides the passes where the scenario says it, rounded up to whole ones."""
    news = scenario.news
    users = min(news.users_per_round or 64, train.num_users)
    a_pass = max(1, round(train.num_users / users))
    chosen = math.ceil(news.rounds / a_pass) if news.rounds else passes
    rule = FedAdam(learning_rate=news.learning_rate or 2e-3, tau=1e-6)
    model = news_model(scenario, catalogue.news, catalogue.vectors, basis=basis)
    return _Setup(scenario, model, train, promised(scenario), rounds.Schedule(chosen, users, rule))


def _charged(setup: _Setup, answers: list[Event], told: LabelReports | None) -> ClickLedger:
    """A client's ledger after all its answers. Raises BudgetExceededError, before anything is sent."""
    ledger = ClickLedger(setup.guarantee)
    if not setup.guarantee.private:
        return ledger
    for event in answers:
        ledger = ledger.charge_history(event)
    return ledger if told is None else ledger.charge_label(0, told.event)


def _gradient_sent(setup: _Setup, words: str, noise_std: float) -> Sent:
    P = len(setup.model.parameters_vector())
    return Sent("gradient", f"{P:,} numbers, {setup.schedule.passes} times", words, 4.0 * P * setup.schedule.passes, noise_std)


def _run(setup: _Setup, update: rounds.LocalUpdate, sent: tuple[Sent, ...], *, spent: float) -> Iterator[Progress | TrainedNews]:
    for done in rounds.train(setup.model, setup.train, update, setup.schedule, streams=Streams(setup.scenario.seed)):
        yield Progress(
            done.round, done.rounds, f"round {done.round}/{done.rounds}" + (f": loss {done.loss:.4f}" if done.loss == done.loss else "")
        )
    parameters = setup.model.parameters_vector()
    down = 4.0 * len(parameters) * setup.schedule.passes
    yield TrainedNews(setup.recommender(), setup.guarantee, spent, setup.schedule.passes, sent, down, {"parameters": parameters})
