"""Device's half of the published recipe: from a question and its own events to a bounded report.

Guarantee (user, add/remove): that of `ssp`, with the proof; every report goes through
`federation.reports.bounded`, so that it has joint L2 norm at most the radius of its release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization import weights
from fedrec.factorization.am_ssp.model import device_vectors
from fedrec.factorization.am_ssp.settings import PublishedSettings, half_range
from fedrec.factorization.local_stage import solved
from fedrec.federation.messages import ClientStep, Question, Reports, triangle
from fedrec.federation.reports import RealBlock, bounded
from fedrec.numerics import segments
from fedrec.privacy.clipping import clip_rows, clip_values
from fedrec.randomness import Streams


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
    return [weights.share_of_examples(mine, share=settings.example_share, key=key) for key in keys]


def _sampled(mine: Interactions, settings: PublishedSettings, noisy: Float64s) -> Interactions:
    if not settings.max_items:
        return mine
    # public: it chooses among a user's own items, nothing rests on its secrecy
    key = Streams(0).key("published-sampling")
    if settings.sampling == "uniform":
        return mine.select(weights.uniform_choice(mine, limit=settings.max_items, key=key))
    return mine.select(weights.tail_choice(mine, noisy, limit=settings.max_items, key=key))


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
