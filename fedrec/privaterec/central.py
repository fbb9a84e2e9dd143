"""`central`: per-user clipped gradients, summed by the aggregator, which adds noise once to each sum. User level.

The model is bilinear in a user's topic coefficients a and an item's public unit vector x,

    score(a, j) = z' W x_j,    z = (L (a - m), 1) / ||.||,    W (B + 1, p)

so that one user's gradient is an outer product z g' of B + 1 and p numbers: what a report of `fedrec.federation.messages` holds.

1. Release "population": sum over users of v v', v = (a, 1)/sqrt2, of norm at most 1. From it m, and the covariance that L whitens.
2. Releases "gradient/1..T": sum of z g', g = mean over the user's impressions of sum_c (pi_c - y_c) x_c, with ||z g'|| <= `clip`.
   Every user answers in every round; after each the server takes one step of FedAdam.

Guarantee: (epsilon, delta)-DP; unit "user", neighbours "add/remove": each release is mu_t-GDP by `federation.releases`, all of them compose
exactly (`privacy.calibration`). No amplification is claimed: nobody is sampled. W begins at the public prior.
Serving is that of `additive`, with its own guarantee per click.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.data.impressions import Impressions
from fedrec.factorization.statistics import ExactSums
from fedrec.federation.messages import (
    COEFFICIENT_BITS,
    VECTOR_BITS,
    BlockReports,
    BlockSpec,
    Question,
    Release,
    ReleaseSpec,
    Reports,
    quantise,
    step_for,
)
from fedrec.federation.releases import noise_stds, release
from fedrec.federation.reports import within_radius
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.ledger import Ledger
from fedrec.privaterec import additive, fedadam
from fedrec.privaterec.additive import Population, TopicTable
from fedrec.privaterec.scoring import products
from fedrec.streams import Streams, SystemStreams

Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]

_POPULATION = "population"
_STEPS = {"coefficient_step": step_for(1.0, bits=COEFFICIENT_BITS - 1), "vector_step": step_for(1.0, bits=VECTOR_BITS - 1)}


@dataclass(frozen=True)
class CentralSettings:
    """What decides speed, and the shares of the budget; chosen on validation users of the MovieLens 1M click log.

    clip: longest gradient of a user, for unit z and x. tau: large beside the noise, so that a step is linear in the noised sum, and noise
    averages out. prior_weight: the spectral norm of W at first. width: how many leading coordinates of x are used.
    """

    rounds: int = 12
    clip: float = 0.5
    learning_rate: float = 15.0
    tau: float = 0.1
    population_share: float = 0.1
    prior_weight: float = 8.0
    width: int = 64


@dataclass(frozen=True)
class Users:
    """On the devices: coefficients a (n, B) and, for every impression, its user, candidates and clicks."""

    coefficients: Floats
    data: Impressions


@dataclass(frozen=True)
class Whitening:
    """z = (L (a - m), 1) / norm: a function of the released population."""

    mean: Floats
    matrix: Floats

    def __call__(self, coefficients: Floats) -> Floats:
        """(n, B + 1) of norm 1."""
        z = np.column_stack([(coefficients - self.mean) @ self.matrix, np.ones(len(coefficients))])
        return np.asarray(z / np.linalg.norm(z, axis=1, keepdims=True))


@dataclass(frozen=True)
class CentralModel:
    """W (B + 1, p), the unit vectors of all items (m, p), and how users are decoded."""

    W: Floats
    items: Floats
    topics: TopicTable
    population: Population
    whitening: Whitening
    history: int

    def serve(self, asked: Impressions, *, guarantee: Guarantee, key: bytes) -> Float32s:
        """Scores aligned with the candidates, from one noised report per user (`variants.Recommender`)."""
        mu = mu_for(guarantee.epsilon, guarantee.delta)
        reports = additive.report(asked.last_clicks(self.history), self.topics, mu=mu, name="serving", key=key)
        U = self.whitening(additive.decode(reports, self.population)) @ self.W
        return products(U, np.repeat(asked.users, np.diff(asked.candidate_ptr)), self.items, asked.candidates).astype(np.float32)


@dataclass(frozen=True)
class CentralDone:
    """The model after `round` of `rounds`; `bytes_up` and `bytes_down` per user so far; ledger: the aggregator's."""

    round: int
    rounds: int
    model: CentralModel
    ledger: Ledger
    bytes_up: float
    bytes_down: float
    noise_stds: dict[str, float]


