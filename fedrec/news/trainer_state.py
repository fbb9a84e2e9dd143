"""A model, its optimiser, schedule, dropout and draws, which stop together after a step and go on
together to the same bytes.

The server's model of the default form: two towers, from noised topic coefficients and from
public item vectors.

    score(a, j) = k a' P_j + f(a)' g(x_j) / sqrt(d) + c_j,    f(a) = A a + MLP(a),  g(x) = MLP(x)

a are decoded coefficients (`bounded_mean.decode`), centred and scaled by public numbers; x_j is
public. No history is ever an input. P (B, m) is the fit of topics and items that is known before
any training (`prior`). f begins at zero, so the model begins at the prior and what little is learnt
under much noise is added to it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrec.arrays import Float32s
from fedrec.encoders.news import Dropout, dropped, matrix, offset
from fedrec.news.checkpoints import State, packed
from fedrec.randomness import Streams

Draws = np.random.Generator


@dataclass(frozen=True)
class ReportModelSettings:
    """Sizes and the learning schedule; chosen on validation users of the MovieLens 1M click log.

    width: d. hidden: of both perceptrons. free_items: whether an item has a vector of its own
    beside what its features say. prior_weight: k at the beginning; it is learnt.
    """

    width: int = 64
    hidden: int = 128
    dropout: float = 0.2
    free_items: bool = False
    prior_weight: float = 0.5
    epochs: int = 8
    batch: int = 512
    learning_rate: float = 3e-3
    weight_decay: float = 1e-5


class Perceptron(nn.Module):
    """x -> W2 gelu(W1 x + c1) + c2 (+ A x where `skip`)."""

    def __init__(
        self, inputs: int, hidden: int, width: int, *, skip: bool, rng: np.random.Generator
    ) -> None:
        super().__init__()
        self.first = matrix(inputs, hidden, rng=rng)
        self.first_bias = offset(hidden)
        self.second = matrix(hidden, width, rng=rng)
        self.second_bias = offset(width)
        self.skip = matrix(inputs, width, rng=rng) if skip else None

    def begin_at_zero(self) -> None:
        """Set what is last on every way to zero: the result is 0 until something is learnt."""
        with torch.no_grad():
            for last in (self.second, self.skip):
                if last is not None:
                    last.zero_()

    def apply_to(self, x: Tensor, dropout: Dropout | None) -> Tensor:
        """(n, width) from (n, inputs)."""
        y = (
            dropped(functional.gelu(x @ self.first + self.first_bias), dropout) @ self.second
            + self.second_bias
        )
        return y if self.skip is None else y + x @ self.skip


class ReportModel(nn.Module):
    """Parameters float32; `items` (m, p) are the public vectors, `prior` (B, m) the public fit of
    topics and items."""

    def __init__(
        self,
        items: Float32s,
        prior: npt.NDArray[np.floating],
        settings: ReportModelSettings,
        *,
        rng: np.random.Generator,
    ) -> None:
        super().__init__()
        self.public = torch.from_numpy(np.ascontiguousarray(items, np.float32))
        self.prior = torch.from_numpy(np.ascontiguousarray(_centred(prior).T, np.float32))
        self.prior_weight = nn.Parameter(torch.tensor(settings.prior_weight))
        self.user_tower = Perceptron(
            len(prior), settings.hidden, settings.width, skip=True, rng=rng
        )
        self.user_tower.begin_at_zero()
        self.item_tower = Perceptron(
            items.shape[1], settings.hidden, settings.width, skip=False, rng=rng
        )
        self.item_bias = offset(len(items))
        self.own = (
            nn.Parameter(torch.zeros(len(items), settings.width)) if settings.free_items else None
        )

    def users(self, coefficients: Tensor, dropout: Dropout | None = None) -> Tensor:
        """(n, d + B) user vectors of standardised coefficients (n, B): the tower's, then the
        prior's."""
        return torch.cat(
            [self.user_tower.apply_to(coefficients, dropout), self.prior_weight * coefficients], 1
        )

    def items(self, dropout: Dropout | None = None) -> Tensor:
        """(m, d + B) item vectors, the tower's scaled by 1/sqrt(d)."""
        r = self.item_tower.apply_to(self.public, dropout)
        return torch.cat(
            [(r if self.own is None else r + self.own) / math.sqrt(r.shape[1]), self.prior], 1
        )

    def scores(self, users: Tensor, items: Tensor, candidates: Tensor) -> Tensor:
        """(n, C) of candidates (n, C); -inf where there is none (-1)."""
        safe = candidates.clamp(min=0)
        products = (functional.embedding(safe, items) @ users.unsqueeze(-1)).squeeze(-1)
        return (products + self.item_bias[safe]).masked_fill(candidates < 0, -torch.inf)


