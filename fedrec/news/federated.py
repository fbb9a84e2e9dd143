"""The variants that train a published news model in rounds (Alg. 3), and `centralized`: what each promises, charges and sends.

Every user answers once a pass; `local` and `dp-fedrec` divide mu^2 evenly over a user's answers, which compose exactly. Each client's
ledger is charged for all of them before the first round, and refuses. The paper charges each round alone; `printed` does so too.

A `Form` has two halves: `device` makes what runs where the clicks are, from the scenario alone; `costs` says what it costs there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedrec.data.impressions import Impressions
from fedrec.encoders.needed import needed_news
from fedrec.encoders.news_model import NewsModel
from fedrec.news import attention, labels, rounds
from fedrec.news.attention import GaussianAttention
from fedrec.news.checkpoints import Kept
from fedrec.news.clients import NewsClients
from fedrec.news.device_noise import DeviceNoise
from fedrec.news.fedadam import FedAdam
from fedrec.news.local_update import Behind, Devices, NoisedGradients, Through
from fedrec.news.models import ModelRecommender, news_model
from fedrec.news.reports_training import report_loss
from fedrec.news.trained import Catalogue, Progress, Sent, TrainedNews, promised
from fedrec.news.trainer_state import Progressing, fresh_dropout
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import PureEvent
from fedrec.randomness import Streams
from fedrec.settings import Scenario

BASIS, NEGATIVES = 5, 4
"""B and k of the paper's experiments."""
THETA, GRADIENT_CLIP, VECTOR_CLIP = 0.5, 0.005, 0.001
"""theta of attention (ours: the paper does not say), of DP-FedRec's gradients and of its user vectors (Sec. 4)."""
LEARNING_RATE = 3e-3

_BATCH = 64  # users of a step of `centralized`: whole ones, so that each is encoded once


@dataclass(frozen=True)
class Form:
    """A variant in rounds. passes: where the scenario leaves them open; basis: of its model; device: from the clicks of some users and
    their noise to what they send; costs: of one user's clicks; sent: in words, and its noise on each number.
    """

    passes: int
    basis: Callable[[Scenario], int]
    device: Callable[[Scenario, Impressions, int, DeviceNoise], rounds.LocalUpdate]
    costs: Callable[[Scenario, int], Costs]
    sent: Callable[[Scenario, int], tuple[tuple[str, float], ...]]


def in_rounds(scenario: Scenario, catalogue: Catalogue, fleet: NewsClients, kept: Kept) -> Iterator[Progress | TrainedNews]:
    """Train over a fleet. Raises BudgetExceededError where the costs pass the promise, before anybody is asked."""
    form, schedule = FORMS[scenario.news.variant], schedule_of(scenario, fleet.num_users)
    model, guarantee = news_model(scenario, catalogue.news, catalogue.vectors, basis=form.basis(scenario)), promise(scenario)
    spent = form.costs(scenario, schedule.passes).charged(promised(scenario)) if guarantee.established else math.inf
    course = rounds.Course.begin(model.parameters_vector())
    streams = Streams(scenario.seed)
    for done in rounds.train(fleet.step, model.parameters_vector(), fleet.num_users, schedule, streams=streams, kept=kept):
        course = done.course
        loss = f": loss {done.loss:.4f}" if done.loss == done.loss else ""
        yield Progress(done.round, done.rounds, f"round {done.round}/{done.rounds}{loss}")
    parameters = course.parameters.astype(np.float32)
    model.load_vector(parameters)
    (words, std), *more = form.sent(scenario, schedule.passes)
    attended = f"{scenario.news.basis or BASIS} numbers"
    bytes_each = 4.0 * len(parameters) * schedule.passes
    gradient = Sent("gradient", f"{len(parameters):,} numbers, {schedule.passes} times", words, bytes_each, std)
    sent = (gradient, *(Sent("attention", attended, said, 0.0, noise) for said, noise in more))
    recommender = _recommender(scenario, model)
    yield TrainedNews(recommender, guarantee, spent, schedule.passes, sent, bytes_each, {"parameters": parameters})


def promise(scenario: Scenario) -> Guarantee:
    """What training in rounds promises, with what is not established of it."""
    if scenario.news.variant != "printed":
        return promised(scenario)
    note = "as printed: the gradient multiplies activations without noise and names the clicked news"
    return replace(promised(scenario), established=False, note=note)


