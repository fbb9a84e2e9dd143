"""The default, `additive`: every client reports once, and the server trains a model on the reports for as long as it likes.

1. Each client sends its noised topic coefficients (`additive.report`) and one randomised answer per impression (`labels`): `collect`.
2. The server estimates the population from the noised coefficients, decodes them, and fits two towers (`report_model`) to the
   likelihood of what was reported, -log(1 + (e^epsilon - 1) sum_{j in S} pi_j), pi a softmax over the impression: `fit`.
3. A user who asks sends noised coefficients at the serving epsilon, decoded with the same population: `serve`.

Guarantee: (epsilon, delta)-DP, unit "click", neighbours "replace", for 1 and all of 2, however many epochs: 2 never sees a history.
A click is in a history or a label, never both, so the price is that of the dearer (`spending`). Serving pays for itself.

What is served is noisier than what was trained on wherever the serving epsilon is smaller. So `fit` adds noise to the decoded
reports at training time, up to each serving level: a draw of the server's own, which costs nothing (`NoiseLevels`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fedrec.data.impressions import Impressions
from fedrec.encoders.attention import Dropout
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import PureEvent, subset_selection
from fedrec.privaterec import additive
from fedrec.privaterec.additive import Coefficients, Population, TopicTable
from fedrec.privaterec.labels import LabelReports, report_clicks
from fedrec.privaterec.prior import public_prior
from fedrec.privaterec.report_model import ReportModel, ReportModelSettings
from fedrec.privaterec.scoring import products
from fedrec.privaterec.spending import ClickLedger, TrainingPlan
from fedrec.streams import Streams, SystemStreams

Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Collected:
    """All that leaves the clients for training. users: (n,) whose impression; candidates: (n, C) items shown, -1 behind.

    `ledger` is that of a client with the most impressions: what a click has cost, within its limit.
    """

    coefficients: Coefficients
    labels: LabelReports
    users: npt.NDArray[np.int32]
    candidates: Int64s
    ledger: ClickLedger

    @property
    def bytes_up(self) -> float:
        """Mean bytes a client sends: 4 a coefficient, 1 a bit of each impression's answer in whole bytes."""
        n, B = self.coefficients.values.shape
        answers = np.ceil(np.diff(self.labels.candidate_ptr) / 8).sum()
        return float(4 * B + answers / max(n, 1))


def collect(data: Impressions, topics: TopicTable, plan: TrainingPlan, *, history: int, noise: Streams | SystemStreams) -> Collected:
    """One report per user and one answer per impression, charged first. Raises BudgetExceededError past the plan's guarantee."""
    event = GaussianEvent("report", plan.report_mu, "click", "replace")
    most = int(np.bincount(data.users, minlength=1).max(initial=0))
    charged = charge(plan.guarantee, event, None, 0)  # before anything is drawn
    reports = additive.report(data.last_clicks(history), topics, mu=plan.report_mu, name="report", key=noise.key("news-report"))
    answers = report_clicks(data, epsilon=plan.label_epsilon, key=noise.key("news-labels"), mechanism=subset_selection)
    charged = charge(plan.guarantee, event, answers.event, most)
    return Collected(reports, answers, data.users, padded_candidates(data), charged)


@lru_cache(maxsize=64)
def charge(limit: Guarantee, report: GaussianEvent, answer: PureEvent | None, impressions: int) -> ClickLedger:
    """The ledger of a client with so many impressions. Clients with equally many have equal ledgers: one is computed for all."""
    if not limit.private:
        return ClickLedger(limit)
    ledger = ClickLedger(limit).charge_history(report)
    for impression in range(impressions if answer else 0):
        ledger = ledger.charge_label(impression, answer)  # type: ignore[arg-type]
    return ledger


def padded_candidates(data: Impressions) -> Int64s:
    """(n, C) candidates of each impression, C the most shown in one, -1 behind."""
    sizes = np.diff(data.candidate_ptr)
    table = np.full((len(data), int(sizes.max(initial=1))), -1, np.int64)
    table[np.arange(table.shape[1]) < sizes[:, None]] = data.candidates
    return table


@dataclass(frozen=True)
class NoiseLevels:
    """Standard deviations of total noise at which the model is trained, ascending; the first is that of the reports themselves."""

    stds: tuple[float, ...]

    @staticmethod
    def of(report_std: float, serving_stds: Sequence[float]) -> NoiseLevels:
        """The reports' own level and every noisier one that will be served."""
        return NoiseLevels((report_std, *sorted({std for std in serving_stds if std > report_std * (1 + 1e-9)})))


@dataclass(frozen=True)
class Decoder:
    """From coefficients at a known level of noise to what the user tower takes: posterior mean, centred, scaled by one public number."""

    population: Population
    scale: float

    @staticmethod
    def of(reports: Coefficients) -> Decoder:
        """Estimated from noised reports only. Raises ValueError on fewer than two users."""
        if len(reports.values) < 2:
            raise ValueError(f"a population needs at least 2 users, found {len(reports.values)}")
        population = with_floor(additive.population(reports), reports)
        spread = float(np.trace(population.covariance)) / len(population.mean)
        return Decoder(population, math.sqrt(spread) or 1.0)

    def __call__(self, reports: Coefficients) -> Float32s:
        """(n, B)."""
        decoded = additive.decode(reports, self.population)
        return np.asarray((decoded - self.population.mean) / self.scale, np.float32)


