"""Sums over each user's events, one event after another.

`numpy.add.reduceat` and differences of cumulative sums round differently where the batch is cut
differently; `numpy.bincount` and SciPy's products add in order, so that a user's result depends on
that user alone. That is what makes a report the same in one process and in many.

Bayesian linear regression of a few users, by NumPy alone: the definition that compiled forms are
tested against, and what few users take, whom compiling would cost more than solving.

A user's n ratings are t_e = x_e' w + noise of variance v_e, w ~ N(0, I). With K = X X' + V the
posterior mean of w is G t for the gain G = X' K^-1 = (I + X' V^-1 X)^-1 X' V^-1. Users are padded
to one number of ratings by rows of zeros with variance 1 and target 0, which change nothing.

Leading eigenvectors of a positive semidefinite matrix that is known by its products alone; and the
ridge regression whose ridge minimises generalised cross-validation (Golub, Heath, Wahba 1979).
Symmetric matrices as their upper triangles. Events of users grouped by item, in linear time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Floats, Int32s, Int64s

STEP = 8
"""Users are padded to the next multiple: a user's numbers depend on that user alone."""
FEW_ITEMS = 1 << 10
"""Of a catalogue of up to so many items people are solved by NumPy, which saves ten seconds of
compiling, and takes 4 to 12 times as long for cross-fitting 2,000 people, up to 7 times for solves.
The catalogue is public: were it the batch that decides, whether one person is there would choose
how all others are rounded."""
SWEEPS = 8  # of subspace iteration: each raises eigenvalues' ratios to one power more
_RIDGES = 10.0 ** np.arange(-4, 3.1, 0.5)
"""Over the mean square of a direction."""
_BLOCK = 1 << 12
"""Rows whose columns are added at a time: they stay in the second-level cache."""
_TIE_KEY = 0x9E3779B9
"""2^32 over the golden ratio: any constant does, but the page and devices must have the same."""


