"""Settings of the default recipe on ratings, chosen from what is public."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedrec.factorization.empirical_bayes import ItemPosterior, regress
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee

USERS_A_DIRECTION = 40
"""Fewer users than this a direction leave too few tastes to tell a direction from them."""
PAIRS = 0.08
BLEND = 0.8
"""Of the Gram of pairs: its share of mu^2, and its weight in lists.

Validation NDCG@20 of MovieLens with shares of .05, .08, .1 and .15 (one split of 1M, means of three
of 100K): 1M at epsilon 1 .136, .139, .144, .151, at 5 .182, .188, .194, .198, at 20 .217, .223,
.226, .231; 100K at 5 without any, with .08 and .15 .133, .203, .213, at 1 .127, .143, .150. RMSE of
1M at 1 .8872, .8887, .8890, .8902, at 5 .8619, .8623, .8628, .8634, at 20 .849 with each; of 100K
at 5 .001 higher with .15 than with .08. All of the weight is 1% better, half of it 7% worse; .8
leaves something to what people like.
"""
MOST_COUNTS = 0.2
MOST_BIASES = 0.2
"""Shares of mu^2 that counts and biases get where noise is largest.

Steps observe biases too, and know own means better by then. Validation RMSE with .27, .5 and two
steps, with .2, .2 and three (means of three draws; two splits of MovieLens 1M; `COUNT_SLOPES` per
standard deviation over ratings alone): MovieLens 1M at
epsilon .5 .9056, .9027, at 1 .8884, .8857; 100K .9769, .9759 and .9611, .9595; planted, 2,000 users
x 2,000 items .8344, .8325 and .8234, .8183. Two steps or four, .14 or .25 of counts and .12 or .3
of biases differ from these by up to .003, and none is better everywhere.
"""


@dataclass(frozen=True)
class DefaultSettings:
    """Public choices. Shares are of mu^2. Variances are in squared units of the scale [-2, 2].

    counts, biases, tastes, steps: shares, the last one per outer step. width: most coordinates d
    that carry a private deviation (`directions.directions_told` may say fewer). alpha: size
    of the bias coordinate in the step's vector. memory: weight of earlier observations at each
    step. weight_exponent: mu of n^-mu (Ada-DPALS eq. 16; 1/4 is its optimum for convex losses, and
    ours). The last two are parts that `fedrec research measure ablation` exchanges: what reads
    noised sums, and the Gram's noise.
    fresh: share of an observation's sampling variance that is taken for new at every step; the rest
    is the same ratings again.
    """

    counts: float
    biases: float
    tastes: float
    steps: tuple[float, ...]
    width: int
    alpha: float
    memory: float
    pairs: float = 0.0
    fresh: float = 1.0
    mean_energy: float = 0.03
    scales_energy: float = 0.04
    kappa: float = 0.4
    damping: float = 1.2
    noise: float = 0.76
    content: float = 0.16
    learned: int = 48
    served: int = 300
    feature_dimension: int = 300
    taste_items: int = 300
    taste_variance: float = 0.12
    weight_exponent: float = 0.25
    read: Callable[..., ItemPosterior] = regress
    isometric: bool = True
    shares: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        named = {"counts": self.counts} | {
            name: share for name in ("biases", "pairs", "tastes") if (share := getattr(self, name))
        }
        object.__setattr__(
            self, "shares", named | {f"step/{t}": share for t, share in enumerate(self.steps)}
        )


def settings_for(
    guarantee: Guarantee, *, users: int, items: int, features: bool, people: bool = False
) -> DefaultSettings:
    """Smooth functions of one public number: the signal of an average item over the noise, were
    every user to rate 100 items.

    Fitted to validation error on one split of MovieLens 1M; everything else is estimated from the
    releases. people: public people have taught biases and directions already.
    """
    # beyond, nothing changes
    x = min(math.log(10 * mu_for(guarantee.epsilon, guarantee.delta) * users / items / 4), 8.0)
    counts = float(np.clip(0.24 * math.exp(-0.6 * x), 0.05, MOST_COUNTS)) / (2 if people else 1)
    biases = 0.0 if people else float(np.clip(0.5 * math.exp(-0.9 * x), 0.06, MOST_BIASES))
    tastes = 0.12 if not (features or people) and x > 0.4 else 0.0
    steps = 1.1 ** np.arange(int(np.clip(round(2 + 2.7 * x), 3, 7)))  # a whole number of steps
    ample = max(x - 3, 0.0)  # signal that buys more than the noise of a step took
    return DefaultSettings(
        counts=counts,
        biases=biases,
        tastes=tastes,
        steps=tuple(float(s) for s in steps / steps.sum() * (1 - counts - biases - PAIRS - tastes)),
        pairs=PAIRS,
        # a whole number of directions
        width=min(
            int(np.clip(round(1 + 4.8 * x), 1, 9) + min(round(4 * ample), 14)),
            1 + users // USERS_A_DIRECTION,
        ),
        alpha=float(np.clip(6 * math.exp(-x), 1.2, 6) + max(0.7 * (x - 1.5), 0)),
        memory=float(np.clip(1 - 0.2 * x, 0.65, 1) - min(0.15 * ample, 0.45)),
        fresh=float(np.clip(1 - 0.27 * x, 0.1, 0.2)),
        weight_exponent=0.25 - min(0.08 * ample, 0.25),
    )
