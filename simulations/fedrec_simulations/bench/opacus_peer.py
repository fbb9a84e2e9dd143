"""DP-SGD on the item encoder with Opacus, as fast as Opacus can: the peer of `bench/encoder.py`.
Needs the `bench` extra.

The same encoder in torch: per category, rows of one table are looked up, weighted by their share of
the bag and summed; the categories are concatenated and go through one dense layer. Opacus clips
EmbeddingBag only through a dense gradient per example (15 MB each at 58,645 x 64), which no batch
survives; nn.Embedding has ghost clipping, which needs two backward passes and no such gradient. So
bags are padded to the longest of the batch and looked up with nn.Embedding: padding has weight 0
and hence no gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedrec.encoders.items import ItemInputs


class Encoder(nn.Module):
    """v of padded bags: arguments alternate between the looked-up values (B, L) and their weights
    (B, L), a pair per category."""

    def __init__(self, sizes: tuple[int, ...], dimension: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dimension) for size in sizes)
        self.dense = nn.Linear(len(sizes) * dimension, dimension)

    def forward(self, *bags: Tensor) -> Tensor:
        """(B, d)."""
        looked_up = [
            (table(values) * weights.unsqueeze(-1)).sum(1)
            for table, values, weights in zip(self.tables, bags[::2], bags[1::2], strict=True)
        ]
        out: Tensor = self.dense(torch.cat(looked_up, 1))
        return out


class ScaledSquares(nn.Module):
    """(u . v - y)^2 / 2 per example; reduction as Opacus asks for it."""

    reduction = "mean"

    def forward(self, V: Tensor, target: Tensor) -> Tensor:
        """Targets are rows (u, y)."""
        losses = 0.5 * ((V * target[:, :-1]).sum(1) - target[:, -1]) ** 2
        return losses.mean() if self.reduction == "mean" else losses


@dataclass(frozen=True)
class Peer:
    """A private encoder and everything one step of it needs."""

    inputs: ItemInputs
    module: Any
    optimizer: Any
    criterion: Any

    def step(self, items: npt.NDArray[np.int64], U: Tensor, y: Tensor) -> None:
        """One batch of examples: item of each, its frozen user vector, its label."""
        bags = pad(self.inputs, items)
        self.optimizer.zero_grad()
        with _quiet():
            loss = self.criterion(self.module(*bags), torch.cat([U, y[:, None]], 1))
            loss.backward()
        self.optimizer.step()


def make(inputs: ItemInputs, dimension: int, batch_size: int) -> Peer:
    """The encoder under ghost clipping to norm 1, noise multiplier 1, plain SGD."""
    module = Encoder(inputs.sizes, dimension)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.zeros(10 * batch_size, 1)), batch_size=batch_size)
    with _quiet():
        private_module, private_optimizer, criterion, _ = PrivacyEngine().make_private(
            module=module,
            optimizer=optimizer,
            criterion=ScaledSquares(),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode="ghost",
        )
    return Peer(inputs, private_module, private_optimizer, criterion)


@contextmanager
def _quiet() -> Iterator[None]:
    """Opacus warns that its noise is not for deployment and that looked-up integers have no
    gradient: both are known here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def pad(inputs: ItemInputs, items: npt.NDArray[np.int64]) -> list[Tensor]:
    """Per category, (values, weights), each (B, longest bag of the batch)."""
    C, out, offset = len(inputs.categories), [], 0
    for c, size in enumerate(inputs.sizes):
        bags = inputs.csr[items * C + c]
        lengths = np.diff(bags.indptr)
        where = (
            np.repeat(np.arange(len(items)), lengths),
            np.arange(bags.nnz) - np.repeat(bags.indptr[:-1], lengths),
        )
        values = np.zeros((len(items), max(1, int(lengths.max()))), np.int64)
        weights = np.zeros(values.shape, np.float32)
        values[where], weights[where] = bags.indices - offset, bags.data
        out += [torch.from_numpy(values), torch.from_numpy(weights)]
        offset += size
    return out
