"""Figures of DP-CMF (Curmei et al. 2023), re-made; `PAPER` declares them.

A row is one point: figure, metric, series of the legend, x, mean over split seeds (the noise's seed
being the split's), its standard error, every seed's value, and the guarantee. Beside the paper's
curves stand what its figures leave out: the public users alone, which cost no privacy, and public
data in the place of random start vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.evaluation.ratings import popularity_buckets
from fedrec.public_sides import sides_of
from fedrec_research.papers.dp_cmf_runs import (
    BUCKETS,
    CATEGORIES,
    KEYS,
    Curve,
    als_row,
    chosen_settings,
    facts_of,
    loaded,
    public_alone_row,
    scenario_of,
    tested_row,
)
from fedrec_research.papers.paper import Line, Paper, Point, Work, joined
from fedrec_research.papers.starts import Start
from fedrec_research.runner import item_counts
from fedrec_research.trials import Row

LOOPBACK = Curve("DPALS (no sides)", recipe="published", model={"encoder": "id"})
OURS = Curve("our default, all metadata", recipe="default")
PEOPLE_OF_OURS = Curve("our default, public users", {"sides": ["public-users"]}, recipe="default")
WITH_PEOPLE = Curve(
    "our default, metadata and public users",
    {"sides": ["metadata", "public-users"]},
    recipe="default",
)
METADATA = Curve("metadata", {"sides": ["metadata"]})
SIMILAR = Curve("similar items", {"sides": ["similar-items"]})
BINARY = Curve("public users, binary", {"sides": ["public-users"], "users_values": "binary"})
RAW = Curve("public users, raw", {"sides": ["public-users"]})
ALL = Curve("all sides", {"sides": list(KEYS)})
STARTED = Curve("all sides, public start", {"sides": list(KEYS)}, start_passes=10)
_IN_FIRST = "share in bucket 1 of features with at least x entries, less than 4x"
PARTS = tuple(
    Curve(kind, {"sides": ["metadata"], "categories": list(names)})
    for kind, names in CATEGORIES.items()
)


def _privacy_utility(work: Work) -> list[Line]:
    """Figure 1: RMSE against epsilon, and by popularity at epsilon 1."""
    lines = _curves(
        work, (LOOPBACK, METADATA, SIMILAR, BINARY, RAW, ALL, STARTED, OURS, WITH_PEOPLE)
    )
    others = {"ALS (not private)": als_row, "public users alone": public_alone_row}
    return lines + work.lines(
        point
        for label, make in others.items()
        for point in _points(label, "any", make, (work.start,), slices=True)
    )


def _points(
    label: str,
    x: float | str,
    make: Callable[..., Row],
    arguments: tuple[Any, ...],
    *,
    slices: bool,
) -> Iterator[Point]:
    """RMSE on all of test, and by popularity where `slices`."""
    yield Point(label, x, make, arguments, {"rmse": "rmse"})
    for b in range(BUCKETS if slices else 0):
        yield Point(label, b + 1, make, arguments, {"rmse in bucket, epsilon 1": ("buckets", b)})


def _curves(work: Work, curves: tuple[Curve, ...]) -> list[Line]:
    epsilons = work.start.figure.epsilons
    wanted = list(product(curves, epsilons[:1] if work.quick else epsilons))
    chosen = chosen_settings(work, wanted)
    return work.lines(
        point
        for curve, e in wanted
        for point in _points(
            curve.label,
            e,
            tested_row,
            (work.start, curve, e, chosen.get((curve.label, e), {})),
            slices=e == 1,
        )
    )


def _metadata(work: Work) -> list[Line]:
    """Figure 3: the same for parts of the metadata."""
    return _curves(work, (LOOPBACK, *PARTS, METADATA))


def _similarity(work: Work) -> list[Line]:
    """Figure 4: similarity functions and numbers of neighbours."""
    ways = product(("inner-product", "cosine"), map(int, _some_points(work)))
    lines = [
        Curve(f"{way}, k = {k}", {"sides": ["similar-items"], "similarity": way, "neighbours": k})
        for way, k in ways
    ]
    return _curves(work, (LOOPBACK, *lines))


def _people(work: Work) -> list[Line]:
    """Figure 5: numbers of public users, raw and binarised."""
    ways = product((RAW, BINARY, PEOPLE_OF_OURS), (*map(int, _some_points(work)), 0))
    lines = [
        replace(
            way, label=f"{way.label}, {s or 'all'}", collective={**way.collective, "users_limit": s}
        )
        for way, s in ways
    ]
    return _curves(work, (LOOPBACK, *lines))


def _some_points(work: Work) -> tuple[float, ...]:
    """k of Figure 4, or numbers of public users of Figure 5, where all of them come last."""
    return work.points[-1:] if work.quick else work.points


def _popularity_bias(work: Work) -> list[Line]:
    """Figure 2: (a) where a side's entries lie; (b) how much of a feature lies on popular items, by
    its number of entries.

    Buckets come from exact private counts: this pictures a benchmark and is no release.
    """
    of_splits = [_bias_of_split(work.start, seed) for seed in work.seeds]
    # public people differ by split, and so may the largest powers of 4
    place = attrgetter("metric", "series", "x")
    common = set.intersection(*({place(line) for line in one} for one in of_splits))
    return joined([[line for line in one if place(line) in common] for one in of_splits])


def _bias_of_split(start: Start, seed: int) -> list[Line]:
    counts = item_counts(loaded(start, seed)[1].train)
    bucket = BUCKETS - 1 - popularity_buckets(counts, buckets=BUCKETS).astype(np.int64)
    lines = list[Line]()
    sides = {"ratings": sparse.csr_matrix(counts[None])}
    sides |= {side: _entries(start, side, seed) for side in KEYS}
    for series, S in sides.items():
        weights = S.data if series == "ratings" else None
        entries = np.bincount(bucket[S.indices], weights=weights, minlength=BUCKETS)
        shares = entries / max(entries.sum(), 1)
        lines += [
            Line("share of entries in bucket", series, b, [float(share)])
            for b, share in enumerate(shares, start=1)
        ]
        of_sizes = _prevalence(S, bucket) if series != "ratings" else ()
        lines += [Line(_IN_FIRST, series, size, [share]) for size, share in of_sizes]
    return lines


def _entries(start: Start, side: str, seed: int) -> sparse.csr_matrix:
    curve = Curve(side, {"sides": [side], "users_values": "binary"})
    told = scenario_of(start, curve, 1.0, seed, {}).collective
    return sides_of(told, facts_of(start, curve, seed))[0].entries


def _prevalence(
    S: sparse.csr_matrix, bucket: npt.NDArray[np.int64]
) -> Iterator[tuple[float, float]]:
    sizes = np.diff(S.indptr)
    top = np.asarray((S > 0).astype(np.float64) @ (bucket == 0)).ravel() / np.maximum(sizes, 1)
    power = np.log2(np.maximum(sizes, 1)).astype(np.int64) // 2
    for p in sorted(Counter(power[sizes > 0].tolist())):
        yield float(4**p), float(top[(power == p) & (sizes > 0)].mean())


PAPER = Paper(
    name="DP-CMF",
    prefix="dp_cmf",
    figures={
        "figure1": _privacy_utility,
        "figure2": _popularity_bias,
        "figure3": _metadata,
        "figure4": _similarity,
        "figure5": _people,
    },
)
"""The paper's figures; 1 and 3 with their panels (b)."""
