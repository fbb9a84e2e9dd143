"""Clipped gradients of users in a table of item vectors, by Opacus: the plain recommender that
DP-SGD trains (Abadi et al. 2016; the baseline of AM-SSP App. E.1).

A sample is a user with all its events. A user's own vector is fit to its events and the current
table inside its gradient (by the envelope theorem that is the gradient of the loss minimised over
u), is released to nobody, and so needs no noise. Opacus gives each user's gradient, which is cut to
norm 1 and to the grid of the noise; sums are integers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from opacus import GradSampleModule
from torch import Tensor, nn

from fedrec.arrays import Float64s, Floats, Int64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.least_squares import PRIOR_RATINGS, solve_clicks

_NUMBERS = 2**20
"""Of gradients that are held at a time: so many stay in a processor's cache. A step on 2,000 users
and 1,500 items takes 0.08 s; with 2**24 numbers 0.56 s, with 2**16 0.28 s."""


class UserLoss(nn.Module):
    """Half the squared error of each user's ratings at its own best mean and vector; the table's
    rows are (v_j, b_j)."""

    def __init__(self, table: Floats, user_ridge: float, offset: float) -> None:
        super().__init__()
        self.table = nn.Embedding(len(table), table.shape[1], _weight=torch.from_numpy(table))
        self.user_ridge = user_ridge
        self.offset = offset

    def forward(self, items: Tensor, values: Tensor, present: Tensor) -> Tensor:
        """(B,) of padded ratings: items, values and `present` (0 at padding) are (B, L)."""
        rows = self.table(items) * present.unsqueeze(-1)
        V = rows[..., :-1]
        left = (values - self.offset) * present - rows[..., -1]
        with torch.no_grad():  # eq. 5 of Fast-DPMF, as in `least_squares`
            means = left.sum(1, keepdim=True) / (present.sum(1, keepdim=True) + PRIOR_RATINGS)
            gram = V.transpose(1, 2) @ V + self.user_ridge * torch.eye(V.shape[-1])
            moment = V.transpose(1, 2) @ ((left - means) * present).unsqueeze(-1)
            U = torch.linalg.solve(gram, moment)
        residuals = left - means * present - (V @ U).squeeze(-1)
        losses: Tensor = 0.5 * residuals.square().sum(1)
        return losses


class ClickLoss(nn.Module):
    """Half the weighted squared error of each user's clicks and of all that it did not click (Hu,
    Koren, Volinsky 2008, eq. 3), given the users' vectors; the table's rows are v_j."""

    def __init__(self, table: Floats, click_weight: float) -> None:
        super().__init__()
        self.table = nn.Linear(table.shape[1], len(table), bias=False)
        self.table.weight = nn.Parameter(torch.from_numpy(table))
        self.click_weight = click_weight

    def forward(self, U: Tensor, clicked: Tensor) -> Tensor:
        """(B,) of users' vectors (B, d) and clicks (B, m), 0 or 1."""
        errors = clicked - self.table(U)
        losses: Tensor = 0.5 * ((1 + self.click_weight * clicked) * errors.square()).sum(1)
        return losses


def padded(some: Interactions) -> tuple[Tensor, Tensor, Tensor]:
    """Ratings (B + 1, L): the last user has none, so that a draw of nobody is a batch too; its
    gradient is 0."""
    lengths = np.append(np.diff(some.user_ptr), 0)
    places = np.arange(len(some)) - np.repeat(some.user_ptr[:-1], lengths[:-1])
    shape = (len(lengths), max(1, int(lengths.max())))
    items = np.zeros(shape, np.int64)
    values = np.zeros(shape, np.float32)
    present = np.zeros(shape, np.float32)
    items[some.users, places] = some.items
    values[some.users, places] = some.values
    present[some.users, places] = 1
    return torch.from_numpy(items), torch.from_numpy(values), torch.from_numpy(present)


def summed_gradients(
    data: Interactions,
    table: Float64s,
    *,
    user_ridge: float,
    offset: float,
    click_weight: float,
    step: float,
) -> Int64s:
    """(m, width) sum over users of their gradients, each cut to norm 1 and then towards zero to
    multiples of `step`, in units of it.

    Removing a user moves the sum by norm 1 / step at most. Raises ValueError on a gradient that is
    not finite."""
    small = np.ascontiguousarray(table, np.float32)
    loss: nn.Module = (
        UserLoss(small, user_ridge, offset) if data.rated else ClickLoss(small, click_weight)
    )
    total = np.zeros(table.shape, np.int64)
    with warnings.catch_warnings():
        # looked-up integers have no gradient, as Opacus' hooks say of each batch
        warnings.simplefilter("ignore", UserWarning)
        module = GradSampleModule(loss, loss_reduction="sum")
        (parameter,) = module.parameters()
        for some in _chunks(data, max(1, _NUMBERS // table.size)):
            module.zero_grad()
            if data.rated:
                losses = module(*padded(some))
            else:
                U = solve_clicks(
                    some.user_ptr, some.items, table, ridge=user_ridge, alpha=click_weight
                )
                clicked = np.zeros((some.num_users, len(table)), np.float32)
                clicked[some.users, some.items] = 1
                losses = module(torch.from_numpy(U.astype(np.float32)), torch.from_numpy(clicked))
            losses.sum().backward()
            each = parameter.grad_sample.double().numpy()
            norms = np.sqrt((each**2).sum((1, 2), keepdims=True))
            if not np.isfinite(norms).all():
                raise ValueError("a user's gradient is not finite")
            cut = each * (np.minimum(1.0, 1 / np.maximum(norms, 1e-300)) * (1 - 1e-12) / step)
            # towards zero: the sums are of integers, and no gradient becomes longer than its clip
            total += np.trunc(cut).astype(np.int64).sum(0)
    return total


def _chunks(data: Interactions, users: int) -> Iterator[Interactions]:
    for start in range(0, data.num_users, users):
        yield data.users_subset(np.arange(start, min(start + users, data.num_users)))