def padded_sizes(counts: Int64s) -> Int64s:
    """(users,) number of ratings that each user is padded to."""
    return -(-counts // STEP) * STEP


def padded_users(ptr: Int64s) -> Iterator[tuple[Int64s, Int64s, npt.NDArray[np.bool_]]]:
    """Users (g,) of one padded number of ratings n, places (g, n) of their ratings among all, and
    which are theirs (g, n); the ratings of user k are those from ptr[k] to ptr[k + 1]."""
    counts = np.diff(ptr)
    sizes = padded_sizes(counts)
    for n in np.unique(sizes):
        users = np.flatnonzero(sizes == n)
        along = np.arange(n)
        real = along < counts[users][:, None]
        yield users, np.where(real, ptr[users][:, None] + along, 0), real


def one_user(
    X: Float64s, t: Float64s, v: Float64s, fold: npt.NDArray[np.integer]
) -> tuple[Float64s, Float64s, Float64s, Int64s]:
    """X (n, D), t, v and fold (n,) of one user, padded, with a first axis of length 1."""
    n = len(t)
    more = int(padded_sizes(np.array(n))) - n
    return (
        np.pad(X, ((0, more), (0, 0)))[None],
        np.pad(t, (0, more))[None],
        np.pad(v, (0, more), constant_values=1.0)[None],
        np.pad(fold.astype(np.int64), (0, more), constant_values=-1)[None],
    )


def gains(X: Float64s, v: Float64s) -> Float64s:
    """(g, D, n) the gain G of each of g users; X (g, n, D), v (g, n) > 0."""
    Xt = X.transpose(0, 2, 1)
    n, D = X.shape[1:]
    if n < D:
        return np.asarray(Xt @ np.linalg.inv(X @ Xt + v[:, None] * np.eye(n)))
    weighted = Xt / v[:, None]
    return np.asarray(np.linalg.inv(np.eye(D) + weighted @ X) @ weighted)


def times(A: Float64s, x: Float64s) -> Float64s:
    """(g, r) products of g matrices (g, r, c) and vectors (g, c)."""
    return np.asarray((A @ x[:, :, None])[:, :, 0])


def cross_fitted(
    X: Float64s, t: Float64s, v: Float64s, fold: Int64s, *, width: int, folds: int
) -> tuple[Float64s, Float64s, Float64s]:
    """Residuals (g, n), vectors (g, folds, width) and noise shares (g, n) of
    `cross_fitting.CrossFit`; X (g, n, D), t and v (g, n), fold (g, n), -1 in padding.

    For the ratings F of a fold: r_F = ((K^-1)_FF)^-1 (K^-1 t)_F, of covariance ((K^-1)_FF)^-1, and
    w_(F) = w - G_F r_F with K^-1 = V^-1 (I - X G).
    """
    G = gains(X, v)
    w = times(G, t)
    Kt = (t - times(X, w)) / v
    residuals = np.zeros_like(t)
    noise_share = np.zeros_like(t)
    vectors = np.zeros((len(X), folds, width))
    user, place = np.nonzero(fold >= 0)
    key = user * folds + fold[user, place]
    order = np.argsort(key, kind="stable")
    pairs, starts, sizes = np.unique(key[order], return_index=True, return_counts=True)
    for size in np.unique(sizes):
        chosen = sizes == size
        g, k = np.divmod(pairs[chosen], folds)
        F = place[order][starts[chosen][:, None] + np.arange(size)]
        rows = g[:, None]
        G_F = G[rows, :, F].transpose(0, 2, 1)
        left = np.eye(size) - X[rows, F] @ G_F
        M = np.linalg.inv(left / v[rows, F][:, :, None])
        r = times(M, Kt[rows, F])
        residuals[rows, F] = r
        noise_share[rows, F] = v[rows, F] / np.diagonal(M, axis1=1, axis2=2)
        vectors[g, k] = w[g, :width] - times(G_F[:, :width], r)
    return residuals, vectors, noise_share


def leading_eigenvectors(
    product: Callable[[Float64s], Float64s], *, size: int, rank: int, rng: np.random.Generator
) -> tuple[Float64s, Float64s]:
    """(size, rank) eigenvectors and (rank,) eigenvalues, largest first, of the matrix that
    `product` multiplies (size, .) blocks by.

    Randomised subspace iteration (Halko, Martinsson, Tropp 2011, Alg. 4.4).
    """
    Q = np.linalg.qr(product(rng.standard_normal((size, min(rank + 20, size)))))[0]
    for _ in range(SWEEPS):
        Q = np.linalg.qr(product(Q))[0]
    values, rotation = np.linalg.eigh(Q.T @ product(Q))
    order = np.argsort(values)[::-1][:rank]
    return np.asarray((Q @ rotation)[:, order]), np.asarray(values[order])


def regressed(Y: Float64s, X: Float64s, new: Float64s) -> Float64s:
    """(n, D) predictions at `new` (n, f) of the ridge regression of Y (m, D) on X (m, f), with an
    intercept."""
    m = len(Y)
    mean = X.mean(axis=0)
    values, E = np.linalg.eigh((X - mean).T @ (X - mean))
    kept = values > 1e-9 * max(float(values[-1]), 1e-30)  # below: rounding of float64
    values, E = values[kept], E[:, kept]
    level = Y.mean(axis=0)
    told = ((X - mean) @ E).T @ (Y - level)
    squares = np.sum(told**2, axis=1)
    whole = float(np.sum((Y - level) ** 2))

    def left_out(ridge: float) -> float:
        """Generalised cross-validation, times m."""
        gain = 1 / (values + ridge)
        residual = whole - float(squares @ (2 * gain - values * gain**2))
        parameters = 1 + float(np.sum(values * gain))
        return residual / max(1 - parameters / m, 1e-9) ** 2

    ridge = min(_RIDGES * float(np.mean(values)), key=left_out) if len(values) else 1.0
    return np.asarray(level + ((new - mean) @ E) @ (told / (values[:, None] + ridge)), np.float64)


def sums(pointer: Int64s, values: Float64s) -> Float64s:
    """(rows,) sum of `values[pointer[r]:pointer[r + 1]]`."""
    rows = len(pointer) - 1
    owners = np.repeat(np.arange(rows), np.diff(pointer))
    found = np.bincount(owners, values[pointer[0] : pointer[-1]], rows)
    return np.asarray(found, np.float64)


def owned_sums(pointer: Int64s, owners: Int64s, rows: Float64s) -> Float64s:
    """(rows, d) sum of the vectors `rows[owners[e]]` of each segment's events e."""
    import scipy  # here: light devices load this module with NumPy alone

    # a product by rows adds in the order of the events
    chosen = scipy.sparse.csr_array(
        (np.ones(len(owners)), owners, pointer), (len(pointer) - 1, len(rows))
    )
    return np.asarray(chosen @ rows, np.float64)


def squares(pointer: Int64s, values: Float64s) -> Float64s:
    """(rows,) sum of squares of `values[pointer[r]:pointer[r + 1]]`."""
    return sums(pointer, row_products(values[:, None], values[:, None]))


def first_fall(pointer: Int64s, items: npt.NDArray[np.int32]) -> Int64s:
    """(rows,) the first place of each segment whose item is not larger than the one before, -1
    where all rise: each occurs once."""
    out = np.full(len(pointer) - 1, -1, np.int64)
    falls = np.flatnonzero(items[1:] <= items[:-1]) + 1
    rows = np.searchsorted(pointer, falls, "right") - 1
    inside = (falls > pointer[rows]) & (rows < len(out))
    rows, first = np.unique(rows[inside], return_index=True)
    out[rows] = falls[inside][first]
    return out


def row_squares(rows: Float64s) -> Float64s:
    """(n,) squared norm of each row of (n, d)."""
    return row_products(rows, rows)


def pair_products(U: Float64s, users: Int64s | Int32s, V: Float64s, items: Int32s) -> Float64s:
    """(n,) u_k . v_j of each pair (k, j), in blocks of bounded memory."""
    out = np.empty(len(items))
    for start in range(0, len(items), _BLOCK):
        part = slice(start, start + _BLOCK)
        out[part] = row_products(U[users[part]], V[items[part]])
    return out


def rows_times(X: Float64s, M: Float64s) -> Float64s:
    """(n, b) products X M of (n, a) and (a, b), each row's in one order: BLAS rounds a row as the
    number of rows asks for."""
    out = np.zeros((len(X), M.shape[1]))
    for start in range(0, len(X), _BLOCK):
        part = slice(start, start + _BLOCK)
        for c in range(len(M)):
            out[part] += X[part, c : c + 1] * M[c]
    return out


def row_products(left: Float64s, right: Float64s) -> Float64s:
    """(n,) dot product of each pair of rows of two (n, d) arrays, added in order; infinite where
    that is too large."""
    out = np.zeros(len(left))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, len(left), _BLOCK):
            part = slice(start, start + _BLOCK)
            products = left[part] * right[part]
            for c in range(left.shape[1]):
                out[part] += products[:, c]
    return out


