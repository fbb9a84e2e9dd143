"""`central-encoder`: NRMS's user encoder, trained by per-user clipped gradients that an aggregator
sums and noises. User level.

    u_k = encoder(x_i of the history; parameters),    score(k, j) = u_k' x_j

x_j are public unit vectors of the news, which are not trained: those of PLM-NR (leading coordinates
of the public item vectors) or of a news encoder of NRMS at its public start. A news encoder of its
own would add its parameters to the noise, and its gradients name words. The user encoder has P = 4
d^2 + 2 d numbers. Its values begin at a multiple of the identity, so that a fresh model ranks by
likeness to the history.

1. Release "population": as of `news.central`, for decoding noised answers in serving.
2. Releases "gradient/1..T": sum over users of sum_l C_l g_(t - l) / r_t, r_t = sum_l C_l, where
   g_s is the user's gradient of round s, shortened to `clip`. Every user answers in every round.

What the bands of C do is said below.

Guarantee: (epsilon, delta)-DP; unit "user", neighbours "add/remove": each release is mu_t-GDP by
`federation.releases`, with reports of norm at most 1: a convex combination of vectors of norm at
most 1. All compose exactly (`privacy.calibration`); the answers may depend on earlier releases. No
amplification is claimed: nobody is sampled.

Releases of `central-encoder` and their prices: noise independent or correlated over rounds.

With b = `bands` > 1 the server undoes C, the lower triangular Toeplitz matrix of b bands with the
coefficients of (1 - x)^(-1/2). What it has then is g_t plus C^-1 z, with z independent: the matrix
mechanism (Denisov et al. 2022; banded: Choquette-Choo et al. 2023). The aggregator adds independent
noise and remembers nothing. Devices, which know the models of earlier rounds, send the combination
sum_l C_l g_(t - l) / r_t with r_t = sum_l C_l.

The price is that of the matrix mechanism where everybody answers in every round: all entries of C
are positive, so its sensitivity is the length of C 1, which is sqrt(sum_t r_t^2). Round t has the
share r_t^2 of the budget, and z then has one std in all rounds.

Where everybody answers in every round, b = 1 is best for the sum of all gradients. Releasing that
sum once has sensitivity T clip, and so noise of std T clip / mu; no C gives it less, and b = 1
attains it. Bands are for users who take turns; they are here to be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s
from fedrec.data.impressions import Impressions
from fedrec.encoders.news import NrmsUsers
from fedrec.federation.messages import Question, Release, State
from fedrec.federation.releases import noise_stds
from fedrec.news.central import SummedDone, population_of, population_told
from fedrec.news.central_client import POPULATION, named, population_question
from fedrec.news.encoder_client import encoded, encoder_question, numbers_of, user_encoder
from fedrec.news.prior import products, rebuilding
from fedrec.news.rounds import FedAdam, Moments, adam_step
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import Ledger, mu_for
from fedrec.privacy.bounded_mean import Population, TopicTable
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.correlated import square_root
from fedrec.privacy.guarantee import Guarantee


@dataclass(frozen=True)
class EncoderSettings:
    """What decides speed, and the shares of the budget; chosen on validation users of the MovieLens
    1M click log.

    clip: longest gradient of a user. tau: large beside the noise, so that a step is linear in the
    noised sum, and noise averages out. prior_weight: of the identity in the encoder's values at
    first. width: d. bands: b.
    """

    rounds: int = 12
    clip: float = 0.2
    learning_rate: float = 120.0
    tau: float = 0.1
    population_share: float = 0.05
    prior_weight: float = 8.0
    width: int = 32
    heads: int = 4
    bands: int = 1


def row_sums(rounds: int, bands: int) -> Float64s:
    """(T,) r_t: how much of one user's gradients round t holds, at most, in clips."""
    return np.cumsum(np.pad(square_root(bands), (0, max(rounds - bands, 0)))[:rounds])


def plan_of(guarantee: Guarantee, settings: EncoderSettings) -> Plan:
    """Every release of the training, all gradients with the same noise before C is undone."""
    squares = np.square(row_sums(settings.rounds, settings.bands))
    shares = (1 - settings.population_share) * squares / squares.sum()
    return calibrate(
        guarantee,
        {POPULATION: settings.population_share}
        | {named(t): float(share) for t, share in enumerate(shares, start=1)},
    )


@dataclass(frozen=True)
class EncoderModel:
    """parameters: (P,) of the user encoder. items: (m, d) unit vectors of the news."""

    parameters: Float64s
    items: Float64s
    heads: int
    topics: TopicTable
    population: Population
    history: int

    def arrays(self) -> dict[str, Float64s]:
        """See `central.SummedModel`."""
        return {"parameters": self.parameters}

    def serve(self, asked: Impressions, *, guarantee: Guarantee, key: bytes) -> Float32s:
        """Scores aligned with the candidates (`trained.Recommender`).

        Without noise a user is encoded on its device. With noise it sends the report of `additive`;
        what is decoded from it stands for the history, as one news."""
        encoder = user_encoder(self.parameters, self.items.shape[1], self.heads)
        places = asked.last_clicks(self.history)
        if guarantee.private:
            reports = bounded_mean.report(
                places,
                self.topics,
                mu=mu_for(guarantee.epsilon, guarantee.delta),
                name="serving",
                key=key,
            )
            found = bounded_mean.decode(reports, self.population)
            stands_for = unit_rows(found @ rebuilding(self.topics, self.items))
            U = encoded(encoder, stands_for, np.arange(len(places))[:, None])
        else:
            U = encoded(encoder, self.items, places)
        return products(
            U, np.repeat(asked.users, np.diff(asked.candidate_ptr)), self.items, asked.candidates
        ).astype(np.float32)


