"""`central-encoder` on a device: from a question of the server to one bounded report of each user.

    encoder-gradient   vectors (m, d), heads, clip, weights (b,), parameters-0 .. parameters-(b - 1)
                       (4 d + 2, d) each, the newest first
                       -> sum_l w_l g_l / sum_l w_l,  ||g_l|| <= 1, so of norm at most 1

g_l is the gradient of the user's own mean loss at the l-th newest parameters of NRMS's user encoder
(`encoders.users.NrmsUsers`), divided by `clip` and shortened to 1. Everything in a question is
public. A gradient that is no number counts as zero: a server may have made the parameters.

Users are taken one at a time: the kernels of a batch may round by its size, and parameters that a
server chose can make any rounding large.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from fedrec.arrays import Float64s
from fedrec.data.impressions import Impressions
from fedrec.encoders.news import NrmsUsers
from fedrec.federation.messages import (
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
from fedrec.news.central_client import named, user_gradients
from fedrec.numerics import segments

ENCODER_GRADIENT = "encoder-gradient"
_STEP = step_for(1.0, bits=VECTOR_BITS - 1)


def client_steps(history: int) -> Mapping[str, ClientStep]:
    """What answers, by the name a question gives; `history` places are looked at."""

    def gradient(question: Question, mine: Impressions) -> Reports:
        X, heads, clip, weights, points = _read(question, mine)
        total = np.zeros((mine.num_users, points.shape[1]))
        for weight, parameters in zip(weights / weights.sum(), points, strict=True):
            encoder = user_encoder(parameters, X.shape[1], heads)
            total += weight * bounded_gradients(encoder, X, mine, history=history, clip=clip)
        return reports_of(total)

    return {ENCODER_GRADIENT: gradient}


def encoder_question(
    t: int,
    numbers: int,
    public: Mapping[str, npt.NDArray[np.generic]] | None = None,
) -> Question:
    """What is asked in round t >= 1: one vector of so many numbers a user, of norm at most 1."""
    block = BlockSpec("gradient", "linear", 1, numbers, 1.0, _STEP)
    return Question(t, ENCODER_GRADIENT, public or {}, (ReleaseSpec(named(t), (block,)),))


def reports_of(vectors: Float64s) -> Reports:
    """One dense report a user, rounded towards zero, which shortens it."""
    n = len(vectors)
    grid = quantise(vectors * (1 - 1e-12), _STEP, bits=VECTOR_BITS)
    block = BlockReports(np.ones(n, np.int32), grid)
    return Reports(np.zeros(n + 1, np.int64), np.empty(0, np.int32), (block,))


def bounded_gradients(
    encoder: NrmsUsers, X: Float64s, data: Impressions, *, history: int, clip: float
) -> Float64s:
    """(n, P) every user's gradient over `clip`, shortened to norm 1 where longer."""
    places = data.last_clicks(history)
    slopes = user_gradients(encoded(encoder, X, places), data, X)
    found = np.empty((len(places), numbers_of(X.shape[1])))
    for k, slope in enumerate(slopes):
        u = _encoded(encoder, X, places[k]) @ torch.from_numpy(slope)
        of_each = torch.autograd.grad(u, list(encoder.parameters()))
        found[k] = torch.cat([g.ravel() for g in of_each]).numpy()
    found = np.nan_to_num(found / clip, nan=0.0, posinf=0.0, neginf=0.0)
    norms = np.sqrt(segments.row_squares(found))[:, None]
    return np.where(np.isfinite(norms), found / np.maximum(norms, 1.0), 0.0)


def encoded(encoder: NrmsUsers, X: Float64s, places: npt.NDArray[np.integer]) -> Float64s:
    """(n, d) user vectors of histories (n, H), -1 where there is no click."""
    with torch.no_grad():
        each = [_encoded(encoder, X, mine).numpy() for mine in places]
    return np.array(each, np.float64).reshape(-1, X.shape[1])


def _encoded(encoder: NrmsUsers, X: Float64s, mine: npt.NDArray[np.integer]) -> torch.Tensor:
    """(d,) user vector of one history (H,)."""
    rows = torch.from_numpy(X[mine.clip(min=0)])
    mask = torch.from_numpy(mine >= 0)[None]
    return encoder.encode(rows, torch.arange(len(mine))[None], mask)[0]


def user_encoder(parameters: Float64s, width: int, heads: int) -> NrmsUsers:
    """NRMS's user encoder in double precision, with these parameters (P,)."""
    encoder = NrmsUsers(width, heads, width, rng=np.random.default_rng(0)).double()
    values = torch.from_numpy(np.array(parameters, np.float64))
    start = 0
    with torch.no_grad():
        for p in encoder.parameters():
            p.copy_(values[start : start + p.numel()].view_as(p))
            start += p.numel()
    return encoder


def numbers_of(width: int) -> int:
    """P: 3 d^2 of self-attention, d^2 + 2 d of additive attention with as many queries."""
    return (4 * width + 2) * width


def _read(question: Question, mine: Impressions) -> tuple[Float64s, int, float, Float64s, Float64s]:
    """Vectors, heads, clip, weights and points of a question.

    Raises ValueError on other shapes."""
    public = question.public
    X, weights = (np.asarray(public[name], np.float64) for name in ("vectors", "weights"))
    clip = float(public["clip"])
    heads = int(public["heads"])
    d = X.shape[-1]
    wanted = (4 * X.shape[-1] + 2, X.shape[-1])
    points = [public[f"parameters-{lag}"] for lag in range(weights.size)]
    if (
        X.shape != (mine.num_news, d)
        or weights.ndim != 1
        or not (weights > 0).all()
        or not clip > 0
        or heads < 1
        or any(point.shape != wanted for point in points)
    ):
        raise ValueError(
            f"need vectors ({mine.num_news}, d), positive weights (b,), clip and heads, and b "
            f"parameters (4 d + 2, d)"
        )
    return X, heads, clip, weights, np.stack([np.asarray(p, np.float64).ravel() for p in points])
