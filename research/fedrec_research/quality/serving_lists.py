"""Quality of the lists that a real server makes from private questions: held-out NDCG@10 beside
popularity and beside the exact list.

Protocol: the default recipe at epsilon 5 per user on MovieLens 1M, as ratings and as clicks
(ratings of at least 4). Every test user makes one question from its training rows with the client's
code (`serving.asking` on the run's bundle), sends it over gRPC to a `fedrec serve` process, asks
for 10 items and as many more as a history has places, and drops what it had seen. Targets are the
test rows that are likes. Epsilons are per click (replace), of one question. "popularity" counts
train rows without noise; "exact" is the list that the device makes for itself. Gains over
popularity are paired by user, with two standard errors. The seed of question noise is the run's.
Made-up readers, three at a time (`three_readers`), ask the same server 100 times at each
epsilon, each time with fresh noise.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int64s
from fedrec.data.interactions import Interactions
from fedrec.data.splits import Fold
from fedrec.evaluation.controls import paired
from fedrec.evaluation.ranking import RankingMetrics, metrics_of
from fedrec.evaluation.toplists import NO_ITEM, dot_product, same_for_everyone, top_items
from fedrec.factorization.facts import public_facts
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.randomness import Streams
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.news_run import serving_guarantee
from fedrec.run.training import Training
from fedrec.serving.asking import ask, told
from fedrec.serving.bundle import FILE, Bundle, read, write
from fedrec.serving.exporting import Origin, PublicItems
from fedrec.serving.factorization_basis import latest_liked
from fedrec.serving.model_bundles import factorization_bundle, liked_of, released_of
from fedrec.settings import Scenario, load
from fedrec.storage import finite
from fedrec_client.serving_http import connect
from fedrec_client.serving_link import GrpcServer, ServingQuery, Trust
from fedrec_research.quality import three_readers
from fedrec_research.quality.served import served
from fedrec_research.trials import Asked, Row, paragraph

EPSILONS = (math.inf, 20.0, 10.0, 5.0, 2.0, 1.0)
K = 10
DELTA = 1e-5
EDGES = (1, 10, 20, 40, 80, 160)
"""Fewest likes of a group of users."""
KINDS = {"ratings": (), "clicks": ("data.kind=clicks",)}
LIKED = "data.click_threshold=4"
"""Of real ratings: planted clicks have no values."""

Lists = npt.NDArray[np.int32]


def run(asked: Asked) -> Row:
    """Ratings and clicks; data "planted" is the small planted set."""
    place = "data.preset=small" if asked.path == "planted" else f"data.path={asked.path}"
    epsilons = EPSILONS[:1] + EPSILONS[3:4] if asked.quick else EPSILONS
    # of the few people of the small planted set, 5 leaves clicks nothing but popularity
    spent = 20 if asked.path == "planted" else 5
    told = (f"privacy.epsilon={spent}", "privacy.noise=seeded")
    found = {
        kind: of_scenario(
            load(
                None, [place, *more, *told, *([LIKED] if more and asked.path != "planted" else [])]
            ),
            epsilons,
        )
        for kind, more in KINDS.items()
    }
    return dict(finite({"protocol": paragraph(__doc__), "kinds": found}))


def of_scenario(scenario: Scenario, epsilons: Sequence[float] = EPSILONS) -> Row:
    """One training, its bundle, and everything that is measured of it."""
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    facts = public_facts(scenario.seed, dataset, split)
    train = split.train
    fold = split.test
    liked = liked_of(scenario, split.train.kind, split.train.value_range)
    streams = Streams(scenario.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training = Training(scenario, facts, train, split.validation, folder)
        for _ in training.run():
            pass
        released = released_of(training.result.prepared.recipe, training.result.state, facts)
        guarantee = training.prepared.plan.guarantee
        origin = Origin("research", DELTA, guarantee, guarantee.epsilon, scenario.privacy.noise)
        catalogue = PublicItems.of_features(
            dataset.catalogue.item_ids, dataset.catalogue.titles, dataset.features
        )
        rng = streams.numpy("serving-basis")
        about, arrays = factorization_bundle(released, catalogue, origin, liked=liked, rng=rng)
        write(folder / FILE, about, arrays)
        bundle = read(folder / FILE)
        window = latest_liked(fold.history, places=about.history, liked=liked)
        with served(folder / FILE, folder) as server:
            link = connect(f"grpc://{server.grpc}", Trust())
            assert isinstance(link, GrpcServer)
            lists = {
                f"{e:g}": through(
                    link,
                    bundle,
                    window,
                    fold,
                    epsilon=e,
                    key=streams.key(f"serving/{e:g}"),
                )
                for e in epsilons
            }
            model = training.result.model
            readers = [
                _readers(
                    link, bundle, training.result.model, train, known, epsilons, liked, streams
                )
                for known in three_readers.threes(dataset.features, train)
            ]
            link.close()
    methods = {**_simple(model, train, fold), **lists}
    groups = _groups((window >= 0).sum(1), about.history)
    return {
        "users": fold.targets.num_users,
        "items": train.num_items,
        "places": about.history,
        "coefficients": bundle.coefficients,
        "groups": {
            words: _group(methods, fold, liked, inside) for words, inside in groups if inside.any()
        },
        "told": {f"{e:g}": _told(bundle, e) for e in epsilons},
        "readers": readers,
    }


def _readers(
    link: GrpcServer,
    bundle: Bundle,
    model: Model,
    train: Interactions,
    known: dict[str, Int64s],
    epsilons: Sequence[float],
    liked: float,
    streams: Streams,
) -> Row:
    """What three readers share."""
    one, many = (three_readers.events(known, train, draws=n) for n in (1, three_readers.DRAWS))
    window = latest_liked(many, places=bundle.about.history, liked=liked)
    lists = {"exact": _exact(model, one)[None]}
    for e in epsilons:
        key = streams.key(f"readers/{', '.join(known)}/{e:g}")
        found = through(link, bundle, window, Fold(many, many), epsilon=e, key=key)
        lists[f"{e:g}"] = found.reshape(three_readers.DRAWS, len(known), K)
    return {
        "likes": {genre: len(items) for genre, items in known.items()},
        "draws": three_readers.DRAWS,
        "lists": {name: three_readers.shared(found) for name, found in lists.items()},
    }


def _told(bundle: Bundle, epsilon: float) -> Row:
    """What an answer tells, by the number of items a person has asked with."""
    asked = serving_guarantee(epsilon, DELTA)
    return {f"{n}": told(bundle, n, guarantee=asked) for n in (6, 20, 60)}


def _simple(model: Model, train: Interactions, fold: Fold) -> dict[str, Lists]:
    """Popularity, and the same model without noise."""
    counts = np.bincount(train.items, minlength=train.num_items)
    popular = top_items(same_for_everyone(counts), history=fold.history, k=K)
    return {"popularity": popular, "exact": _exact(model, fold.history)}


def _exact(model: Model, history: Interactions) -> Lists:
    """(n, K) what a device lists with its own solve."""
    ranker = ranker_of(model)
    scores = dot_product(
        np.asarray(ranker.user_vectors(history), np.float32),
        np.asarray(ranker.item_vectors, np.float32),
    )
    return top_items(scores, history=history, k=K)


def _groups(likes: npt.NDArray[np.int64], places: int) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    """Users by how many likes they ask with: all of them, then from edge to edge."""
    groups = [("all", np.ones(len(likes), np.bool_))]
    ends = (*EDGES[1:], places + 1)
    return groups + [
        (f"{low}-{high - 1}", (likes >= low) & (likes < high))
        for low, high in zip(EDGES, ends, strict=True)
        if low < high
    ]


def through(
    link: GrpcServer, bundle: Bundle, window: Lists, fold: Fold, *, epsilon: float, key: bytes
) -> Lists:
    """(n, K) what each user of the fold shows of a server's answer."""
    sent = ask(bundle, window, guarantee=serving_guarantee(epsilon, DELTA), key=key).sent
    lists = np.full((len(sent), K), NO_ITEM, np.int32)
    asked = min(K + bundle.about.history, bundle.size)
    history = fold.history
    for user, one in enumerate(sent):
        items = np.asarray(link.recommend(ServingQuery(bundle.version, one, asked)).items, np.int64)
        unseen = items[
            ~np.isin(items, history.items[history.user_ptr[user] : history.user_ptr[user + 1]])
        ][:K]
        lists[user, : len(unseen)] = unseen
        link.journal.clear()
    return lists


def _group(
    methods: dict[str, Lists], fold: Fold, liked: float, inside: npt.NDArray[np.bool_]
) -> Row:
    """NDCG of every method over the users of a group, and how far it is above popularity."""
    targets = fold.targets.select((fold.targets.values >= liked) & inside[fold.targets.users])
    found: dict[str, RankingMetrics] = {
        name: metrics_of(lists, targets, cutoffs=(K,))[K] for name, lists in methods.items()
    }
    base = found["popularity"]
    rows = {
        name: {
            "ndcg": at.ndcg,
            "gain": at.ndcg - base.ndcg,
            "gain_stderr": paired(at.influence["ndcg"], base.influence["ndcg"]),
        }
        for name, at in found.items()
    }
    return {"users": base.users, "methods": rows}
