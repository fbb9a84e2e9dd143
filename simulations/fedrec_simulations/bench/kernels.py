"""How fast are the kernels? Item statistics, small solves, projections and noise, against torch,
numpy and the machine itself.

Shape: MovieLens-10M's, generated (`longtail.py`). Every ratio is of two times of the same run;
forms take turns and keep their fastest (`stopwatch.py`). What is counted:
- item statistics: A_j = sum w u u' and b_j = sum t u of all items, from a user matrix, with weights
  and targets given in the item order for us and for torch alike. Useful flops per event: d(d+1) for
  one triangle of A, 2d for b, d for the weights; the machine's rate is that of a dense SGEMM (2 n^3
  flops) in the faster of numpy and torch.
- exact: the aggregator's integer sums of (A_j), from quantised reports, with the item order given;
  and with the grouping included.
- noise: exact discrete Gaussians from an AES-CTR keystream; numpy's continuous, insecure generator
  stands beside.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from fedrec.data.interactions import Interactions, ItemOrder, order_by_item
from fedrec.factorization.item_statistics import item_statistics
from fedrec.factorization.least_squares import project_psd, solve_packed
from fedrec.federation.messages import BlockReports, BlockSpec, Reports
from fedrec.federation.sums import ExactSums
from fedrec.numerics.packed import pack, unpack
from fedrec.numerics.threads import cores
from fedrec.privacy import discrete_gaussian
from fedrec.privacy.keystream import Keystream
from fedrec_simulations.bench import torch_forms
from fedrec_simulations.bench.longtail import ML10M, QUICK, generate
from fedrec_simulations.bench.stopwatch import best_ms

KEY = bytes(32)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Ratios and milliseconds as a JSON-able dict.

    `quick` shrinks everything to seconds, for tests of the wiring."""
    shape, turns = (QUICK, 1) if quick else (ML10M, 5)
    rng = np.random.default_rng(0)
    torch.set_num_threads(cores())
    interactions = generate(shape, rng=rng)
    widths = (8,) if quick else (32, 64)
    return {
        "shape": {
            "users": shape.users,
            "items": shape.items,
            "events": len(interactions),
            "cores": cores(),
        },
        "item_statistics": {f"d{d}": _item_statistics(interactions, d, rng, turns) for d in widths},
        "solves": {f"d{d}": _solves(d, 64 if quick else 16_384, rng, turns) for d in widths},
        "projection": {
            f"d{widths[-1]}": _projection(widths[-1], 50 if quick else 4_000, rng, turns)
        },
        "noise": _noise(10_000 if quick else 8_000_000, turns),
    }


def _item_statistics(
    interactions: Interactions, d: int, rng: np.random.Generator, turns: int
) -> dict[str, Any]:
    order = order_by_item(interactions.user_ptr, interactions.items, interactions.num_items)
    grouped = ItemOrder(order.item_ptr, order.users, np.empty(0, np.int64))
    U = rng.standard_normal((interactions.num_users, d), np.float32)
    targets, weights = (
        rng.standard_normal(len(interactions), np.float32),
        rng.random(len(interactions), np.float32),
    )
    reports, spec = _reports(interactions, d, rng)
    tensors = [torch.from_numpy(array) for array in (U, targets, weights)]
    batched: dict[str, Callable[[], object]] = {
        "torch_padded_buckets": torch_forms.padded_buckets(grouped, *tensors)
    }
    for length in (32, 128):
        batched[f"torch_chunks_of_{length}"] = torch_forms.chunks(grouped, *tensors, length=length)
    ours = {
        "float32": lambda: item_statistics(grouped, U, targets, weights),
        "float32_columns_by_user": lambda: item_statistics(order, U, targets, weights),
        "exact": lambda: _exact(reports, spec, order),
        "exact_with_grouping": lambda: _exact(reports, spec, None),
        "sgemm_numpy": _product(U, rng),
        "sgemm_torch": _torch_product(rng),
        "torch_item_loop_not_batched": torch_forms.item_loop(grouped, *tensors),
    }
    ms = best_ms(ours | batched, turns=turns)
    gflops = {
        name: len(interactions) * d * (d + 4) / 1e6 / ms[name]
        for name in ("float32", "float32_columns_by_user")
    }
    sgemm = max(2 * _SIDE**3 / 1e6 / ms[name] for name in ("sgemm_numpy", "sgemm_torch"))
    batched_ms = min(ms[name] for name in batched)
    return {
        "ms": ms,
        "useful_gflops": gflops,
        "sgemm_gflops": sgemm,
        "share_of_sgemm": gflops["float32"] / sgemm,
        "best_batched_torch_over_ours": batched_ms / ms["float32"],
        "torch_item_loop_over_ours": ms["torch_item_loop_not_batched"] / ms["float32"],
        "exact_over_float32": ms["exact"] / ms["float32"],
        "exact_with_grouping_over_float32": ms["exact_with_grouping"] / ms["float32"],
        "largest_error_to_torch": _error(grouped, U, targets, weights),
    }


