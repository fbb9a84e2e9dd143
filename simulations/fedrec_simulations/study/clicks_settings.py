"""Settings of Ada-DPALS and DPALS on clicks, by data set and epsilon: chosen on a tenth of each user's train clicks, never by test.

Moves along one setting at a time from the best of MovieLens 1M as clicks, judged on a sixth of the users with one noise seed: 2-8 settings
a line, 12 without noise at width 32. An epsilon that had no search of its own has its neighbour's. No setting found any signal
at epsilon 0.5 and 1 that popularity does not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedrec_simulations.bench.rows import Row

Table = Mapping[float, Row]


def _settings(
    *, width: int, steps: int, item_ridge: float, mu: float | None = None, keep: int = 0, user_ridge: float = 1.0, user_radius: float = 0.5
) -> Row:
    """[model]: `mu` for weights n^-mu, or `keep` items of each user."""
    chosen: Row = {"dimension": width, "steps": steps, "item_ridge": item_ridge, "user_ridge": user_ridge, "user_radius": user_radius}
    return chosen | ({"weight_exponent": mu} if mu is not None else {"max_items_per_user": keep})


def _by_epsilon(low: Row, middle: Row, high: Row, silent: Row) -> Table:
    """0.5 and 1, then 5, then 10 and 20, then infinity."""
    return {0.5: low, 1.0: low, 5.0: middle, 10.0: high, 20.0: high, math.inf: silent}


def _adaptive_yelp() -> Table:
    return _by_epsilon(
        _settings(width=4, steps=3, item_ridge=1e4, mu=0.0),
        _settings(width=16, steps=4, item_ridge=3000.0, mu=0.0),
        _settings(width=16, steps=4, item_ridge=300.0, mu=0.25),
        _settings(width=64, steps=8, item_ridge=1.0, mu=0.5, user_ridge=10.0, user_radius=2.0),
    )


def _adaptive_amazon() -> Table:
    return _by_epsilon(
        _settings(width=16, steps=3, item_ridge=3e4, mu=0.0),
        _settings(width=32, steps=3, item_ridge=1000.0, mu=0.125),
        _settings(width=32, steps=4, item_ridge=300.0, mu=0.25),
        _settings(width=64, steps=8, item_ridge=1.0, mu=0.25),
    )


def _constant(keep: int, *, without_noise: int) -> Table:
    """DPALS: weights that are all the same, on so many items of each user."""
    return _by_epsilon(
        _settings(width=4, steps=3, item_ridge=1e4, keep=keep),
        _settings(width=16, steps=4, item_ridge=1000.0, keep=keep),
        _settings(width=32, steps=4, item_ridge=300.0, keep=keep),
        _settings(width=64, steps=8, item_ridge=1.0, keep=without_noise),
    )


TUNED: Mapping[tuple[str, str], Table] = {
    ("yelp2018", "Ada-DPALS"): _adaptive_yelp(),
    ("yelp2018", "DPALS (tail)"): _constant(50, without_noise=200),
    ("yelp2018", "DPALS (uniform)"): _constant(50, without_noise=200),
    ("amazon-book", "Ada-DPALS"): _adaptive_amazon(),
    ("amazon-book", "DPALS (tail)"): _constant(20, without_noise=200),
    ("amazon-book", "DPALS (uniform)"): _constant(20, without_noise=200),
}
"""[model] by (data set, method) and epsilon; the weights and the kind of sampling are the method's own."""