def tie_keys(rows: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
    """Keys of rows, of the same shape: of two equal scores, the one of the smaller key is first.

    Rows follow ids, and ids often follow age or popularity. Were the smaller id first, a scorer
    that knows nothing would be measured as a good one: on MovieLens 100K a constant has NDCG@10
    .032 by id, .006 in random order. The hash is a permutation of 32-bit numbers (lowbias32, C.
    Wellons), so that no two rows are equal; servers, devices and the page compute the same one.

    >>> from fedrec.numerics.segments import tie_keys
    >>> import numpy as np
    >>> tie_keys(np.arange(3)).tolist()
    [33350994, 2767685996, 127880910]
    """
    x = rows.astype(np.uint32) ^ np.uint32(_TIE_KEY)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return np.asarray(x ^ (x >> np.uint32(16)), np.uint32)


def unpack(packed: Floats, width: int) -> Floats:
    """(..., d(d+1)/2) upper triangles as full symmetric (..., d, d)."""
    rows, columns = np.triu_indices(width)
    full = np.empty((*packed.shape[:-1], width, width), packed.dtype)
    full[..., rows, columns] = packed
    full[..., columns, rows] = packed
    return full


def pack(full: Floats) -> Floats:
    """Upper triangles (..., d(d+1)/2) of symmetric (..., d, d)."""
    rows, columns = np.triu_indices(full.shape[-1])
    # indexing alone leaves the packed axis outermost in memory
    return np.ascontiguousarray(full[..., rows, columns])


@dataclass(frozen=True)
class ItemOrder:
    """Events grouped by item: `item_ptr` (m + 1,), `users` (n,) int32, and `positions` (n,) into
    the user-sorted columns."""

    item_ptr: Int64s
    users: Int32s
    positions: Int64s


def order_by_item(user_ptr: Int64s, items: Int32s, num_items: int) -> ItemOrder:
    """Events of consecutive users grouped by item, in linear time.

    Raises ValueError on bad pointers or ids."""
    if user_ptr[0] != 0 or user_ptr[-1] != len(items) or bool(np.any(np.diff(user_ptr) < 0)):
        raise ValueError(
            f"user_ptr must rise from 0 to {len(items)}, found "
            f"{int(user_ptr[0])}..{int(user_ptr[-1])}"
        )
    if len(items) and (int(items.min()) < 0 or int(items.max()) >= num_items):
        raise ValueError(
            f"item ids must be in [0, {num_items}), found {int(items.min())}..{int(items.max())}"
        )
    shape = len(user_ptr) - 1, num_items
    import scipy  # here, as above

    # a change of format is a stable counting sort
    by_item = scipy.sparse.csr_array((np.arange(len(items)), items, user_ptr), shape).tocsc()
    return ItemOrder(
        by_item.indptr.astype(np.int64), by_item.indices.astype(np.int32, copy=False), by_item.data
    )
