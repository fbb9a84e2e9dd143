"""Kinds of blocks: how coefficients and vectors of a report make the rows that are summed, noised
and described.

A block of a user with coefficients c and integer vectors x stands for rows `c_j * expand(x)`.
Everything that depends on the kind is one `BlockKind`: how many numbers a row has, how a vector
enters it, and words. Noise and its price stay those of fedrec. A package adds one in its metadata,
so that every process of a deployment knows it:

    [project.entry-points."fedrec.block_kinds"]
    squares = "my_package.kinds:SQUARES"

Sensitivity. Reports are checked by |c| * |x|^degree, so `expand` must be homogeneous of this degree
and never longer than |x|^degree; its entries then stay below the largest |x_i|^degree times a
constant that is at most 1, which is what the bound on sums counts on. `register` checks both on
random vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int64s
from fedrec.errors import SettingsError

GROUP = "fedrec.block_kinds"


@dataclass(frozen=True)
class BlockKind:
    """One kind of block: how a row is made of a coefficient and a vector.

    Args:
        name: As in a block's specification.
        degree: How often a vector enters a row.
        columns: Numbers of a row, from a vector's width.
        expand: (n, width) integer vectors to their (n, columns) rows of coefficient 1.
        words: What a report holds.
        formula: What of it is added up.
        bits: Magnitude bits of coefficients and of vectors.
        matrix: Whether a row is the packed upper triangle of c x x', fedrec's own kind, whose
            noise may be isometric.

    >>> import numpy as np
    >>> OUTER.columns(3), OUTER.expand(np.array([[1, 2, 3]])).tolist()
    (6, [[1, 2, 3, 4, 6, 9]])
    """

    name: str
    degree: int
    columns: Callable[[int], int]
    expand: Callable[[Int64s], Int64s]
    words: str
    formula: str
    bits: tuple[int, int] = (15, 15)
    matrix: bool = False

    def relative_std(self, width: int, *, isometric: bool) -> npt.NDArray[np.float64]:
        """(columns,) noise std of each number of a row, over the block's: sqrt(1/2) off the
        diagonal of a matrix where `isometric`.

        Args:
            width: Numbers of a vector.
            isometric: Whether a matrix keeps its length: entries off the diagonal count twice
                in it.

        Returns:
            One number for each column.
        """
        stds = np.ones(self.columns(width))
        if self.matrix and isometric:
            stds[np.not_equal(*np.triu_indices(width))] = math.sqrt(0.5)
        return stds


def _triangle(X: Int64s) -> Int64s:
    row, column = np.triu_indices(X.shape[1])
    return X[:, row] * X[:, column]


LINEAR = BlockKind("linear", 1, lambda width: width, lambda X: X, "a vector", "c x")
"""Rows c x."""
OUTER = BlockKind(
    "outer",
    2,
    lambda width: width * (width + 1) // 2,
    _triangle,
    "a vector that stands for its square matrix",
    "c x times x",
    bits=(13, 11),
    matrix=True,
)
"""Packed symmetric matrices c x x'. They multiply the vector's step twice; theirs is coarser, so
that the noise of any useful budget is at most 2^40 steps."""

_KNOWN = {LINEAR.name: LINEAR, OUTER.name: OUTER}
COMPILED = frozenset(_KNOWN)
"""Kinds of fedrec's own: they have a compiled sum, and three aggregators can sum them by products
of shares."""


def register(kind: BlockKind) -> BlockKind:
    """Make a kind known by its name, after a check of its bounds.

    Args:
        kind: Its `expand` is tried on vectors of several lengths.

    Returns:
        The same kind.

    Raises:
        SettingsError: The name is one of fedrec's own.
        ValueError: A row is longer than the bound says, or is not of integers.

    >>> import numpy as np
    >>> squares = BlockKind("squares", 2, lambda width: width, np.square, "a vector", "c x^2")
    >>> register(squares).name
    'squares'
    """
    if kind.name in COMPILED or kind.matrix:
        raise SettingsError(
            f"block kind {kind.name!r} is one of fedrec's own",
            "Choose another name, and leave `matrix` out.",
        )
    _require_bounded(kind)
    _KNOWN[kind.name] = kind
    return kind


def _require_bounded(kind: BlockKind) -> None:
    X = np.random.default_rng(0).integers(-(2**10), 2**10, (200, 5))
    # along the axes, where entries are largest
    X[:100] *= np.arange(5) == np.arange(100)[:, None] % 5
    rows = kind.expand(X)
    limit = np.linalg.norm(X, axis=1) ** kind.degree
    if rows.shape != (len(X), kind.columns(5)) or rows.dtype != np.int64:
        raise ValueError(
            f"block kind {kind.name!r}: expand gives {rows.dtype} {rows.shape}, expected "
            f"int64 {(len(X), kind.columns(5))}"
        )
    lengths = np.linalg.norm(rows * kind.relative_std(5, isometric=True) ** -1, axis=1)
    # norms are sums of squares in float64, which round
    if bool((lengths > limit * (1 + 1e-9)).any()):
        raise ValueError(
            f"block kind {kind.name!r}: a row is longer than its vector to the power of "
            f"{kind.degree}, so no norm bounds it"
        )
    if bool((kind.expand(2 * X) != 2**kind.degree * rows).any()):
        raise ValueError(
            f"block kind {kind.name!r}: twice a vector is not 2^{kind.degree} times its row"
        )


def kind_named(name: str) -> BlockKind:
    """The kind of this name: fedrec's own, registered, or one with an entry point.

    Args:
        name: As in a block's specification.

    Returns:
        The kind.

    Raises:
        ValueError: There is none.

    >>> kind_named("linear").degree
    1
    """
    if name not in _KNOWN:
        for point in metadata.entry_points(group=GROUP, name=name):
            register(point.load())
    if name not in _KNOWN:
        raise ValueError(f"there is no block kind {name!r}: there are {', '.join(_KNOWN)}")
    return _KNOWN[name]
