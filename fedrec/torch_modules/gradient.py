"""One person's gradient of a module's loss, bounded: what a device reports in a round.

    torch/gradient   features (m, f), popular (m,), numbers (m, ceil(P / m)), of which P are used
                     -> g / max(clip, ||g||), of norm at most 1

g is the gradient of the person's own loss at the question's parameters. A gradient that is no
number counts as zero: a server may have made the parameters. Users are taken one at a time, so that
a report is a function of that person's clicks, the question and the module alone.

Guarantee: `federation.reports.bounded` scales a longer vector down to the release's radius 1, and
cuts it towards zero on the grid; removing the user removes that report. Sensitivity 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fedrec.arrays import Float32s, Float64s, Floats, Int64s
from fedrec.data.interactions import Interactions
from fedrec.federation.messages import ClientStep, Question, Reports
from fedrec.federation.reports import RealBlock, bounded
from fedrec.torch_modules.contract import (
    Options,
    clicks_in_order,
    made,
    next_clicks_loss,
    trained_parameters,
    with_numbers,
)

STEP = "torch/gradient"


def client_steps(
    name: str, digest: str, options: Options, *, clip: float, most: int
) -> Mapping[str, ClientStep]:
    """What runs on a device. most: clicks of a person that are looked at, the latest ones."""

    def report(question: Question, mine: Interactions) -> Reports:
        public = question.public
        features = np.asarray(public["features"], np.float32)
        popular = torch.from_numpy(np.array(public["popular"], np.float32))
        numbers = np.asarray(public["numbers"], np.float32).ravel()[: question.blocks[0].width]
        module = made(name, digest, features, options, numbers=len(numbers))
        with_numbers(module, numbers)
        rows = gradients(module, popular, clicks_in_order(mine, most), users=mine.num_users)
        blocks = [RealBlock(np.ones(mine.num_users), rows / clip)]
        nothing = np.zeros_like(mine.user_ptr), mine.items[:0]  # a dense report names no item
        return bounded(*nothing, blocks, question.releases, scaling="clip")

    return {STEP: report}


def gradients(
    module: nn.Module,
    popular: Tensor,
    clicks: Iterable[Int64s],
    *,
    users: int,
) -> Float64s:
    """(users, P) each one's gradient; zero for a person of fewer than two clicks, and where it has
    numbers that are not finite."""
    parameters = trained_parameters(module)
    rows = np.zeros((users, sum(p.numel() for p in parameters)))
    loss = getattr(module, "loss", None)
    with one_thread():
        V: Tensor = module.items()  # type: ignore[operator]  # see the contract
        for row, clicked in zip(rows, clicks, strict=True):
            if len(clicked) < 2:
                continue
            own = torch.from_numpy(clicked)
            value = (
                next_clicks_loss(module, own, V, popular) if loss is None else loss(own, V, popular)
            )
            # the graph of V is used by the next person again
            found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
            flat = _flat(parameters, found)
            row[:] = flat if np.isfinite(flat).all() else 0.0
    return rows


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch with one thread: sums of several depend on how many there are, and a person's small
    arrays take them 40 times as long beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _flat(parameters: Sequence[Tensor], found: Sequence[Tensor | None]) -> Float32s:
    """(P,) the gradients one after the other, zeros where a parameter was not used."""
    parts = [
        torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)
    ]
    flat: Float32s = torch.cat([part.reshape(-1) for part in parts]).numpy()
    return flat


def in_rows(numbers: Floats, items: int) -> Float32s:
    """(items, c) the numbers and zeros after them: clients take arrays with a row for each item."""
    columns = -(-len(numbers) // items)
    padded = np.zeros(items * columns, np.float32)
    padded[: len(numbers)] = numbers
    return padded.reshape(items, columns)