_SIDE = 2048


def _product(U: np.ndarray, rng: np.random.Generator) -> Callable[[], object]:
    X = rng.standard_normal((_SIDE, _SIDE), U.dtype)
    return lambda: X @ X


def _torch_product(rng: np.random.Generator) -> Callable[[], object]:
    X = torch.from_numpy(rng.standard_normal((_SIDE, _SIDE), np.float32))
    return lambda: X @ X


def _reports(
    interactions: Interactions, d: int, rng: np.random.Generator
) -> tuple[Reports, BlockSpec]:
    vectors = rng.integers(-(2**14), 2**14, (interactions.num_users, d), dtype=np.int32)
    coefficients = rng.integers(0, 2**14, len(interactions), dtype=np.int32)
    spec = BlockSpec("A", "outer", interactions.num_items, d, 1.0, 1.0)
    return Reports(
        interactions.user_ptr, interactions.items, (BlockReports(coefficients, vectors),)
    ), spec


def _exact(reports: Reports, spec: BlockSpec, order: ItemOrder | None) -> None:
    ExactSums([spec]).add(reports, order=order)


def _error(order: ItemOrder, U: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
    """Largest difference of our A to the padded form's, over the largest entry of A, on the first
    items."""
    items = min(500, len(order.item_ptr) - 1)
    stop = int(order.item_ptr[items])
    few = ItemOrder(order.item_ptr[: items + 1], order.users[:stop], order.positions)
    theirs = torch_forms.padded_buckets(
        few, *(torch.from_numpy(a) for a in (U, targets[:stop], weights[:stop]))
    )()
    ours = unpack(item_statistics(few, U, targets[:stop], weights[:stop]).gram, U.shape[1])
    return float(np.abs(ours - theirs.numpy()).max() / np.abs(ours).max())


def _solves(d: int, count: int, rng: np.random.Generator, turns: int) -> dict[str, Any]:
    X = rng.standard_normal((count, d, d), np.float32)
    A = X @ X.swapaxes(1, 2) / d + np.eye(d, dtype=np.float32)
    b, packed = rng.standard_normal((count, d), np.float32), pack(A)
    tensors = torch.from_numpy(A), torch.from_numpy(b)
    ms = best_ms(
        {
            "ours": lambda: solve_packed(packed, b, ridge=0.0),
            "torch": lambda: torch_forms.cholesky_solve(*tensors),
        },
        turns=turns,
    )
    return {"systems": count, "ms": ms, "torch_over_ours": ms["torch"] / ms["ours"]}


def _projection(d: int, count: int, rng: np.random.Generator, turns: int) -> dict[str, Any]:
    X = rng.standard_normal((count, d, d), np.float32)
    A = X + X.swapaxes(1, 2)
    packed, tensor = pack(A), torch.from_numpy(A)
    forms: dict[str, Callable[[], object]] = {"ours": lambda: project_psd(packed, d)}
    for threads in sorted({1, cores()}):  # on busy machines torch is faster with one
        forms[f"torch_{threads}_threads"] = partial(
            torch_forms.clip_eigenvalues, tensor, threads=threads
        )
    ms = best_ms(forms, turns=min(turns, 3))
    torch.set_num_threads(cores())
    error = float(
        np.abs(
            unpack(project_psd(packed, d), d)
            - torch_forms.clip_eigenvalues(tensor, threads=1).numpy()
        ).max()
        / np.abs(A).max()
    )
    return {
        "matrices": count,
        "ms": ms,
        "torch_over_ours": min(v for k, v in ms.items() if k != "ours") / ms["ours"],
        "largest_difference": error,
    }


def _noise(size: int, turns: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def keystream() -> None:
        stream = Keystream(KEY, section=0, buffer_words=1 << 14)
        for _ in range(2 * size // (1 << 14)):
            stream.next_words()

    ms = best_ms(
        {
            "std_2^8": lambda: discrete_gaussian.sample(size, std=2.0**8, key=KEY),
            "std_2^16.3": lambda: discrete_gaussian.sample(size, std=2.0**16.3, key=KEY),
            "std_2^24": lambda: discrete_gaussian.sample(size, std=2.0**24, key=KEY),
            "numpy_continuous_insecure_one_core": lambda: rng.standard_normal(size),
            "keystream_words_one_core": keystream,
        },
        turns=turns,
    )
    return {
        "draws": size,
        "ms": ms,
        "million_per_second": {
            name: size / 1e3 / value for name, value in ms.items() if name.startswith("std")
        },
    }
