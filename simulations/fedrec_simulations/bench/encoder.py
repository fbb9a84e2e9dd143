"""How fast does the item encoder learn? One SSP2 epoch against its own products, and against DP-SGD
with Opacus on the same encoder.

Shape: AM-SSP App. E.1, Table 2: the 10,677 items of MovieLens-10M, 58,645 feature values in five
categories, 725,000 non-zeros, d = 64, 10 million examples. All generated: only sizes matter here.
Every figure is a ratio of two times of the same run, beside the times.

What is compared with what:
- products: the three dense products (hidden layer x dense layer, and its two transposes), the two
  sparse ones (bags x tables, and its transpose) and the symmetric packed A_j v_j, each timed alone,
  each in the fastest form we know of (ours, numpy, scipy or torch).
- an SSP2 epoch visits every item once, with everything: products, statistics, optimizer, copies
  (Alg. 5; full batch is Alg. 3).
- a DP-SGD epoch visits every example once (Alg. 6 without its item cache, which Opacus has no way
  to express). The paper gives no batch size for it and calls 100-1,000 the small-batch regime:
  1,000 is taken as "the paper's", 4,000 beside it. A few batches are timed and multiplied:
  `extrapolated_from_batches` says from how many. Ghost clipping, the fastest mode of Opacus for
  this model, is used, with as many torch threads as is fastest (on busy machines that is one).
"""

from __future__ import annotations

import statistics as medians
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.encoders import items as encoder
from fedrec.encoders.items import EncoderParameters, ItemInputs
from fedrec.factorization.am_ssp import gradient
from fedrec.factorization.am_ssp.gradient import Constant, Descent
from fedrec.factorization.am_ssp.optimizers import Adam, GradientDescent, Optimizer
from fedrec.factorization.item_statistics import ItemStatistics


@dataclass(frozen=True)
class Shape:
    """Sizes of the benchmark. categories: name -> (values, non-zeros over all items)."""

    num_items: int
    dimension: int
    num_examples: int
    categories: dict[str, tuple[int, int]]


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
QUICK = Shape(500, 16, 50_000, {"year": (50, 500), "genre": (20, 1_000), "person": (2_000, 12_000)})


def run(*, quick: bool = False) -> dict[str, Any]:
    """Ratios and milliseconds as a JSON-able dict.

    `quick` shrinks everything to a second or two, for tests of the wiring."""
    shape, repeats = (QUICK, 3) if quick else (ML10M, 15)
    rng = np.random.default_rng(0)
    inputs = encoder.prepare(generate(shape, rng=rng))
    theta = encoder.init(inputs, shape.dimension, rng=rng)
    stats = _statistics(shape, rng)
    products = _products(inputs, theta, stats, rng, repeats)
    alone = sum(min(forms.values()) for forms in products.values())
    epochs = {
        "full_batch_gradient_descent": _epoch(
            inputs, theta, stats, GradientDescent(), None, repeats
        ),
        "full_batch_adam": _epoch(inputs, theta, stats, Adam(), None, repeats),
        "batches_of_1024_items_adam": _epoch(inputs, theta, stats, Adam(), 1024, repeats),
    }
    sgd = _dp_sgd_epochs(shape, inputs, quick)
    return {
        "shape": {
            "items": shape.num_items,
            "features": sum(inputs.sizes),
            "features_that_occur": len(inputs.occurring),
            "non_zeros": int(inputs.csr.nnz),
            "dimension": shape.dimension,
            "examples": shape.num_examples,
        },
        "products_ms": products,
        "fastest_products_sum_ms": alone,
        "ssp2_epoch_ms": epochs,
        "ssp2_epoch_over_products": {name: ms / alone for name, ms in epochs.items()},
        "dp_sgd_epoch": sgd,
        "dp_sgd_epoch_over_ssp2_epoch": {
            size: figures["seconds_per_epoch"] * 1e3 / epochs["full_batch_adam"]
            for size, figures in sgd.items()
        },
    }


