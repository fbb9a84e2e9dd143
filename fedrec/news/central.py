"""`central`: per-user clipped gradients, summed by the aggregator, which adds noise once to each
sum. User level.

The model is bilinear in a user's topic coefficients a and an item's public unit vector x,

    score(a, j) = z' W x_j,    z = (L (a - m), 1) / ||.||,    W (B + 1, p)

so that one user's gradient is an outer product z g' of B + 1 and p numbers: what a report of
`fedrec.federation.messages` holds.

1. Release "population": sum over users of v v', v = (a, 1)/sqrt2, of norm at most 1. From it m, and
   the covariance that L whitens.
2. Releases "gradient/1..T": sum of z g', g = mean over the user's impressions of sum_c (pi_c - y_c)
   x_c, with ||z g'|| <= `clip`. Every user answers in every round; after each the server takes one
   step of FedAdam.

Guarantee: (epsilon, delta)-DP; unit "user", neighbours "add/remove": each release is mu_t-GDP by
`federation.releases`, all of them compose exactly (`privacy.calibration`). No amplification is
claimed: nobody is sampled. W begins at the public prior. Serving is that of `additive`, with its
own guarantee per click.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s
from fedrec.data.impressions import Impressions
from fedrec.federation import messages
from fedrec.federation.messages import Link, Question, Recipe, Release, State
from fedrec.federation.releases import noise_stds
from fedrec.in_process import Loopback
from fedrec.news.central_client import (
    POPULATION,
    Whitening,
    client_steps,
    gradient_question,
    named,
    population_question,
)
from fedrec.news.checkpoints import NOTHING, Kept
from fedrec.news.prior import products, rebuilding
from fedrec.news.rounds import FedAdam, Moments, adam_step
from fedrec.news.trained import Progress, Recommender, Sent, TrainedNews
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import Ledger, mu_for
from fedrec.privacy.bounded_mean import Population, TopicTable
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams
from fedrec.sharing.layout import layout
from fedrec.sharing.record import upload_bytes

if TYPE_CHECKING:  # it loads PyTorch
    from fedrec.news.clients import NewsClients

Told = tuple[str, str, float]
"""Of a finished training: shape and words of what a client sends, and its noise."""


@dataclass(frozen=True)
class CentralSettings:
    """What decides speed, and the shares of the budget; chosen on validation users of the MovieLens
    1M click log.

    clip: longest gradient of a user, for unit z and x. tau: large beside the noise, so that a step
    is linear in the noised sum, and noise averages out. prior_weight: the spectral norm of W at
    first. width: how many leading coordinates of x are used.
    """

    rounds: int = 12
    clip: float = 0.5
    learning_rate: float = 15.0
    tau: float = 0.1
    population_share: float = 0.1
    prior_weight: float = 8.0
    width: int = 64


@dataclass(frozen=True)
class CentralModel:
    """W (B + 1, p), the unit vectors of all items (m, p), and how users are decoded."""

    W: Float64s
    items: Float64s
    topics: TopicTable
    population: Population
    whitening: Whitening
    history: int

    def arrays(self) -> dict[str, Float64s]:
        """What is released of it, by name."""
        return {"W": self.W}

    def serve(self, asked: Impressions, *, guarantee: Guarantee, key: bytes) -> Float32s:
        """Scores aligned with the candidates, from one noised report per user
        (`trained.Recommender`)."""
        mu = mu_for(guarantee.epsilon, guarantee.delta)
        reports = bounded_mean.report(
            asked.last_clicks(self.history), self.topics, mu=mu, name="serving", key=key
        )
        U = self.whitening(bounded_mean.decode(reports, self.population)) @ self.W
        return products(
            U, np.repeat(asked.users, np.diff(asked.candidate_ptr)), self.items, asked.candidates
        ).astype(np.float32)


class SummedModel(Recommender, Protocol):
    """A model that is a function of sums."""

    def arrays(self) -> Mapping[str, Float64s]:
        """What is released of it, by name."""


Model = TypeVar("Model", bound=SummedModel, covariant=True)


def parameters(model: SummedModel) -> dict[str, Float32s]:
    """The arrays of the released file."""
    return {name: array.astype(np.float32) for name, array in model.arrays().items()}


@dataclass(frozen=True)
class SummedDone(Generic[Model]):
    """The model after `round` of `rounds`; ledger: what the aggregator has charged.

    bytes_up, bytes_down: per user so far, down at most: arrays as they are, which travel
    compressed, and each once unless it changes.
    """

    round: int
    rounds: int
    model: Model
    ledger: Ledger
    bytes_up: float
    bytes_down: float
    noise_stds: dict[str, float]


def plan_of(guarantee: Guarantee, settings: CentralSettings) -> Plan:
    """Every release of the training, the gradients alike."""
    share = (1 - settings.population_share) / settings.rounds
    return calibrate(
        guarantee,
        {POPULATION: settings.population_share}
        | {named(t): share for t in range(1, settings.rounds + 1)},
    )


class SummedRecipe(Recipe, Protocol[Model]):
    """A recipe on sums over users, whose first round is the population."""

    @property
    def plan(self) -> Plan:
        """Plan of all releases."""

    def done(self, state: State) -> SummedDone[Model]:
        """What is to be told after the rounds that `state` has seen."""


@dataclass(frozen=True)
class CentralRecipe:
    """The server's side as a `federation.messages.Recipe`: `items` (m, p) are unit rows.

    See `CentralRecipe.of`."""

    plan: Plan
    settings: CentralSettings
    topics: TopicTable
    items: Float64s
    history: int

    @staticmethod
    def of(
        plan: Plan,
        settings: CentralSettings,
        topics: TopicTable,
        vectors: npt.NDArray[np.floating],
        history: int,
    ) -> CentralRecipe:
        """From public vectors of the items (m, at least `width`)."""
        X = np.asarray(vectors, np.float64)[:, : settings.width]
        X = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
        return CentralRecipe(
            plan, settings, topics, X.astype(np.float32).astype(np.float64), history
        )

    def begin(self) -> State:
        """Before the population is known."""
        return {"round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """The population, then a gradient in each round."""
        t = int(state["round"])
        B = self.topics.topics
        p = self.items.shape[1]
        public: dict[str, npt.NDArray[Any]] = {"topics": self.topics.rows.astype(np.int32)}
        if t == 0:
            return population_question(B, public)
        if t > self.settings.rounds:
            return None
        whitening = _whitening(population_of(state))
        public |= {"mean": whitening.mean, "matrix": whitening.matrix, "W": state["W"]}
        public |= {"vectors": self.items.astype(np.float32), "clip": np.array(self.settings.clip)}
        return gradient_question(t, B + 1, p, public)

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """The population and the prior, or one step of FedAdam down the mean of the noised sum."""
        if question.round == 0:
            n, population = population_told(answer, self.topics.topics)
            W = self.settings.prior_weight * _prior(
                self.topics, self.items, _whitening(population), self.history
            )
            found = {"n": np.array(n), "mean": population.mean, "covariance": population.covariance}
            return {
                "round": np.array(1),
                "W": W,
                "first": np.zeros_like(W),
                "second": np.zeros_like(W),
                **found,
            }
        moments = Moments(state["first"], state["second"], question.round - 1)  # type: ignore[arg-type]
        movement = -answer.values["gradient"] * self.settings.clip / float(state["n"])
        rule = FedAdam(self.settings.learning_rate, tau=self.settings.tau)
        moved, moments = adam_step(np.asarray(state["W"], np.float64), movement, moments, rule)
        return {
            **state,
            "round": np.array(question.round + 1),
            "W": moved,
            "first": moments.first,
            "second": moments.second,
        }

    def model(self, state: State) -> CentralModel:
        """The model of any state but the first."""
        population = population_of(state)
        return CentralModel(
            np.asarray(state["W"], np.float64),
            self.items,
            self.topics,
            population,
            _whitening(population),
            self.history,
        )

    def done(self, state: State) -> SummedDone[CentralModel]:
        """After the rounds that `state` has seen, of which each user's part follows from the
        questions alone."""
        t = int(state["round"]) - 1
        rounds = self.settings.rounds
        plan = self.plan
        asked = [self.ask({**state, "round": np.array(each)}) for each in range(t + 1)]
        questions = [question for question in asked if question is not None]
        ledger = Ledger(
            plan.guarantee, tuple(plan.event(r.name) for q in questions for r in q.releases)
        )
        stds = {name: std for q in questions for name, std in noise_stds(q, plan).items()}
        up = float(sum(_report_bytes(question, plan) for question in questions))
        return SummedDone(t, rounds, self.model(state), ledger, up, _bytes_down(questions), stds)


def train(
    data: Impressions,
    topics: TopicTable,
    vectors: npt.NDArray[np.floating],
    plan: Plan,
    settings: CentralSettings,
    *,
    history: int,
    noise: Streams | SystemStreams,
) -> Iterator[SummedDone[CentralModel]]:
    """Train in this process, yielding after every round.

    Raises BudgetExceededError past the plan's guarantee."""
    recipe = CentralRecipe.of(plan, settings, topics, vectors, history)
    link = Loopback(data, client_steps(history), plan, noise, Ledger(plan.guarantee))
    yield from over(recipe, link)