@dataclass(frozen=True)
class Trained:
    """The released model: everything a server needs to rank, and nothing that came from a history without noise."""

    model: ReportModel
    decoder: Decoder
    topics: TopicTable
    history: int


@dataclass(frozen=True)
class EpochDone:
    """Progress: epochs done, mean loss of the last one."""

    epoch: int
    loss: float


def fit(
    collected: Collected,
    topics: TopicTable,
    items: Float32s,
    settings: ReportModelSettings,
    *,
    history: int,
    levels: NoiseLevels,
    streams: Streams,
) -> Iterator[EpochDone | Trained]:
    """Train on reports alone, yielding after every epoch and the model at the end. Deterministic given the streams."""
    decoder = Decoder.of(collected.coefficients)
    prior = public_prior(topics, items, history=history).matrix
    model = ReportModel(items, prior, settings, rng=streams.numpy("news-initialisation"))
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    n, rng = len(collected.users), streams.numpy("news-batches")
    steps = max(1, math.ceil(n / settings.batch))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.learning_rate, total_steps=settings.epochs * steps + 1)
    dropout = Dropout(settings.dropout, torch.Generator().manual_seed(int(streams.numpy("news-dropout").integers(2**62))))
    truth = _reported(collected)
    for epoch in range(settings.epochs):
        inputs, losses = noisier(collected.coefficients, decoder, levels, rng=rng), []
        for rows in np.array_split(rng.permutation(n), steps):
            users = torch.from_numpy(inputs[rng.integers(len(levels.stds), size=len(rows)), collected.users[rows]])
            scores = model.scores(model.users(users, dropout), model.items(dropout), torch.from_numpy(collected.candidates[rows]))
            loss = report_loss(scores, torch.from_numpy(truth[rows]), weight=collected.labels.weight)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        yield EpochDone(epoch + 1, float(np.mean(losses)))
    yield Trained(model, decoder, topics, history)


def with_floor(population: Population, reports: Coefficients) -> Population:
    """Variances of at least s^2 sqrt(B / n), about their own error: a direction is not nothing because noise hides how much it is."""
    n, B = reports.values.shape
    eigenvalues, Q = np.linalg.eigh(population.covariance)
    floor = reports.noise_std**2 * math.sqrt(B / n)
    return replace(population, covariance=(Q * np.maximum(eigenvalues, floor)) @ Q.T)


def noisier(reports: Coefficients, decoder: Decoder, levels: NoiseLevels, *, rng: np.random.Generator) -> Float32s:
    """(levels, n, B) the reports with noise added up to each level, each decoded as what it is. Post-processing: fresh draws are free."""
    versions = []
    for std in levels.stds:
        more = math.sqrt(max(std**2 - reports.noise_std**2, 0.0))
        values = reports.values + more * rng.standard_normal(reports.values.shape) if more else reports.values
        versions.append(decoder(replace(reports, values=values, noise_std=max(std, reports.noise_std))))
    return np.stack(versions)


def report_loss(scores: Tensor, reported: Tensor, *, weight: float) -> Tensor:
    """Mean of -log(1 + weight sum_{j reported} pi_j), or of -log of the sum at infinite weight. scores: (n, C), -inf where absent."""
    chance = torch.logsumexp(functional.log_softmax(scores, -1).masked_fill(~reported, -torch.inf), -1)
    if weight > 1e15:  # 1 is nothing beside it
        return -chance.mean()
    return -torch.log1p(weight * chance.exp()).mean()


def _reported(collected: Collected) -> npt.NDArray[np.bool_]:
    """(n, C) bool, aligned with the padded candidates."""
    table = np.zeros(collected.candidates.shape, np.bool_)
    table[collected.candidates >= 0] = collected.labels.reported
    return table


@dataclass(frozen=True)
class Served:
    """Scores aligned with the impressions' candidates, and what one answer cost its user's clicks."""

    scores: Float32s
    event: GaussianEvent
    noise_std: float


def serve(trained: Trained, asked: Impressions, *, mu: float, key: bytes) -> Served:
    """Rank for users who each send one noised report; it answers all their impressions (`spending.Memory`)."""
    reports = additive.report(asked.last_clicks(trained.history), trained.topics, mu=mu, name="serving", key=key)
    with torch.no_grad():
        users = trained.model.users(torch.from_numpy(trained.decoder(reports)))
        V, bias = trained.model.items().numpy(), trained.model.item_bias.numpy()
    U, owner = users.numpy(), np.repeat(asked.users, np.diff(asked.candidate_ptr))
    return Served(products(U, owner, V, asked.candidates) + bias[asked.candidates], reports.event, reports.noise_std)
