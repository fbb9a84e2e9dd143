"""The default, `additive`: every client reports once, and the server trains a model on the reports
for as long as it likes.

1. Each client sends its noised topic coefficients (`bounded_mean.report`) and one randomised answer
   per impression (`labels`): `collect`.
2. The server estimates the population from the noised coefficients, decodes them, and fits two
   towers (`report_model`) to the likelihood of what was reported, -log(1 + (e^epsilon - 1) sum_{j
   in S} pi_j), pi a softmax over the impression: `fit`.
3. A user who asks sends noised coefficients at the serving epsilon, decoded with the same
   population: `serve`.

Guarantee: (epsilon, delta)-DP, unit "click", neighbours "replace", for 1 and all of 2, however many
epochs: 2 never sees a history. A click is in a history or a label, never both, so the price is that
of the dearer (`click_accounting`). Serving pays for itself.

What is served is noisier than what was trained on wherever the serving epsilon is smaller. So `fit`
adds noise to the decoded reports at training time, up to each serving level: a draw of the server's
own, which costs nothing (`NoiseLevels`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fedrec.arrays import Float32s, Int64s
from fedrec.data.impressions import Impressions
from fedrec.news.checkpoints import NOTHING, DeviceNoise, Kept, State
from fedrec.news.labels import (
    Answer,
    LabelReports,
    report_clicks,
    report_impressions,
    reports_by_user,
    share_without_click,
)
from fedrec.news.prior import products, public_prior, shown_counts
from fedrec.news.sensitivity import eligible, report_labels
from fedrec.news.trainer_state import Progressing, ReportModel, ReportModelSettings
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.bounded_mean import Coefficients, Population, TopicTable
from fedrec.privacy.click_accounting import ClickAccountant, TrainingPlan
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import PureEvent, subset_selection
from fedrec.randomness import Streams


@dataclass(frozen=True)
class Collected:
    """All that leaves the clients for training. users: (n,) whose impression; candidates: (n, C)
    items shown, -1 behind.

    `ledger` is that of a client with the most impressions: what a click has cost, within its limit.
    """

    coefficients: Coefficients
    labels: LabelReports
    users: npt.NDArray[np.int32]
    candidates: Int64s
    ledger: ClickAccountant

    @property
    def bytes_up(self) -> float:
        """Mean bytes a client sends: 4 a coefficient, 1 a bit of each impression's answer in whole
        bytes."""
        n, B = self.coefficients.values.shape
        answers = np.ceil(np.diff(self.labels.candidate_ptr) / 8).sum()
        return float(4 * B + answers / max(n, 1))


def collect(
    data: Impressions, topics: TopicTable, plan: TrainingPlan, *, history: int, noise: DeviceNoise
) -> Collected:
    """One report per user and one answer per impression, charged first.

    Raises BudgetExceededError past the plan's guarantee."""
    most = int(np.bincount(data.users, minlength=1).max(initial=0))
    charge(plan.guarantee, plan.report, None, 0)  # before anything is drawn
    keys = noise.keys(range(data.num_users), "news-report")
    reports = bounded_mean.report_each(
        data.last_clicks(history), topics, mu=plan.report_mu, name="report", keys=keys
    )
    answers = reports_by_user(data, _answer(topics, plan), noise, epsilon=plan.label_epsilon)
    ledger = charge(plan.guarantee, plan.report, answers.event, most)
    return Collected(reports, answers, data.users, padded_candidates(data), ledger)


def _answer(topics: TopicTable, plan: TrainingPlan) -> Answer:
    shared: dict[str, Any] = {"epsilon": plan.label_epsilon, "mechanism": subset_selection}
    if (free := topics.open_items) is not None:
        return lambda mine, key: report_labels(mine, free, key=key, **shared)
    answer = report_impressions if plan.no_click else report_clicks
    return lambda mine, key: answer(mine, key=key, **shared)


def joined(parts: Sequence[Collected]) -> Collected:
    """What several sites sent, one after the other, users numbered on; the ledger is the
    first's."""
    first = parts[0]
    values = np.concatenate([part.coefficients.values for part in parts])
    ends = np.cumsum([0, *(len(part.coefficients.values) for part in parts)])
    users = np.concatenate(
        [part.users + start for part, start in zip(parts, ends[:-1], strict=True)]
    ).astype(np.int32)
    candidates = stacked([part.candidates for part in parts], -1)
    return replace(
        first,
        coefficients=replace(first.coefficients, values=values),
        labels=_together(parts),
        users=users,
        candidates=candidates,
    )


def collected_arrays(got: Collected) -> dict[str, npt.NDArray[np.generic]]:
    """What was collected, ready to be kept or sent."""
    answers = got.labels
    sent: dict[str, npt.NDArray[Any]] = {
        "coefficients": got.coefficients.values,
        "users": got.users,
        "candidates": got.candidates,
    }
    return sent | {
        "candidate_ptr": answers.candidate_ptr,
        "reported": answers.reported,
        "null": answers.null,
    }


