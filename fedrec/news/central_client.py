"""`central` on a device: from a question of the server to one bounded report of each user.

    population   topics (m, B)
                 -> v v',  v = (a, 1)/sqrt2, of norm at most 1
    gradient     topics, mean (B,), matrix (B, B), W (B + 1, p), vectors (m, p), clip
                 -> z g' / clip, of norm at most 1

a, z and g as in `central`. Everything in a question is public. Whatever its arrays hold,
`answering` and the aggregator hold every report to its radius.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Float64s
from fedrec.data.impressions import Impressions
from fedrec.federation.messages import (
    COEFFICIENT_BITS,
    VECTOR_BITS,
    BlockReports,
    BlockSpec,
    ClientStep,
    Question,
    ReleaseSpec,
    Reports,
    quantise,
    step_for,
)
from fedrec.numerics import segments
from fedrec.privacy.bounded_mean import TopicTable, coefficients

POPULATION = "population"
GRADIENT = "gradient"
_STEPS = {
    "coefficient_step": step_for(1.0, bits=COEFFICIENT_BITS - 1),
    "vector_step": step_for(1.0, bits=VECTOR_BITS - 1),
}


@dataclass(frozen=True)
class Users:
    """On the devices: coefficients a (n, B) and, for every impression, its user, candidates and
    clicks."""

    coefficients: Float64s
    data: Impressions


@dataclass(frozen=True)
class Whitening:
    """z = (L (a - m), 1) / norm: a function of the released population."""

    mean: Float64s
    matrix: Float64s

    def __call__(self, coefficients: Float64s) -> Float64s:
        """(n, B + 1) of norm 1."""
        centred = segments.rows_times(coefficients - self.mean, self.matrix)
        z = np.column_stack([centred, np.ones(len(coefficients))])
        return np.asarray(z / np.sqrt(segments.row_squares(z))[:, None])


def client_steps(history: int) -> Mapping[str, ClientStep]:
    """What answers, by the name a question gives; `history` places are looked at.

    They take impressions for interactions."""

    def population(question: Question, mine: Impressions) -> Reports:
        return population_reports(_users(question, mine, history))

    def gradient(question: Question, mine: Impressions) -> Reports:
        public = {name: np.asarray(array, np.float64) for name, array in question.public.items()}
        B = question.public["topics"].shape[1]
        p = public["vectors"].shape[-1]
        wanted = {
            "mean": (B,),
            "matrix": (B, B),
            "W": (B + 1, p),
            "vectors": (mine.num_news, p),
            "clip": (),
        }
        if (
            any(public[name].shape != shape for name, shape in wanted.items())
            or not public["clip"] > 0
        ):
            raise ValueError(f"arrays must have the shapes {wanted}, and a positive clip")
        whitening = Whitening(public["mean"], public["matrix"])
        users = _users(question, mine, history)
        return gradient_reports(
            users, whitening, public["W"], public["vectors"], clip=float(public["clip"])
        )

    return {POPULATION: population, GRADIENT: gradient}


def _users(question: Question, mine: Impressions, history: int) -> Users:
    if question.public["topics"].shape[:1] != (mine.num_news,):
        raise ValueError("topics must have one row per item")
    # its diameter is of no use here
    table = TopicTable(np.asarray(question.public["topics"], np.int64), math.nan)
    return Users(coefficients(mine.last_clicks(history), table), mine)


def named(t: int) -> str:
    """The release of round t >= 1."""
    return f"gradient/{t}"


def population_question(
    topics: int, public: Mapping[str, npt.NDArray[np.generic]] | None = None
) -> Question:
    """What the aggregator is asked to sum and noise first: v v' of B + 1 numbers."""
    block = BlockSpec(
        "moments", "outer", 1, topics + 1, coefficient_step=1.0, vector_step=_STEPS["vector_step"]
    )
    return Question(0, POPULATION, public or {}, (ReleaseSpec(POPULATION, (block,)),))


def gradient_question(
    t: int, rows: int, width: int, public: Mapping[str, npt.NDArray[np.generic]] | None = None
) -> Question:
    """The question of round t >= 1: z g' of `rows` = B + 1 and `width` = p numbers."""
    block = BlockSpec(
        "gradient", "linear", rows, width, _STEPS["coefficient_step"], _STEPS["vector_step"]
    )
    return Question(t, GRADIENT, public or {}, (ReleaseSpec(named(t), (block,)),))


def population_reports(users: Users) -> Reports:
    """v = (a, 1)/sqrt2 of every user, once: ||v v'|| = ||v||^2 <= 1, as no public row is longer
    than 1."""
    n = len(users.coefficients)
    v = np.column_stack([users.coefficients, np.ones(n)]) / math.sqrt(2)
    block = BlockReports(np.ones(n, np.int32), quantise(v, _STEPS["vector_step"], bits=VECTOR_BITS))
    return Reports(np.zeros(n + 1, np.int64), np.empty(0, np.int32), (block,))


def gradient_reports(
    users: Users, whitening: Whitening, W: Float64s, X: Float64s, *, clip: float
) -> Reports:
    """z and g / clip of every user, g shortened to `clip`: ||z g'|| / clip <= 1.

    Rounded towards zero, which shortens both."""
    z = whitening(users.coefficients)
    g = user_gradients(segments.rows_times(z, W), users.data, X) / clip
    g /= np.maximum(np.sqrt(segments.row_squares(g)), 1.0)[:, None]
    n, rows = z.shape
    vectors = quantise(g * (1 - 1e-12), _STEPS["vector_step"], bits=VECTOR_BITS)
    coefficients = quantise(z * (1 - 1e-12), _STEPS["coefficient_step"], bits=COEFFICIENT_BITS)
    block = BlockReports(coefficients.ravel(), vectors)
    return Reports(
        np.arange(n + 1, dtype=np.int64) * rows,
        np.tile(np.arange(rows, dtype=np.int32), n),
        (block,),
    )


def user_gradients(U: Float64s, data: Impressions, X: Float64s) -> Float64s:
    """(n, p) mean over each user's impressions of sum_c (pi_c - y_c) x_c; y is uniform over the
    clicks, and 0 where there is none."""
    sizes = np.diff(data.candidate_ptr)
    owner = np.repeat(data.users, sizes)
    scores = segments.pair_products(U, owner, X, data.candidates)
    starts = data.candidate_ptr[:-1]
    weights = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), sizes))
    pi = weights / np.repeat(segments.sums(data.candidate_ptr, weights), sizes)
    clicks = segments.sums(data.candidate_ptr, data.clicked.astype(np.float64))
    y = data.clicked / np.repeat(np.maximum(clicks, 1), sizes)
    told = np.repeat(clicks > 0, sizes)
    share = 1 / np.maximum(np.bincount(data.users, minlength=data.num_users), 1)
    residuals = sparse.csr_matrix(
        ((pi - y) * told * share[owner], (owner, data.candidates)),
        shape=(data.num_users, data.num_news),
    )
    return np.asarray(residuals @ X)
