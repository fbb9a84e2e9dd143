"""The layers the news models are made of: multi-head self-attention, additive attention, dropout
with its own randomness.

Weights are drawn from a NumPy generator the caller names, never from torch's global one, so a model
is a function of its settings and its stream. A masked place has weight exactly 0, whatever stands
there; where every place is masked the result is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

# exp of it is 0 in float32, and unlike -inf it leaves no NaN where everything is masked
_FAR = -1e30


def matrix(rows: int, columns: int, *, rng: np.random.Generator) -> nn.Parameter:
    """(rows, columns) float32, uniform with the variance of Glorot & Bengio 2010."""
    bound = math.sqrt(6 / (rows + columns))
    return nn.Parameter(
        torch.from_numpy(rng.uniform(-bound, bound, (rows, columns)).astype(np.float32))
    )


def offset(length: int) -> nn.Parameter:
    """(length,) float32 zeros."""
    return nn.Parameter(torch.zeros(length))


@dataclass(frozen=True)
class Dropout:
    """Zeroes each number with probability `rate` in [0, 1), to the nearest 1/256, and scales the
    rest up in turn.

    One random byte of `generator` decides on each number: in a step over short texts, drawing more
    costs as much as the attention.
    """

    rate: float
    generator: torch.Generator

    def __call__(self, x: Tensor) -> Tensor:
        """x with numbers dropped, fresh ones at each call."""
        least = round(256 * self.rate)
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(
            -(2**63), None, generator=self.generator
        )
        kept = (words.view(torch.uint8)[: x.numel()] >= least).view_as(x)
        return x * kept * (256 / (256 - least))


def dropped(x: Tensor, dropout: Dropout | None) -> Tensor:
    """x, or x with dropout where there is one: in training, that is, and not in evaluation."""
    return x if dropout is None else dropout(x)


def masked_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis, of the places where the broadcast bool `mask` holds; 0
    elsewhere."""
    if mask is None:
        return functional.softmax(logits, -1)
    return functional.softmax(logits.masked_fill(~mask, _FAR), -1) * mask


def gather_projected(x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """(x @ weight)[index] for x (p, a), weight (a, c): (*index.shape, c): gathers before or after
    multiplying, whichever is less."""
    if index.numel() > len(x):
        return functional.embedding(index, x @ weight)
    return functional.embedding(index, x) @ weight


class SelfAttention(nn.Module):
    """Multi-head self-attention without positions, heads side by side (Wu et al. 2019, NRMS, eq.
    1-2).

    The paper's bilinear form e_i' Q e_j per head is here, as in its authors' code, of rank width /
    heads and scaled by its root: (W_q e_i)' (W_k e_j) / sqrt(width / heads). Raises ValueError if
    `heads` does not divide `width`.
    """

    def __init__(self, inputs: int, width: int, heads: int, *, rng: np.random.Generator) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"heads must divide the width, found {heads} and {width}")
        self.heads = heads
        # (inputs, 3 width)
        self.project = nn.Parameter(
            torch.cat([matrix(inputs, width, rng=rng).data for _ in "qkv"], 1)
        )

    def gathered(self, x: Tensor, index: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, L, width) contexts of the sequences x[index], x (p, inputs), index (n, L), mask (n,
        L) bool of places that exist."""
        n, length = index.shape
        parts = (gather_projected(x, index, weight) for weight in self.project.chunk(3, -1))
        # (n, heads, L, width of a head)
        q, k, v = (part.view(n, length, self.heads, -1).transpose(1, 2) for part in parts)
        # torch's fused kernel is faster, but has no derivative under vmap and none of our rule for
        # empty sequences
        if mask is None:
            h = functional.scaled_dot_product_attention(q, k, v)
        else:
            h = (
                masked_softmax(
                    (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2), mask[:, None, None, :]
                )
                @ v
            )
        return h.transpose(1, 2).reshape(n, length, -1)


class AdditiveAttention(nn.Module):
    """sum_i w_i h_i with w = softmax_i(q' tanh(W h_i + c)) (NRMS eq. 3-5; NAML eq. 3-5): which
    parts of a sequence speak for it."""

    def __init__(self, width: int, queries: int, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.dense = matrix(width, queries, rng=rng)
        self.bias = offset(queries)
        self.query = matrix(queries, 1, rng=rng)

    def weights(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, L) weights of h (n, L, width), mask (n, L) bool."""
        logits = (torch.tanh(h @ self.dense + self.bias) @ self.query).squeeze(-1)
        return masked_softmax(logits, mask)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, width) weighted sums."""
        return (self.weights(h, mask).unsqueeze(-2) @ h).squeeze(-2)