def plan_of(guarantee: Guarantee, settings: CentralSettings) -> Plan:
    """Every release of the training, the gradients alike."""
    share = (1 - settings.population_share) / settings.rounds
    return calibrate(guarantee, {_POPULATION: settings.population_share} | {_named(t): share for t in range(1, settings.rounds + 1)})


def train(
    data: Impressions,
    topics: TopicTable,
    vectors: npt.NDArray[np.floating],
    plan: Plan,
    settings: CentralSettings,
    *,
    history: int,
    noise: Streams | SystemStreams,
) -> Iterator[CentralDone]:
    """Train, yielding after every round. Raises BudgetExceededError past the plan's guarantee."""
    users = Users(additive.coefficients(data.last_clicks(history), topics), data)
    aggregator = _Aggregator(plan, Ledger(plan.guarantee), noise)
    X = _unit_rows(np.asarray(vectors, np.float64)[:, : settings.width])
    question = population_question(topics.topics)
    answer = aggregator.answer(question, population_reports(users))
    n, population = _population(answer, topics.topics)
    whitening = _whitening(population)
    W = settings.prior_weight * _prior(topics, X, whitening, history)
    moments, rule = fedadam.Moments.like(W), fedadam.FedAdam(settings.learning_rate, tau=settings.tau)
    for t in range(1, settings.rounds + 1):
        question = gradient_question(t, topics.topics + 1, X.shape[1])
        answer = aggregator.answer(question, gradient_reports(users, whitening, W, X, clip=settings.clip))
        movement = -answer.values["gradient"] * settings.clip / n
        moved, moments = fedadam.step(W, movement, moments, rule)
        W = np.asarray(moved, np.float64)
        model = CentralModel(W, X, topics, population, whitening, history)
        down = 4.0 * t * W.size
        yield CentralDone(t, settings.rounds, model, aggregator.ledger, aggregator.bytes_up / max(n, 1), down, aggregator.noise_stds)


def population_reports(users: Users) -> Reports:
    """v = (a, 1)/sqrt2 of every user, once: ||v v'|| = ||v||^2 <= 1, as a is non-negative with sum at most 1."""
    n = len(users.coefficients)
    v = np.column_stack([users.coefficients, np.ones(n)]) / math.sqrt(2)
    block = BlockReports(np.ones(n, np.int32), quantise(v, _STEPS["vector_step"], bits=VECTOR_BITS))
    return Reports(np.zeros(n + 1, np.int64), np.empty(0, np.int32), (block,))


def gradient_reports(users: Users, whitening: Whitening, W: Floats, X: Floats, *, clip: float) -> Reports:
    """z and g / clip of every user, g shortened to `clip`: ||z g'|| / clip <= 1. Rounded towards zero, which shortens both."""
    z = whitening(users.coefficients)
    g = user_gradients(z @ W, users.data, X) / clip
    g /= np.maximum(np.linalg.norm(g, axis=1, keepdims=True), 1.0)
    n, rows = z.shape
    vectors = quantise(g * (1 - 1e-12), _STEPS["vector_step"], bits=VECTOR_BITS)
    coefficients = quantise(z * (1 - 1e-12), _STEPS["coefficient_step"], bits=COEFFICIENT_BITS)
    block = BlockReports(coefficients.ravel(), vectors)
    return Reports(np.arange(n + 1, dtype=np.int64) * rows, np.tile(np.arange(rows, dtype=np.int32), n), (block,))


