"""Recency: a click tells less of the next one the more clicks ago it was made.

    weight of a click = (1 + age)^-decay, age the clicks that the person has made since, those of
        the same time having their mean

Weights are used where a list is asked for, on the device, beside item-item weights; no release is
made of weighed clicks. How much is learned: some people (`JUDGES` at most) rank their `LATEST`
clicks, each by the clicks before it, with every decay of `DECAYS`, and report how early each decay
lists them. These clicks were among those that the weights were learned from, which favours the
weights' own way of counting, all clicks alike: a decay is chosen for what it adds to that.

The release y is a sum over n people of rows of norm at most 1 and noise of std s, read as `worth`
reads its own. Where s is more than `LEAST_TOLD` allows nothing is asked, and clicks weigh alike.

Guarantee (user, add/remove): a user's report is one row, scaled down to norm 1 where it is longer
(`federation.reports.bounded`), whatever its clicks, times, id and the public arrays are; removing
the user removes that report and nothing else. Sensitivity 1.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import below
from fedrec.factorization.default_clicks.model import ClickModel, ItemItemModel, PublicPriorModel
from fedrec.factorization.default_clicks.worth import (
    LISTED,
    asked_model,
    chosen_blend,
    compared,
)
from fedrec.federation.messages import Question, Reports
from fedrec.federation.reports import RealBlock, bounded

DECAYS = (0.0, 0.75, 1.0, 1.5)
"""Tried; the first is all clicks alike.

Validation NDCG@20 of likes of MovieLens 100K by `dp_item_item` (three draws), all alike, .9^age,
.8^age, (1 + age)^-.5, ^-1 and ^-2: temporal at 5 .219, .231, .234, .224, .233, .233, at 20 .224,
.232, .231, .229, .233, .233; leave-last-out at 5 .080, .092, .093, .093, .097, .090, at 20 .096,
.113, .114, .114, .120, .109: a power tells apart the last few clicks and keeps the old ones.
Pairs that weigh the more in the Gram the closer they were clicked, within its norm: temporal at 5
and 20 0 to 1.2% worse, leave-last-out at 20 3 to 4% better, so that order is used in asking alone.
With .25 and .5 among them, clicks of training, which favour all alike, chose .5 of leave-last-out
at 20; validation by the default with .5 and 1: leave-last-out at 5 and 20 .093, .096 and .112,
.116, temporal .225, .229 and .229, .233.
"""
JUDGES = 4000
"""People who are asked, on average and at most, as `worth.JUDGES`."""
LATEST = 8
"""Clicks of each that are ranked: more are older, and would be asked of with fewer before them."""
SCALE = 30.0
"""Times what is sent: most rows are then about as long as they may be."""
ENOUGH = 100.0
"""People who are asked times mu of the release, from which on its noise is small."""
LEAST_SHARE = 0.002
MOST_SHARE = 0.02
"""Of mu^2: a list of clicks in no order loses at most what this much of the budget is worth."""
LEAST_TOLD = 25.0
"""People who are asked over the noise's std, below which nothing is asked.

