"""A user vector as a mixture of B public basis vectors: a user sends B weights, and the server
rebuilds d numbers (PrivateRec Sec. 3.2.2).

This is the differentiable side. The mechanisms themselves, their noise and their guarantees are in
`fedrec.news`; what happens to the weights between a user and the server is a `Release` handed in:

- `exact`: nothing, no privacy.
- `stopped(mechanism)`: the noise of a mechanism, and no gradient through it. What follows is a
  function of what was released and of public things: post-processing. This is where training under
  a local guarantee must stop (SOUND form of Alg. 3).
- `noised(noise, ...)`: the paper's own, with a gradient through clipping, noise and
  renormalisation. That gradient multiplies activations that were not noised, so nothing is
  guaranteed about it: NOT ESTABLISHED, for reproduction and attack only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrec.arrays import Float64s

Release = Callable[[Tensor], Tensor]
"""From weights (n, B) to the weights (n, B) that leave the device."""


class Basis(nn.Module):
    """b: B public vectors (B, d), trained with the model. B = 3, 5, 10 or 32 in the experiments."""

    def __init__(self, size: int, width: int, *, rng: np.random.Generator) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a basis needs at least one vector, found {size}")
        rows = rng.standard_normal((size, width))
        self.vectors = nn.Parameter(torch.from_numpy(rows.astype(np.float32)))

    def attention(self, users: Tensor) -> Tensor:
        """(n, B) softmax(u b' / sqrt d) of user vectors (n, d): positive, rows of sum 1 (Alg. 2, l.
        7)."""
        return functional.softmax(users @ self.vectors.T / math.sqrt(self.vectors.shape[1]), -1)

    def coordinates(self, users: Tensor) -> Tensor:
        """(n, B) weights whose mixture is nearest to u, of the least norm: exact where u lies in
        the span. Any sign, any sum."""
        inverse: Tensor = torch.linalg.pinv(self.vectors)
        return users @ inverse

    def reconstruct(self, weights: Tensor) -> Tensor:
        """(n, d) mixtures sum_i w_i b_i of weights (n, B) (Alg. 1, l. 3)."""
        return weights @ self.vectors

    def decompose(self, users: Tensor, release: Release) -> Tensor:
        """(n, d) user vectors as the server rebuilds them from what `release` lets out of their
        attention."""
        return self.reconstruct(release(self.attention(users)))


def exact(weights: Tensor) -> Tensor:
    """The weights as they are: no privacy."""
    return weights


def stopped(mechanism: Callable[[Float64s], npt.NDArray[np.floating]]) -> Release:
    """The release of `mechanism`, float64 (n, B) to (n, B), as a constant: no gradient flows back
    to the history.

    The guarantee is the mechanism's; whatever is computed from the result and public things keeps
    it.
    """

    def release(weights: Tensor) -> Tensor:
        released = mechanism(weights.detach().double().numpy())
        return torch.from_numpy(np.asarray(released, np.float32)).to(weights.dtype)

    return release


def noised(noise: Tensor, *, radius: float, renormalise: Release) -> Release:
    """Clip to L2 norm `radius`, add the drawn `noise` (n, B), renormalise (Alg. 2, l. 8-10), all
    with gradient: NOT ESTABLISHED."""
    return lambda weights: renormalise(clipped(weights, radius) + noise)


def clipped(weights: Tensor, radius: float) -> Tensor:
    """Rows scaled down to L2 norm `radius` where longer (Alg. 2, l. 8)."""
    norms = torch.linalg.vector_norm(weights, dim=-1, keepdim=True)
    return weights / torch.clamp(norms / radius, min=1.0)


def relu_share(weights: Tensor) -> Tensor:
    """ReLU(w_i) / sum_j ReLU(w_j) (Sec. 3.3: training); equal shares where no weight is positive,
    which the paper leaves open."""
    positive = functional.relu(weights)
    total = positive.sum(-1, keepdim=True)
    return torch.where(
        total > 0, positive / torch.where(total > 0, total, 1.0), 1 / weights.shape[-1]
    )


def softplus_share(weights: Tensor) -> Tensor:
    """SoftPlus(w_i) / sum_j SoftPlus(w_j) (Alg. 2, l. 10)."""
    positive = functional.softplus(weights)
    return positive / positive.sum(-1, keepdim=True)