def collected_of(
    arrays: State, plan: TrainingPlan, *, noise_std: float, told: int = 0
) -> Collected:
    """What `collected_arrays` wrote, with noise of that std on all but the last `told`
    coefficients.

    The ledger is that of a client with the most impressions."""
    event = plan.report
    answer = PureEvent("label", plan.label_epsilon)
    answers = LabelReports(
        arrays["candidate_ptr"], arrays["reported"], arrays["null"], plan.label_epsilon, answer
    )
    most = int(np.bincount(arrays["users"], minlength=1).max(initial=0))
    reports = Coefficients(arrays["coefficients"], noise_std, event, told)
    return Collected(
        reports,
        answers,
        arrays["users"],
        arrays["candidates"],
        charge(plan.guarantee, event, answer, most),
    )


def _together(parts: Sequence[Collected]) -> LabelReports:
    sizes = np.concatenate([np.diff(part.labels.candidate_ptr) for part in parts])
    reported, null = (
        np.concatenate([getattr(part.labels, name) for part in parts])
        for name in ("reported", "null")
    )
    dearest = max((part.labels.event for part in parts), key=lambda e: e.told or 0.0)
    return LabelReports(
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        reported,
        null,
        parts[0].labels.epsilon,
        dearest,
    )


def stacked(tables: Sequence[npt.NDArray[Any]], fill: object) -> npt.NDArray[Any]:
    """(sum of n, largest C) tables (n, C) one below the other, `fill` behind shorter rows."""
    widest = max(table.shape[1] for table in tables)
    return np.concatenate(
        [np.pad(t, ((0, 0), (0, widest - t.shape[1])), constant_values=fill) for t in tables]  # type: ignore[call-overload]
    )


@lru_cache(maxsize=64)
def charge(
    limit: Guarantee, report: GaussianEvent, answer: PureEvent | None, impressions: int
) -> ClickAccountant:
    """The ledger of a client with so many impressions.

    Clients with equally many have equal ledgers: one is computed for all."""
    if not limit.private:
        return ClickAccountant(limit)
    ledger = ClickAccountant(limit).charge_history(report)
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
    """Standard deviations of total noise at which the model is trained, ascending; the first is
    that of the reports themselves."""

    stds: tuple[float, ...]

    @staticmethod
    def of(report_std: float, serving_stds: Sequence[float]) -> NoiseLevels:
        """The reports' own level and every noisier one that will be served."""
        # relative: a level that differs by rounding alone is the reports' own
        return NoiseLevels(
            (report_std, *sorted({std for std in serving_stds if std > report_std * (1 + 1e-9)}))
        )


@dataclass(frozen=True)
class Decoder:
    """From coefficients at a known level of noise to what the user tower takes: posterior mean,
    centred, scaled by one public number."""

    population: Population
    scale: float
    told: int = 0

    @staticmethod
    def of(reports: Coefficients) -> Decoder:
        """Estimated from noised reports only. Raises ValueError on fewer than two users."""
        if len(reports.values) < 2:
            raise ValueError(f"a population needs at least 2 users, found {len(reports.values)}")
        population = with_floor(bounded_mean.population(reports), reports)
        # of the sums that decoding gives
        C = bounded_mean.folded(
            bounded_mean.folded(population.covariance, reports.told).T, reports.told
        )
        return Decoder(population, math.sqrt(float(np.trace(C)) / len(C)) or 1.0, reports.told)

    def __call__(self, reports: Coefficients) -> Float32s:
        """(n, B)."""
        decoded = bounded_mean.decode(reports, self.population)
        return np.asarray(
            (decoded - bounded_mean.folded(self.population.mean[None], self.told)) / self.scale,
            np.float32,
        )


@dataclass(frozen=True)
class Trained:
    """The released model: everything a server needs to rank, and nothing that came from a history
    without noise. shown: (m,) impressions that showed each item, by public candidates."""

    model: ReportModel
    decoder: Decoder
    topics: TopicTable
    history: int
    shown: Int64s


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
    kept: Kept = NOTHING,
) -> Iterator[EpochDone | Trained]:
    """Train on reports alone, yielding after every epoch and the model at the end. Deterministic
    given the streams, also where it was stopped after an epoch: it goes on from what is kept."""
    decoder = Decoder.of(collected.coefficients)
    prior = public_prior(topics, items, history=history).matrix
    model = ReportModel(items, prior, settings, rng=streams.numpy("news-initialisation"))
    n = len(collected.users)
    rng = streams.numpy("news-batches")
    steps = max(1, math.ceil(n / settings.batch))  # the last batch may be smaller
    at = Progressing.begin(model, settings, steps, streams, rng)
    begun = at.restored(kept.latest())
    truth = Answers.of(collected, topics)
    for epoch in range(begun, settings.epochs):
        inputs = noisier(collected.coefficients, decoder, levels, rng=rng)
        losses = []
        for rows in np.array_split(rng.permutation(n), steps):
            users = torch.from_numpy(
                inputs[rng.integers(len(levels.stds), size=len(rows)), collected.users[rows]]
            )
            U = model.users(users, at.dropout)
            V = model.items(at.dropout)
            scores = model.scores(U, V, torch.from_numpy(collected.candidates[rows]))
            losses.append(at.step(truth.loss(scores, rows)))
        kept.save(at.arrays(epoch + 1), step=epoch + 1)
        yield EpochDone(epoch + 1, float(np.mean(losses)))
    shown = shown_counts(collected.candidates, items=len(items))
    yield Trained(model, decoder, topics, history, shown)


