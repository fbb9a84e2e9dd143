"""Four whole numbers whose squares add up to a given one (Lagrange 1770): the slack that makes a
bound an equation.

A number is divided by four as long as it can be, which scales the four by two. Of what is left, n,
the first is the square root or one less, and a table has the other three. For n is 1, 2 or 3 modulo
4: with an even first in the first two cases, an odd one in the third, the rest is 1 or 2 modulo 4,
and such a number is a sum of three squares (Legendre 1798).
"""

from __future__ import annotations

import math
from functools import cache

import numba
import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int64s

_TABLE = 1 << 20
"""Numbers below have their three squares in the table: above 4 sqrt(n), the most that the second
first leaves of n below `LARGEST`."""
LARGEST = 1 << 34


def four_squares(numbers: Int64s) -> Int64s:
    """(n, 4), none negative.

    Raises ValueError on a number that is negative, or `LARGEST` or more."""
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < LARGEST:
        raise ValueError(
            f"numbers must lie in 0..{LARGEST - 1}, found "
            f"{int(numbers.min())}..{int(numbers.max())}"
        )
    left = numbers.astype(np.int64)
    scale = np.ones(len(numbers), np.int64)
    while (fours := (left % 4 == 0) & (left > 0)).any():
        left[fours] //= 4
        scale[fours] *= 2
    out = np.zeros((len(numbers), 4), np.int64)
    table = _three_squares()
    todo = np.arange(len(numbers))
    first = np.array([math.isqrt(int(each)) for each in left], np.int64)
    while len(todo):
        three = table[left[todo] - first[todo] ** 2]
        found = three[:, 0] >= 0
        out[todo[found]] = np.column_stack([first[todo[found]], three[found]])
        todo = todo[~found]
        first[todo] -= 1
    return np.asarray(out * scale[:, None], np.int64)


@cache
def _three_squares() -> npt.NDArray[np.int16]:
    """(`_TABLE`, 3) three squares of every number below; -1 where there are none."""
    table = np.full((_TABLE, 3), -1, np.int16)
    _fill(table)
    return table


@numba.njit(cache=True)
def _fill(table: npt.NDArray[np.int16]) -> None:
    a = 0
    while a * a < len(table):
        b = 0
        while b <= a and a * a + b * b < len(table):
            c = 0
            while c <= b and a * a + b * b + c * c < len(table):
                row = table[a * a + b * b + c * c]
                row[0] = a
                row[1] = b
                row[2] = c
                c += 1
            b += 1
        a += 1
