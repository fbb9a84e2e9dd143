"""Settings of Ada-DPALS and DPALS on clicks, by data set and epsilon: chosen on a tenth of each
user's train clicks, never by test.

Moves along one setting at a time from the best of MovieLens 1M as clicks, judged on a sixth of the
users with one noise seed. Ada-DPALS: 2-8 settings a line, and 10 without noise at width 32 before
one at 64. DPALS: 1-4 a line from those; without noise it has Ada-DPALS's, not searched. Epsilon 0.5
has what was best at 1: one other setting was tried there, and none came near popularity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedrec_research.trials import Row

Table = Mapping[float, Row]


def _settings(
    *,
    width: int,
    steps: int,
    item_ridge: float,
    mu: float | None = None,
    keep: int = 0,
    user_ridge: float = 1.0,
    user_radius: float = 0.5,
) -> Row:
    """[model]: `mu` for weights n^-mu, or `keep` items of each user."""
    chosen: Row = {
        "dimension": width,
        "steps": steps,
        "item_ridge": item_ridge,
        "user_ridge": user_ridge,
        "user_radius": user_radius,
    }
    return chosen | ({"weight_exponent": mu} if mu is not None else {"max_items_per_user": keep})


def _by_epsilon(*rows: Row) -> Table:
    """At 0.5, 1, 5, 10, 20 and infinity."""
    return dict(zip((0.5, 1.0, 5.0, 10.0, 20.0, math.inf), rows, strict=True))


def _adaptive_yelp() -> Table:
    return _by_epsilon(
        _settings(width=4, steps=4, item_ridge=3e4, mu=0.0),
        _settings(width=4, steps=4, item_ridge=3e4, mu=0.0),
        _settings(width=16, steps=4, item_ridge=3000.0, mu=0.0),
        _settings(width=16, steps=4, item_ridge=1000.0, mu=0.125),
        _settings(width=16, steps=4, item_ridge=1000.0, mu=0.0),
        _settings(width=64, steps=8, item_ridge=1.0, mu=0.5, user_ridge=10.0, user_radius=2.0),
    )


def _adaptive_amazon() -> Table:
    return _by_epsilon(
        _settings(width=16, steps=3, item_ridge=3e4, mu=0.0),
        _settings(width=16, steps=3, item_ridge=3e4, mu=0.0),
        _settings(width=32, steps=4, item_ridge=3000.0, mu=0.0),
        _settings(width=32, steps=4, item_ridge=1000.0, mu=0.125),
        _settings(width=32, steps=4, item_ridge=300.0, mu=0.25),
        _settings(width=64, steps=8, item_ridge=1.0, mu=0.25),
    )


def _constant(low: Row, *, keep: int, width: int, without_noise: Row) -> Table:
    """DPALS: weights that are all the same, on so many items of each user."""
    middle = _settings(width=16, steps=4, item_ridge=3000.0, keep=keep)
    high = _settings(width=width, steps=4, item_ridge=300.0, keep=keep)
    return _by_epsilon(low, low, middle, high, high, without_noise)


def _constant_yelp() -> Table:
    silent = _settings(
        width=64, steps=8, item_ridge=1.0, keep=200, user_ridge=10.0, user_radius=2.0
    )
    return _constant(
        _settings(width=4, steps=4, item_ridge=3e4, keep=50),
        keep=50,
        width=16,
        without_noise=silent,
    )


def _constant_amazon() -> Table:
    silent = _settings(width=64, steps=8, item_ridge=1.0, keep=200)
    return _constant(
        _settings(width=16, steps=3, item_ridge=3e4, keep=20),
        keep=20,
        width=32,
        without_noise=silent,
    )


TUNED: Mapping[tuple[str, str], Table] = {
    ("yelp2018", "Ada-DPALS"): _adaptive_yelp(),
    ("yelp2018", "DPALS (tail)"): _constant_yelp(),
    ("yelp2018", "DPALS (uniform)"): _constant_yelp(),
    ("amazon-book", "Ada-DPALS"): _adaptive_amazon(),
    ("amazon-book", "DPALS (tail)"): _constant_amazon(),
    ("amazon-book", "DPALS (uniform)"): _constant_amazon(),
}
"""[model] by (data set, method) and epsilon; the weights and the kind of sampling are the method's
own."""
