"""A sequence model in PyTorch, trained with a guarantee per person: self-attention over the latest
clicks, newest positions marked, on item vectors from public features.

Attention weights are divided by what each item's vector has on average, as re-attention does for
differentially private transformers (arXiv 2405.18194): noise makes long vectors longer, and they
would draw all attention. `python docs/examples/torch_sequence.py` trains it on invented clicks.
"""

import math

import torch
from torch import nn


class Sequence(nn.Module):
    """One head of self-attention; the newest click asks, all clicks answer."""

    def __init__(
        self, items: int, features: torch.Tensor, width: int = 16, clicks: int = 50
    ) -> None:
        super().__init__()
        self.register_buffer("features", features)
        self.clicks = clicks
        inputs = features.shape[1]
        start = torch.zeros(inputs, width)
        start[range(min(inputs, width)), range(min(inputs, width))] = 1.0
        self.tower = nn.Parameter(start)
        self.asks = nn.Parameter(torch.zeros(width, width))  # at first all clicks count alike
        self.age = nn.Parameter(torch.zeros(clicks))
        self.strength = nn.Parameter(torch.tensor(1.0))

    def items(self) -> torch.Tensor:
        V = self.features @ self.tower
        return V - V.mean(0)

    def user(self, clicked: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        own = V[clicked[-self.clicks :]]
        scores = own @ (self.asks @ own[-1]) / math.sqrt(own.shape[1])
        scores = scores / (1 + own.norm(dim=1)) + self.age[: len(own)].flip(0)
        return self.strength * math.sqrt(len(own)) * torch.softmax(scores, 0) @ own

    def loss(self, clicked: torch.Tensor, V: torch.Tensor, popular: torch.Tensor) -> torch.Tensor:
        """Each of the latest eight clicks by those before it."""
        places = range(max(1, len(clicked) - 8), len(clicked))
        asked = torch.stack([self.user(clicked[:place], V) for place in places])
        told = torch.log_softmax(asked @ V.T + popular, 1)
        return -told[torch.arange(len(places)), clicked[list(places)]].mean()


if __name__ == "__main__":
    import fedrec

    data = fedrec.Dataset.planted("demo", kind="clicks")
    train, test = data.split()
    model = fedrec.TorchRecommender(Sequence, epsilon=5).fit(train)
    print(model.guarantee)
    print(fedrec.evaluate(model, test))
    print(model.save("sequence"))  # for `fedrec serve sequence`, see docs/torch.md
