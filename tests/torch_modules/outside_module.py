"""A module of one's own, which an installed package names."""

import torch
from torch import nn


class Mean(nn.Module):
    """A free vector for each item, and public directions turned by a matrix."""

    def __init__(self, items: int, features: torch.Tensor, width: int = 3) -> None:
        super().__init__()
        self.register_buffer("features", features)
        self.table = nn.Parameter(0.1 * torch.randn(items, width))
        self.turned = nn.Parameter(torch.zeros(features.shape[1], width))

    def items(self) -> torch.Tensor:
        return self.table + self.features @ self.turned

    def user(self, clicked: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return V[clicked].mean(0)
