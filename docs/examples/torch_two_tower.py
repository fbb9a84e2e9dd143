"""Two towers in PyTorch, trained with a guarantee per person: item vectors from public features,
and a person's vector from the items of the clicks.

`python docs/examples/torch_two_tower.py` trains it on invented clicks.
"""

import torch
from torch import nn


class TwoTower(nn.Module):
    """Item vectors W x_j; a person's vector is a gated mean of those of the clicks."""

    def __init__(self, items: int, features: torch.Tensor, width: int = 16) -> None:
        super().__init__()
        self.register_buffer("features", features)
        inputs = features.shape[1]
        # a public start: leading directions of the features, so that lists are by likeness at once
        start = torch.zeros(inputs, width)
        start[range(min(inputs, width)), range(min(inputs, width))] = 1.0
        self.tower = nn.Parameter(start)
        self.strength = nn.Parameter(torch.tensor(1.0))

    def items(self) -> torch.Tensor:
        V = self.features @ self.tower
        return V - V.mean(0)

    def user(self, clicked: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return self.strength * V[clicked].sum(0) / (1 + len(clicked)) ** 0.5


if __name__ == "__main__":
    import fedrec

    data = fedrec.Dataset.planted("demo", kind="clicks")
    train, test = data.split()
    model = fedrec.TorchRecommender(TwoTower, epsilon=5).fit(train)
    print(model.guarantee)
    print(fedrec.evaluate(model, test))
    print(model.save("two-tower"))  # for `fedrec serve two-tower`, see docs/torch.md