def over(
    recipe: SummedRecipe[Model], link: Link, kept: Kept = NOTHING
) -> Iterator[SummedDone[Model]]:
    """Train over any link, yielding after every round, and at first where it was stopped."""
    state = kept.latest() or recipe.begin()
    if int(state["round"]) > 1:
        yield recipe.done(state)
    for answered in messages.train(recipe, link, state):
        kept.release(answered.question.round, answered.answer)
        kept.save(answered.state, step=int(answered.state["round"]))
        if answered.question.round:
            yield recipe.done(answered.state)


def by_clients(
    recipe: SummedRecipe[Model],
    clients: NewsClients,
    kept: Kept,
    told: Callable[[SummedDone[Model]], Told],
) -> Iterator[Progress | TrainedNews]:
    """The training of a variant, on from what is kept."""
    plan = recipe.plan
    done = None
    for done in over(recipe, clients.link(plan, released(plan, kept.latest())), kept):
        yield Progress(done.round, done.rounds, f"round {done.round}/{done.rounds}")
    assert done is not None
    promised, (shape, words, std) = plan.guarantee, told(done)
    yield TrainedNews(
        done.model,
        promised,
        done.ledger.epsilon if promised.private else promised.epsilon,
        done.rounds + 1,
        (Sent("gradient, every round", shape, words, done.bytes_up, std),),
        done.bytes_down,
        parameters(done.model),
    )


