"""Trainings behind the figures of Ada-DPALS (Krichene et al. 2023): DPALS with uniform and tail
sampling, Ada-DPALS, and ALS.

Every method of sufficient statistics is the published recipe without item features
(`research/scenarios/ada_dpals_*.toml`), made sound: exact accounting, and counts charged. Ratings:
random 80/10/10, RMSE. Clicks: ratings of 4 and more, held-out users, Recall@20. Settings were
chosen on the validation part of MovieLens 1M's first split, those of Ada-DPALS at mu = 1/4 for all
mu; test is read once, after training.

Ada-DPSGD is `recipe = "dp-gd"` without biases: every user is clipped, steps are full batches. Its
settings are those that the search of the study on one model found (`study.searched`), of ratings on
MovieLens 1M, of clicks on likes of MovieLens 100K, at the nearest epsilon, for all mu.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Floats
from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.kinds import KINDS, Kind, assumed
from fedrec.evaluation.als import als_model
from fedrec.evaluation.ratings import popularity_buckets
from fedrec.factorization.am_ssp.client import PublishedModel
from fedrec.factorization.least_squares import solve_rows
from fedrec.factorization.rankers import Model
from fedrec.numerics.segments import order_by_item
from fedrec.randomness import Streams
from fedrec.run.outcomes import Outcome, baselines
from fedrec.settings import Scenario
from fedrec_research.papers.starts import Start
from fedrec_research.runner import Fitted, item_counts, on_test, rmse, sealed_and_fitted
from fedrec_research.sealed import SealedSplit, load_sealed
from fedrec_research.study import searched
from fedrec_research.study.forms import EPSILONS
from fedrec_research.trials import Row, merged

_SEARCHED: Mapping[Kind, str] = {"ratings": "ml-1m", "clicks": "ml-100k-likes"}
STARTS: Mapping[Kind, str] = {"ratings": "ada_dpals_figure1", "clicks": "ada_dpals_figure2"}
"""Scenarios that have a line for every method and epsilon, and say how these were chosen."""
BUCKETS = 5
NEIGHBOURS = 20
ALS_WIDTH = 16
ALS_PASSES = 10
ALS_RIDGES = (3.0, 6.0, 12.0)
UNIFORM = "DPALS (uniform)"
TAIL = "DPALS (tail)"
EQ_12 = "Ada-DPALS, eq. 12 (mu = 1/4)"
CUTOFFS = (20, 40, 60, 80, 100)
"""Of recall in the buckets: 20 for the most frequent items and 20 more for each bucket further down
the tail (the paper's footnote 3)."""
FILMS = ("Shawshank Redemption, The (1994)", "Pinocchio (1940)", "Interstellar (2014)")
"""Queries of Tables 3 and 4 with plain names; to those that the data has come a frequent, a less
frequent and a middling item."""
_METRICS: Mapping[Kind, str] = {"ratings": "rmse", "clicks": "recall_capped@20"}
METHODS: Mapping[str, Row] = {
    UNIFORM: {"weights": "constant", "sampling": "uniform"},
    TAIL: {"weights": "constant", "sampling": "tail"},
    EQ_12: {"weights": "clipped", "weight_exponent": 0.25},
}
"""What a scenario's [model] says; the last clips weights as printed, the others scale every user to
its whole budget."""


def ada(mu: str | float) -> str:
    """The legend's name; mu as a fraction."""
    return f"Ada-DPALS (mu = {Fraction(mu).limit_denominator(64)})"


def sgd(mu: str | float) -> str:
    """Return the legend's name of noisy descent, of which mu = 0 is DPSGD without adaptive weights;
    mu as a fraction."""
    return f"Ada-DPSGD (mu = {Fraction(mu).limit_denominator(64)})"


def metric_of(kind: Kind) -> str:
    """Return the metric by which all methods are compared."""
    return _METRICS[kind]


def scenario_of(start: Start, method: str, epsilon: float, seed: int) -> Scenario:
    """What `fedrec simulate` would be told, from a figure's scenario."""
    told: Row = {
        "recipe": "published",
        "seed": seed,
        "split": {"seed": seed},
        "privacy": {"epsilon": epsilon},
    }
    if method.startswith("Ada-DPSGD"):
        told["recipe"] = "dp-gd"
        return start.laid_over(_descent(start, method, epsilon), told, leave=frozenset({"model"}))
    family = method if method in {UNIFORM, TAIL} else "Ada-DPALS"
    weighting = METHODS.get(method) or {"weights": "normalised", "weight_exponent": _mu(method)}
    return start.laid_over(start.settings(family, epsilon), told, {"model": weighting})


def _descent(start: Start, method: str, epsilon: float) -> Row:
    """[model] of Ada-DPSGD at the searched epsilon that is nearest."""
    data = _SEARCHED[assumed(start.scenario.data.kind)]
    nearest = min(EPSILONS, key=lambda e: abs(math.log(e / min(epsilon, 1e9))))
    found = searched.best(data, "ada-dpgd, made sound", nearest)
    own = {"encoder": "id", "biases": False, "weight_exponent": _mu(method)}
    return merged(found, {"model": own})


def _mu(method: str) -> float:
    return float(Fraction(method.partition("mu = ")[2].removesuffix(")")))


def loaded(start: Start, seed: int) -> tuple[Dataset, SealedSplit]:
    """Return the data and split, the same for every method; sealed anew for each caller."""
    return load_sealed(scenario_of(start, ada("1/4"), 1.0, seed))


def one_run(start: Start, method: str, epsilon: float, seed: int) -> Row:
    """Train, test once, and compare the item vectors with those of ALS."""
    dataset, sealed, found = sealed_and_fitted(scenario_of(start, method, epsilon, seed))
    counts = item_counts(sealed.train)
    ours = np.asarray(found.model.item_vectors)
    theirs = np.asarray(_reference(start, seed).item_vectors, np.float32)
    compared: Row = {
        "neighbours": _neighbours(ours, dataset, counts),
        "overlap": _overlaps(ours, theirs, counts),
    }
    return compared | measured(found, sealed)


def reference_run(start: Start, seed: int) -> Row:
    """ALS without privacy: the same row for every figure of one data set."""
    dataset, sealed = loaded(start, seed)
    model = _reference(start, seed)
    V = np.asarray(model.item_vectors, np.float32)
    neighbours = _neighbours(V, dataset, item_counts(sealed.train))
    row, outcome, split = on_test(Fitted(model, "no privacy"), sealed, cutoffs=CUTOFFS)
    metric = metric_of(assumed(start.scenario.data.kind))
    simple = baselines(split.test, split.train, cutoffs=(20,))
    named = {name: found.metrics()[metric] for name, found in simple.items()}
    buckets = _bucket_values(outcome)
    return row | {"buckets": buckets, "neighbours": neighbours, "baselines": named}


@lru_cache(maxsize=4)
def _reference(start: Start, seed: int) -> Model:
    """The paper's own ALS, without biases, so that its vectors compare with the private ones;
    lambda is chosen on validation. Of clicks implicit ALS."""
    sealed = loaded(start, seed)[1]
    if not KINDS[assumed(start.scenario.data.kind)].rated:
        return als_model(sealed.train, sealed.validation, seed=seed)
    rng = Streams(seed).numpy("als-init")
    found = [_als(ridge, sealed.train, rng) for ridge in ALS_RIDGES]
    return min(found, key=lambda model: rmse(model, sealed.validation))


def _als(ridge: float, train: Interactions, rng: np.random.Generator) -> Model:
    order = order_by_item(train.user_ptr, train.items, train.num_items)
    mean = float(train.values.mean(dtype=np.float64))
    y = train.values - np.float32(mean)
    V = (0.1 * rng.standard_normal((train.num_items, ALS_WIDTH))).astype(np.float32)
    for _ in range(ALS_PASSES):
        U = solve_rows(train.user_ptr, train.items, V, ridge=ridge, targets=y)
        V = solve_rows(
            order.item_ptr, order.users, U, ridge=ridge, targets=y, positions=order.positions
        ).astype(np.float32)
    return PublishedModel(V, mean, ridge, click_weight=1.0)


def measured(found: Fitted, sealed: SealedSplit) -> Row:
    """On test: all metrics, and `buckets`, rarest items first."""
    row, outcome, _ = on_test(found, sealed, cutoffs=CUTOFFS)
    return row | {"buckets": _bucket_values(outcome)}


def _bucket_values(outcome: Outcome) -> list[float]:
    """RMSE, or recall at a cutoff that grows down the tail."""
    if outcome.ranking is None:
        return [bucket.rmse for bucket in outcome.rating_buckets]
    return [
        bucket[CUTOFFS[-1 - b]].recall_capped for b, bucket in enumerate(outcome.ranking.buckets)
    ]


def _overlaps(ours: Floats, theirs: Floats, counts: npt.NDArray[np.int64]) -> list[float]:
    """Return the overlap of the neighbours of largest inner product, by bucket."""
    shared = overlap(neighbour_lists(ours, k=NEIGHBOURS), neighbour_lists(theirs, k=NEIGHBOURS))
    bucket = popularity_buckets(counts, buckets=BUCKETS)
    return [float(shared[bucket == b].mean()) for b in range(BUCKETS)]


def _neighbours(V: Floats, dataset: Dataset, counts: npt.NDArray[np.int64]) -> list[Row]:
    """Six items of largest inner product beside each query, with counts in train."""
    names = dataset.catalogue.titles or dataset.catalogue.item_ids
    lists = neighbour_lists(V, k=min(6, len(V) - 1))
    return [
        {"item": names[j], "frequency": int(counts[j]), "list": [names[i] for i in lists[j]]}
        for j in _queries(names, counts)
    ]


def _queries(names: Sequence[str], counts: npt.NDArray[np.integer]) -> list[int]:
    by_count = np.argsort(counts, kind="stable")
    usual = [int(by_count[int(share * (len(names) - 1))]) for share in (1.0, 0.8, 0.5)]
    return list(dict.fromkeys([names.index(film) for film in FILMS if film in names] + usual))


def neighbour_lists(V: npt.NDArray[np.floating], *, k: int = 20) -> npt.NDArray[np.int64]:
    """(m, k) the k items of largest inner product with each item, largest first, itself left out:
    Ada-DPALS App. D.3's similarity.

    Cosine is the inner product of rows of length 1. Raises ValueError where there are not more than
    k items.
    """
    m = len(V)
    if not 1 <= k < m:
        raise ValueError(f"{m} items have lists of 1..{m - 1} neighbours, found k = {k}")
    X = np.asarray(V, np.float64)
    lists = np.empty((m, k), np.int64)
    for start in range(0, m, 512):  # bounded memory
        rows = np.arange(start, min(start + 512, m))
        similarity = X[rows] @ X.T
        similarity[np.arange(len(rows)), rows] = -np.inf
        some = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(similarity, some, axis=1), axis=1, kind="stable")
        lists[rows] = np.take_along_axis(some, order, axis=1)
    return lists


def overlap(
    lists: npt.NDArray[np.integer], reference: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """(m,) which share of each item's k neighbours in `reference` is in `lists` too, both (m, k)
    (Ada-DPALS Fig. 10)."""
    if lists.shape != reference.shape:
        raise ValueError(f"lists of shape {lists.shape} do not align with {reference.shape}")
    return np.array(
        [len(np.intersect1d(a, b)) / len(a) for a, b in zip(lists, reference, strict=True)]
    )
