"""Figures of DP-CMF (Curmei et al. 2023), re-made; `PAPER` declares them, `PUBLISHED` is what the
paper says of them.

A row is one point: figure, metric, series of the legend, x, mean over split seeds (the noise's seed
being the split's), its standard error, every seed's value, and the guarantee. Beside the paper's
curves stand what its figures leave out: the public users alone, which cost no privacy, and public
data in the place of random start vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.evaluation.popularity import popularity_buckets
from fedrec.public_sides import sides_of
from fedrec_simulations.experiments.papers.dp_cmf_runs import (
    BUCKETS,
    CATEGORIES,
    KEYS,
    Curve,
    als_row,
    facts_of,
    loaded,
    public_alone_row,
    scenario_of,
    tested_rows,
    trial,
)
from fedrec_simulations.experiments.papers.paper import Line, Paper, Work, by_seed, joined
from fedrec_simulations.experiments.row_queue import Plan
from fedrec_simulations.experiments.rows import Row
from fedrec_simulations.experiments.trials import Trial

LOOPBACK, OURS = (
    Curve("DPALS (no sides)", recipe="published", model={"encoder": "id"}),
    Curve("our default, all metadata", recipe="default"),
)
PEOPLE_OF_OURS = Curve("our default, public users", {"sides": ["public-users"]}, recipe="default")
WITH_PEOPLE = Curve(
    "our default, metadata and public users",
    {"sides": ["metadata", "public-users"]},
    recipe="default",
)
METADATA, SIMILAR = (
    Curve("metadata", {"sides": ["metadata"]}),
    Curve("similar items", {"sides": ["similar-items"]}),
)
BINARY = Curve("public users, binary", {"sides": ["public-users"], "users_values": "binary"})
RAW, ALL = (
    Curve("public users, raw", {"sides": ["public-users"]}),
    Curve("all sides", {"sides": list(KEYS)}),
)
STARTED = Curve("all sides, public start", {"sides": list(KEYS)}, start_passes=10)
_IN_FIRST = "share in bucket 1 of features with at least x entries, less than 4x"
PARTS = tuple(
    Curve(kind, {"sides": ["metadata"], "categories": list(names)})
    for kind, names in CATEGORIES.items()
)

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "figure1": {
        "how": "printed in 4.2 and 4.2.1, of ML-10M; the curves have no printed values",
        "order, best first": (
            ALL.label,
            "public users",
            "similar items or metadata",
            LOOPBACK.label,
        ),
        "share of the gap to non-private ALS that sides close, at most": 0.6,
        "buckets 2 to 4 at epsilon 1": "the order of bucket 1 is reversed: metadata gains most",
        "share of ratings by bucket": {1: 0.866, 2: 0.094, 3: 0.03, 4: 0.01},
    },
    "figure2": {
        "how": "printed in 4.2.1",
        "share of entries in bucket 1": {"public-users": 0.9, "metadata": 0.37},
    },
    "figure3": {
        "how": "printed in 4.2.2",
        "cast": "alone brings most of what all metadata brings, for head and tail",
    },
    "figure4": {
        "how": "printed in 4.2.2",
        "k": "more neighbours are better",
        "order, best first": ("inner-product", "cosine"),
    },
    "figure5": {
        "how": "printed in 4.2.2",
        "users": "more are better, and 1,000 do what the best metadata does",
        "order, best first": ("raw", "binary"),
    },
}
"""What the paper prints. Its curves were not read off their axes."""


def _privacy_utility(work: Work) -> Plan[list[Line]]:
    """Figure 1: RMSE against epsilon, and by popularity at epsilon 1."""
    lines = yield from _curves(
        work, (LOOPBACK, METADATA, SIMILAR, BINARY, RAW, ALL, STARTED, OURS, WITH_PEOPLE)
    )
    others = {"ALS (not private)": als_row, "public users alone": public_alone_row}
    found = yield from by_seed(
        work.seeds, {label: partial(_beside, work, label, make) for label, make in others.items()}
    )
    return [
        *lines,
        *(
            line
            for label, rows in found.items()
            for line in (_point(label, "any", rows), *_slices(label, rows))
        ),
    ]


def _beside(work: Work, label: str, make: Callable[[Work, int], Row], seed: int) -> Trial:
    return trial(work, f"{label}-{work.start.key}-{seed}", make, work, seed)


def _metadata(work: Work) -> Plan[list[Line]]:
    """Figure 3: the same for parts of the metadata."""
    return _curves(work, (LOOPBACK, *PARTS, METADATA))


def _similarity(work: Work) -> Plan[list[Line]]:
    """Figure 4: similarity functions and numbers of neighbours."""
    ways = product(("inner-product", "cosine"), map(int, _points_of(work)))
    lines = [
        Curve(f"{way}, k = {k}", {"sides": ["similar-items"], "similarity": way, "neighbours": k})
        for way, k in ways
    ]
    return _curves(work, (LOOPBACK, *lines))


def _people(work: Work) -> Plan[list[Line]]:
    """Figure 5: numbers of public users, raw and binarised."""
    ways = product((RAW, BINARY, PEOPLE_OF_OURS), (*map(int, _points_of(work)), 0))
    lines = [
        replace(
            way, label=f"{way.label}, {s or 'all'}", collective={**way.collective, "users_limit": s}
        )
        for way, s in ways
    ]
    return _curves(work, (LOOPBACK, *lines))


def _points_of(work: Work) -> tuple[float, ...]:
    """k of Figure 4, or numbers of public users of Figure 5, where all of them come last."""
    return work.points[-1:] if work.quick else work.points


def _popularity_bias(work: Work) -> Plan[list[Line]]:
    """Figure 2: (a) where a side's entries lie; (b) how much of a feature lies on popular items, by
    its number of entries.

    Buckets come from exact private counts: this pictures a benchmark and is no release.
    """
    yield {}  # nothing is trained
    of_splits = [_bias_of_split(work, seed) for seed in work.seeds]
    # public people differ by split, and so may the largest powers of 4
    place = attrgetter("metric", "series", "x")
    common = set.intersection(*({place(line) for line in one} for one in of_splits))
    return joined([[line for line in one if place(line) in common] for one in of_splits])


def _bias_of_split(work: Work, seed: int) -> list[Line]:
    train = loaded(work, seed)[1].train
    counts = np.bincount(train.items, minlength=train.num_items)
    bucket = BUCKETS - 1 - popularity_buckets(counts, buckets=BUCKETS).astype(np.int64)
    lines = list[Line]()
    for series, S in {
        "ratings": sparse.csr_matrix(counts[None]),
        **{side: _entries(work, side, seed) for side in KEYS},
    }.items():
        shares = np.bincount(
            bucket[S.indices], weights=S.data if series == "ratings" else None, minlength=BUCKETS
        )
        shares = shares / max(shares.sum(), 1)
        lines += [
            Line("share of entries in bucket", series, b, [float(share)])
            for b, share in enumerate(shares, start=1)
        ]
        of_sizes = _prevalence(S, bucket) if series != "ratings" else ()
        lines += [Line(_IN_FIRST, series, size, [share]) for size, share in of_sizes]
    return lines


def _entries(work: Work, side: str, seed: int) -> sparse.csr_matrix:
    curve = Curve(side, {"sides": [side], "users_values": "binary"})
    return sides_of(
        scenario_of(work, curve, 1.0, seed, {}).collective, facts_of(work, curve, seed)
    )[0].entries


def _prevalence(
    S: sparse.csr_matrix, bucket: npt.NDArray[np.int64]
) -> Iterator[tuple[float, float]]:
    sizes = np.diff(S.indptr)
    top = np.asarray((S > 0).astype(np.float64) @ (bucket == 0)).ravel() / np.maximum(sizes, 1)
    power = np.log2(np.maximum(sizes, 1)).astype(np.int64) // 2
    for p in sorted(Counter(power[sizes > 0].tolist())):
        yield float(4**p), float(top[(power == p) & (sizes > 0)].mean())


def _curves(work: Work, curves: tuple[Curve, ...]) -> Plan[list[Line]]:
    epsilons = work.start.figure.epsilons
    wanted = list(product(curves, epsilons[:1] if work.quick else epsilons))
    found = yield from tested_rows(work, wanted)
    lines = list[Line]()
    for curve, epsilon in wanted:
        rows = found[curve.label, epsilon]
        lines += [
            _point(curve.label, epsilon, rows),
            *(_slices(curve.label, rows) if epsilon == 1 else ()),
        ]
    return lines


def _point(series: str, x: float | str, rows: Sequence[Row]) -> Line:
    return Line("rmse", series, x, [row["rmse"] for row in rows], rows[0]["guarantee"])


def _slices(series: str, rows: Sequence[Row]) -> Iterator[Line]:
    for b in range(BUCKETS):
        yield Line(
            "rmse in bucket, epsilon 1",
            series,
            b + 1,
            [row["buckets"][b] for row in rows],
            rows[0]["guarantee"],
        )


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
    published=PUBLISHED,
)
"""The paper's figures; 1 and 3 with their panels (b)."""