def released(plan: Plan, state: State | None) -> list[str]:
    """The names of what was released up to a state."""
    return [release.name for release in plan.releases[: int(state["round"]) if state else 0]]


def _report_bytes(question: Question, plan: Plan) -> int:
    """`Reports.wire_bytes` of one user, the same for everybody; or of its shares."""
    if plan.aggregation != "trusted":
        return upload_bytes(layout(question).length)
    (block,) = question.blocks
    rows = 0 if block.rows == 1 else block.rows
    return 4 * rows + 2 * (max(rows, 1) + block.width) + 64


def _bytes_down(questions: Sequence[Question]) -> float:
    """W changes in every round, nothing else does."""
    once = {name: array.nbytes for question in questions for name, array in question.public.items()}
    return float(sum(once.values()) + once.get("W", 0) * max(len(questions) - 2, 0))


def population_of(state: State) -> Population:
    """Mean and covariance, of any state but the first."""
    return Population(
        np.asarray(state["mean"], np.float64), np.asarray(state["covariance"], np.float64)
    )


def population_told(answer: Release, topics: int) -> tuple[float, Population]:
    """How many users there are, at least 1, and the mean and covariance of their coefficients: from
    the noised sum alone."""
    moments = np.zeros((topics + 1, topics + 1))
    moments[np.triu_indices(topics + 1)] = 2 * answer.values["moments"][0]
    moments += np.triu(moments, 1).T
    n = max(float(moments[-1, -1]), 1.0)
    mean = moments[:-1, -1] / n
    eigenvalues, Q = np.linalg.eigh(moments[:-1, :-1] / n - np.outer(mean, mean))
    floor = answer.noise_std["moments"] * math.sqrt(topics) / n  # below it, a direction is noise
    return n, Population(mean, (Q * np.maximum(eigenvalues, floor)) @ Q.T)


def _whitening(population: Population) -> Whitening:
    """Half way to white, as small directions are uncertain: L = C^-1/4 scaled so that a unit vector
    is typical."""
    eigenvalues, Q = np.linalg.eigh(population.covariance)
    w = np.maximum(eigenvalues, 1e-9 * eigenvalues.max(initial=1e-12))
    matrix = (Q * w**-0.25) @ Q.T
    return Whitening(population.mean, np.asarray(matrix / math.sqrt(float(np.sum(np.sqrt(w))))))


def _prior(topics: TopicTable, X: Float64s, whitening: Whitening, history: int) -> Float64s:
    """(B + 1, p) what public rows alone say, in the coordinates of z."""
    C = np.linalg.solve(whitening.matrix, rebuilding(topics, X))
    return np.vstack([C / max(float(np.linalg.norm(C, ord=2)), 1e-12), np.zeros((1, X.shape[1]))])
