"""A year of weekly models at one yearly epsilon of 5: a stream, 52 trainings that share the budget,
and one training.

Protocol: clicks fall into 52 weeks; a fifth of them, at random, are test clicks. After a week each
model lists for everybody who has clicked by then, from the training clicks so far; the test clicks
so far are wanted (NDCG@20). "stream": `privacy.horizon` = 52. "equal split": dp-item-item on all
clicks so far, at mu / sqrt(52). "one training": dp-item-item on all clicks so far at epsilon 5, if
the only training of the year is in this week: it has no model before, and none of later clicks.

"planted": 2,000 people x 500 items, 40 clicks each. Half are there from the start, a third of them
with a history of half their clicks; the others arrive by week 40. Everybody stays 4 to 52 weeks. A
fifth of the items arrive between weeks 2 and 40. Other data is divided by its real times into 52
parts of equal length. User level, delta 1e-5; seeds of split, noise and what is planted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.data.planted import PlantedShape, planted
from fedrec.evaluation.intervals import mean_and_error
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import dot_product
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.federation.messages import train
from fedrec.in_process import Loopback
from fedrec.preparing import prepare
from fedrec.privacy.accounting import Ledger, epsilon_of, mu_for
from fedrec.randomness import Streams
from fedrec.run.data.datasets import load_dataset
from fedrec.settings import load, validated
from fedrec_research.trials import Asked, Row, paragraph, rows_of, trial

WEEKS = 52
EPSILON, DELTA = 5.0, 1e-5
SHOWN = (1, 2, 4, 7, 10, 13, 17, 22, 26, 32, 39, 46, 52)
METHODS = ("stream", "equal split", "one training")
SHAPE = PlantedShape(users=2_000, items=500, events=80_000, kind="clicks")


def run(asked: Asked) -> Row:
    """NDCG@20 by method and week, means and standard errors over seeds; data "planted" or a
    folder."""
    data = asked.data[0] if asked.data else "planted"
    seeds = range(1, (asked.seeds or 3) + 1)
    trials = {seed: trial(year_of, data, seed, asked.quick) for seed in seeds}
    rows = rows_of(trials, folder=asked.folder, jobs=asked.jobs, tell=asked.tell)
    weeks = rows[1]["weeks"]
    found: Row = {}
    for method in METHODS:
        told = [mean_and_error([rows[s][method][w] for s in seeds]) for w in range(len(weeks))]
        found[method] = {"mean": [m for m, _ in told], "standard_error": [e for _, e in told]}
    return {"protocol": paragraph(__doc__), "weeks": weeks, "seeds": len(rows), **found}


def year_of(data: str, seed: int, quick: bool) -> Row:
    """NDCG@20 of every method, in the weeks that are shown."""
    world = _planted_year(seed, quick) if data == "planted" else _real_year(data)
    mine = world.select(np.random.default_rng(seed).random(len(world)) >= 0.2)
    wanted = _without(world, mine)
    assert mine.times is not None
    assert wanted.times is not None
    horizon = 8 if quick else WEEKS
    period = (int(mine.times.min()), int(mine.times.max()))
    ends = period[0] + (period[1] + 1 - period[0]) * np.arange(1, horizon + 1) // horizon
    shown = [week for week in SHOWN if week <= horizon]
    share = epsilon_of(mu_for(EPSILON, DELTA) / horizon**0.5, DELTA)
    found: Row = {"weeks": shown, **{method: [] for method in METHODS}}
    models = _streamed(mine, period, horizon, seed)
    for week in shown:
        so_far = mine.select(mine.times < ends[week - 1])
        targets = wanted.select(wanted.times < ends[week - 1])
        for method, model in (
            ("stream", models[week - 1]),
            ("equal split", _once(so_far, share, seed=seed + 1_000 * week)),
            ("one training", _once(so_far, EPSILON, seed=seed + 1_000 * week)),
        ):
            found[method].append(_ndcg(model, so_far, targets))
    return found


def _facts(mine: Interactions, seed: int, period: tuple[int, int] | None = None) -> PublicFacts:
    return PublicFacts(
        mine.num_users, mine.num_items, "clicks", (1.0, 1.0), None, Streams(seed), period=period
    )


def _streamed(mine: Interactions, period: tuple[int, int], horizon: int, seed: int) -> list[Model]:
    privacy = {"epsilon": EPSILON, "delta": DELTA, "horizon": horizon}
    asked = validated({"recipe": "dp-item-item", "privacy": privacy}, source="year")
    made = prepare(asked, _facts(mine, seed, period))
    link = Loopback(mine, made.steps, made.plan, Streams(seed), Ledger(made.plan.guarantee))
    done = train(made.recipe, link, made.recipe.begin())
    return [made.recipe.model(one.state) for one in done if one.question.round % 2]


def _once(mine: Interactions, epsilon: float, *, seed: int) -> Model:
    privacy = {"epsilon": epsilon, "delta": DELTA}
    asked = validated({"recipe": "dp-item-item", "privacy": privacy}, source="year")
    made = prepare(asked, _facts(mine, seed))
    link = Loopback(mine, made.steps, made.plan, Streams(seed), Ledger(made.plan.guarantee))
    *_, last = train(made.recipe, link, made.recipe.begin())
    return made.recipe.model(last.state)


def _ndcg(model: Model, history: Interactions, targets: Interactions) -> float:
    ranker = ranker_of(model)
    scores = dot_product(
        np.asarray(ranker.user_vectors(history), np.float32),
        np.asarray(ranker.item_vectors, np.float32),
    )
    known = np.diff(history.user_ptr) > 0
    found = evaluate_ranking(
        scores,
        history=history,
        targets=targets.select(known[targets.users]),
        train_counts=np.bincount(history.items, minlength=history.num_items),
        cutoffs=(20,),
    )
    return found.at[20].ndcg


def _without(world: Interactions, mine: Interactions) -> Interactions:
    own = mine.users.astype(np.int64) * mine.num_items + mine.items
    all_of = world.users.astype(np.int64) * world.num_items + world.items
    return world.select(~np.isin(all_of, own))


def _real_year(data: str) -> Interactions:
    read = load(None, [f"data.path={data}", "data.kind=clicks", "data.click_threshold=4"])
    return load_dataset(read).interactions


def _planted_year(seed: int, quick: bool) -> Interactions:
    """Planted clicks at times in thousandths of a week."""
    shape = replace(SHAPE, users=300, items=150, events=9_000) if quick else SHAPE
    mine = planted(shape, seed=seed).interactions
    rng = np.random.default_rng([seed, 58])
    n, m = mine.num_users, mine.num_items
    there = rng.random(n) < 0.5
    begins = np.where(there, 0, rng.integers(1, 40, n))
    ends = np.minimum(begins + rng.integers(4, 53, n), WEEKS)
    arrives = np.where(rng.random(m) < 0.2, rng.integers(1, 40, m), 0)
    first = np.maximum(begins[mine.users], arrives[mine.items])
    length: Float64s = (ends[mine.users] - first).astype(np.float64)
    times = first + rng.random(len(mine)) * np.maximum(length, 0)
    history = (there & (rng.random(n) < 1 / 3))[mine.users] & (rng.random(len(mine)) < 0.5)
    times = np.where(history & (first == 0), 0.0, times)
    timed = replace(mine, times=np.asarray(1_000 * times, np.int64))
    return timed.select(length > 0)
