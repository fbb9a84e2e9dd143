"""News that training did not have, ranked by their texts: `NewsRecommender.with_items` on a tenth
of the news that is left out, beside one list for everybody and random order.

    fedrec research measure new-news
    fedrec research measure new-news --data PATH/ml-1m

Lists are of the new articles alone, and a hit is one that the reader of a test impression clicked.
Histories are of known articles.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import polars as pl

from fedrec.arrays import Bools, Int64s
from fedrec.data.added_items import added_items
from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.impressions import Impressions, News
from fedrec.data.interactions import Interactions
from fedrec.evaluation.ranking import metrics_of
from fedrec.evaluation.toplists import Scores, among, same_for_everyone, top_items
from fedrec.news.local_clients import LocalClients
from fedrec.news.trained import Catalogue, TrainedNews, item_vectors
from fedrec.news.variant import train_news
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec.run.data.news import load_news
from fedrec.serving.asking import ask
from fedrec.serving.bundle import FILE, Bundle, read, write
from fedrec.serving.exporting import Origin
from fedrec.serving.model_bundles import with_news
from fedrec.serving.news_bundles import news_bundle
from fedrec.settings import validated
from fedrec_research.trials import Asked, Row, trial

K = 20
SEEDS = (1, 2, 3)
SHARE = 0.1
EPSILONS = (math.inf, 5.0)
"""Of one answer, per click."""


def run(asked: Asked) -> Row:
    """A row for each seed of the data's division."""
    folder = asked.data[0] if asked.data else ""
    seeds = asked.seeds_of(SEEDS)
    trials = {seed: trial(new_news_row, folder, asked.quick, seed) for seed in seeds}
    name = Path(folder).name or "planted news"
    return {"data": name, "left_out": SHARE, "rows": list(asked.rows(trials).values())}


def new_news_row(folder: str, quick: bool, seed: int) -> Row:
    """NDCG@20 among the articles left out: at each epsilon of an answer, everybody's list and
    random."""
    data = {"format": "click-log", "path": folder} if folder else {"format": "planted-news"}
    content = {
        "recipe": "additive",
        "seed": seed,
        "split": {"seed": seed},
        "data": data | ({} if folder else {"preset": "small" if quick else "demo"}),
        "privacy": {"epsilon": 5, "noise": "seeded", "unit": "click"},
    }
    scenario = validated(content, source="new-news")
    whole = load_news(scenario)
    new = Streams(seed).numpy("news-left-out").random(len(whole.news)) < SHARE
    order = np.argsort(new, kind="stable")
    known = order[: int((~new).sum())]
    news = rows_of(whole.news, known)
    bags = {
        name: FeatureBag(bag.vocabulary, bag.counts[known])
        for name, bag in whole.features.bags.items()
    }
    catalogue = Catalogue(news, item_vectors(scenario, news, PublicFeatures(bags)))
    train = without(whole.log.train, new, order)
    *_, done = train_news(scenario, catalogue, LocalClients(scenario, catalogue, train))
    assert isinstance(done, TrainedNews)
    origin = Origin("new-news", 1e-5, done.guarantee, done.spent, "seeded")
    today = partial(added_items, today=frame_of(whole.news), item="item")
    with TemporaryDirectory() as place:
        path = Path(place) / FILE
        write(path, *news_bundle(done.recommender, news, origin))
        write(path, *with_news(read(path), today))
        bundle = read(path)
    return {"seed": seed, "known": len(known), "new": int(new.sum())} | measured(
        bundle, whole.log.test, new, order, seed
    )


def rows_of(news: News, items: Int64s) -> News:
    """Some news, in that order."""
    return News(**{name: tuple(column[j] for j in items) for name, column in vars(news).items()})


def without(data: Impressions, new: Bools, order: Int64s) -> Impressions:
    """Impressions whose clicks and candidates are known news, numbered as in `order`; new ones are
    left out of histories."""
    place = np.argsort(order).astype(np.int32)
    kept = ~new[data.candidates]
    owner = np.repeat(np.arange(len(data)), np.diff(data.candidate_ptr))
    sizes = np.bincount(owner[kept], minlength=len(data))
    clicks = np.bincount(owner[kept & data.clicked], minlength=len(data))
    old = np.append(~new, False)[data.history]  # -1 is of no news
    lengths = np.bincount(
        np.repeat(np.arange(data.num_users), np.diff(data.history_ptr))[old],
        minlength=data.num_users,
    )
    found = replace(
        data,
        num_news=int((~new).sum()),
        history_ptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        history=place[data.history[old]],
        candidate_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        candidates=place[data.candidates[kept]],
        clicked=data.clicked[kept],
    )
    return found.select(np.flatnonzero((clicks > 0) & (sizes > clicks)))


def frame_of(news: News) -> pl.DataFrame:
    """Today's table, as a publisher has it."""
    return pl.DataFrame(
        {
            "item": news.ids,
            "title": news.titles,
            "abstract": news.abstracts,
            "category": news.categories,
            "subcategory": news.subcategories,
        }
    )


def measured(bundle: Bundle, test: Impressions, new: Bools, order: Int64s, seed: int) -> Row:
    """NDCG@20 of clicks on new articles in lists of these alone."""
    place = np.argsort(order)
    late = np.arange(len(new)) >= int((~new).sum())
    owner = np.repeat(test.users, np.diff(test.candidate_ptr))
    hit = test.clicked & new[test.candidates]
    targets = _events(owner[hit], place[test.candidates[hit]], test.num_users, len(new))
    nobody = _events(owner[:0], place[:0], test.num_users, len(new))
    history = np.append(np.where(new, -1, place), -1).astype(np.int32)[
        test.last_clicks(bundle.about.history)
    ]

    def ndcg(scores: Scores) -> float:
        lists = top_items(among(scores, late), history=nobody, k=K)
        return float(metrics_of(lists, targets, cutoffs=(K,))[K].ndcg)

    found: Row = {"readers": int((np.diff(targets.user_ptr) > 0).sum())}
    key = Streams(seed).key("new-news")
    for epsilon in EPSILONS:
        asked = (
            non_private(1e-5, "click", "replace")
            if math.isinf(epsilon)
            else Guarantee(epsilon, 1e-5, "click", "replace")
        )
        U = bundle.users(ask(bundle, history, guarantee=asked, key=key).sent)
        scores = (U @ bundle.items.T + bundle.bias).astype(np.float32)
        found[f"answer at {epsilon:g}"] = ndcg(lambda a, b, s=scores: s[a:b])  # type: ignore[misc]
    found["one list for everybody"] = ndcg(same_for_everyone(bundle.bias))
    chance = Streams(seed).numpy("random-order").random((test.num_users, len(new)))
    found["random order"] = ndcg(lambda a, b: chance[a:b].astype(np.float32))
    return found


def _events(
    users: npt.NDArray[np.integer],
    items: npt.NDArray[np.integer],
    num_users: int,
    num_items: int,
) -> Interactions:
    """Each pair once."""
    pairs = np.unique(np.column_stack([users, items]), axis=0)
    return Interactions.from_columns(
        pairs[:, 0], pairs[:, 1], None,
        num_users=num_users, num_items=num_items, value_range=(0.0, 1.0), kind="clicks",
    )  # fmt: skip
