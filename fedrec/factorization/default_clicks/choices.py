"""Choices of the default for clicks, what each release goes to: item steps, the taste Gram again,
or counts again.

Steps would add less than the same Gram with more budget where its items hold much of all clicks and
people few of them (`AGAIN`, `SPARSE`), where tastes say little beside popularity (`LITTLE`), where
hardly any direction stands out of its noise (`FEW_DIRECTIONS`), and where it tells nearly
everything of the whole catalogue (`RESOLVED`): then that is what every further release goes to, and
the model is that of `dp_item_item`. Where counts show that a Gram would tell nothing
(`LEAST_TOLD`), they get every further release, and the model is that of `dp_popularity`.

All of it is decided by what was released before: post-processing, at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Float64s, Int64s
from fedrec.factorization.default_clicks.gram_pairs import beyond_popularity
from fedrec.factorization.default_clicks.item_item import MOST, told
from fedrec.factorization.default_clicks.settings import MOST_TASTES

LEAST_DIRECTIONS = 3
"""Of a taste Gram: where fewer stand out of its noise nothing but popularity is known, and what is
left of the budget goes to counts."""
FEW_DIRECTIONS = 25
"""Directions of a Gram that stand out of its noise, below which it is taken again: steps have
nothing to start from (on planted tastes .14 against .19)."""
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
"""Items that people hold of all that the whole budget's Gram would tell, from which on all of them
are asked for at once: such data is dense, and `LITTLE` mostly sends it to the Gram again. With 322
items, about what a first Gram tells, MovieLens 1M as likes had validation NDCG@20 .206 at epsilon
5, with 478 .214. yelp2018 has 13 at most: with so many items before steps it lost 3%.
"""
AGAIN = (0.2, 0.035)
"""The Gram again where the items that it would then tell hold at least this part of all clicks, and
so much more for every one of them that people hold: the more of them a person has clicked, the more
a vector says, and the more clicks they have, the less is left for vectors alone. Not where its cost
limits it and not its noise (`MOST_TASTES`); without noise, only where people are no more than its
items.

Validation NDCG@20 with steps and with the Gram again, each over its own items, one or two draws
(about what part, how many items held): yelp2018 whole at epsilon 1, 5, 10, 20
(.13, 3.5; .27, 7.4; .30, 9.1; .39, 11.7)
.0239, .0214; .0398, .0358; .0446, .0427; .0512, .0475; its 16,000 most clicked items at 5 (.31,
7.3) .0461, .0440; 8,000 at 5 and 20 (.45, 7; .62, 11) .0552, .0548 and .0722, .0715; 4,000 at 2, 5
and 20 (.45, 5; .50, 6; .85, 11) .0576, .0574; .0734, .0736; .0910, .0945; 2,000 at 1 and 5 (.39,
3.3; .64, 5.4) .0628, .0659; .1011, .1026; 1,000 at 1 and 5 (.60, 3.2; .95, 5.0) .0943, .0962;
.1261, .1359; 700 at .5 (.52, 2.1) .0886, .0922; amazon-book at 1, 2, 5, 10 (.28, 1.9; .36, 2.3;
.47, 3.1; .56, 3.7) .0477, .0503; .0584, .0631; .0779, .0820; .0929, .0934; at 20, where cost limits
it, .1044, .1022. Without noise, one draw: 1,000 and 3,000 people of amazon-book .0345, .0379 and
.0498, .0529, 10,000 .0772, .0693; of yelp2018 .0315, .0306, .0411, .0380 and .0576, .0534; 1,000
items of yelp2018 .1546, .1516.
"""
SPARSE = 2.0
"""Items of the Gram that people hold, up to which it is taken again whatever their part: a vector
found from so few clicks says less than their weights. amazon-book at epsilon .5 (1.7 items, .24 of
clicks) had validation NDCG@20 .0392 with the Gram again, .0355 with steps, yelp2018 at .5 (2.6,
.09) .0165 and .0171: of K as it was before `item_item.told`; not measured again.
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
RESOLVED = 1 / 3
"""Of a Gram of the whole catalogue, the directions that stand out of its noise, from which on the
Gram again is worth as much as steps: on the same data validation NDCG@20 with it was .86 to .95
times that with steps where less than a quarter did, .99 and 1.02 at two fifths.
"""


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
    held = clicked.held(head)
    part = clicked.part(head)
    limited = clicked.users > len(head) if exact else len(head) >= MOST_TASTES
    return not limited and (held <= SPARSE or part >= AGAIN[0] + AGAIN[1] * held)


def all_at_once(clicked: Clicked, head: Int64s) -> bool:
    """Whether the first Gram is of all items (K,) that the whole budget's would tell."""
    return clicked.held(head) >= MANY


def again_by_gram(
    gram: Float64s, popular: Float64s, *, directions: int, items: int, noise_std: float
) -> bool:
    """Whether a noised Gram (K, K) of some of `items`, of which so many directions stand out of the
    noise, gets what steps would. popular: (K,) as `gram_pairs.shared` takes it."""
    return (
        directions < FEW_DIRECTIONS
        or beyond_popularity(gram, popular, noise_std=noise_std) <= LITTLE
        or (len(gram) == items and directions >= RESOLVED * items)
    )
