"""Statistics of items from which a least-squares step is solved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Float32s, Floats
from fedrec.numerics.kernels import pad_columns, statistics_range
from fedrec.numerics.segments import ItemOrder
from fedrec.numerics.threads import map_rows


@dataclass(frozen=True)
class ItemStatistics:
    """gram: (m, d(d+1)/2) packed A_j. moment: (m, d) b_j."""

    gram: Floats
    moment: Floats

    @property
    def width(self) -> int:
        """d, the entries of a user's vector."""
        return int(self.moment.shape[1])


def item_statistics(
    order: ItemOrder, U: Float32s, targets: Float32s, weights: Float32s | None = None
) -> ItemStatistics:
    """A_j = sum w_e u u' and b_j = sum targets_e u over the events e of each item j, in float32.

    U: (n_users, d). targets, weights: (events,), where `order.positions` says; in the order's own
    order where that is empty, which is faster. b is not weighted again, so pass w y for targets.
    Raises ValueError where the columns do not have one entry per event.

    A_j = sum w u u' (AM-SSP eq. 5, Krichene et al. 2024) is kept packed: the upper triangle in
    `numpy.triu_indices` order, because the gradient step that reads it is bound by memory. The
    exact sums take integers of at most 15 bits, so every product has at most 45 bits and 256 of
    them add up in float64 without rounding before they go to int64: the result does not depend on
    the order of users, on shards or on threads.
    """
    for name, column in (("targets", targets), ("weights", weights)):
        if column is not None and len(column) != len(order.users):
            raise ValueError(
                f"{name} must have one entry for each of {len(order.users)} events, found "
                f"{len(column)}"
            )
    m = len(order.item_ptr) - 1
    d = U.shape[1]
    source = pad_columns(U, np.float32)
    gram = np.empty((m, d * (d + 1) // 2), np.float32)
    moment = np.empty((m, d), np.float32)
    w = np.empty(0, np.float32) if weights is None else np.ascontiguousarray(weights, np.float32)
    t = np.ascontiguousarray(targets, np.float32)
    width = source.shape[1]
    flat = source.reshape(-1)

    def rows(first: int, last: int) -> None:
        statistics_range(
            first,
            last,
            order.item_ptr,
            order.users,
            order.positions,
            flat,
            d,
            width,
            w,
            t,
            gram,
            moment,
        )

    map_rows(rows, order.item_ptr)
    return ItemStatistics(gram, moment)
