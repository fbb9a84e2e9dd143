"""The item encoder of AM-SSP: one averaged embedding bag per feature category, concatenated, one
dense layer to R^d.

For item j with categories c = 1..C,  h_jc = sum_l x_jcl E_cl  (x_jc: the counts of the category's
values on item j, divided by their sum; zero where the item has none),  v_j = [h_j1 .. h_jC] W + w0
(Krichene et al. 2023, App. E.1 "Model Architecture"). Everything here is a function of public
features and of released parameters, so it costs no budget.

The Jacobian-transpose product (`pullback`, Prop. 1 and eq. 4) is written by hand: two products with
one sparse matrix that is prepared once together with its transpose. The gradient keeps the sparsity
of the features: it has a row for each feature that occurs among the items asked for, and no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from fedrec.arrays import Floats, Integers
from fedrec.data.features import PublicFeatures
from fedrec.numerics import compiled
from fedrec.numerics.threads import map_ranges

ID_CATEGORY = "id"
"""Name of the optional category that gives every item a value of its own, to hold what its features
do not explain."""

_PIECES = 64  # work units of one sparse product, of equal numbers of non-zeros


@dataclass(frozen=True)
class SparseRows:
    """A compressed sparse matrix, for products from the left: `row_ptr` (r + 1,), `columns` (nnz,)
    int32, `values` (nnz,) float32.

    cuts: (pieces + 1,) rows that split the non-zeros evenly, so that cores finish together. No row
    depends on the cuts.
    """

    row_ptr: Integers
    columns: Integers
    values: Floats
    cuts: Integers

    @staticmethod
    def from_csr(matrix: sparse.csr_matrix) -> SparseRows:
        """Take the arrays of a CSR matrix."""
        row_ptr = matrix.indptr.astype(np.int64)
        work = row_ptr + np.arange(len(row_ptr))  # an empty row costs about one non-zero
        cuts = np.searchsorted(work, np.linspace(0, work[-1], _PIECES + 1)).clip(
            0, len(row_ptr) - 1
        )
        return SparseRows(
            row_ptr, matrix.indices.astype(np.int32), matrix.data.astype(np.float32), cuts
        )

    def times(self, dense: Floats, *, out: Floats | None = None) -> Floats:
        """(r, d) product with `dense` (p, d), in its dtype, into `out` if given.

        A row is summed in the order of its columns."""
        out = np.empty((len(self.row_ptr) - 1, dense.shape[1]), dense.dtype) if out is None else out

        def piece(start: int, stop: int) -> None:
            _multiply(
                self.row_ptr,
                self.columns,
                self.values,
                dense,
                out,
                self.cuts[start],
                self.cuts[stop],
            )

        map_ranges(piece, len(self.cuts) - 1)
        return out


@dataclass(frozen=True)
class ItemInputs:
    """Public features of `num_items` items, ready for the encoder.

    categories: C names. sizes: how many values each knows; P = sum(sizes).
    bags: (num_items C, P) averages; row j C + c is category c of item j and sums to 1, or is empty.
    occurring: (a,) int32, sorted, the features that occur on these items. transposed: (a, num_items
    C), the rows of `bags` transposed. csr: the same `bags` as a scipy matrix, from which `batch`
    cuts rows.
    """

    num_items: int
    categories: tuple[str, ...]
    sizes: tuple[int, ...]
    bags: SparseRows
    occurring: Integers
    transposed: SparseRows
    csr: sparse.csr_matrix

    def batch(self, items: Integers) -> ItemInputs:
        """The inputs of some items, in the given order (B of Alg. 5). Cost: linear in their
        non-zeros."""
        C = len(self.categories)
        rows = (np.asarray(items, np.int64)[:, None] * C + np.arange(C)).ravel()
        return _inputs(self.csr[rows], len(items), self.categories, self.sizes)


@dataclass(frozen=True)
class EncoderParameters:
    """theta_v: `embeddings` (P, d), the tables of all categories one below the other; `dense` (C d,
    d); `bias` (d,). float32."""

    embeddings: Floats
    dense: Floats
    bias: Floats


@dataclass(frozen=True)
class EncoderGradient:
    """A gradient in theta_v: `features` (a,) are the rows of the tables it touches, `embeddings`
    (a, d) their gradient."""

    features: Integers
    embeddings: Floats
    dense: Floats
    bias: Floats


@dataclass(frozen=True)
class Scratch:
    """Room for one pass forward and back, used again at every step: fresh pages cost as much as the
    products that fill them.

    hidden, hidden_gradient: (num_items, C d). embeddings: (a, d), where `pullback` puts the
    gradient until the next pass.
    """

    hidden: Floats
    hidden_gradient: Floats
    embeddings: Floats

    @staticmethod
    def like(parameters: EncoderParameters, inputs: ItemInputs) -> Scratch:
        """Room that fits these parameters on these items."""
        wide, d = parameters.dense.shape
        shapes = ((inputs.num_items, wide), (inputs.num_items, wide), (len(inputs.occurring), d))
        return Scratch(*(np.empty(shape, parameters.dense.dtype) for shape in shapes))


def prepare(features: PublicFeatures, *, identities: bool = False) -> ItemInputs:
    """Average every bag (a repeated value weighs as often as it occurs, App. E.1) and transpose
    once.

    identities: add a category with one value per item. Raises ValueError without any category or
    with a negative count.
    """
    bags = {
        name: sparse.csr_matrix(bag.counts, dtype=np.float64) for name, bag in features.bags.items()
    }
    if identities:
        m = next(iter(bags.values())).shape[0] if bags else 0
        bags[ID_CATEGORY] = sparse.csr_matrix(sparse.identity(m, dtype=np.float64, format="csr"))
    if not bags:
        raise ValueError("an item encoder needs at least one feature category, found none")
    for name, bag in bags.items():
        if bag.nnz and float(bag.data.min()) < 0:
            raise ValueError(f"category {name!r} holds a negative count {float(bag.data.min()):g}")
    m = next(iter(bags.values())).shape[0]
    C = len(bags)
    stacked = sparse.csr_matrix(
        sparse.block_diag([_averages(bag) for bag in bags.values()], format="csr")
    )
    # row c m + j becomes row j C + c
    interleaved = (np.arange(C) * m + np.arange(m)[:, None]).ravel()
    return _inputs(
        sparse.csr_matrix(stacked[interleaved]),
        m,
        tuple(bags),
        tuple(bag.shape[1] for bag in bags.values()),
    )


def init(inputs: ItemInputs, dimension: int, *, rng: np.random.Generator) -> EncoderParameters:
    """Random start: embeddings of std 1/sqrt(d), dense of std 1/sqrt(C d), bias 0, so that a v_j of
    few features has norm about 1."""
    C = len(inputs.categories)
    d = dimension
    return EncoderParameters(
        embeddings=(rng.standard_normal((sum(inputs.sizes), d)) / math.sqrt(d)).astype(np.float32),
        dense=(rng.standard_normal((C * d, d)) / math.sqrt(C * d)).astype(np.float32),
        bias=np.zeros(d, np.float32),
    )


def forward(parameters: EncoderParameters, inputs: ItemInputs) -> Floats:
    """V (num_items, d): the embeddings of the items of `inputs`."""
    return hidden(parameters, inputs) @ parameters.dense + parameters.bias


def hidden(
    parameters: EncoderParameters, inputs: ItemInputs, *, scratch: Scratch | None = None
) -> Floats:
    """(num_items, C d): the averaged embeddings of every category side by side."""
    d = parameters.embeddings.shape[1]
    out = None if scratch is None else scratch.hidden.reshape(-1, d)
    return inputs.bags.times(parameters.embeddings, out=out).reshape(inputs.num_items, -1)


def pullback(
    parameters: EncoderParameters,
    inputs: ItemInputs,
    dV: Floats,
    *,
    hidden_layer: Floats | None = None,
    scratch: Scratch | None = None,
) -> EncoderGradient:
    """sum_j J_j dV_j, with J_j the transposed Jacobian of v_j in theta_v (Prop. 1), for dV
    (num_items, d).

    hidden_layer: `hidden(parameters, inputs)` where the caller already has it.
    """
    H = hidden(parameters, inputs, scratch=scratch) if hidden_layer is None else hidden_layer
    dH = np.matmul(dV, parameters.dense.T, out=None if scratch is None else scratch.hidden_gradient)
    return EncoderGradient(
        features=inputs.occurring,
        embeddings=inputs.transposed.times(
            dH.reshape(-1, dV.shape[1]), out=None if scratch is None else scratch.embeddings
        ),
        dense=H.T @ dV,
        bias=dV.sum(axis=0),
    )


def to_named_arrays(parameters: EncoderParameters, inputs: ItemInputs) -> dict[str, Floats]:
    """Arrays for files: one per category, `embedding/<category>`, then `dense` and `bias`."""
    bounds = np.cumsum(inputs.sizes)[:-1]
    tables = np.split(parameters.embeddings, bounds)
    named = {
        f"embedding/{name}": table for name, table in zip(inputs.categories, tables, strict=True)
    }
    return {**named, "dense": parameters.dense, "bias": parameters.bias}


def from_named_arrays(arrays: Mapping[str, Floats], inputs: ItemInputs) -> EncoderParameters:
    """The inverse of `to_named_arrays`.

    Raises ValueError naming the array that is missing or whose shape does not fit `inputs`."""
    C = len(inputs.categories)
    d = len(arrays["bias"]) if "bias" in arrays else 0
    expected: dict[str, tuple[int, ...]] = {
        f"embedding/{name}": (size, d)
        for name, size in zip(inputs.categories, inputs.sizes, strict=True)
    }
    expected |= {"dense": (C * d, d), "bias": (d,)}
    for name, shape in expected.items():
        found = arrays[name].shape if name in arrays else None
        if found != shape:
            raise ValueError(f"encoder array {name!r} must have shape {shape}, found {found}")
    tables = [arrays[f"embedding/{name}"] for name in inputs.categories]
    return EncoderParameters(np.concatenate(tables), arrays["dense"], arrays["bias"])


def _averages(bag: sparse.csr_matrix) -> sparse.csr_matrix:
    totals = np.asarray(bag.sum(axis=1)).ravel()
    return sparse.csr_matrix(sparse.diags_array(1.0 / np.where(totals > 0, totals, 1.0)) @ bag)


def _inputs(
    csr: sparse.csr_matrix, num_items: int, categories: tuple[str, ...], sizes: tuple[int, ...]
) -> ItemInputs:
    transposed = csr.T.tocsr()
    occurring = np.flatnonzero(np.diff(transposed.indptr)).astype(np.int32)
    row_ptr = np.append(transposed.indptr[occurring], transposed.indptr[-1])  # empty rows dropped
    compact = sparse.csr_matrix(
        (transposed.data, transposed.indices, row_ptr), shape=(len(occurring), csr.shape[0])
    )
    return ItemInputs(
        num_items,
        categories,
        sizes,
        SparseRows.from_csr(csr),
        occurring,
        SparseRows.from_csr(compact),
        csr,
    )


@compiled(fastmath={"contract"})
def _multiply(
    row_ptr: Integers,
    columns: Integers,
    values: Floats,
    dense: Floats,
    out: Floats,
    start: int,
    stop: int,
) -> None:
    """out[start:stop] = (sparse rows) @ dense, two non-zeros at a time: half the traffic to the row
    in cache."""
    d = dense.shape[1]
    for r in range(start, stop):
        first = row_ptr[r]
        last = row_ptr[r + 1]
        row = out[r]
        row[:] = 0
        even = last - (last - first) % 2
        for e in range(first, even, 2):
            x = values[e]
            y = values[e + 1]
            p = dense[columns[e]]
            q = dense[columns[e + 1]]
            for c in range(d):
                row[c] += x * p[c] + y * q[c]
        if even < last:
            x = values[even]
            p = dense[columns[even]]
            for c in range(d):
                row[c] += x * p[c]
