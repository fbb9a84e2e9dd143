"""Fast DP matrix factorisation as published: item vectors from one sample of a scaled posterior
(Liu, Wang, Smola 2015, Alg. 1).

The density is exp(-c F(U, V)), F = sum_kj w_k min((r_kj - u_k.v_j)^2, L) + lambda (|U|^2 + |V|^2),
L = (range + kappa)^2. A chain of Langevin passes (`blocked_sgd.py`) is run towards it, V is
released, users solve for themselves (eq. 5, `local_stage.py`).

What holds (user, add/remove), **for an exact sample of the density and for nothing less**. A user
keeps tau ratings at most and its weight is w_k = a_k min(rho, tau / m_k) on its m_k kept ratings,
a_k in [0, 1]: its loss lies in [0, B_k], B_k = a_k tau L. Integrating its u_k out multiplies the
density of V by Z_k(V) times a constant, Z_k(V) in [exp(-c B_k), 1]; so with the user and without it
the densities of V differ by the factor Z_k(V) / E[Z_k], E over V without the user, which lies in
[exp(-c B_k), exp(c B_k)]. Hence c = epsilon / (tau L) is epsilon-DP, and a user who asked for a_k
has a_k epsilon (Thm 2). The paper takes c = epsilon / (4 B), and epsilon B_k / (2 B) in Thm 2:
sound too, and 4 times as hot as this release needs; it stays as `conversion="printed"`.

A finite chain is no exact sample, and its distance from one cannot be computed: every guarantee
here says "not established", and its price is infinite in every ledger (`recipes.dpmf`). The
established sibling is `descent/noisy_descent.py`: the same iteration with a proof.

Where we leave the paper: B is tau L, public (Alg. 1 l. 1 computes it from the users' counts). The
loss of a rating is capped at L, which equals F on the paper's sublevel set; Alg. 1 l. 5-6 samples
again until all n m predictions lie in that set, which never ends. Drift and noise are those of
exp(-c F): eq. 4 has half the noise and samples exp(-2 c F). No temperature below 1. Ratings are
centred by each user's own mean, on the device, in place of biases. Reweighting (Sec. 6.5) and
trimming together, as printed there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.local_stage import LocalStageModel, own_means
from fedrec.factorization.sampling.blocked_sgd import (
    Diffusion,
    Pass,
    Rows,
    blocks_of,
    descend,
    settle,
)
from fedrec.factorization.weights import uniform_choice
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams

Conversion = Literal["add/remove", "printed"]

NOTE = "assumes an exact posterior sample, which no finite chain gives"


@dataclass(frozen=True)
class PosteriorSettings:
    """tau is `most_ratings`, rho `weight_limit`. `prior_std`: of an entry of U and V where data say
    nothing; `ridge` adds to its lambda.

    `rate` eta of a pass falls as eta / (1 + decay t). forgets: the largest 2 lambda eta; where eta
    is larger, what a pass learned is noise again at its end, and the chain stays at its prior.
    `conversion`: see the module.
    """

    dimension: int = 16
    passes: int = 60
    most_ratings: int = 100
    weight_limit: float = 1.0
    kappa: float = 1.0
    prior_std: float = 0.5
    ridge: float = 1.0
    rate: float = 0.005
    decay: float = 0.05
    user_ridge: float = 3.0
    stripes: int = 8
    forgets: float = math.inf
    conversion: Conversion = "add/remove"


@dataclass(frozen=True)
class Scaling:
    """What turns a budget into a density.

    `cap` is sqrt L, `loss_bound` B, `temperature` 1 / c, `ridge` lambda."""

    cap: float
    loss_bound: float
    temperature: float
    ridge: float

    @staticmethod
    def of(
        settings: PosteriorSettings, epsilon: float, value_range: tuple[float, float]
    ) -> Scaling:
        """From public numbers alone."""
        cap = value_range[1] - value_range[0] + settings.kappa
        bound = settings.most_ratings * cap**2
        temperature = (4 if settings.conversion == "printed" else 1) * bound / epsilon
        return Scaling(
            cap, bound, temperature, settings.ridge + temperature / (2 * settings.prior_std**2)
        )


def guarantee_for(epsilon: float, delta: float) -> Guarantee:
    """epsilon as a claim.

    The theorem has no delta; a guarantee object needs one, and any will do."""
    return Guarantee(epsilon, delta, established=False, note=NOTE)


def user_weights(
    ratings: Interactions, settings: PosteriorSettings, shares: Float64s | float = 1.0
) -> Float64s:
    """(n_users,) w_k = a_k min(rho, tau / m_k) of Thm 2; shares: a_k in [0, 1], (n_users,) or one
    for all."""
    m = np.minimum(np.diff(ratings.user_ptr), settings.most_ratings)
    whole = np.minimum(settings.weight_limit, settings.most_ratings / np.maximum(m, 1))
    return np.asarray(shares * whole, np.float64)


@dataclass(frozen=True)
class Sample:
    """After a pass: the model of V as it stands.

    Only the last one of a chain may leave, and only once."""

    number: int
    model: LocalStageModel


def sample(
    ratings: Interactions,
    settings: PosteriorSettings,
    *,
    epsilon: float,
    streams: Streams,
    noise: Streams | SystemStreams | None = None,
    shares: Float64s | float = 1.0,
) -> Iterator[Sample]:
    """Run the chain, yielding after every pass. Epsilon inf is plain regularised SGD, and no
    privacy.

    streams: of the start; noise: of trimming and of the chain, None for the same. shares: as in
    `user_weights`. Every yield but the last is for watching (RMSE against time): releasing several
    states costs several times.
    """
    rng = streams.numpy("posterior-init")
    noise = noise or streams
    scaling = Scaling.of(settings, epsilon, ratings.value_range)
    kept = _trimmed(ratings, settings, noise)
    offset = sum(ratings.value_range) / 2
    values = np.asarray(kept.values, np.float64) - offset
    values -= own_means(kept, values)[kept.users]
    blocks = blocks_of(kept, values.astype(np.float32), stripes=settings.stripes)
    start = min(settings.prior_std, 0.1)
    U, V = (
        (start * rng.standard_normal((rows, settings.dimension))).astype(np.float32)
        for rows in (ratings.num_users, ratings.num_items)
    )
    # a common direction for item biases to grow in: a start, free to move
    U[:, 0] += settings.prior_std
    rows = Rows.of(U, V, blocks)
    weights = user_weights(ratings, settings, shares)
    key = int.from_bytes(noise.key("posterior-noise")[:7], "little")
    diffusion = Diffusion(
        scaling.ridge, scaling.temperature if math.isfinite(epsilon) else 0.0, key
    )
    largest = min(settings.rate, settings.forgets / (2 * scaling.ridge))
    for t in range(settings.passes):
        rate = largest / (1 + settings.decay * t)
        descend(
            rows, blocks, Pass(2 * rate, cap=scaling.cap, weights=weights, time=rate), diffusion
        )
        settle(rows, diffusion)
        vectors = rows.item_vectors(blocks)
        yield Sample(
            t + 1,
            LocalStageModel.of(
                vectors, np.zeros(len(vectors)), offset=offset, user_ridge=settings.user_ridge
            ),
        )


def _trimmed(
    ratings: Interactions, settings: PosteriorSettings, noise: Streams | SystemStreams
) -> Interactions:
    """Alg. 1 l. 2: at most tau ratings of each user, drawn uniformly."""
    return ratings.select(
        uniform_choice(ratings, limit=settings.most_ratings, key=noise.key("posterior-trim"))
    )
