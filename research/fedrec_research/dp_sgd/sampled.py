"""DP-SGD with users sampled in secret: what amplification would add to `recipe = "dp-sgd"`, whose
loss this trains.

The model is that of `least_squares`: a table of item vectors and biases, and per user a mean and a
vector. A sample is a user with all its ratings; each step draws every user with probability q,
takes the gradient of each one's loss in the table, clips it to norm 1, adds noise to the sum and
moves the table (Abadi et al. 2016). A user's own vector is fit to its ratings and the current table
inside its gradient (by the envelope theorem that is the gradient of the loss minimised over u), is
released to nobody, and so needs no noise.

Guarantee (user, add/remove), for a trusted curator who holds all ratings and tells nobody who was
drawn: T steps of a Poisson-sampled Gaussian mechanism of sensitivity 1, since removing a user
removes one clipped gradient; priced by Opacus' PRV accountant (Gopi et al. 2021), or exactly by GDP
where q = 1. It is no recipe for rounds: a federated aggregator hears from whom it hears and draws
nobody in secret, and so cannot claim this amplification. Clipping examples in place of users would
protect an example; that is refused.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from opacus import GradSampleModule
from opacus.accountants import PRVAccountant
from opacus.optimizers import DPOptimizer
from scipy import optimize

from fedrec.arrays import Floats
from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.factorization.least_squares import LocalStageModel
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec_research.dp_sgd.gradients import UserLoss, padded

_TOLERANCE = 0.01  # of epsilon: what PRV may be off, counted as spent


@dataclass(frozen=True)
class DpSgdSettings:
    """`sample_rate` is q, `rate` Adam's; the clip norm is 1, which nearly every user's gradient
    exceeds. `chunk` bounds memory only."""

    dimension: int
    steps: int
    sample_rate: float
    rate: float
    user_ridge: float
    start_std: float = 0.03
    chunk: int = 256


def settings_for(epsilon: float) -> DpSgdSettings:
    """What was best of a small search on validation of one split of MovieLens 1M."""
    steps = 30 if epsilon < 7 else 60
    return DpSgdSettings(dimension=2, steps=steps, sample_rate=0.2, rate=0.05, user_ridge=2.0)


@dataclass(frozen=True)
class DpSgd:
    """A finished training: `guarantee` is what was truly spent, never more than what was asked
    for."""

    model: LocalStageModel
    guarantee: Guarantee
    noise_multiplier: float


def train_dpsgd(
    data: Interactions, guarantee: Guarantee, settings: DpSgdSettings, *, streams: Streams
) -> DpSgd:
    """Train on all of `data` (ratings).

    Raises SettingsError for clicks, and where the guarantee is not for users."""
    if guarantee.unit != "user" or guarantee.neighbours != "add/remove":
        raise SettingsError(
            f"dp-sgd clips users; a guarantee per {guarantee.unit} needs another training",
            'Set privacy.unit = "user".',
        )
    if not data.rated:
        raise SettingsError(
            "dp-sgd fits ratings, but this data holds clicks",
            'Use recipe = "default" or "published".',
        )
    noise = noise_multiplier(guarantee, settings)
    table = _trained(data, settings, noise, streams)
    model = LocalStageModel.of(
        table[:, :-1],
        table[:, -1],
        offset=sum(data.value_range) / 2,
        user_ridge=settings.user_ridge,
    )
    return DpSgd(model, replace(guarantee, epsilon=spent(noise, settings, guarantee.delta)), noise)


def spent(noise: float, settings: DpSgdSettings, delta: float) -> float:
    """Epsilon of the whole training at `delta`: an upper bound by PRV; by GDP, exactly, where
    everybody takes part in every step."""
    if noise == 0:
        return math.inf
    if settings.sample_rate == 1:
        return epsilon_of(math.sqrt(settings.steps) / noise, delta)
    accountant = PRVAccountant()
    accountant.history = [(noise, settings.sample_rate, settings.steps)]
    # it asks RDP how far its grid must reach, and RDP warns where that is farther than need be
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return float(accountant.get_epsilon(delta, eps_error=_TOLERANCE, delta_error=delta / 1000))


def noise_multiplier(guarantee: Guarantee, settings: DpSgdSettings) -> float:
    """The least noise std / clip norm with `spent` at most the guarantee's epsilon, to a
    thousandth; 0 without privacy."""
    if not guarantee.private:
        return 0.0
    full = math.sqrt(settings.steps) / mu_for(guarantee.epsilon, guarantee.delta)
    if settings.sample_rate == 1:
        return full

    def excess(noise: float) -> float:
        return spent(noise, settings, guarantee.delta) - guarantee.epsilon

    low = high = full * settings.sample_rate
    while excess(high) > 0:
        low = high
        high = 1.3 * high
    while excess(low) < 0:
        low /= 1.3
    found = float(optimize.brentq(excess, low, high, xtol=1e-4 * low))
    while excess(found) > 0:  # the root may lie on the wrong side by the solver's tolerance
        found *= 1.0002
    return found


@dataclass(frozen=True)
class Private:
    """The loss with gradients per user, and Adam behind Opacus' clip and noise; gradients of at
    most `chunk` users are held at a time."""

    module: Any
    optimizer: Any
    chunk: int


def start(data: Interactions, settings: DpSgdSettings, streams: Streams) -> Floats:
    """(m, d + 1) random item vectors from the run's seed, no biases."""
    table = np.zeros((data.num_items, settings.dimension + 1))
    table[:, :-1] = (
        streams.numpy("dp-sgd-init").standard_normal((data.num_items, settings.dimension))
        * settings.start_std
    )
    return table.astype(np.float32)


