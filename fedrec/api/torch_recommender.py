"""The estimator of a PyTorch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrec.api.recommender import Noise, Recommender


class TorchRecommender(Recommender):
    """A recommender that you write as a `torch.nn.Module`, trained with a guarantee per person:
    the recipe `torch`. What a module needs: docs/torch.md.

    Args:
        module: The class; its code stays here, and other parties need the same file.
        options: Of its constructor, beside the number of items and their public features.
        epsilon: Of the training, per user (add/remove); `math.inf` trains without privacy.
        delta: The probability with which the guarantee may fail.
        rounds: Everybody answers in each, and they share the budget.
        clip: Longer gradients of a person are shortened to this norm; noise is in proportion.
            Choose it on public or invented people: norms of those at hand are private.
        learning_rate: Of FedAdam on the server.
        noise: "system", or "seeded" for an experiment.
        seed: Of seeded noise.
        settings: Further keys of a scenario, for example `{"own.features": 128}`.

    >>> import torch, fedrec
    >>> class Plain(torch.nn.Module):
    ...     def __init__(self, items, features):
    ...         super().__init__()
    ...         self.table = torch.nn.Parameter(0.1 * torch.randn(items, 4))
    ...     def items(self):
    ...         return self.table
    ...     def user(self, clicked, V):
    ...         return V[clicked].mean(0)
    >>> model = fedrec.TorchRecommender(Plain, rounds=2)
    """

    recipe = "torch"

    def __init__(
        self,
        module: type,
        *,
        options: Mapping[str, Any] | None = None,
        epsilon: float = 5.0,
        delta: float = 1e-5,
        rounds: int = 20,
        clip: float = 0.25,
        learning_rate: float = 0.05,
        noise: Noise = "system",
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(epsilon=epsilon, delta=delta, noise=noise, seed=seed, settings=settings)
        self.module = module
        self.options = options
        self.rounds = rounds
        self.clip = clip
        self.learning_rate = learning_rate

    def _keys(self) -> dict[str, Any]:
        from fedrec.torch_modules.contract import register

        own = {
            "own.module": register(self.module),
            "own.options": dict(self.options or {}),
            "own.rounds": self.rounds,
            "own.clip": self.clip,
            "own.learning_rate": self.learning_rate,
        }
        return {**super()._keys(), **own}
