"""A model, its optimiser, schedule, dropout and draws, which stop together after a step and go on
together to the same bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedrec.encoders.news import Dropout
from fedrec.news.checkpoints import State, packed
from fedrec.news.report_model import ReportModelSettings
from fedrec.randomness import Streams

Draws = np.random.Generator


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