def with_floor(population: Population, reports: Coefficients) -> Population:
    """Variances of at least s^2 sqrt(B / n), about their own error: a direction is not nothing
    because noise hides how much it is."""
    n, B = reports.values.shape
    eigenvalues, Q = np.linalg.eigh(population.covariance)
    floor = reports.noise_std**2 * math.sqrt(B / n)
    return replace(population, covariance=(Q * np.maximum(eigenvalues, floor)) @ Q.T)


def noisier(
    reports: Coefficients, decoder: Decoder, levels: NoiseLevels, *, rng: np.random.Generator
) -> Float32s:
    """(levels, n, B) the reports with noise added up to each level, each decoded as what it is.

    Post-processing: fresh draws are free."""
    versions = []
    for std in levels.stds:
        more = math.sqrt(max(std**2 - reports.noise_std**2, 0.0))
        noised = np.arange(reports.values.shape[1]) < reports.values.shape[1] - reports.told
        values = (
            reports.values + more * noised * rng.standard_normal(reports.values.shape)
            if more
            else reports.values
        )
        versions.append(
            decoder(replace(reports, values=values, noise_std=max(std, reports.noise_std)))
        )
    return np.stack(versions)


@dataclass(frozen=True)
class Answers:
    """reported, eligible: (n, C) bool, aligned with the padded candidates, a last column for "no
    click" where that is a symbol.

    eligible: None where every candidate may have been the click. nothing: log of the share of
    impressions without one.
    """

    reported: npt.NDArray[np.bool_]
    eligible: npt.NDArray[np.bool_] | None
    nothing: float | None
    weight: float

    @staticmethod
    def of(collected: Collected, topics: TopicTable) -> Answers:
        """A function of what was reported and of public facts."""
        labels = collected.labels
        shown = collected.candidates >= 0
        reported = _table(labels.reported, shown)
        among = None
        if topics.open_items is not None:
            among = _table(eligible(labels, topics.open_items[collected.candidates[shown]]), shown)
        if not labels.null.any():
            return Answers(reported, among, None, labels.weight)
        share = share_without_click(labels, mechanism=subset_selection)
        return Answers(
            np.column_stack([reported, labels.null]), among, math.log(share), labels.weight
        )

    def loss(self, scores: Tensor, rows: Int64s) -> Tensor:
        """Loss of some rows, given scores (n, C) of their candidates, -inf where absent."""
        if self.nothing is not None:  # a share of impressions has no click, whatever was shown
            rest = functional.log_softmax(scores, -1) + math.log1p(-math.exp(self.nothing))
            scores = torch.cat([rest, rest.new_full((len(rows), 1), self.nothing)], 1)
        among = None if self.eligible is None else torch.from_numpy(self.eligible[rows])
        return report_loss(
            scores, torch.from_numpy(self.reported[rows]), weight=self.weight, eligible=among
        )


def report_loss(
    scores: Tensor, reported: Tensor, *, weight: float, eligible: Tensor | None = None
) -> Tensor:
    """Mean of -log(sum_{j eligible} pi_j + weight sum_{j reported} pi_j), all eligible where None;
    of -log of the second sum at infinite weight. scores: (n, C), -inf where absent."""
    if eligible is not None:
        weights = reported.float() if weight > 1e15 else eligible + weight * reported
        return -torch.logsumexp(functional.log_softmax(scores, -1) + weights.log(), -1).mean()
    chance = torch.logsumexp(
        functional.log_softmax(scores, -1).masked_fill(~reported, -torch.inf), -1
    )
    if weight > 1e15:  # 1 is nothing beside it
        return -chance.mean()
    return -torch.log1p(weight * chance.exp()).mean()


def _table(flags: npt.NDArray[np.bool_], shown: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """(n, C), aligned with the padded candidates."""
    table = np.zeros(shown.shape, np.bool_)
    table[shown] = flags
    return table


@dataclass(frozen=True)
class Served:
    """Scores aligned with the impressions' candidates, and what one answer cost its user's
    clicks."""

    scores: Float32s
    event: GaussianEvent
    noise_std: float


def serve(trained: Trained, asked: Impressions, *, mu: float, key: bytes) -> Served:
    """Rank for users who each send one noised report; it answers all their impressions."""
    reports = bounded_mean.report(
        asked.last_clicks(trained.history), trained.topics, mu=mu, name="serving", key=key
    )
    with torch.no_grad():
        users = trained.model.users(torch.from_numpy(trained.decoder(reports)))
        V = trained.model.items().numpy()
        bias = trained.model.item_bias.numpy()
    U = users.numpy()
    owner = np.repeat(asked.users, np.diff(asked.candidate_ptr))
    return Served(
        products(U, owner, V, asked.candidates) + bias[asked.candidates],
        reports.event,
        reports.noise_std,
    )
