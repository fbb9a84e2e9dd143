"""Choices of the default recipe for clicks: before it begins, from public sizes and epsilon; and by
what it released, what each further release goes to: item steps, the taste Gram again, or counts
again.

Steps would add less than the same Gram with more budget where people have clicked few items
(`FEW_CLICKS`), where they hold many of those that it tells (`MANY`), and where tastes say little
beside popularity (`LITTLE`): then that is what every further release goes to, and the model is that
of `dp_item_item`. Where counts show that a Gram would tell nothing (`LEAST_TOLD`), they get every
further release, and the model is that of `dp_popularity`.

All of it is decided by what was released before: post-processing, at no cost. A charged scalar, as
`worth` is, was tried in its place. With 1% of mu^2 at epsilon 1 its noise has std 53. What weights
are worth beyond popularity (one draw, standard errors 8 to 15) is 1 of MovieLens 100K and -28 of
1,000 people of 1M; of planted 1,000 x 3,000 and 2,000 x 1,000 -91 and -276, where NDCG@20 is .0985,
.0970 and .2110, .2100: weights score the tail 0, so that what is asked is not what lists are judged
by. At 5 it is 130 of 100K, beside noise of 13. Asking costs that set .1425, .1412; .2039, .2011 and
.2337, .2346 at 1, 5 and 20 (validation, three draws). A Gram first, and counts with the rest where
it tells nothing, leaves popularity .65 of the budget: .1058, .1010 of 100K at .5, .0079, .0058 of
1,000 people of yelp2018 at 5 (two draws); planted sets lose at most 2%. One Gram of as many items
whether or not steps follow, so that it alone decides, has on yelp2018 at 5 and 20 .0396, .0385 and
.0512, .0497 (one draw), on 10,000 of its people 1% less at both (four draws, three).

Guarantee: none needed for the first, which see no data; post-processing of releases for the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedrec.arrays import Float64s, Int64s
from fedrec.factorization.default_clicks.gram_pairs import beyond_popularity
from fedrec.factorization.default_clicks.item_item import MOST, reached, told
from fedrec.factorization.default_clicks.recency import share_for
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
LITTLE = 1.6
"""The Gram again where what pairs say beyond popularity has at most so much of the energy of what
popularity says of them: a vector of few numbers says less of such tastes than weights, which have
popularity whole.

Validation NDCG@20 with steps and with the Gram again, one draw, both over the same items: MovieLens
1M as likes at epsilon .5, 1, 5 and 20 (.14 to .09) .126, .139; .153, .164; .186, .203; .210, .220;
100K at 1, 5 and 20 (.24 to .28) .128, .140; .187, .205; .222, .230; planted clicks of 20,000 users
x 10,000 items (.05 to .07) .030, .041; .025, .040; .033, .040; of 30,000 x 4,000 (.07 to .08) .079,
.084; .079, .085; .077, .085; of 5,000 x 2,000 (.03 to .05) the same but for .5%. Clicks on news of
6,300 readers of MIND at 2, 5, 10 and 20 (.9 to 1.3), two draws, .0291, .0319; .0328, .0347; .0357,
.0366; .0373, .0403; of 3,000 of them at 5 and 20 .0311, .0340; .0344, .0361. That of yelp2018 and
amazon-book, whole and cut, is 2.4 to 9: of 10,000 people of yelp2018 at 2, 5 and 20 (3.1, 2.5, 3.4)
.0175, .0185; .0281, .0249; .0403, .0364. Not without noise, where the same numbers say something
else: 1M and 100K as likes .2298, .2251 and .2508, .2440, MIND .0458, .0480.
"""
MANY = 15.0
"""Items that people hold of all that the whole budget's Gram would tell, from which on it is asked
for at once and again: such data is dense, and what pairs say beyond popularity is at most 1.1 times
that of it (`LITTLE`). With 322 items, about what a first Gram tells, MovieLens 1M as likes had
validation NDCG@20 .206 at epsilon 5, with 478 .214. yelp2018 has 13 at most.
"""
FEW_CLICKS = 16.0
"""Items that a user has clicked, up to which the Gram is taken again: a vector found from so few
says less than their weights. Not where its cost limits it and not its noise (`MOST_TASTES`);
without noise, only where people are no more than its items.

Validation NDCG@20 with steps and with the Gram again, each over its own items, one or two draws
(about how many items a user has clicked): amazon-book (7) at epsilon .5, 1, 2, 5, 10 .0355, .0392;
.0477, .0503; .0584, .0631; .0779, .0820; .0929, .0934; at 20, where cost limits it, .1044, .1022.
The most clicked items of yelp2018: 1,000 (6) at 1 and 5 .0943, .0962; .1261, .1359; 2,000 (8)
.0628, .0659; .1011, .1026; 4,000 (11) at 2, 5 and 20 .0576, .0574; .0734, .0736; .0910, .0945;
8,000 (15) at 5 and 20 .0552, .0548; .0722, .0715; 16,000 (23) at 5 .0461, .0440; all (27) at 1, 5,
10 and 20 .0239, .0214; .0398, .0358; .0446, .0427; .0512, .0475. Without noise, one draw: 1,000 and
3,000 people of amazon-book .0345, .0379 and .0498, .0529, 10,000 .0772, .0693; of yelp2018 .0315,
.0306, .0411, .0380 and .0576, .0534; 1,000 items of yelp2018 .1546, .1516.
"""
LEAST_TOLD = 220.0
"""Of K h^(3/4), K the most clicked items that a Gram can tell from its noise (`item_item.reached`),
h how many of them people hold: below, every release goes to counts. What follows was measured
where counts kept a fifth at most; K has fallen by 6% where they keep a third, and this with it (it
was 235).