def user_gradients(U: Floats, data: Impressions, X: Floats) -> Floats:
    """(n, p) mean over each user's impressions of sum_c (pi_c - y_c) x_c; y is uniform over the clicks, and 0 where there is none."""
    sizes = np.diff(data.candidate_ptr)
    owner = np.repeat(data.users, sizes)
    scores = products(U, owner, X, data.candidates)
    starts = data.candidate_ptr[:-1]
    weights = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), sizes))
    pi = weights / np.repeat(np.add.reduceat(weights, starts), sizes)
    clicks = np.add.reduceat(data.clicked.astype(np.float64), starts)
    y = data.clicked / np.repeat(np.maximum(clicks, 1), sizes)
    told = np.repeat(clicks > 0, sizes)
    share = 1 / np.maximum(np.bincount(data.users, minlength=data.num_users), 1)
    residuals = sparse.csr_matrix(((pi - y) * told * share[owner], (owner, data.candidates)), shape=(data.num_users, data.num_news))
    return np.asarray(residuals @ X)


@dataclass
class _Aggregator:
    """Sums reports, charges its ledger, adds noise; knows nothing else."""

    plan: Plan
    ledger: Ledger
    noise: Streams | SystemStreams
    bytes_up: int = 0

    def answer(self, question: Question, reports: Reports) -> Release:
        if not within_radius(reports, question.releases).all():
            raise AssertionError(f"a report of {question.step!r} is larger than its radius")
        sums = ExactSums(question.blocks)
        sums.add(reports)
        self.bytes_up += reports.wire_bytes
        self.noise_stds = getattr(self, "noise_stds", {}) | noise_stds(question, self.plan)
        answer, self.ledger = release(question, sums.blocks, self.plan, self.ledger, noise=self.noise)
        return answer


def _named(t: int) -> str:
    return f"gradient/{t}"


def population_question(topics: int) -> Question:
    """What the aggregator is asked to sum and noise first: v v' of B + 1 numbers."""
    block = BlockSpec("moments", "outer", 1, topics + 1, coefficient_step=1.0, vector_step=_STEPS["vector_step"])
    return Question(0, _POPULATION, {}, (ReleaseSpec(_POPULATION, (block,)),))


def gradient_question(t: int, rows: int, width: int) -> Question:
    """The same in round t >= 1: z g' of `rows` = B + 1 and `width` = p numbers."""
    block = BlockSpec("gradient", "linear", rows, width, **_STEPS)
    return Question(t, "gradient", {}, (ReleaseSpec(_named(t), (block,)),))


def _population(answer: Release, topics: int) -> tuple[float, Population]:
    """How many users there are, at least 1, and the mean and covariance of their coefficients: from the noised sum alone."""
    moments = np.zeros((topics + 1, topics + 1))
    moments[np.triu_indices(topics + 1)] = 2 * answer.values["moments"][0]
    moments += np.triu(moments, 1).T
    n = max(float(moments[-1, -1]), 1.0)
    mean = moments[:-1, -1] / n
    eigenvalues, Q = np.linalg.eigh(moments[:-1, :-1] / n - np.outer(mean, mean))
    floor = answer.noise_std["moments"] * math.sqrt(topics) / n  # below it, a direction is noise
    return n, Population(mean, (Q * np.maximum(eigenvalues, floor)) @ Q.T)


def _whitening(population: Population) -> Whitening:
    """Half way to white, as small directions are uncertain: L = C^-1/4 scaled so that a unit vector is typical."""
    eigenvalues, Q = np.linalg.eigh(population.covariance)
    w = np.maximum(eigenvalues, 1e-9 * eigenvalues.max(initial=1e-12))
    matrix = (Q * w**-0.25) @ Q.T
    return Whitening(population.mean, np.asarray(matrix / math.sqrt(float(np.sum(np.sqrt(w))))))


def _prior(topics: TopicTable, X: Floats, whitening: Whitening, history: int) -> Floats:
    """(B + 1, p) what public topics alone say, in the coordinates of z."""
    weights = topics.weights
    centres = weights.T @ X / np.maximum(weights.sum(0)[:, None], 1e-12)
    C = np.linalg.solve(whitening.matrix, centres - centres.mean(0))
    return np.vstack([C / max(float(np.linalg.norm(C, ord=2)), 1e-12), np.zeros((1, X.shape[1]))])


def _unit_rows(X: Floats) -> Floats:
    return np.asarray(X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12))
