"""Worth of public blends: stacking of the private model and the public sources with few degrees of
freedom (Wolpert 1992), by a release of a few numbers.

About a third of users, at most `JUDGES`, leave one of their clicks out of every other report
(`client.left_out`), and say for each of G public blends how early it lists that click. The release
y is theirs and noise of std s: a sum over n people, rows of norm at most 1 over G - 1 free numbers,
so that other people's would differ by a variance of up to n / (G - 1). Together N^2 = s^2 + n / (G
- 1). Blends that are close are worth about the same, and y is read as a Gaussian process over the
blends' weights: posterior means K (K + N^2 I)^-1 y, the variance of K what y has beyond N^2. The
private model stays alone where no blend is better than it by more than the posterior's std of that
difference.

Sums of n rows of norm 1 differ between two blends by at most sqrt(2) n, and the noise of such a
difference has std sqrt(2) s: where n < `LEAST_TOLD` s nothing is asked, nobody leaves a click out,
and the release's share stays with the others (`shares`).

Guarantee (user, add/remove): a user's report is G numbers, scaled down to norm 1 where they are
longer (`federation.reports.bounded`), whatever its clicks, its id and the public arrays are;
removing the user removes that report and nothing else. Sensitivity 1. Which click is left out is
decided by the user's own id and clicks, so that every other report depends on the user alone, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks.client import left_out
from fedrec.factorization.default_clicks.model import FALLBACK, Part, PublicPriorModel
from fedrec.federation.messages import Question, Reports
from fedrec.federation.reports import RealBlock, bounded

JUDGES = 4000
"""Users who leave a click out, on average and at most: more would choose no better, and cost
clicks."""
PART = 1 / 3
"""Of users, who leave a click out at most: what useless sides cost is these clicks, since asking
alone costs nothing that could be seen.

Validation NDCG@20 of planted clicks of 1,000 x 3,000 at epsilon 20, sides that say nothing: .1133
without them, .1109 where everybody leaves a click out, .1145 where everything is asked but nobody
does (four draws); .1120 where everybody does, .1134 where half do (three draws). Of 600 listeners x
17,632 artists with tags at epsilon 1, where all, half and a third do: .1358, .1360, .1357 (one
draw), with the same blend.
"""
LEAST_SHARE = 0.01  # of mu^2, at least and
MOST_SHARE = 0.07  # at most, whatever `ENOUGH` asks for
ENOUGH = 100.0
"""Judges times mu of the release, from which on its noise is small beside what blends differ by."""
LEAST_TOLD = 5.0
"""Judges over the noise's std, below which nothing is asked.

Below it a blend is chosen by chance, for better or worse. Validation NDCG@20 (four draws) with 1 in
its place and .1 of mu^2 at most, and as it is: 300 people of planted clicks, sides that say
nothing, at epsilon .5 .518, .562; 200 people of MovieLens 100K with genres at .5, 1, 2 and 5 .052,
.033; .098, .090; .137, .138; .183, .183; 300 listeners with tags, which say much, at .5, 1, 2 and 5
.066, .006; .071, .099; .098, .086; .137, .147, 600 of them at 1 and 2 .112, .111; .145, .144.
"""
WEIGHTS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the public part in the blends that are tried, beside 0."""
NEAR = 0.3
"""Distance of two blends' weights at which what they are worth is correlated by exp(-1/2)."""
LISTED = 20.0
"""Half is lost of what a click is worth that comes after so many other items."""
COMPARED = 1000
"""Most clicked items that each click is compared with one by one: lists are mostly made of them."""
CENTRED = 2.0
"""Times what is sent: most reports are then about as long as they may be."""


def shares(*, mu: float, users: int) -> tuple[float, float]:
    """What worth gets of mu^2, and the share of users who leave a click out; both 0 where the
    noise's std is more than one `LEAST_TOLD`th of judges."""
    judges = min(users * PART, JUDGES)
    wanted = (ENOUGH / max(judges * mu, 1e-9)) ** 2 if math.isfinite(mu) else 0.0
    share = float(np.clip(wanted, LEAST_SHARE, MOST_SHARE))
    if judges * mu * math.sqrt(share) < LEAST_TOLD:
        return 0.0, 0.0
    return share, judges / max(users, 1)


def blends(sources: int) -> Float64s:
    """(G, 1 + sources) weights of the private model and of each source: the first alone, then with
    each source, and with all of them alike where there are several."""
    mixes = [np.eye(sources)[q] for q in range(sources)]
    mixes += [np.full(sources, 1 / sources)] if sources > 1 else []
    tried = [np.concatenate([[1 - w], w * mix]) for mix in mixes for w in WEIGHTS]
    return np.array([np.eye(1 + sources)[0], *tried])


