"""Device's half of the published recipe: from a question and its own events to a bounded report.

Guarantee (user, add/remove): that of `ssp`, with the proof; every report goes through
`federation.reports.bounded`, so that it has joint L2 norm at most the radius of its release.

Beside it stand what both halves know: the settings, how the budget is divided over releases, and
the released model, with which a device solves its own vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Floats
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS, Kind
from fedrec.factorization import example_choice, weights
from fedrec.factorization.am_ssp import gradient
from fedrec.factorization.least_squares import solve_clicks, solve_users, solved
from fedrec.federation.messages import ClientStep, Question, Reports, triangle
from fedrec.federation.reports import RealBlock, bounded
from fedrec.numerics import segments
from fedrec.privacy.clipping import clip_rows, clip_values
from fedrec.randomness import Streams

WeightRule = Literal["printed", "normalised", "clipped", "uniform", "constant"]


@dataclass(frozen=True)
class PublishedModel:
    """Item vectors, the noisy mean, and what a device needs for its own solve."""

    item_vectors: npt.NDArray[np.float32]
    offset: float
    user_ridge: float
    click_weight: float

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> PublishedModel:
        """The model of a released file."""
        scalars = (float(arrays[name]) for name in ("offset", "user_ridge", "click_weight"))
        return PublishedModel(np.asarray(arrays["item_vectors"], np.float32), *scalars)

    def user_vectors(self, history: Interactions) -> Floats:
        """u_k = (sum v v' + lambda I)^-1 sum y v (AM-SSP App. E), or Hu et al. eq. 4 for clicks; in
        float64, user by user."""
        return device_vectors(
            history,
            np.asarray(self.item_vectors, np.float64),
            self.offset,
            self.user_ridge,
            self.click_weight,
        )

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Arrays for the released file."""
        scalars = {
            "offset": self.offset,
            "user_ridge": self.user_ridge,
            "click_weight": self.click_weight,
        }
        return {
            "item_vectors": self.item_vectors,
            **{name: np.array(value) for name, value in scalars.items()},
        }


def device_vectors(
    mine: Interactions, V: Float64s, offset: float, ridge: float, click_weight: float
) -> Float64s:
    """u_k of every user here, by its own events alone."""
    if mine.rated:
        found = solve_users(mine, V, ridge=ridge, targets=mine.values - offset)
    else:
        found = solve_clicks(mine.user_ptr, mine.items, V, ridge=ridge, alpha=click_weight)
    return np.asarray(found, np.float64)


@dataclass(frozen=True)
class PublishedSettings:
    """The papers' hyper-parameters. `user_radius` is Gamma_u, `target_radius` Gamma_y (after
    centring, in rating units).

    `encoder` None is the id-only model. `weights`: "printed" is AM-SSP App. E, "clipped" Ada-DPALS
    eq. 12 and 16, "constant" 1 / sqrt(max_items) on every item that is kept: DPALS (Ada-DPALS Rem.
    3.5).
    `example_share` below 1 gives each resample a fresh batch of examples (mini-batch SSP1, Alg. 4),
    charged without amplification. `click_weight` is alpha of Hu et al.; `max_items` 0 keeps all
    items of a user. `own_means`, which no paper has: item vectors are (v_j, b_j / Gamma_u), users
    (u_k, Gamma_u), and a device takes its own mean off its ratings first (`least_squares`).
    `pseudo_inverse`: Ada-DPALS Alg. 1 l. 7 to the letter. `ridge_exponent`: the ridge of item j is
    item_ridge c_j^exponent, c_j its released count (.25 in the code of Ada-DPALS' authors).
    """

    dimension: int
    steps: int
    user_ridge: float
    item_ridge: float
    weights: WeightRule
    weight_exponent: float
    descent: gradient.Descent
    resamples: int = 1
    example_share: float = 1.0
    user_radius: float = 1.0
    target_radius: float = 1.0
    count_limit: int = 50
    click_weight: float = 10.0
    max_items: int = 0
    sampling: Literal["uniform", "tail"] = "uniform"
    unit: Literal["user", "example"] = "user"
    own_means: bool = False
    pseudo_inverse: bool = False
    ridge_exponent: float = 0.0

    @property
    def width(self) -> int:
        """d, or d + 1 where an item's last coordinate is its bias."""
        return self.dimension + self.own_means

    @property
    def report_radius(self) -> float:
        """Gamma_u, or the norm of (u, Gamma_u) where u is longest: a vector and what biases are
        learnt by are then heard alike."""
        return self.user_radius * (math.sqrt(2) if self.own_means else 1.0)


def shares(settings: PublishedSettings, kind: Kind, *, count_share: float) -> dict[str, float]:
    """Shares of mu^2: counts, mean, then the outer steps equally, A and b of a step equally (the
    papers' choice)."""
    rest = 1 - count_share - 0.01
    names = _release_names(settings, kind)
    return {"counts": count_share, "mean": 0.01} | {name: rest / len(names) for name in names}


def _release_names(settings: PublishedSettings, kind: Kind) -> list[str]:
    names = [
        f"{part}/{s}/{r}"
        for s in range(settings.steps)
        for r in range(settings.resamples)
        for part in ("gram", "moment")
    ]
    return names + [f"gramian/{s}" for s in range(settings.steps) if not KINDS[kind].rated]


def half_range(value_range: tuple[float, float]) -> float:
    """Half the scale: the most that a value lies from its middle."""
    return (value_range[1] - value_range[0]) / 2


def svec(U: Float64s) -> Float64s:
    """(n, d(d+1)/2) svec(u u') of every row u of U (n, d).

    svec keeps the Frobenius norm, so a row c svec(u u') is bounded as the matrix c u u' is, and
    noise of std s on svec is noise of std s / sqrt(2) off the diagonal. Three aggregators sum
    products of two factors (`fedrec.sharing.layout`): an outer block of many rows has three.
    Rounded is svec here, and u there, so sums differ in their last bits.
    """
    rows, columns = triangle(U.shape[1])
    return np.asarray(U[:, rows] * U[:, columns] * _factors(U.shape[1]))


def packed(sums: Float64s, width: int) -> Float64s:
    """(m, d(d+1)/2) upper triangles of sums of svec, `width` being d."""
    return np.asarray(sums / _factors(width))


def _factors(width: int) -> Float64s:
    rows, columns = triangle(width)
    return np.where(rows == columns, 1.0, math.sqrt(2))


def client_steps(settings: PublishedSettings) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives."""
    return {
        "published/counts": lambda question, mine: _report_counts(question, mine, settings),
        "published/statistics": lambda question, mine: _report_statistics(question, mine, settings),
    }


def _report_counts(question: Question, mine: Interactions, settings: PublishedSettings) -> Reports:
    """min(1, sqrt(limit / n_k)) on each item, norm at most sqrt(limit); and the user's mean above
    mid-scale, at most half of it."""
    ones = weights.clipped_contributions(mine, limit=settings.count_limit)
    n, (low, high), half = np.diff(mine.user_ptr), mine.value_range, half_range(mine.value_range)
    totals = segments.sums(mine.user_ptr, np.asarray(mine.values, np.float64))
    means = np.where(n > 0, totals / np.maximum(n, 1) - (low + high) / 2, 0.0)
    one = np.ones((mine.num_users, 1))
    blocks = [
        RealBlock(ones.values, one),
        RealBlock(clip_values(means, low=-half, high=half).values, one),
    ]
    return bounded(mine.user_ptr, mine.items, blocks, question.releases, scaling="clip")


def _report_statistics(
    question: Question, mine: Interactions, settings: PublishedSettings
) -> Reports:
    """Alg. 8 l. 2-5: solve u, clip it to Gamma_u and y to Gamma_y, weight; A and b come from these
    factors.
    """
    V = np.asarray(question.public["V"], np.float64)
    offset = float(question.public["mean"]) if mine.rated else 0.0
    noisy = np.asarray(question.public["counts"], np.float64)
    U, means = _solved(mine, V, offset, settings)
    mine = _sampled(mine, settings, noisy)
    w = _weights(mine, settings, noisy, num_users=int(question.public["num_users"]))
    y = (
        clip_values(
            mine.values - offset - means[mine.users],
            low=-settings.target_radius,
            high=settings.target_radius,
        ).values
        / settings.target_radius
    )
    target = y if mine.rated else np.ones(len(mine))
    ptr = mine.user_ptr
    items = mine.items
    if settings.unit == "example":  # every event reports for itself
        U = np.repeat(U, np.diff(ptr), axis=0)
        ptr = np.arange(len(mine) + 1, dtype=np.int64)
    blocks = list[RealBlock]()
    for w_batch in (w * batch for batch in _batches(mine, settings, question.round)):
        gram = U if question.releases[0].blocks[0].form.matrix else svec(U)
        blocks += [RealBlock(w_batch, gram), RealBlock(w_batch * target, U)]
    if not mine.rated:
        blocks.append(RealBlock(np.ones(len(U)), U))
    return bounded(ptr, items, blocks, question.releases, scaling="clip")


def _solved(
    mine: Interactions, V: Float64s, offset: float, settings: PublishedSettings
) -> tuple[Float64s, Float64s]:
    """What a user reports in place of its vector, of norm at most 1, and its own mean, 0 where
    users have none."""
    if not settings.own_means:
        found = device_vectors(mine, V, offset, settings.user_ridge, settings.click_weight)
        return clip_rows(
            found, radius=settings.user_radius
        ).rows / settings.report_radius, np.zeros(mine.num_users)
    radius = settings.user_radius
    means, found, _ = solved(
        mine, np.ascontiguousarray(V[:, :-1]), radius * V[:, -1], offset, settings.user_ridge
    )
    return np.column_stack(
        [clip_rows(found, radius=radius).rows, np.full(len(found), radius)]
    ) / settings.report_radius, means


def _batches(
    mine: Interactions, settings: PublishedSettings, round: int
) -> list[npt.NDArray[np.bool_]]:
    """The examples of each resample: all of them (Alg. 2), or a fresh share (Alg. 4 l. 4). Which
    ones is no secret."""
    if settings.example_share == 1:
        return [np.ones(len(mine), np.bool_)] * settings.resamples
    keys = [Streams(r).key("published-batch", round=round) for r in range(settings.resamples)]
    return [
        example_choice.share_of_examples(mine, share=settings.example_share, key=key)
        for key in keys
    ]


def _sampled(mine: Interactions, settings: PublishedSettings, noisy: Float64s) -> Interactions:
    if not settings.max_items:
        return mine
    # public: it chooses among a user's own items, nothing rests on its secrecy
    key = Streams(0).key("published-sampling")
    if settings.sampling == "uniform":
        return mine.select(example_choice.uniform_choice(mine, limit=settings.max_items, key=key))
    return mine.select(example_choice.tail_choice(mine, noisy, limit=settings.max_items, key=key))


def _weights(
    mine: Interactions, settings: PublishedSettings, noisy: Float64s, *, num_users: int
) -> Float64s:
    """Per event; sum of squares at most 1 for every user, or 1 for every event."""
    if settings.unit == "example":
        return np.ones(len(mine))
    if settings.weights == "uniform":
        return weights.uniform(mine, budget=1.0).values
    if settings.weights == "constant":
        return weights.constant(mine, limit=settings.max_items, budget=1.0).values
    if settings.weights == "normalised":
        return weights.normalised(mine, noisy, mu=settings.weight_exponent, budget=1.0).values
    if settings.weights == "clipped":
        return weights.adaptive_as_printed(
            mine, noisy, mu=settings.weight_exponent, budget=1.0, num_users=num_users
        ).values
    return weights.am_ssp_as_printed(mine, noisy, budget=1.0).values