On likes of MovieLens 100K at epsilon 1 it is 36: what decays add is 0 to 170 of a sum over 943
people, beside noise of std 26."""
_WHO = b"who says how clicks age"


def share_for(*, mu: float, users: int) -> tuple[float, float]:
    """What recency gets of mu^2, and the share of users who are asked; both 0 where the noise's std
    is more than one `LEAST_TOLD`th of them."""
    judges = min(users, JUDGES)
    wanted = (ENOUGH / max(judges * mu, 1e-9)) ** 2 if math.isfinite(mu) else 0.0
    share = float(np.clip(wanted, LEAST_SHARE, MOST_SHARE))
    if judges * mu * math.sqrt(share) < LEAST_TOLD:
        return 0.0, 0.0
    return share, judges / max(users, 1)


def decayed(
    model: ClickModel | ItemItemModel | PublicPriorModel, decay: float
) -> ClickModel | ItemItemModel | PublicPriorModel:
    """The model with this decay of its item-item weights and public sides."""
    if isinstance(model, PublicPriorModel):
        private = decayed(model.private, decay)
        assert not isinstance(private, PublicPriorModel)
        return replace(model, private=private)
    if model.similar is None:
        return model
    return replace(model, similar=replace(model.similar, decay=decay))


def chosen_decay(told: Float64s, *, noise_std: float, judges: float) -> float:
    """The decay that a noised release (G,) of so many judges says is best; 0 where it says
    nothing."""
    # what decays are worth is alike as far as these are near, `worth.NEAR` apart
    places = np.array(DECAYS)[:, None]
    best = chosen_blend(told, places, noise_std=noise_std, judges=judges)
    return DECAYS[int(np.argmin(np.abs(places[:, 0] - best[0])))]


def report_recency(question: Question, mine: Interactions) -> Reports:
    """Block "recency": `SCALE` times how early each decay lists the user's latest clicks, less the
    mean over decays, cut to norm 1; zeros of who is not asked, has no times, or one click."""
    rows = np.zeros((mine.num_users, len(DECAYS)))
    share = float(question.public["judges_of_time"])
    who = below(mine.user_draws(_WHO), share) & (np.diff(mine.user_ptr) > 1)
    if mine.times is not None and who.any():
        asked = asked_model(question.public)
        model = asked if asked.directions else asked.private
        if asked.directions:
            model = replace(asked, weights=np.asarray(question.public["weights"], np.float64))
        chosen = np.flatnonzero(who)
        some = mine.users_subset(chosen)
        assert some.times is not None
        with np.errstate(all="ignore"):  # of arrays that a false server made up
            rows[chosen] = SCALE * _early(model, some, some.times)
    blocks = [RealBlock(np.ones(mine.num_users), rows)]
    return bounded(
        np.zeros_like(mine.user_ptr), mine.items[:0], blocks, question.releases, scaling="clip"
    )


def _early(
    model: ClickModel | ItemItemModel | PublicPriorModel, mine: Interactions, times: Int64s
) -> Float64s:
    """(n, G) mean over the latest clicks of users, who have at least two, of how early each decay
    lists them (`worth.LISTED`), less the mean over decays. times: of the clicks."""
    before, wanted, owner = _before_latest(mine, times)
    V = np.asarray(model.item_vectors, np.float64)
    counts = model.private.counts if isinstance(model, PublicPriorModel) else model.counts
    others, each = compared(counts)
    some = np.ascontiguousarray(V[others])
    asked = np.stack(
        [np.asarray(decayed(model, d).user_vectors(before), np.float64) for d in DECAYS], axis=1
    )
    early = np.zeros((mine.num_users, len(DECAYS)))
    for k, (item, user) in enumerate(zip(wanted, owner, strict=True)):
        seen = before.items[before.user_ptr[k] : before.user_ptr[k + 1]]
        # click by click: a report does not depend on the batch
        later = (some @ asked[k].T <= V[item] @ asked[k].T).T
        later[:, np.isin(others, [*seen, item])] = True
        early[user] += LISTED / (LISTED + ~later @ each)
    early /= np.bincount(owner, minlength=mine.num_users)[:, None]
    return np.asarray(early - early.mean(axis=1, keepdims=True), np.float64)


def _before_latest(
    mine: Interactions, times: Int64s
) -> tuple[Interactions, Int64s, npt.NDArray[np.integer]]:
    """The clicks before each of the latest ones, as of a user of their own with the number of
    earlier clicks for time; which item came then (k,), and whose it is (k,)."""
    users, items, ages, wanted, owner = (list[Int64s]() for _ in range(5))
    for user in range(mine.num_users):
        start, stop = mine.user_ptr[user : user + 2]
        order = np.argsort(times[start:stop], kind="stable")
        clicked = mine.items[start:stop][order].astype(np.int64)
        for place in range(max(1, len(clicked) - LATEST), len(clicked)):
            users.append(np.full(place, len(wanted)))
            items.append(clicked[:place])
            ages.append(np.arange(place))
            wanted.append(clicked[place : place + 1])
            owner.append(np.array([user]))
    before = Interactions.from_columns(
        np.concatenate(users),
        np.concatenate(items),
        None,
        num_users=len(wanted),
        num_items=mine.num_items,
        value_range=mine.value_range,
        kind=mine.kind,
        times=np.concatenate(ages),
    )
    return before, np.concatenate(wanted), np.concatenate(owner)
