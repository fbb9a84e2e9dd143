"""Figures of DP-CMF (Curmei et al. 2023), re-made; `figure(name, ...)` gives rows, `PUBLISHED` what the paper says of them.

A row is one point: figure, metric, series of the legend, x, mean over split seeds (the noise's seed being the split's), its standard error,
every seed's value, and the guarantee. Beside the paper's curves stand what its figures leave out: the public users alone, which cost
no privacy, and public data in the place of random start vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.errors import SettingsError
from fedrec.evaluation.popularity import popularity_buckets
from fedrec.public_sides import sides_of
from fedrec.storage import finite
from fedrec_simulations.experiments.papers.dp_cmf_runs import (
    BUCKETS,
    CATEGORIES,
    KEYS,
    Bench,
    Curve,
    als_row,
    facts_of,
    loaded,
    public_alone_row,
    scenario_of,
)
from fedrec_simulations.experiments.papers.starts import started
from fedrec_simulations.experiments.rows import Row, folder_of, mean_and_error

LOOPBACK, OURS = (
    Curve("DPALS (no sides)", recipe="published", model={"encoder": "id"}),
    Curve("our default, all metadata", recipe="default"),
)
PEOPLE_OF_OURS = Curve("our default, public users", {"sides": ["public-users"]}, recipe="default")
WITH_PEOPLE = Curve("our default, metadata and public users", {"sides": ["metadata", "public-users"]}, recipe="default")
METADATA, SIMILAR = Curve("metadata", {"sides": ["metadata"]}), Curve("similar items", {"sides": ["similar-items"]})
BINARY = Curve("public users, binary", {"sides": ["public-users"], "users_values": "binary"})
RAW, ALL = Curve("public users, raw", {"sides": ["public-users"]}), Curve("all sides", {"sides": list(KEYS)})
STARTED = Curve("all sides, public start", {"sides": list(KEYS)}, start_passes=10)
PARTS = tuple(Curve(kind, {"sides": ["metadata"], "categories": list(names)}) for kind, names in CATEGORIES.items())

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "figure1": {
        "how": "printed in 4.2 and 4.2.1, of ML-10M; the curves have no printed values",
        "order, best first": (ALL.label, "public users", "similar items or metadata", LOOPBACK.label),
        "share of the gap to non-private ALS that sides close, at most": 0.6,
        "buckets 2 to 4 at epsilon 1": "the order of bucket 1 is reversed: metadata gains most",
        "share of ratings by bucket": {1: 0.866, 2: 0.094, 3: 0.03, 4: 0.01},
    },
    "figure2": {"how": "printed in 4.2.1", "share of entries in bucket 1": {"public-users": 0.9, "metadata": 0.37}},
    "figure3": {"how": "printed in 4.2.2", "cast": "alone brings most of what all metadata brings, for head and tail"},
    "figure4": {"how": "printed in 4.2.2", "k": "more neighbours are better", "order, best first": ("inner-product", "cosine")},
    "figure5": {
        "how": "printed in 4.2.2",
        "users": "more are better, and 1,000 do what the best metadata does",
        "order, best first": ("raw", "binary"),
    },
}
"""What the paper prints. Its curves were not read off their axes."""


def figure(name: str, data: str, quick: bool, folder: Path, *, overrides: Sequence[str] = ()) -> list[Row]:
    """Rows of one figure of `FIGURES`, from `simulations/dp_cmf_NAME.toml`; `data` "planted" is the small planted set.

    `quick`: one epsilon, one seed, fewer candidates; overrides: `table.key=value` of the scenario, which also says who is public. Finished
    trainings are kept in `folder` and shared by the figures. Raises SettingsError on another name, on a wrong key, or without data.
    """
    if name not in FIGURES:
        raise SettingsError(f"DP-CMF has no {name!r}", f"Use one of: {', '.join(FIGURES)}.")
    start = started(f"dp_cmf_{name}", data, tuple(overrides))
    bench = Bench(start, start.seeds(quick), quick, folder_of(folder, data))
    return [dict(finite(point)) for point in FIGURES[name](name, bench)]


def _privacy_utility(name: str, bench: Bench) -> Iterator[Row]:
    """Figure 1: RMSE against epsilon, and by popularity at epsilon 1."""
    yield from _curves(name, bench, (LOOPBACK, METADATA, SIMILAR, BINARY, RAW, ALL, STARTED, OURS, WITH_PEOPLE))
    for label, make in (("ALS (not private)", als_row), ("public users alone", public_alone_row)):
        rows = [bench.row(f"{label}-{seed}", make, bench, seed) for seed in bench.seeds]
        yield from _points(name, bench, label, "any", rows)
        yield from _slices(name, bench, label, rows)


def _metadata(name: str, bench: Bench) -> Iterator[Row]:
    """Figure 3: the same for parts of the metadata."""
    return _curves(name, bench, (LOOPBACK, *PARTS, METADATA))


def _similarity(name: str, bench: Bench) -> Iterator[Row]:
    """Figure 4: similarity functions and numbers of neighbours."""
    ways = product(("inner-product", "cosine"), map(int, _points_of(bench)))
    lines = [Curve(f"{way}, k = {k}", {"sides": ["similar-items"], "similarity": way, "neighbours": k}) for way, k in ways]
    return _curves(name, bench, (LOOPBACK, *lines))


def _people(name: str, bench: Bench) -> Iterator[Row]:
    """Figure 5: numbers of public users, raw and binarised."""
    ways = product((RAW, BINARY, PEOPLE_OF_OURS), (*map(int, _points_of(bench)), 0))
    lines = [Curve(f"{way.label}, {s or 'all'}", {**way.collective, "users_limit": s}) for way, s in ways]
    return _curves(name, bench, (LOOPBACK, *lines))


def _points_of(bench: Bench) -> tuple[float, ...]:
    """k of Figure 4, or numbers of public users of Figure 5, where all of them come last."""
    points = bench.start.figure.points
    return points[-1:] if bench.quick else points


def _popularity_bias(name: str, bench: Bench) -> Iterator[Row]:
    """Figure 2: (a) where a side's entries lie; (b) how much of a feature lies on popular items, by its number of entries.

    Buckets come from exact private counts: this pictures a benchmark and is no release.
    """
    train = loaded(bench, bench.seeds[0])[1].train
    counts = np.bincount(train.items, minlength=train.num_items)
    bucket = BUCKETS - 1 - popularity_buckets(counts, buckets=BUCKETS).astype(np.int64)
    found = {"ratings": sparse.csr_matrix(counts[None]), **{side: _entries(bench, side) for side in KEYS}}
    for series, S in found.items():
        shares = np.bincount(bucket[S.indices], weights=S.data if series == "ratings" else None, minlength=BUCKETS)
        for b, share in enumerate(shares / max(shares.sum(), 1), start=1):
            yield _row(name, "share of entries in bucket", series, b, [float(share)], bench.seeds[:1])
        for size, share in _prevalence(S, bucket) if series != "ratings" else ():
            yield _row(name, "share in bucket 1 of features with at least x entries, less than 4x", series, size, [share], bench.seeds[:1])


def _entries(bench: Bench, side: str) -> sparse.csr_matrix:
    curve, seed = Curve(side, {"sides": [side], "users_values": "binary"}), bench.seeds[0]
    return sides_of(scenario_of(bench, curve, 1.0, seed, {}).collective, facts_of(bench, curve, seed))[0].entries


def _prevalence(S: sparse.csr_matrix, bucket: npt.NDArray[np.int64]) -> Iterator[tuple[float, float]]:
    sizes = np.diff(S.indptr)
    top = np.asarray((S > 0).astype(np.float64) @ (bucket == 0)).ravel() / np.maximum(sizes, 1)
    power = np.log2(np.maximum(sizes, 1)).astype(np.int64) // 2
    for p in sorted(Counter(power[sizes > 0].tolist())):
        yield float(4**p), float(top[(power == p) & (sizes > 0)].mean())


def _curves(name: str, bench: Bench, curves: tuple[Curve, ...]) -> Iterator[Row]:
    epsilons = bench.start.figure.epsilons
    for curve, epsilon in product(curves, epsilons[:1] if bench.quick else epsilons):
        rows = bench.rows(curve, epsilon)
        yield from _points(name, bench, curve.label, epsilon, rows)
        if epsilon == 1:
            yield from _slices(name, bench, curve.label, rows)


def _points(name: str, bench: Bench, series: str, x: float | str, rows: list[Row]) -> Iterator[Row]:
    yield _row(name, "rmse", series, x, [r["rmse"] for r in rows], bench.seeds, rows[0]["guarantee"])


def _slices(name: str, bench: Bench, series: str, rows: list[Row]) -> Iterator[Row]:
    for b in range(BUCKETS):
        each = [r["buckets"][b] for r in rows]
        yield _row(name, "rmse in bucket, epsilon 1", series, b + 1, each, bench.seeds, rows[0]["guarantee"])


def _row(name: str, metric: str, series: str, x: float | str, each: list[float], seeds: tuple[int, ...], guarantee: str = "") -> Row:
    value, error = mean_and_error(each)
    content = {"figure": name, "metric": metric, "series": series, "x": x, "value": value, "standard_error": error}
    return content | {"each": each, "seeds": list(seeds), "guarantee": guarantee}


FIGURES: Mapping[str, Callable[[str, Bench], Iterator[Row]]] = {
    "figure1": _privacy_utility,
    "figure2": _popularity_bias,
    "figure3": _metadata,
    "figure4": _similarity,
    "figure5": _people,
}
"""The paper's figures; 1 and 3 with their panels (b)."""