def _centred(prior: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Each topic's fits less their mean over items, all scaled to mean square 1 / B: a' P_j is then
    of the size of a."""
    P = np.asarray(prior, np.float64) - np.mean(prior, axis=1, keepdims=True)
    return np.asarray(P / max(float(np.sqrt(len(P) * np.mean(P**2))), 1e-12))


@dataclass(frozen=True)
class Progressing:
    """All that changes while a torch model is trained; `schedule` is none where the learning rate
    stays."""

    model: torch.nn.Module
    optimiser: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.OneCycleLR | None
    dropout: Dropout
    draws: Draws

    @staticmethod
    def begin(
        model: torch.nn.Module,
        settings: ReportModelSettings,
        steps: int,
        streams: Streams,
        draws: np.random.Generator,
    ) -> Progressing:
        """AdamW over `settings.epochs` epochs of so many steps, one cycle of the learning rate."""
        optimiser = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        cycle = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, settings.learning_rate, total_steps=settings.epochs * steps + 1
        )
        return Progressing(model, optimiser, cycle, fresh_dropout(settings.dropout, streams), draws)

    def step(self, loss: Tensor) -> float:
        """One step down; the loss."""
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        if self.schedule is not None:
            self.schedule.step()
        return loss.item()

    def arrays(self, done: int) -> dict[str, npt.NDArray[Any]]:
        """Everything after `done` epochs or steps, ready for a checkpoint."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "round": np.array(done),
            "dropout": self.dropout.generator.get_state().numpy(),
        }
        arrays["draws"] = packed(
            json.dumps(self.draws.bit_generator.state, default=lambda words: words.tolist())
        )
        arrays["schedule"] = np.array([-1 if self.schedule is None else self.schedule.last_epoch])
        for name, p in self.model.named_parameters():
            arrays[f"model/{name}"] = p.detach().numpy().copy()
            for part, value in self.optimiser.state.get(p, {}).items():
                arrays[f"{part}/{name}"] = value.numpy().copy()
        return arrays

    def restored(self, state: State | None) -> int:
        """Set everything to what `arrays` wrote; returns how much was done, 0 where nothing is
        kept."""
        if state is None:
            return 0
        self.dropout.generator.set_state(torch.from_numpy(state["dropout"].copy()))
        self.draws.bit_generator.state = json.loads(state["draws"].tobytes(), object_hook=_words)
        for name, p in self.model.named_parameters():
            with torch.no_grad():
                p.copy_(torch.from_numpy(state[f"model/{name}"]))
            parts = [
                part for part in ("step", "exp_avg", "exp_avg_sq") if f"{part}/{name}" in state
            ]
            if parts:
                self.optimiser.state[p] = {
                    part: torch.from_numpy(state[f"{part}/{name}"].copy()) for part in parts
                }
        if self.schedule is not None:
            self._advance(int(state["schedule"][0]))
        return int(state["round"])

    def _advance(self, to: int) -> None:
        """A schedule is a function of its step: set the step, and let it set rate and momentum from
        there."""
        assert self.schedule is not None
        self.schedule.last_epoch = to - 1
        self.optimiser._opt_called = True  # type: ignore[attr-defined]  # it was, before: torch warns otherwise
        self.schedule.step()


def fresh_dropout(rate: float, streams: Streams) -> Dropout:
    """By the stream of its name."""
    return Dropout(
        rate, torch.Generator().manual_seed(int(streams.numpy("news-dropout").integers(2**62)))
    )


def _words(table: dict[str, Any]) -> dict[str, Any]:
    """The lists of a generator's state as the words they were."""
    return {
        name: np.array(value, np.uint64) if isinstance(value, list) else value
        for name, value in table.items()
    }