@dataclass(frozen=True)
class EncoderRecipe:
    """The server's side as a `federation.messages.Recipe`: `items` (m, d) are unit rows."""

    plan: Plan
    settings: EncoderSettings
    topics: TopicTable
    items: Float64s
    history: int

    @staticmethod
    def of(
        plan: Plan,
        settings: EncoderSettings,
        topics: TopicTable,
        vectors: npt.NDArray[np.floating],
        history: int,
    ) -> EncoderRecipe:
        """From public vectors of the items, (m, d)."""
        items = unit_rows(np.asarray(vectors, np.float64)).astype(np.float32).astype(np.float64)
        return EncoderRecipe(plan, settings, topics, items, history)

    def begin(self) -> State:
        """Before the population is known."""
        return {"round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """The population, then a gradient in each round."""
        t = int(state["round"])
        chosen = self.settings
        d = self.items.shape[1]
        if t == 0:
            rows: dict[str, npt.NDArray[Any]] = {"topics": self.topics.rows.astype(np.int32)}
            return population_question(self.topics.topics, rows)
        if t > chosen.rounds:
            return None
        weights = square_root(min(t, chosen.bands))
        public: dict[str, npt.NDArray[Any]] = {
            "vectors": self.items.astype(np.float32),
            "heads": np.array(chosen.heads),
            "clip": np.array(chosen.clip),
            "weights": weights,
        }
        for lag, point in enumerate(np.asarray(state["points"])[: len(weights)]):
            public[f"parameters-{lag}"] = point.reshape(-1, d)
        return encoder_question(t, numbers_of(d), public)

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """The population and the public start, or C undone and one step of FedAdam."""
        chosen = self.settings
        b = self.settings.bands
        t = question.round
        if t == 0:
            n, population = population_told(answer, self.topics.topics)
            x = start(self.items.shape[1], chosen)
            return {
                "round": np.array(1),
                "points": np.repeat(x[None], b, 0),
                "first": np.zeros_like(x),
                "second": np.zeros_like(x),
                "decoded": np.zeros((b, len(x))),
                "n": np.array(n),
                "mean": population.mean,
                "covariance": population.covariance,
            }
        C = square_root(b)
        decoded = np.asarray(state["decoded"], np.float64)
        told = answer.values["gradient"][0] * row_sums(t, b)[-1]
        newest = told - C[1:] @ decoded[: b - 1]
        moments = Moments(state["first"], state["second"], t - 1)  # type: ignore[arg-type]
        points = np.asarray(state["points"], np.float64)
        rule = FedAdam(chosen.learning_rate, tau=chosen.tau)
        moved, moments = adam_step(
            points[0], -newest * chosen.clip / float(state["n"]), moments, rule
        )
        return {
            **state,
            "round": np.array(t + 1),
            "points": np.concatenate([moved[None], points[: b - 1]]),
            "first": moments.first,
            "second": moments.second,
            "decoded": np.concatenate([newest[None], decoded[: b - 1]]),
        }

    def model(self, state: State) -> EncoderModel:
        """The model of any state but the first."""
        parameters = np.asarray(state["points"], np.float64)[0]
        return EncoderModel(
            parameters,
            self.items,
            self.settings.heads,
            self.topics,
            population_of(state),
            self.history,
        )

    def done(self, state: State) -> SummedDone[EncoderModel]:
        """After the rounds that `state` has seen, of which each user's part follows from the
        questions alone."""
        t = int(state["round"]) - 1
        plan = self.plan
        b = self.settings.bands
        asked = [self.ask({**state, "round": np.array(each)}) for each in range(t + 1)]
        questions = [question for question in asked if question is not None]
        ledger = Ledger(
            plan.guarantee, tuple(plan.event(r.name) for q in questions for r in q.releases)
        )
        stds = {name: std for q in questions for name, std in noise_stds(q, plan).items()}
        up = sum(2.0 * (1 + block.width) + 64 for q in questions for block in q.blocks)
        # parameters change in every round, and b of them are needed; nothing else changes
        P = numbers_of(self.items.shape[1])
        down = 4.0 * (self.topics.rows.size + self.items.size) + 8.0 * P * (t + b - 1)
        return SummedDone(t, self.settings.rounds, self.model(state), ledger, up, down, stds)


def start(width: int, settings: EncoderSettings) -> Float64s:
    """(P,) public: values are `prior_weight` times the identity; the rest is drawn with the
    variance of Glorot & Bengio 2010, the same in every run."""
    encoder = NrmsUsers(width, settings.heads, width, rng=np.random.default_rng(0)).double()
    parts = [p.detach().numpy().copy() for p in encoder.parameters()]
    parts[0][:, 2 * width :] = settings.prior_weight * np.eye(width)
    return np.concatenate([part.ravel() for part in parts])


def unit_rows(X: Float64s) -> Float64s:
    """Rows of length 1; zero rows stay."""
    return np.asarray(X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12))