Validation NDCG@20 of this recipe, of counts with every release and of `dp_item_item` (two draws,
the first two rows and planted ones three): MovieLens 100K as likes at epsilon 1 .144, .120, .137
(286); 500 of its people at 2 .144, .121, .140 (274); 300 of its items at .7, with the Gram asked
for, .159, .146, .163 (157); 500 people of MovieLens 1M at 2 .104, .098, .082 (285). 1,000 to 5,500
people of yelp2018: where 130, .0067 for counts and .0025 by `dp_item_item`; from 172 to 227 .0303,
.0275, .0315 and .0091, .0085, .0066 but .0058, .0082, .0030, .0084, .0088, .0054 and .0091, .0099,
.0067. 3,000 to 10,000 of amazon-book, 240 on, .0156, .0128, .0140; .0157, .0136, .0147; .0213,
.0151, .0213. Planted clicks, whose tastes are faint, are 0 to 3% behind counts at epsilon 1.
"""


@dataclass(frozen=True)
class ClickSettings:
    """Public choices. Shares are of mu^2, the last ones per step. V is always scaled to |V|^2 = 10
    d.

    heads: how many items a taste Gram of the first budget reaches, and one of all that counts leave
    (`item_item.reached`; its K are `item_item.told` of them). width: d <= K. gram_exponent,
    step_exponent: a click on item j weighs b_j^-exponent, b the counts (negative: towards popular
    items). ridge, confidence: of the local solve. damping, coherence, memory: see the last step of
    `ClickRecipe`. reached: see `tells_nothing`; infinite where a Gram is asked for
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
    recency: float = 0.0
    judges_of_time: float = 0.0
    shares: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        named = {"counts": self.counts, "tastes": self.tastes} | {
            f"step/{t}": share for t, share in enumerate(self.steps)
        }
        named |= {"worth": self.worth, "recency": self.recency}
        object.__setattr__(self, "shares", {name: share for name, share in named.items() if share})

    @property
    def rounds(self) -> int:
        """How many releases the private model is learned from."""
        return len(self.shares) - bool(self.worth) - bool(self.recency)


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
    # numbers of steps are whole; the nearest one to the fit
    few = max(1, round(rest / LEAST_STEP)) if mu < 50 else 8
    steps = 1.1 ** np.arange(  # each step gets a tenth more than the one before
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
    guarantee: Guarantee, *, users: int, items: int, public: bool = False, timed: bool = False
) -> ClickSettings:
    """Settings as `settings_for` chooses them; where counts say that no Gram will tell anything,
    they get the whole budget. public: whether items have public sides, whose worth is asked. timed:
    whether lists are of what follows clicks that have times, whose recency is asked."""
    chosen = settings_for(guarantee, users=users, items=items)
    mu = mu_for(guarantee.epsilon, guarantee.delta)
    worth, judges = shares(mu=mu, users=users) if public else (0.0, 0.0)
    recency, judges_of_time = share_for(mu=mu, users=users) if timed else (0.0, 0.0)
    if worth or recency:
        left = 1 - worth - recency
        chosen = replace(
            chosen,
            counts=left * chosen.counts,
            tastes=left * chosen.tastes,
            steps=tuple(left * step for step in chosen.steps),
            worth=worth,
            judges=judges,
            recency=recency,
            judges_of_time=judges_of_time,
        )
    return replace(
        chosen,
        reached=reached(
            users=users, noise_std=1 / (mu * math.sqrt(1 - chosen.counts - worth - recency))
        ),
    )


@dataclass(frozen=True)
class Clicked:
    """What counts say of people.

    counts: (m,) of items, every user weighing 1 / sqrt(n_u) on each of its n_u. users: all who
    report, public people among them."""

    counts: Float64s
    users: int

    @property
    def each(self) -> float:
        """How many items a user has clicked: the sum of counts is that of all sqrt(n_u)."""
        return float(self.counts.sum() / self.users) ** 2

    def part(self, items: Int64s) -> float:
        """Share of all clicks that is on these items (K,)."""
        return float(self.counts[items].sum() / self.counts.sum())

    def held(self, items: Int64s) -> float:
        """How many of these items (K,) a user has clicked."""
        return self.each * self.part(items)

    def first(self, most: float) -> Int64s:
        """The most clicked items (K,), at most so many."""
        order = np.argsort(-self.counts, kind="stable")
        return np.asarray(order[: int(min(most, len(order)))], np.int64)

    def told(self, most: float, *, width: int) -> Int64s:
        """The items (K,) that a Gram's pairs tell, of `most` that it reaches; no fewer than
        `width`."""
        K = min(told(most, held=self.held(self.first(most))), MOST_TASTES)
        return self.first(max(K, width))


def tells_nothing(clicked: Clicked, *, reached: float) -> bool:
    """Whether a Gram with all that counts leave, which reaches so many items, is worth less than
    counts with every release."""
    K = min(reached, MOST)
    return bool(reached * clicked.held(clicked.first(K)) ** 0.75 < LEAST_TOLD)


def again_by_counts(clicked: Clicked, head: Int64s, *, exact: bool) -> bool:
    """Whether the Gram of these items (K,) gets what steps would, before any Gram is asked for.

    exact: without noise, where steps from few people alone are behind."""
    few = clicked.each <= FEW_CLICKS
    if exact:
        return few and clicked.users <= len(head)
    return len(head) < MOST_TASTES and (few or clicked.held(head) >= MANY)


def again_by_gram(gram: Float64s, popular: Float64s, *, noise_std: float) -> bool:
    """Whether a noised Gram (K, K) gets what steps would. popular: (K,) as `gram_pairs.shared`
    takes it."""
    return beyond_popularity(gram, popular, noise_std=noise_std) <= LITTLE