def chosen_blend(worth: Float64s, tried: Float64s, *, noise_std: float, judges: float) -> Float64s:
    """(1 + sources,) the blend of `tried` (G, 1 + sources) that a noised release (G,) of so many
    judges > 0 says is worth most, as the module says; the first where it says nothing."""
    y = worth - worth.mean()
    noise = noise_std**2 + judges / (len(y) - 1)
    energy = max(float(y @ y) / (len(y) - 1) - noise, 0.0)
    distances = np.sum((tried[:, None] - tried) ** 2, axis=2)
    K = energy * np.exp(-distances / (2 * NEAR**2))
    read = np.linalg.solve(K + noise * np.eye(len(y)), K).T
    told = read @ y
    best = int(np.argmax(told))
    left_open = K - read @ K
    variance = left_open[best, best] + left_open[0, 0] - 2 * left_open[best, 0]
    better = told[best] - told[0] > math.sqrt(max(variance, 0.0))
    return np.asarray(tried[best if better else 0], np.float64)


def worth_of(
    model: PublicPriorModel, tried: Float64s, shown: Interactions, wanted: npt.NDArray[np.integer]
) -> Float64s:
    """(n, G) how early each blend of `tried` (G, 1 + sources) lists the item `wanted` (n,) of users
    who have shown the rest: `LISTED` / (`LISTED` + r), r how many other items come before it, the
    rare ones being counted by a sample (`compared`).

    Less their mean over the blends: what all have in common chooses none. Zeros where wanted is
    -1."""
    worth = np.zeros((len(wanted), len(tried)))
    counts = model.private.counts
    items, each = compared(counts)
    popular = FALLBACK * counts / max(float(counts.max()), 1e-9)
    who = np.flatnonzero(wanted >= 0)
    history = shown.users_subset(who)
    sides = zip(model.users_of_parts(history), model.items_of_parts, strict=True)
    parts = [Part(left, right).unit for left, right in sides]
    some = [np.ascontiguousarray(part.right[items]) for part in parts]
    for place, k in enumerate(who):
        seen = history.items[history.user_ptr[place] : history.user_ptr[place + 1]]
        # user by user: a report does not depend on the batch
        scores = [right @ part.left[place] for right, part in zip(some, parts, strict=True)]
        own = [part.right[wanted[k]] @ part.left[place] for part in parts]
        all_scores = tried @ np.array(scores) + popular[items]
        later = all_scores <= (tried @ np.array(own) + popular[wanted[k]])[:, None]
        later[:, np.isin(items, [*seen, wanted[k]])] = True
        worth[k] = LISTED / (LISTED + ~later @ each)
    return np.asarray(worth - worth.mean(axis=1, keepdims=True), np.float64)


def compared(counts: Float64s) -> tuple[Int64s, Float64s]:
    """Items (K,) that a click is compared with, and how many each of them stands for: the
    `COMPARED` most clicked ones, and an even sample of the others, half as many."""
    order = np.argsort(-counts, kind="stable")
    rest = order[COMPARED:]
    step = max(math.ceil(2 * len(rest) / COMPARED), 1)  # upwards: at most half of `COMPARED`
    items = np.concatenate([order[:COMPARED], rest[::step]])
    each = np.where(np.arange(len(items)) < COMPARED, 1.0, float(step))
    return np.asarray(items, np.int64), each


def asked_model(public: Mapping[str, npt.NDArray[np.generic]]) -> PublicPriorModel:
    """The model of the arrays that `asked_of` gives."""
    arrays = dict(public)
    if "known" in arrays:
        arrays["head"] = np.flatnonzero(arrays["known"])
        arrays |= {name: arrays[name][arrays["head"]] for name in ("left", "right")}
    sources = sum(name.startswith("public.") for name in arrays)
    return PublicPriorModel.of_arrays({**arrays, "weights": np.eye(1 + sources)[0]})


def report_worth(question: Question, mine: Interactions) -> Reports:
    """Block "worth": `CENTRED` times `worth_of` the click that a user has left out, cut to norm 1;
    zeros of users who left none out."""
    held = left_out(mine, judges=float(question.public["judges"]))
    wanted = np.full(mine.num_users, -1)
    wanted[mine.users[held]] = mine.items[held]
    model = asked_model(question.public)
    tried = blends(len(model.directions))
    with np.errstate(all="ignore"):  # of arrays that a false server made up
        rows = CENTRED * worth_of(model, tried, mine.select(~held), wanted)
    blocks = [RealBlock(np.ones(mine.num_users), rows)]
    return bounded(
        np.zeros_like(mine.user_ptr),
        mine.items[:0],
        blocks,
        question.releases,
        scaling="clip",
    )
