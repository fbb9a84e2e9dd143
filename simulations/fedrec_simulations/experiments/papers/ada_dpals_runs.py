"""Trainings behind the figures of Ada-DPALS (Krichene et al. 2023): DPALS with uniform and tail
sampling, Ada-DPALS, and ALS.

Every method of sufficient statistics is the published recipe without item features
(`simulations/ada_dpals_*.toml`), made sound: exact accounting, and counts charged. Ratings: random
80/10/10, RMSE. Clicks: ratings of 4 and more, held-out users, Recall@20. Settings were chosen on
the validation part of MovieLens 1M's first split, those of Ada-DPALS at mu = 1/4 for all mu; test
is read once, after training.

Ada-DPSGD is `recipe = "dp-gd"` without biases: every user is clipped, steps are full batches. Its
settings are those that the search of the study on one model found (`study.searched`), of ratings on
MovieLens 1M, of clicks on likes of MovieLens 100K, at the nearest epsilon, for all mu.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Floats
from fedrec.data.dataset import Dataset
from fedrec.data.interactions import Interactions, order_by_item
from fedrec.data.kinds import KINDS, Kind, assumed
from fedrec.data.splits import Split
from fedrec.evaluation.neighbours import neighbour_lists, overlap
from fedrec.evaluation.popularity import popularity_buckets
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.am_ssp.model import PublishedModel
from fedrec.factorization.least_squares import solve_rows
from fedrec.factorization.model import Model, predict
from fedrec.randomness import Streams
from fedrec.run.data.datasets import public_facts
from fedrec.run.data.sealed import SealedSplit, load_sealed
from fedrec.run.outcomes import Outcome, baselines, evaluate
from fedrec.settings import Scenario
from fedrec.storage import read_arrays, write_arrays
from fedrec_simulations.experiments.ceiling import als_model
from fedrec_simulations.experiments.in_memory import trained
from fedrec_simulations.experiments.papers.paper import Work
from fedrec_simulations.experiments.papers.starts import Start
from fedrec_simulations.experiments.rows import Row, merged
from fedrec_simulations.experiments.source import source_digest
from fedrec_simulations.experiments.study import searched
from fedrec_simulations.experiments.study.forms import EPSILONS
from fedrec_simulations.experiments.trials import Trial

_SEARCHED: Mapping[Kind, str] = {"ratings": "ml-1m", "clicks": "ml-100k-likes"}
STARTS: Mapping[Kind, str] = {"ratings": "ada_dpals_figure1", "clicks": "ada_dpals_figure2"}
"""Scenarios that have a line for every method and epsilon, and say how these were chosen."""
BUCKETS, NEIGHBOURS = 5, 20
ALS_WIDTH, ALS_PASSES, ALS_RIDGES = 16, 10, (3.0, 6.0, 12.0)
UNIFORM, TAIL, EQ_12 = "DPALS (uniform)", "DPALS (tail)", "Ada-DPALS, eq. 12 (mu = 1/4)"
CUTOFFS = (20, 40, 60, 80, 100)
"""Of recall in the buckets: 20 for the most frequent items and 20 more for each bucket further down
the tail (the paper's footnote 3)."""
FILMS = ("Shawshank Redemption, The (1994)", "Pinocchio (1940)", "Interstellar (2014)")
"""Queries of Tables 3 and 4 with plain names; to those that the data has come a frequent, a less
frequent and a middling item."""


def ada(mu: str | float) -> str:
    """The legend's name; mu as a fraction."""
    return f"Ada-DPALS (mu = {Fraction(mu).limit_denominator(64)})"


def sgd(mu: str | float) -> str:
    """The same of noisy descent, of which mu = 0 is DPSGD without adaptive weights."""
    return f"Ada-DPSGD (mu = {Fraction(mu).limit_denominator(64)})"


METHODS: Mapping[str, Row] = {
    UNIFORM: {"weights": "constant", "sampling": "uniform"},
    TAIL: {"weights": "constant", "sampling": "tail"},
    EQ_12: {"weights": "clipped", "weight_exponent": 0.25},
}
"""What a scenario's [model] says; the last clips weights as printed, the others scale every user to
its whole budget."""


def _weighting(method: str) -> Row:
    if method in METHODS:
        return METHODS[method]
    return {
        "weights": "normalised",
        "weight_exponent": _mu(method),
    }


_METRICS: Mapping[Kind, str] = {"ratings": "rmse", "clicks": "recall_capped@20"}


def metric_of(kind: Kind) -> str:
    """Of all methods."""
    return _METRICS[kind]


def loaded(work: Work, seed: int) -> tuple[Dataset, SealedSplit]:
    """The same for every method; sealed anew for each caller."""
    return load_sealed(scenario_of(work.start, ada("1/4"), 1.0, seed))


def trained_trial(work: Work, method: str, epsilon: float, seed: int) -> Trial:
    """One finished training."""
    # other settings are another row
    digest = scenario_of(work.start, method, epsilon, seed).digest()[:8]
    return Trial.of(
        f"{work.kind}-{method}-epsilon{epsilon:g}-{seed}-{digest}",
        one_run,
        work,
        method,
        epsilon,
        seed,
    )


def reference_trial(work: Work, seed: int) -> Trial:
    """ALS without privacy: the same row for every figure of one data set."""
    return Trial.of(_reference_name(work, seed), reference_run, work, seed)


def scenario_of(start: Start, method: str, epsilon: float, seed: int) -> Scenario:
    """What `fedrec simulate` would be told, from a figure's scenario."""
    told: Row = {
        "recipe": "published",
        "seed": seed,
        "split": {"seed": seed},
        "privacy": {"epsilon": epsilon},
    }
    if method.startswith("Ada-DPSGD"):
        return start.laid_over(
            _descent(start, method, epsilon), told | {"recipe": "dp-gd"}, leave=frozenset({"model"})
        )
    return start.laid_over(
        start.settings(_family(method), epsilon), told, {"model": _weighting(method)}
    )


def _descent(start: Start, method: str, epsilon: float) -> Row:
    """[model] of Ada-DPSGD at the searched epsilon that is nearest."""
    data = _SEARCHED[assumed(start.scenario.data.kind)]
    nearest = min(EPSILONS, key=lambda e: abs(math.log(e / min(epsilon, 1e9))))
    found = searched.best(data, "ada-dpgd, made sound", nearest)
    return merged(
        found, {"model": {"encoder": "id", "biases": False, "weight_exponent": _mu(method)}}
    )


def _mu(method: str) -> float:
    return float(Fraction(method.partition("mu = ")[2].removesuffix(")")))


def _family(method: str) -> str:
    return method if method in {UNIFORM, TAIL} else "Ada-DPALS"


def one_run(work: Work, method: str, epsilon: float, seed: int) -> Row:
    """Train, test once, and compare the item vectors with those of ALS."""
    scenario = scenario_of(work.start, method, epsilon, seed)
    dataset, sealed = loaded(work, seed)
    done = trained(scenario, public_facts(scenario, dataset, sealed), sealed.train)
    model, counts = done.model, _counts(sealed)
    ours, theirs = np.asarray(model.item_vectors), _reference_vectors(work, seed)
    content = {
        "guarantee": str(done.prepared.plan.guarantee),
        "neighbours": _neighbours(ours, dataset, counts),
    }
    opened = sealed.open(model.arrays())
    return (
        content
        | {"overlap": _overlaps(ours, theirs, counts), "model_sha256": opened.model_sha256}
        | measured(model, opened.split)
    )


def _reference_name(work: Work, seed: int) -> str:
    divided = scenario_of(work.start, ada("1/4"), 1.0, seed).model_dump_json(
        include={"data", "split"}
    )
    return f"{work.kind}-als-{seed}-{hashlib.sha256(divided.encode()).hexdigest()[:8]}"


def reference_run(work: Work, seed: int) -> Row:
    """ALS without privacy; its item vectors are kept for the overlap."""
    dataset, sealed = loaded(work, seed)
    if KINDS[work.kind].rated:
        model = _als(sealed, Streams(seed).numpy("als-init"))
    else:
        model = als_model(sealed, scenario_of(work.start, ada("1/4"), math.inf, seed))
    V = np.asarray(model.item_vectors, np.float32)
    write_arrays(_reference_path(work, seed), {"V": V})
    content: Row = {
        "guarantee": "no privacy",
        "neighbours": _neighbours(V, dataset, _counts(sealed)),
    }
    opened = sealed.open({"V": V})
    simple = baselines(opened.split.test, opened.split.train, cutoffs=(20,))
    content["model_sha256"] = opened.model_sha256
    content["baselines"] = {
        name: outcome.metrics()[metric_of(work.kind)] for name, outcome in simple.items()
    }
    return content | measured(model, opened.split)


def _als(split: SealedSplit, rng: np.random.Generator) -> Model:
    """The paper's own ALS, without biases, so that its vectors compare with the private ones;
    lambda is chosen on validation."""
    fold, found = split.validation, list[tuple[float, Model]]()
    for ridge in ALS_RIDGES:
        model = _als_with(ridge, split.train, rng)
        found.append(
            (rating_metrics(predict(model, fold.history, fold.targets), fold.targets).rmse, model)
        )
    return min(found, key=lambda pair: pair[0])[1]


def _als_with(ridge: float, train: Interactions, rng: np.random.Generator) -> Model:
    order, mean = (
        order_by_item(train.user_ptr, train.items, train.num_items),
        float(train.values.mean(dtype=np.float64)),
    )
    y = train.values - np.float32(mean)
    V = (0.1 * rng.standard_normal((train.num_items, ALS_WIDTH))).astype(np.float32)
    for _ in range(ALS_PASSES):
        U = solve_rows(train.user_ptr, train.items, V, ridge=ridge, targets=y)
        V = solve_rows(
            order.item_ptr, order.users, U, ridge=ridge, targets=y, positions=order.positions
        ).astype(np.float32)
    return PublishedModel(V, mean, ridge, click_weight=1.0)


def _reference_path(work: Work, seed: int) -> Path:
    return (
        work.folder
        / "als"
        / f"{_reference_name(work, seed)}-{source_digest(reference_run)}.safetensors"
    )


def _reference_vectors(work: Work, seed: int) -> Floats:
    if not (path := _reference_path(work, seed)).exists():
        reference_run(work, seed)
    return np.asarray(read_arrays(path)["V"], np.float32)


def measured(model: Model, split: Split) -> Row:
    """On test: all metrics, and `buckets`."""
    outcome = evaluate(model, split.test, split.train, cutoffs=CUTOFFS, ranking=False)
    return {**outcome.metrics(), "buckets": _bucket_values(outcome)}


def _bucket_values(outcome: Outcome) -> list[float]:
    """RMSE, or recall at a cutoff that grows down the tail, rarest items first."""
    if outcome.ranking is None:
        return [bucket.rmse for bucket in outcome.rating_buckets]
    return [
        bucket[CUTOFFS[-1 - b]].recall_capped for b, bucket in enumerate(outcome.ranking.buckets)
    ]


def item_counts(work: Work, seed: int) -> npt.NDArray[np.int64]:
    """(m,) events in train."""
    return _counts(loaded(work, seed)[1])


def _counts(split: SealedSplit) -> npt.NDArray[np.int64]:
    return np.bincount(split.train.items, minlength=split.train.num_items)


def _overlaps(ours: Floats, theirs: Floats, counts: npt.NDArray[np.int64]) -> list[float]:
    """Of the neighbours of largest inner product, by bucket."""
    shared = overlap(neighbour_lists(ours, k=NEIGHBOURS), neighbour_lists(theirs, k=NEIGHBOURS))
    bucket = popularity_buckets(counts, buckets=BUCKETS)
    return [float(shared[bucket == b].mean()) for b in range(BUCKETS)]


def _neighbours(V: Floats, dataset: Dataset, counts: npt.NDArray[np.int64]) -> list[Row]:
    """Six items of largest inner product beside each query, with counts in train."""
    names = dataset.catalogue.titles or dataset.catalogue.item_ids
    lists = neighbour_lists(V, k=min(6, len(V) - 1))
    named = [
        {"item": names[j], "frequency": int(counts[j]), "list": [names[i] for i in lists[j]]}
        for j in _queries(names, counts)
    ]
    return [dict(n) for n in named]


def _queries(names: Sequence[str], counts: npt.NDArray[np.integer]) -> list[int]:
    by_count = np.argsort(counts, kind="stable")
    usual = [int(by_count[int(share * (len(names) - 1))]) for share in (1.0, 0.8, 0.5)]
    return list(dict.fromkeys([names.index(film) for film in FILMS if film in names] + usual))