# --- local: stop-gradient at the noised attention, so that what leaves a client is a function of what was released ---


def _local(scenario: Scenario, data: Impressions, passes: int, noise: DeviceNoise) -> Behind:
    epsilon = scenario.privacy.epsilon
    told = labels.reports_by_user(data, lambda mine, key: labels.report_clicks(mine, epsilon=epsilon, key=key), noise, epsilon=epsilon)
    return Behind(Devices.of(data, history=scenario.news.history, labels=told), _local_plan(scenario, passes), noise)


def _local_plan(scenario: Scenario, passes: int) -> GaussianAttention:
    each = per_answer(promised(scenario), passes)
    return attention.gaussian_plan(each, theta=scenario.news.clip or THETA, padding=scenario.news.padding)


def _local_costs(scenario: Scenario, passes: int) -> Costs:
    return Costs((_local_plan(scenario, passes).event,) * passes, (PureEvent("label", scenario.privacy.epsilon),))


def _local_sent(scenario: Scenario, passes: int) -> tuple[tuple[str, float], ...]:
    std = _local_plan(scenario, passes).noise_std
    return ("a function of noised attention and randomised labels", 0.0), ("noised on the device", std)


# --- printed: the paper to the letter, but for l. 20, whose raw u would leave the mechanism unused. NOT ESTABLISHED ---


def _printed(scenario: Scenario, data: Impressions, passes: int, noise: DeviceNoise) -> Through:
    plan, each = None, promised(scenario)
    if each.private:
        plan = attention.gaussian_plan_as_printed(each, theta=scenario.news.clip or THETA, padding=scenario.news.padding)
    return Through(as_printed_devices(data, scenario, noise=noise), plan, noise)


def as_printed_devices(data: Impressions, scenario: Scenario, *, noise: DeviceNoise) -> Devices:
    """Alg. 3 l. 16-18: k negatives first, then the label permuted among the k + 1. Impressions that show no k others are left out."""
    data = data.select(np.flatnonzero(np.diff(data.candidate_ptr) > NEGATIVES))
    bare, epsilon = Devices.of(data, history=scenario.news.history, labels=None), scenario.privacy.epsilon
    if not math.isfinite(epsilon):
        return bare
    places = np.zeros((len(data), NEGATIVES + 1), np.int64)
    for user, rows, mine in data.by_user():
        places[rows], _ = labels.as_printed(mine, epsilon=epsilon, negatives=NEGATIVES, key=noise.key(user, "news-labels"))
    candidates = np.take_along_axis(bare.candidates, places, 1)
    return replace(bare, candidates=candidates, labels=np.arange(places.shape[1]) == np.zeros((len(places), 1)))


# --- fedrec: federated averaging without privacy ---


def _fedrec(scenario: Scenario, data: Impressions, passes: int, noise: DeviceNoise) -> Through:
    return Through(Devices.of(data, history=scenario.news.history, labels=None), None, noise)


def _everything(scenario: Scenario, passes: int) -> Costs:
    everything = (GaussianEvent("gradient", math.inf, "click", "replace"),) * passes
    return Costs(everything, everything)


# --- dp-fedrec: the paper's baseline: noise on the whole gradient, on the device. Sound, at sensitivity 2 theta ---


def _dp_fedrec(scenario: Scenario, data: Impressions, passes: int, noise: DeviceNoise) -> NoisedGradients:
    clip = scenario.news.clip or GRADIENT_CLIP
    few = Devices.of(data, history=scenario.news.history, labels=None).with_few(NEGATIVES, noise=noise)
    return NoisedGradients(few, clip, 2 * clip / _gradient_mu(scenario, passes), noise)


def _gradient_mu(scenario: Scenario, passes: int) -> float:
    each = per_answer(promised(scenario), passes)
    return mu_for(each.epsilon, each.delta)


def _dp_fedrec_costs(scenario: Scenario, passes: int) -> Costs:
    """A gradient is of the whole loss: of the history and of every label."""
    gradients = (GaussianEvent("gradient", _gradient_mu(scenario, passes), "click", "replace"),) * passes
    return Costs(gradients, gradients)


def _dp_fedrec_sent(scenario: Scenario, passes: int) -> tuple[tuple[str, float], ...]:
    clip = scenario.news.clip or GRADIENT_CLIP
    return (("the whole gradient, clipped and noised on the device", 2 * clip / _gradient_mu(scenario, passes)),)