@contextmanager
def private(
    loss: UserLoss, expected: int, settings: DpSgdSettings, noise: float, streams: Streams
) -> Iterator[Private]:
    """Opacus around the loss and around Adam. Sums are divided by the `expected` number of users,
    which no draw changes.

    Opacus warns that its noise comes from a seed and that looked-up integers have no gradient: both
    are known here.
    """
    generator = torch.Generator().manual_seed(int(streams.numpy("dp-sgd-noise").integers(2**62)))
    adam = torch.optim.Adam(loss.parameters(), lr=settings.rate)
    bounds = {
        "noise_multiplier": noise,
        "max_grad_norm": 1.0,
        "expected_batch_size": expected,
        "loss_reduction": "mean",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        optimizer = DPOptimizer(adam, generator=generator, **bounds)
        yield Private(GradSampleModule(loss, loss_reduction="sum"), optimizer, settings.chunk)


def step(trained: Private, data: Interactions, drawn: npt.NDArray[np.integer]) -> None:
    """One noisy step on the users `drawn`; noise is added once, at the last piece."""
    pieces = np.array_split(drawn, max(1, math.ceil(len(drawn) / trained.chunk)))
    for number, users in enumerate(pieces, start=1):
        trained.optimizer.zero_grad()
        trained.module(*padded(data.users_subset(users))).sum().backward()
        trained.optimizer.signal_skip_step(do_skip=number < len(pieces))
        trained.optimizer.step()


def _trained(data: Interactions, settings: DpSgdSettings, noise: float, streams: Streams) -> Floats:
    """(m, d + 1) rows (v_j, b_j) after T steps."""
    n = data.num_users
    q = settings.sample_rate
    loss = UserLoss(start(data, settings, streams), settings.user_ridge, sum(data.value_range) / 2)
    with private(loss, max(1, round(n * q)), settings, noise, streams) as trained:
        for t in range(settings.steps):
            step(
                trained, data, np.flatnonzero(streams.numpy("dp-sgd-users", round=t).random(n) < q)
            )
    return np.asarray(loss.table.weight.detach().numpy())
