"""Private clicks, the default beside the simple recipes, popularity, EASE, exact ALS and the
`implicit` package's ALS.

Of a data set with its own test events all of the given train events train every row, as is usual
for these data sets (He et al. 2020), and are the history that users are solved from and that lists
leave out: nothing is chosen by test. Ratings become clicks where they are at least `LIKED`, and are
split at random, 80% to train, or by time (`--set split.kind=`). EASE's ridge alone is chosen here,
on validation events (a tenth of train, or the split's own); where its catalogue is cut to the most
frequent items the row says so.
Where the data has public item features the default has them, and is shown without them besides: no
other row knows them. NDCG@20 and Recall@20 over the full catalogue; private rows are means over
noise seeds, with their range.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.read import read
from fedrec.data.splits import (
    Fold,
    Split,
    check_no_leak,
    given,
    leave_last_out,
    random_split,
    temporal,
)
from fedrec.errors import SettingsError
from fedrec.evaluation.als import (
    CLICK_ALPHA,
    CLICK_RIDGE,
    CLICK_WIDTH,
    ITERATIONS,
    MOST_ITEMS,
    RIDGES,
    ItemItem,
    ease,
)
from fedrec.evaluation.controls import SHUFFLED
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import Scores, dot_product, of_another_user, same_for_everyone
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.least_squares import alternate_clicks
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.randomness import Streams
from fedrec.settings import load
from fedrec_research.runner import fitted, peak_rss_mb
from fedrec_research.trials import Asked, Row

EPSILONS = (0.5, 1.0, 5.0, 20.0, 200.0)
SEEDS = (101, 102, 103)
K = 20
LIKED = 4.0
SIMPLE = ("dp-item-item", "dp-popularity")
RANDOM = "random"
SPLITS: Mapping[str, Callable[[Interactions], Split]] = {
    RANDOM: partial(random_split, seed=1),
    "temporal": partial(temporal, seed=1),
    "leave-last-out": partial(leave_last_out, seed=1),
}


@dataclass(frozen=True)
class _Work:
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


def run(asked: Asked) -> Row:
    """The table, e.g. of the folder of yelp2018; of a small part fewer seeds and iterations.

    Raises DataError on bad data, SettingsError on clicks without test events of their own.
    """
    kind = _split_of(asked.overrides)
    work = _work(asked.path, kind)
    seeds = asked.seeds_of(SEEDS)
    epsilons = EPSILONS[2:3] if asked.quick else asked.epsilons or EPSILONS
    iterations = 2 if asked.quick else ITERATIONS
    lines = [("", "default", True), *((f"{name}, ", name, True) for name in SIMPLE)]
    if work.features is not None:
        lines.insert(1, ("without features, ", "default", False))
    asked_rows = {
        f"{words}epsilon {e:g}": (private_row, asked.path, kind, recipe, features, e)
        for words, recipe, features in lines
        for e in epsilons
    }
    rows = asked.by_seed(asked_rows, seeds)
    silent = asked.by_seed(
        {"": (private_row, asked.path, kind, "default", True, math.inf)}, seeds[:1]
    )
    exact = _exact_als(work, iterations)
    peer = _implicit_als(work, iterations)
    sizes = {"users": work.train.num_users, "items": work.train.num_items}
    return {
        "data": {**sizes, "train": len(work.train), "test": len(work.test)},
        "split": work.split.kind,
        "trained_on": work.trained_on,
        "popularity, not private": work.measure(same_for_everyone(work.counts)),
        **{name: _summary(found, seeds) for name, found in rows.items()},
        "no privacy, same rounds": _summary(silent[""], seeds[:1]),
        "EASE": _ease(work),
        "exact ALS": exact,
        "implicit ALS": peer,
        "exact ALS over implicit": peer
        and {name: exact[name] / peer[name] for name in (f"ndcg@{K}", f"recall@{K}")},
        "peak_rss_mb": peak_rss_mb(),
    }


@lru_cache(maxsize=1)
def _work(data: str, kind: str) -> _Work:
    return _divided(read(data), data, kind)


def _split_of(overrides: Sequence[str]) -> str:
    """The kind of split. Raises SettingsError on another key or kind."""
    told = dict(said.split("=", 1) for said in overrides)
    kind = told.pop("split.kind", RANDOM)
    if told or kind not in SPLITS:
        raise SettingsError(
            f"clicks takes no {', '.join(overrides)}", f"Use split.kind={'|'.join(SPLITS)}."
        )
    return kind


def _divided(dataset: Dataset, named: str, kind: str) -> _Work:
    """All given train events and the given test; or likes, split at random or by time."""
    rated = dataset.interactions.rated
    if dataset.given_test is not None and not rated:
        events = dataset.interactions
        test = dataset.given_test
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
        return _Work(events, test, given(events, test, seed=1), said)
    if not rated:
        raise SettingsError(
            f"{named} has clicks without its own test events",
            "Give ratings, or a folder like that of yelp2018.",
        )
    liked = dataset.interactions.select(dataset.interactions.values >= LIKED)
    likes = replace(
        liked, values=np.ones(len(liked), np.float32), kind="clicks", value_range=(0.0, 1.0)
    )
    split = SPLITS[kind](likes)
    said = (
        f"80% of the ratings of at least {LIKED:g}, as clicks, drawn at random (split seed 1), "
        "which are the users' history too"
        if kind == RANDOM
        else f"ratings of at least {LIKED:g}, as clicks, but for the latest ({kind})"
    )
    features = dataset.features if dataset.features and dataset.features.bags else None
    return _Work(split.train, split.test.targets, split, said, features)


def _ease(work: _Work) -> dict[str, Any]:
    """Steck 2019 on the counts of the most frequent items, with the ridge that was best on
    validation, then fitted to all of train."""
    started = time.perf_counter()
    counts = work.counts
    head = np.sort(np.argsort(-counts, kind="stable")[:MOST_ITEMS])

    def fitted(events: Interactions, ridge: float) -> ItemItem:
        ones = np.ones(len(events), np.float32)
        X = sparse.csr_matrix(
            (ones, events.items, events.user_ptr), shape=(events.num_users, events.num_items)
        )[:, head]
        gram = np.asarray((X.T @ X).todense(), np.float64)
        return ItemItem(ease(gram, ridge=ridge * float(np.trace(gram)) / len(head)), head, counts)

    known = _Work(work.split.train, work.split.validation.targets, work.split, work.trained_on)
    validated = {
        ridge: known.measure(fitted(known.train, ridge).scores(known.train))[f"ndcg@{K}"]
        for ridge in RIDGES
    }
    ridge = max(validated, key=lambda one: validated[one])
    found = work.measure(fitted(work.train, ridge).scores(work.train))
    return {
        "train_seconds": time.perf_counter() - started,
        **found,
        "items": len(head),
        "ridge over mean count": ridge,
    }


def private_row(
    data: str, kind: str, recipe: str, features: bool, epsilon: float, seed: int
) -> Row:
    """A recipe, as `fedrec simulate` makes it, on the train events, with and without features."""
    work = _work(data, kind)
    events = work.train
    known = work.features if features else None
    sizes = (events.num_users, events.num_items, events.kind, events.value_range)
    scenario = load(None, [f"recipe={recipe}", f"privacy.epsilon={epsilon}", f"seed={seed}"])
    timed = events.times is not None and work.split.follows
    facts = PublicFacts(*sizes, known, Streams(seed), timed=timed)
    found = fitted(scenario, facts, events)
    scores = _scores(found.model, events)
    shuffled = work.measure(of_another_user(scores, events.num_users))
    measured = work.measure(scores)
    return {**measured, SHUFFLED: shuffled, **found.exact_costs, "train_seconds": found.seconds}


def _summary(rows: Sequence[Row], seeds: Sequence[int]) -> Row:
    each = {name: [row[name] for row in rows] for name in (f"ndcg@{K}", f"recall@{K}")}
    first = rows[0]
    return {
        **{name: float(np.mean(values)) for name, values in each.items()},
        "range": {name: [min(values), max(values)] for name, values in each.items()},
        "noise_seeds": list(seeds),
        SHUFFLED: rows[-1][SHUFFLED],
        "guarantee": first["guarantee"],
        "second_opinion": {by: first["accountants"][by] for by in ("pld", "rdp")},
        "train_seconds": float(np.mean([row["train_seconds"] for row in rows])),
    }


def _scores(model: Model, history: Interactions) -> Scores:
    ranker = ranker_of(model)
    return dot_product(
        np.asarray(ranker.user_vectors(history), np.float32),
        np.asarray(ranker.item_vectors, np.float32),
    )


def _exact_als(work: _Work, iterations: int) -> dict[str, Any]:
    def fit() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        rng = np.random.default_rng(1)
        chosen = {"width": CLICK_WIDTH, "ridge": CLICK_RIDGE, "alpha": CLICK_ALPHA}
        *_, last = alternate_clicks(work.train, **chosen, iterations=iterations, rng=rng)  # type: ignore[arg-type]
        return last.model.U, last.model.V

    return _fitted(work, fit) | {
        "dimension": CLICK_WIDTH,
        "ridge": CLICK_RIDGE,
        "alpha": CLICK_ALPHA,
        "iterations": iterations,
    }


def _implicit_als(work: _Work, iterations: int) -> dict[str, Any] | None:
    """The package's confidence of a click is its alpha, ours is 1 + alpha.

    Its default solver: three steps of conjugate gradient."""
    try:
        from implicit.als import AlternatingLeastSquares
        from threadpoolctl import threadpool_limits
    except ImportError:
        return None
    events = work.train
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

    return _fitted(work, fit)


def _fitted(
    work: _Work, fit: Callable[[], tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]
) -> dict[str, Any]:
    started = time.perf_counter()
    U, V = fit()
    return {"train_seconds": time.perf_counter() - started, **work.measure(dot_product(U, V))}