FORMS = {
    "local": Form(1, lambda s: s.news.basis or BASIS, _local, _local_costs, _local_sent),
    "printed": Form(
        3,
        lambda s: s.news.basis or BASIS,
        _printed,
        _everything,
        lambda s, passes: (("the gradient of everything, noised in the forward pass only", 0.0),),
    ),
    "fedrec": Form(3, lambda s: s.news.basis, _fedrec, _everything, lambda s, passes: (("the bare gradient", 0.0),)),
    "dp-fedrec": Form(1, lambda s: 0, _dp_fedrec, _dp_fedrec_costs, _dp_fedrec_sent),
}
"""By the name a scenario gives."""


def centralized(scenario: Scenario, catalogue: Catalogue, fleet: NewsClients, kept: Kept) -> Iterator[Progress | TrainedNews]:
    """Adam on the collected data: the ceiling of the federated ones. No privacy."""
    train, epochs, streams = fleet.data(), scenario.news.epochs or 4, Streams(scenario.seed)
    model = news_model(scenario, catalogue.news, catalogue.vectors, basis=scenario.news.basis)
    devices = Devices.of(train, history=scenario.news.history, labels=None)
    optimiser = torch.optim.Adam(model.parameters(), lr=scenario.news.learning_rate or LEARNING_RATE)
    at = Progressing(model, optimiser, None, fresh_dropout(0.2, streams), np.random.default_rng(0))
    told = np.unique(train.users).astype(np.int64)
    count, begun = max(1, len(told) // _BATCH), at.restored(kept.latest())
    for epoch in range(begun, epochs):
        for number, users in enumerate(np.array_split(streams.numpy("news-batches", round=epoch).permutation(told), count), start=1):
            loss = at.step(_loss(model, devices, users, at))
            yield Progress(epoch * count + number, epochs * count, f"step {epoch * count + number}/{epochs * count}: loss {loss:.4f}")
        kept.save(at.arrays(epoch + 1), step=epoch + 1)
    clicks = (len(train.history) + train.clicked.sum()) / max(train.num_users, 1)
    sent = (Sent("data", f"{clicks:.0f} clicks", "the history and every click", 4.0 * clicks, 0.0),)
    parameters = {"parameters": model.parameters_vector()}
    yield TrainedNews(_recommender(scenario, model), promised(scenario), math.inf, 1, sent, 0.0, parameters)


def _loss(model: NewsModel, devices: Devices, users: rounds.Int64s, at: Progressing) -> torch.Tensor:
    rows = devices.rows_of(users)
    owner = torch.from_numpy(np.repeat(np.arange(len(users)), np.diff(devices.ptr)[users]))
    step = needed_news(devices.history[users], devices.candidates[rows], num_news=model.news.anonymous)
    news = model.encode_news(step.items, at.dropout)
    U = model.interests(model.encode_users(news, torch.from_numpy(step.history), at.dropout))
    scores = model.scores(U[owner], news, torch.from_numpy(step.candidates))
    return report_loss(scores, torch.from_numpy(devices.labels[rows]), weight=math.inf)


def per_answer(guarantee: Guarantee, answers: int) -> Guarantee:
    """What each of so many Gaussian answers on the same data may cost, for all of them to have `guarantee`."""
    if not guarantee.private or answers == 1:
        return guarantee
    mu = mu_for(guarantee.epsilon, guarantee.delta) / math.sqrt(answers)
    return replace(guarantee, epsilon=epsilon_of(mu, guarantee.delta))


def schedule_of(scenario: Scenario, num_users: int, *, passes: int = 0) -> rounds.Schedule:
    """`passes`, 0 for the variant's, or what `news.rounds` rounds come to, rounded up to whole ones: how often each user answers."""
    news, form = scenario.news, FORMS.get(scenario.news.variant)
    users = min(news.users_per_round or 64, num_users)
    a_pass = max(1, round(num_users / users))
    chosen = math.ceil(news.rounds / a_pass) if news.rounds else passes or (form.passes if form else 1)
    return rounds.Schedule(chosen, users, FedAdam(learning_rate=news.learning_rate or LEARNING_RATE, tau=1e-6))


def _recommender(scenario: Scenario, model: NewsModel) -> ModelRecommender:
    news = scenario.news
    return ModelRecommender(model, news.history, news.clip or THETA, news.padding, VECTOR_CLIP)
