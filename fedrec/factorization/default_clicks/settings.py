"""Public choices of the default recipe for clicks (`clicks`), from public sizes and epsilon.

Guarantee: none needed; nothing here sees data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedrec.factorization.default_clicks.item_item import reached
from fedrec.factorization.default_clicks.worth import shares
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee

LEAST_STEP = 0.15
"""Of mu^2: on MovieLens 1M as clicks two steps were better than three of the same budget."""
MOST_TASTES = 4000
"""Items of a taste Gram that steps follow: amazon-book at epsilon 20 had validation NDCG@20 .097,
.102, .097 with 1,474, 4,000, 6,000."""
FEW_ITEMS = 100.0
MOST_COUNTS = 0.35
"""Items that a Gram of all that counts leave reaches, up to which counts get the largest share;
beyond, it falls with the cube of them, until other terms say more.

A Gram that small says little, and popularity is most of what lists need. Validation NDCG@20 with
shares of .11 to .25, of .3 and of .4 (four draws, two of the whole of MovieLens 1M; about how many
items a Gram reached): likes of MovieLens 100K at epsilon .5 (46) .113, .116, .115, at 1 (70) .145,
.157, .153, at 2 (110) .171, .177, .176; of 1,000 people of MovieLens 1M at 1 (72) .116, .131, .132,
of 2,000 at 1 (115) .148, .151, .152; but 100K at 5 (190) .213, .210, and all of 1M at .5 and 1 (155
and 240) .161, .161 and .177, .177.
"""
WIDEST = 128
"""Numbers of an item vector, at most."""


@dataclass(frozen=True)
class ClickSettings:
    """Public choices. Shares are of mu^2, the last ones per step. V is always scaled to |V|^2 = 10
    d.

    heads: how many items a taste Gram of the first budget reaches, and one of all that counts leave
    (`item_item.reached`; its K are `item_item.told` of them). width: d <= K. gram_exponent,
    step_exponent: a click on item j weighs b_j^-exponent, b the counts (negative: towards popular
    items). ridge, confidence: of the local solve. damping, coherence, memory: see the last step of
    `ClickRecipe`. reached: see `click_choices.tells_nothing`; infinite where a Gram is asked for
    whatever counts say. worth, judges: see `worth`; 0 without public sides, and where
    people are too few to say what these are worth.
    """

    counts: float
    tastes: float
    steps: tuple[float, ...]
    heads: tuple[float, float]
    width: int
    gram_exponent: float
    ridge: float
    damping: float
    memory: float
    coherence: float = 0.3
    step_exponent: float = -0.25
    confidence: float = 20.0
    reached: float = math.inf
    worth: float = 0.0
    judges: float = 0.0
    shares: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        named = {"counts": self.counts, "tastes": self.tastes} | {
            f"step/{t}": share for t, share in enumerate(self.steps)
        }
        named["worth"] = self.worth
        object.__setattr__(self, "shares", {name: share for name, share in named.items() if share})

    @property
    def rounds(self) -> int:
        """How many releases the private model is learned from."""
        return len(self.shares) - bool(self.worth)


def settings_for(guarantee: Guarantee, *, users: int, items: int) -> ClickSettings:
    """Smooth functions of one public number, the signal of `default_settings.settings_for`: 10 mu
    users / items.

    Fitted to validation NDCG@20 on yelp2018 and amazon-book at epsilon 0.5 to infinity (signals 1.2
    to 1400). What counts and tastes leave goes to steps of at least `LEAST_STEP` each, or to the
    Gram again.
    """
    exact = mu_for(guarantee.epsilon, guarantee.delta)
    mu = min(exact, 50.0)  # beyond, nothing changes: noise is no longer what limits
    signal = 10 * mu * users / items
    x = math.log(signal / 2.2)
    counts = float(np.clip(0.2 - 0.08 * x, 0.05, 0.25))
    tastes = float(np.clip(0.42 - 0.07 * x, 0.35, 0.45))
    gram_exponent = float(np.clip(0.1 * x, 0, 0.25))

    def gram(share: float) -> float:
        return reached(
            users=users, noise_std=1 / (exact * math.sqrt(share)), exponent=gram_exponent
        )

    large = gram(1 - counts)
    told = min(1.0, large / items / 0.055)
    # as `dp_item_item` where the Gram tells of much of the catalogue
    counts += told * (0.1 - counts)
    more = max(counts, MOST_COUNTS * min(1.0, (FEW_ITEMS / large) ** 3))
    left = (1 - more) / (1 - counts)
    counts = more
    tastes = tastes * left
    rest = 1 - counts - tastes
    few = max(1, round(rest / LEAST_STEP)) if mu < 50 else 8
    steps = 1.1 ** np.arange(
        min(few, int(np.clip(round(1 + 0.6 * x + 0.1 * max(x, 0) ** 2), 1, 8)))
    )
    width = int(np.clip(22 * math.exp(0.62 * x), 4, WIDEST))
    return ClickSettings(
        counts=counts,
        tastes=tastes,
        steps=tuple(float(s) for s in steps / steps.sum() * rest),
        # what a Gram reaches grows as the cube root of its share
        heads=(gram(tastes), large * left ** (1 / 3)),
        # a tenth of the catalogue: more would learn histories by heart
        width=min(width, max(4, items // 10), items),
        gram_exponent=gram_exponent,
        ridge=float(np.clip(30 * math.exp(-0.35 * (x - 2.6)), 12, 30)),
        damping=float(np.clip(0.03 * math.exp(0.4 * x), 0.02, 0.2)),
        memory=float(np.clip(0.68 - 0.1 * x, 0, 0.3)),
        step_exponent=float(np.clip(-0.45 + 0.35 * x, -0.55, -0.25)),
    )


def default_settings(
    guarantee: Guarantee, *, users: int, items: int, public: bool = False
) -> ClickSettings:
    """Settings as `settings_for` chooses them; where counts say that no Gram will tell anything,
    they get the whole budget. public: whether items have public sides, whose worth is asked."""
    chosen = settings_for(guarantee, users=users, items=items)
    mu = mu_for(guarantee.epsilon, guarantee.delta)
    if public:
        worth, judges = shares(mu=mu, users=users)
        left = 1 - worth
        chosen = replace(
            chosen,
            counts=left * chosen.counts,
            tastes=left * chosen.tastes,
            steps=tuple(left * step for step in chosen.steps),
            worth=worth,
            judges=judges,
        )
    return replace(
        chosen,
        reached=reached(
            users=users, noise_std=1 / (mu * math.sqrt(1 - chosen.counts - chosen.worth))
        ),
    )
