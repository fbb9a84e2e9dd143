"""Private clicks, the default beside the simple recipes, popularity, EASE, exact ALS and the
`implicit` package's ALS.

Of a data set with its own test events all of the given train events train every row, as is usual
for these data sets (He et al. 2020), and are the history that users are solved from and that lists
leave out: nothing is chosen by test. Ratings become clicks where they are at least `LIKED`, and are
split at random, 80% to train. EASE's ridge alone is chosen here, on validation events (a tenth of
train, or the split's own); where its catalogue is cut to the most frequent items the row says so.
Where the data has public item features the default has them, and is shown without them besides: no
other row knows them. NDCG@20 and Recall@20 over the full catalogue; private rows are means over
noise seeds, with their range. `implicit` needs the `bench` extra.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.data.dataset import Dataset
from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.read import read
from fedrec.data.splits import Fold, Split, check_no_leak, given, random_split
from fedrec.errors import SettingsError
from fedrec.evaluation.controls import SHUFFLED
from fedrec.evaluation.item_item import MOST_ITEMS, RIDGES, ItemItem, ease
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import Scores, dot_product, of_another_user, same_for_everyone
from fedrec.factorization.alternating import alternate_clicks
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.model import Model, ranker_of
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import load
from fedrec_simulations.experiments.ceiling import CLICK_ALPHA, CLICK_RIDGE, CLICK_WIDTH, ITERATIONS
from fedrec_simulations.experiments.in_memory import rounds

EPSILONS, SEEDS, K = (1.0, 5.0, 20.0), (101, 102, 103), 20
LIKED = 4.0
SIMPLE = ("dp-item-item", "dp-popularity")


@dataclass(frozen=True)
class _Bench:
    """Train events and test targets over the same users; how to measure scores."""

    train: Interactions
    test: Interactions
    split: Split
    trained_on: str
    features: PublicFeatures | None = None

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return np.bincount(self.train.items, minlength=self.train.num_items)

    def measure(self, scores: Scores) -> dict[str, float]:
        found = evaluate_ranking(
            scores, history=self.train, targets=self.test, train_counts=self.counts, cutoffs=(K,)
        ).at[K]
        return {f"ndcg@{K}": found.ndcg, f"recall@{K}": found.recall}


def run(data: str, *, quick: bool = False) -> dict[str, Any]:
    """The table as a JSON-able dict, e.g. of the folder of yelp2018. `quick`: fewer seeds and
    iterations, to test the wiring.

    Raises DataError on bad data, SettingsError on clicks without test events of their own.
    """
    bench = _bench(read(data), data)
    popularity = bench.measure(same_for_everyone(bench.counts))
    seeds = SEEDS[:1] if quick else SEEDS
    epsilons = EPSILONS[1:2] if quick else EPSILONS
    private = {f"epsilon {e:g}": _private(bench, e, seeds) for e in epsilons}
    if bench.features is not None:
        by_ids = replace(bench, features=None)
        private |= {
            f"without features, epsilon {e:g}": _private(by_ids, e, seeds) for e in epsilons
        }
    simple = {
        f"{name}, epsilon {e:g}": _private(bench, e, seeds, name)
        for name in SIMPLE
        for e in epsilons
    }
    silent = _private(bench, math.inf, seeds[:1])
    exact, peer = (
        _exact_als(bench, 2 if quick else ITERATIONS),
        _implicit_als(bench, 2 if quick else ITERATIONS),
    )
    return {
        "data": {
            "users": bench.train.num_users,
            "items": bench.train.num_items,
            "train": len(bench.train),
            "test": len(bench.test),
        },
        "trained_on": bench.trained_on,
        "popularity, not private": popularity,
        **private,
        **simple,
        "no privacy, same rounds": silent,
        "EASE": _ease(bench),
        "exact ALS": exact,
        "implicit ALS": peer,
        "exact ALS over implicit": None
        if peer is None
        else {name: exact[name] / peer[name] for name in popularity},
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _bench(dataset: Dataset, named: str) -> _Bench:
    """All given train events and the given test; or likes, split at random."""
    rated = dataset.interactions.rated
    if dataset.given_test is not None and not rated:
        events, test = dataset.interactions, dataset.given_test
        check_no_leak(
            Split(
                "given",
                0,
                events,
                Fold(events, test.select(np.zeros(len(test), np.bool_))),
                Fold(events, test),
            )
        )
        said = (
            "all given train events, which are the users' history too; no validation was held out"
        )
        return _Bench(events, test, given(events, test, seed=1), said)
    if not rated:
        raise SettingsError(
            f"{named} has clicks without its own test events",
            "Give ratings, or a folder like that of yelp2018.",
        )
    liked = dataset.interactions.select(dataset.interactions.values >= LIKED)
    likes = replace(
        liked, values=np.ones(len(liked), np.float32), kind="clicks", value_range=(0.0, 1.0)
    )
    split = random_split(likes, seed=1)
    said = (
        f"80% of the ratings of at least {LIKED:g}, as clicks, drawn at random (split seed 1), "
        "which are the users' history too"
    )
    features = dataset.features if dataset.features and dataset.features.bags else None
    return _Bench(split.train, split.test.targets, split, said, features)


def _ease(bench: _Bench) -> dict[str, Any]:
    """Steck 2019 on the counts of the most frequent items, with the ridge that was best on
    validation, then fitted to all of train."""
    started, counts = time.perf_counter(), bench.counts
    head = np.sort(np.argsort(-counts, kind="stable")[:MOST_ITEMS])

    def fitted(events: Interactions, ridge: float) -> ItemItem:
        ones = np.ones(len(events), np.float32)
        X = sparse.csr_matrix(
            (ones, events.items, events.user_ptr), shape=(events.num_users, events.num_items)
        )[:, head]
        gram = np.asarray((X.T @ X).todense(), np.float64)
        return ItemItem(ease(gram, ridge=ridge * float(np.trace(gram)) / len(head)), head, counts)

    known = _Bench(bench.split.train, bench.split.validation.targets, bench.split, bench.trained_on)
    validated = {
        ridge: known.measure(fitted(known.train, ridge).scores(known.train))[f"ndcg@{K}"]
        for ridge in RIDGES
    }
    ridge = max(validated, key=lambda one: validated[one])
    found = bench.measure(fitted(bench.train, ridge).scores(bench.train))
    return {
        "train_seconds": time.perf_counter() - started,
        **found,
        "items": len(head),
        "ridge over mean count": ridge,
    }


def _private(
    bench: _Bench, epsilon: float, seeds: Sequence[int], recipe: str = "default"
) -> dict[str, Any]:
    rows, trained = list[dict[str, float]](), list[float]()
    for seed in seeds:
        started = time.perf_counter()
        made, model = _trained(bench, epsilon, seed, recipe)
        trained.append(time.perf_counter() - started)
        scores = _scores(model, bench.train)
        rows.append(bench.measure(scores))
    shuffled = bench.measure(of_another_user(scores, bench.train.num_users))
    guarantee, opinions = made.plan.guarantee, made.plan.opinions()
    return {
        **{name: float(np.mean([row[name] for row in rows])) for name in rows[0]},
        "range": {
            name: [min(row[name] for row in rows), max(row[name] for row in rows)]
            for name in rows[0]
        },
        "noise_seeds": list(seeds),
        SHUFFLED: shuffled,
        "guarantee": {
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "unit": guarantee.unit,
            "neighbours": guarantee.neighbours,
        },
        "second_opinion": {"pld": opinions.pld, "rdp": opinions.rdp},
        "train_seconds": float(np.mean(trained)),
    }


def _trained(bench: _Bench, epsilon: float, seed: int, recipe: str) -> tuple[Prepared, Model]:
    """A recipe, as `fedrec simulate` makes it."""
    events = bench.train
    facts = PublicFacts(
        events.num_users,
        events.num_items,
        events.kind,
        events.value_range,
        bench.features,
        Streams(seed),
    )
    made = prepare(load(None, [f"recipe={recipe}", f"privacy.epsilon={epsilon}"]), facts)
    *_, last = rounds(made, events, seed)
    return made, made.recipe.model(last.state)


def _scores(model: Model, history: Interactions) -> Scores:
    ranker = ranker_of(model)
    return dot_product(
        np.asarray(ranker.user_vectors(history), np.float32),
        np.asarray(ranker.item_vectors, np.float32),
    )


def _exact_als(bench: _Bench, iterations: int) -> dict[str, Any]:
    def fit() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        rng = np.random.default_rng(1)
        chosen = {"width": CLICK_WIDTH, "ridge": CLICK_RIDGE, "alpha": CLICK_ALPHA}
        *_, last = alternate_clicks(bench.train, **chosen, iterations=iterations, rng=rng)  # type: ignore[arg-type]
        return last.model.U, last.model.V

    return _fitted(bench, fit) | {
        "dimension": CLICK_WIDTH,
        "ridge": CLICK_RIDGE,
        "alpha": CLICK_ALPHA,
        "iterations": iterations,
    }


def _implicit_als(bench: _Bench, iterations: int) -> dict[str, Any] | None:
    """The package's confidence of a click is its alpha, ours is 1 + alpha.

    Its default solver: three steps of conjugate gradient."""
    try:
        from implicit.als import AlternatingLeastSquares
        from threadpoolctl import threadpool_limits
    except ImportError:
        return None
    events = bench.train
    X = sparse.csr_matrix(
        (np.ones(len(events), np.float32), events.items, events.user_ptr),
        shape=(events.num_users, events.num_items),
    )

    def fit() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        chosen = {
            "factors": CLICK_WIDTH,
            "regularization": CLICK_RIDGE,
            "alpha": 1 + CLICK_ALPHA,
            "iterations": iterations,
        }
        with threadpool_limits(1, "blas"):  # as the package asks for: its own threads use all cores
            peer = AlternatingLeastSquares(**chosen, random_state=1, dtype=np.float32)
            peer.fit(X, show_progress=False)
        return np.asarray(peer.user_factors), np.asarray(peer.item_factors)

    return _fitted(bench, fit)


def _fitted(
    bench: _Bench, fit: Callable[[], tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]
) -> dict[str, Any]:
    started = time.perf_counter()
    U, V = fit()
    return {"train_seconds": time.perf_counter() - started, **bench.measure(dot_product(U, V))}
