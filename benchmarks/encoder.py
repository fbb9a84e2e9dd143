"""The feature encoder.

An SSP2 epoch of the item encoder beside its own products, and beside DP-SGD with Opacus on the same
encoder. Shape of AM-SSP App. E.1, Table 2, generated: the 10,677 items of MovieLens-10M, 58,645
feature values in five categories, 725,000 non-zeros, d = 64, 10 million examples.

Products are the three dense ones (hidden layer x dense layer, and its two transposes), the two
sparse ones (bags x tables, and its transpose) and the symmetric packed A_j v_j, each in the fastest
form we know of. An SSP2 epoch visits every item once, with everything: products, statistics,
optimizer, copies (Alg. 5; full batch is Alg. 3). A DP-SGD epoch visits every example once: Opacus
cannot share an item's pass between its examples, as Alg. 6 does. The paper calls batches of 100 to
1,000 the small-batch regime. A few batches are timed and multiplied; ghost clipping, the fastest
mode of Opacus for this model, with as many torch threads as is fastest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from opacus import PrivacyEngine
from scipy import sparse
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measuring import fastest
from benchmarks.results import Row, Tables
from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.encoders import items as encoder
from fedrec.encoders.items import EncoderParameters, ItemInputs
from fedrec.factorization.am_ssp import gradient
from fedrec.factorization.am_ssp.gradient import Adam, Constant, Descent, GradientDescent, Optimizer
from fedrec.factorization.item_statistics import ItemStatistics

_EPOCHS = 5
Form = Callable[[], object]
Rng = np.random.Generator


@dataclass(frozen=True)
class Shape:
    """Sizes of the benchmark. categories: name -> (values, non-zeros over all items). batches: of
    DP-SGD."""

    num_items: int
    dimension: int
    num_examples: int
    categories: dict[str, tuple[int, int]]
    batches: tuple[int, int] = (1_000, 4_000)


ML10M = Shape(
    num_items=10_677,
    dimension=64,
    num_examples=10_000_000,
    categories={
        "year": (121, 10_677),
        "genre": (20, 21_564),
        "fine_genre": (310, 48_000),
        "role": (55, 90_000),
        "person": (58_139, 554_759),
    },
)
QUICK = Shape(
    500, 16, 50_000, {"year": (50, 500), "genre": (20, 1_000), "person": (2_000, 12_000)}, (20, 100)
)


def run(*, quick: bool) -> Tables:
    """Products, epochs of SSP2, and epochs of DP-SGD."""
    shape, turns = (QUICK, 1) if quick else (ML10M, 15)
    rng = np.random.default_rng(0)
    inputs = encoder.prepare(generate(shape, rng=rng))
    theta = encoder.init(inputs, shape.dimension, rng=rng)
    stats = _statistics(shape, rng)
    products: list[Row] = [
        {"product": name, "form": form, "ms": 1e3 * took.wall_s}
        for name, forms in _products(inputs, theta, stats, rng).items()
        for form, took in fastest(forms, turns=turns).items()
    ]
    alone = sum(
        min(row["ms"] for row in products if row["product"] == name)
        for name in {row["product"] for row in products}
    )
    epochs = {
        "full batch, gradient descent": _epochs(inputs, theta, stats, GradientDescent(), None),
        "full batch, Adam": _epochs(inputs, theta, stats, Adam(), None),
        "batches of 1,024 items, Adam": _epochs(inputs, theta, stats, Adam(), 1024),
    }
    took = fastest(epochs, turns=max(1, turns // 3))
    ms = {name: 1e3 * each.wall_s / _EPOCHS for name, each in took.items()}
    return {
        "Products": products,
        "An epoch of SSP2": [
            {"form": name, "ms": each, "over_its_products": each / alone}
            for name, each in ms.items()
        ],
        "An epoch of DP-SGD, extrapolated": _dp_sgd(shape, inputs, ms["full batch, Adam"] / 1e3),
    }


def generate(shape: Shape, *, rng: Rng) -> PublicFeatures:
    """Bags of exactly the asked numbers of non-zeros: long tails of values, uneven items, some
    repetitions."""
    bags = {}
    for name, (values, wanted) in shape.categories.items():
        busy = rng.lognormal(0, 0.5, shape.num_items)
        # one each
        cells = np.arange(shape.num_items) * values + _tail(values, shape.num_items, rng)
        while len(cells) < wanted:
            items = rng.choice(shape.num_items, 2 * wanted, p=busy / busy.sum())
            drawn = np.setdiff1d(items * values + _tail(values, 2 * wanted, rng), cells)
            cells = np.concatenate([cells, rng.permutation(drawn)[: wanted - len(cells)]])
        counts = (1 + rng.poisson(0.2, len(cells))).astype(np.float32)
        matrix = sparse.csr_matrix(
            (counts, (cells // values, cells % values)), shape=(shape.num_items, values)
        )
        bags[name] = FeatureBag(tuple(f"{name}{v}" for v in range(values)), matrix)
    return PublicFeatures(bags)


def _tail(values: int, size: int, rng: Rng) -> npt.NDArray[np.int64]:
    """Half the draws log-uniform in rank (a Zipf tail), half uniform, so that rare values occur
    too."""
    zipf = np.floor(np.exp(rng.random(size) * np.log(values + 1))).astype(np.int64) - 1
    return np.where(rng.random(size) < 0.5, zipf, rng.integers(0, values, size)).clip(0, values - 1)


def _statistics(shape: Shape, rng: Rng) -> ItemStatistics:
    d = shape.dimension
    gram = (0.1 * rng.standard_normal((shape.num_items, d * (d + 1) // 2))).astype(np.float32)
    rows, columns = np.triu_indices(d)
    # positive definite, whatever the noise: every optimizer stays finite
    gram[:, rows == columns] += 2 * d**0.5
    return ItemStatistics(gram, rng.standard_normal((shape.num_items, d)).astype(np.float32))


def _products(
    inputs: ItemInputs, theta: EncoderParameters, stats: ItemStatistics, rng: Rng
) -> dict[str, dict[str, Form]]:
    """Forms of each product."""
    H = encoder.hidden(theta, inputs)
    W = theta.dense
    V = H @ W + theta.bias
    dV = rng.standard_normal(V.shape).astype(np.float32)
    X = inputs.csr.astype(np.float32)
    XT = X.T.tocsr()
    E = theta.embeddings
    rows = np.ascontiguousarray(dV @ W.T).reshape(-1, W.shape[1])
    tH, tW, tdV, tE, trows = (
        torch.from_numpy(np.ascontiguousarray(a)) for a in (H, W, dV, E, rows)
    )
    tX, tXT = (_torch_csr(matrix) for matrix in (X, XT))
    return {
        "dense, forward": {"NumPy": lambda: H @ W, "torch": lambda: tH @ tW},
        "dense, to hidden": {"NumPy": lambda: dV @ W.T, "torch": lambda: tdV @ tW.T},
        "dense, to weights": {"NumPy": lambda: H.T @ dV, "torch": lambda: tH.T @ tdV},
        "sparse, forward": {
            "ours": lambda: inputs.bags.times(E),
            "SciPy": lambda: X @ E,
            "torch": lambda: tX @ tE,
        },
        "sparse, backward": {
            "ours": lambda: inputs.transposed.times(rows),
            "SciPy": lambda: XT @ rows,
            "torch": lambda: tXT @ trows,
        },
        "symmetric packed": {"ours": lambda: gradient.residuals(stats, V, ridge=1.0)},
    }


def _torch_csr(matrix: sparse.csr_matrix) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "sparse CSR support is in beta state"
        rows, columns, values = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
        return torch.sparse_csr_tensor(rows, columns, values, size=matrix.shape)


def _epochs(
    inputs: ItemInputs,
    theta: EncoderParameters,
    stats: ItemStatistics,
    optimizer: Optimizer,
    batch: int | None,
) -> Form:
    """Several: the copy of the parameters at the start is shared among them."""
    steps = _EPOCHS * (1 if batch is None else -(-inputs.num_items // batch))
    descent = Descent(steps=steps, rate=Constant(1e-5), optimizer=optimizer, batch_items=batch)
    rng = np.random.default_rng(0)
    return partial(gradient.ssp2, theta, inputs, stats, descent=descent, ridge=1.0, rng=rng)


def _dp_sgd(shape: Shape, inputs: ItemInputs, ssp2_s: float) -> list[Row]:
    """At the small batch size with one torch thread and with all, at the large one with what was
    faster."""
    small, large = shape.batches
    everything = torch.get_num_threads()
    try:
        tried = {t: _batch_s(shape, inputs, small, 5, threads=t) for t in {1, everything}}
        threads = min(tried, key=lambda each: tried[each])
        seconds = {
            small: (tried[threads], 5),
            large: (_batch_s(shape, inputs, large, 1, threads=threads), 1),
        }
    finally:
        torch.set_num_threads(everything)
    return [
        {
            "batch": size,
            "torch_threads": threads,
            "from_batches": batches,
            "s_a_batch": each,
            "s_an_epoch": each * shape.num_examples / size,
            "over_an_epoch_of_SSP2": each * shape.num_examples / size / ssp2_s,
        }
        for size, (each, batches) in seconds.items()
    ]


def _batch_s(shape: Shape, inputs: ItemInputs, size: int, batches: int, *, threads: int) -> float:
    """The least seconds of a few batches, after one to warm up."""
    torch.set_num_threads(threads)
    rng = np.random.default_rng(1)
    peer = peer_of(inputs, shape.dimension, size)
    popularity = rng.lognormal(0, 1.5, shape.num_items)
    chosen = rng.choice(shape.num_items, size, p=popularity / popularity.sum())
    U = torch.from_numpy(rng.standard_normal((size, shape.dimension)).astype(np.float32))
    y = torch.from_numpy(rng.standard_normal(size).astype(np.float32))
    return fastest({"": lambda: peer.step(chosen, U, y)}, turns=batches)[""].wall_s


class Encoder(nn.Module):
    """The encoder in torch, v of padded bags: arguments alternate between the looked-up values
    (B, L) and their weights (B, L), a pair per category."""

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


def peer_of(inputs: ItemInputs, dimension: int, batch_size: int) -> Peer:
    """The encoder under ghost clipping to norm 1, noise multiplier 1, plain SGD.

    Opacus clips EmbeddingBag only through a dense gradient per example (15 MB each at 58,645 x 64),
    which no batch survives; nn.Embedding has ghost clipping, which needs two backward passes and no
    such gradient. So bags are padded to the longest of the batch and looked up with nn.Embedding:
    padding has weight 0 and hence no gradient."""
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
    C = len(inputs.categories)
    out = list[Tensor]()
    offset = 0
    for c, size in enumerate(inputs.sizes):
        bags = inputs.csr[items * C + c]
        lengths = np.diff(bags.indptr)
        where = (
            np.repeat(np.arange(len(items)), lengths),
            np.arange(bags.nnz) - np.repeat(bags.indptr[:-1], lengths),
        )
        values = np.zeros((len(items), max(1, int(lengths.max()))), np.int64)
        weights = np.zeros(values.shape, np.float32)
        values[where] = bags.indices - offset
        weights[where] = bags.data
        out += [torch.from_numpy(values), torch.from_numpy(weights)]
        offset += size
    return out