def generate(shape: Shape, *, rng: np.random.Generator) -> PublicFeatures:
    """Bags of exactly the asked numbers of non-zeros: long tails of values, uneven items, some
    repetitions."""
    bags = {}
    for name, (values, wanted) in shape.categories.items():
        busy = rng.lognormal(0, 0.5, shape.num_items)
        # one each
        cells = np.arange(shape.num_items) * values + _tail(values, shape.num_items, rng)
        while len(cells) < wanted:
            items = rng.choice(shape.num_items, 2 * wanted, p=busy / busy.sum())
            more = rng.permutation(
                np.setdiff1d(items * values + _tail(values, 2 * wanted, rng), cells)
            )
            cells = np.concatenate([cells, more[: wanted - len(cells)]])
        counts = (1 + rng.poisson(0.2, len(cells))).astype(np.float32)
        matrix = sparse.csr_matrix(
            (counts, (cells // values, cells % values)), shape=(shape.num_items, values)
        )
        bags[name] = FeatureBag(tuple(f"{name}{v}" for v in range(values)), matrix)
    return PublicFeatures(bags)


def _tail(values: int, size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Half the draws log-uniform in rank (a Zipf tail), half uniform, so that rare values occur
    too."""
    zipf = np.floor(np.exp(rng.random(size) * np.log(values + 1))).astype(np.int64) - 1
    return np.where(rng.random(size) < 0.5, zipf, rng.integers(0, values, size)).clip(0, values - 1)


def _statistics(shape: Shape, rng: np.random.Generator) -> ItemStatistics:
    d = shape.dimension
    gram = (0.1 * rng.standard_normal((shape.num_items, d * (d + 1) // 2))).astype(np.float32)
    rows, columns = np.triu_indices(d)
    # positive definite, whatever the noise: every optimizer stays finite
    gram[:, rows == columns] += 2 * d**0.5
    return ItemStatistics(gram, rng.standard_normal((shape.num_items, d)).astype(np.float32))


def _ms(call: Callable[[], object], repeats: int) -> float:
    """Median milliseconds, after one call to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return medians.median(times)


def _products(
    inputs: ItemInputs,
    theta: EncoderParameters,
    stats: ItemStatistics,
    rng: np.random.Generator,
    repeats: int,
) -> dict[str, dict[str, float]]:
    """Milliseconds of each product by each form, interleaved with nothing else."""
    import torch

    d = theta.dense.shape[1]
    H, W = encoder.hidden(theta, inputs), theta.dense
    V = H @ W + theta.bias
    dV = rng.standard_normal(V.shape).astype(np.float32)
    dH = np.ascontiguousarray(dV @ W.T)
    X = inputs.csr.astype(np.float32)
    XT = X.T.tocsr()
    E, rows = theta.embeddings, dH.reshape(-1, d)
    tH, tW, tdV, tE, trows = (
        torch.from_numpy(np.ascontiguousarray(a)) for a in (H, W, dV, E, rows)
    )
    tX, tXT = (_torch_csr(matrix) for matrix in (X, XT))
    forms: dict[str, dict[str, Callable[[], object]]] = {
        "dense_forward": {"numpy": lambda: H @ W, "torch": lambda: tH @ tW},
        "dense_to_hidden": {"numpy": lambda: dV @ W.T, "torch": lambda: tdV @ tW.T},
        "dense_to_weights": {"numpy": lambda: H.T @ dV, "torch": lambda: tH.T @ tdV},
        "sparse_forward": {
            "ours": lambda: inputs.bags.times(E),
            "scipy": lambda: X @ E,
            "torch": lambda: tX @ tE,
        },
        "sparse_backward": {
            "ours": lambda: inputs.transposed.times(rows),
            "scipy": lambda: XT @ rows,
            "torch": lambda: tXT @ trows,
        },
        "symmetric_packed": {"ours": lambda: gradient.residuals(stats, V, ridge=1.0)},
    }
    return {
        name: {form: _ms(call, repeats) for form, call in calls.items()}
        for name, calls in forms.items()
    }


def _torch_csr(matrix: sparse.csr_matrix) -> Any:
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "sparse CSR support is in beta state"
        parts = (
            torch.from_numpy(matrix.indptr),
            torch.from_numpy(matrix.indices),
            torch.from_numpy(matrix.data),
        )
        return torch.sparse_csr_tensor(*parts, size=matrix.shape)


def _epoch(
    inputs: ItemInputs,
    theta: EncoderParameters,
    stats: ItemStatistics,
    optimizer: Optimizer,
    batch: int | None,
    repeats: int,
) -> float:
    """Milliseconds of one epoch, from runs of several: the copy of the parameters at the start is
    shared among them."""
    steps_per_epoch = 1 if batch is None else -(-inputs.num_items // batch)
    epochs = 5
    descent = Descent(
        steps=epochs * steps_per_epoch, rate=Constant(1e-5), optimizer=optimizer, batch_items=batch
    )
    rng = np.random.default_rng(0)
    call = lambda: gradient.ssp2(theta, inputs, stats, descent=descent, ridge=1.0, rng=rng)  # noqa: E731
    return _ms(call, max(3, repeats // 3)) / epochs


def _dp_sgd_epochs(shape: Shape, inputs: ItemInputs, quick: bool) -> dict[str, dict[str, float]]:
    """At the small batch size with one torch thread and with all, at the large one with what was
    faster."""
    import torch

    small, large = (20, 100) if quick else (1_000, 4_000)
    everything = torch.get_num_threads()
    try:
        tried = {
            threads: _dp_sgd_batch(shape, inputs, small, batches=5, threads=threads)
            for threads in {1, everything}
        }
        fastest = min(tried, key=lambda threads: tried[threads])
        seconds = {
            small: (tried[fastest], 5),
            large: (_dp_sgd_batch(shape, inputs, large, batches=1, threads=fastest), 1),
        }
    finally:
        torch.set_num_threads(everything)
    return {
        str(size): {
            "seconds_per_batch": per_batch,
            "torch_threads": fastest,
            "extrapolated_from_batches": batches,
            "seconds_per_epoch": per_batch * shape.num_examples / size,
        }
        for size, (per_batch, batches) in seconds.items()
    }


def _dp_sgd_batch(
    shape: Shape, inputs: ItemInputs, batch_size: int, *, batches: int, threads: int
) -> float:
    """Median seconds of a few batches, after one to warm up."""
    import torch

    from fedrec_simulations.bench import opacus_peer

    torch.set_num_threads(threads)
    rng = np.random.default_rng(1)
    peer = opacus_peer.make(inputs, shape.dimension, batch_size)
    popularity = rng.lognormal(0, 1.5, shape.num_items)
    seconds = []
    for _ in range(batches + 1):
        chosen = rng.choice(shape.num_items, batch_size, p=popularity / popularity.sum())
        U = torch.from_numpy(rng.standard_normal((batch_size, shape.dimension)).astype(np.float32))
        y = torch.from_numpy(rng.standard_normal(batch_size).astype(np.float32))
        start = time.perf_counter()
        peer.step(chosen, U, y)
        seconds.append(time.perf_counter() - start)
    return medians.median(seconds[1:])
