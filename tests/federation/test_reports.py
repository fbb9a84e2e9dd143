import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedrec.federation.messages import BlockReports, ReleaseSpec, Reports, quantise, step_for
from fedrec.federation.releases import weighted
from fedrec.federation.reports import (
    ExactSums,
    RealBlock,
    SparseReports,
    block,
    bounded,
    exact_sums,
    squared_norms,
    within_radius,
)

ITEMS = 6
WIDTH = 3
MIXED = ReleaseSpec(
    "statistics",
    (
        block("gram", "outer", rows=ITEMS, width=WIDTH),
        block("moment", "linear", rows=ITEMS, width=WIDTH),
    ),
)
FOLDS = 2
OWN = ReleaseSpec("cross-fitted", (block("own", "linear", rows=ITEMS, width=WIDTH, folds=FOLDS),))
DENSE = ReleaseSpec("mean", (block("mean", "linear", rows=1, width=1, radius=2.0),), radius=2.0)
finite = st.floats(-1e12, 1e12)


@st.composite
def users(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[RealBlock]]:
    sizes = draw(st.lists(st.integers(0, ITEMS), min_size=1, max_size=4))
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    items = (
        np.concatenate([np.arange(s) for s in sizes]).astype(np.int32)
        if ptr[-1]
        else np.zeros(0, np.int32)
    )
    floats = lambda n: np.array(draw(st.lists(finite, min_size=n, max_size=n)), np.float64)  # noqa: E731
    n = int(ptr[-1])
    k = len(sizes)
    vectors = floats(k * WIDTH).reshape(k, WIDTH)
    own = RealBlock(floats(n), floats(k * FOLDS * WIDTH).reshape(k * FOLDS, WIDTH))
    return (
        ptr,
        items,
        [
            RealBlock(floats(n), vectors),
            RealBlock(floats(n), vectors),
            own,
            RealBlock(floats(k), np.ones((k, 1))),
        ],
    )


def rows_of(
    reports: Reports, spec: ReleaseSpec, blocks: tuple[BlockReports, ...], user: int
) -> np.ndarray:
    """One user's contribution in svec coordinates, spelled out row by row: second code."""
    pieces, (start, stop) = list[np.ndarray](), reports.user_ptr[user : user + 2]
    for shape, part in zip(spec.blocks, blocks, strict=True):
        for item, e in (
            [(0, user)]
            if shape.rows == 1
            else zip(reports.items[start:stop], range(start, stop), strict=True)
        ):
            x = part.vectors[user * shape.folds + item % shape.folds] * shape.vector_step
            row = np.outer(x, x).ravel() if shape.kind == "outer" else x
            pieces.append(part.coefficients[e] * shape.coefficient_step * row)
    return np.concatenate([np.zeros(0), *pieces])


@settings(max_examples=200)
@given(users())
def test_removing_a_user_moves_every_release_by_at_most_its_radius(
    case: tuple[np.ndarray, np.ndarray, list[RealBlock]],
) -> None:
    ptr, items, blocks = case
    reports = bounded(ptr, items, blocks, [MIXED, OWN, DENSE])
    assert within_radius(reports, [MIXED, OWN, DENSE]).all()
    norms = squared_norms(reports, [MIXED, OWN, DENSE])
    for user in range(reports.num_users):
        for r, (spec, parts) in enumerate(
            [(MIXED, reports.blocks[:2]), (OWN, reports.blocks[2:3]), (DENSE, reports.blocks[3:])]
        ):
            moved = np.linalg.norm(rows_of(reports, spec, parts, user))
            assert moved <= spec.radius
            assert moved**2 == pytest.approx(norms[r, user], rel=1e-9, abs=1e-15)


def test_exact_scaling_uses_the_whole_radius_and_clipping_leaves_short_reports_alone() -> None:
    ptr = np.array([0, 2])
    items = np.array([1, 4], np.int32)
    blocks = [
        RealBlock(np.array([0.1, 0.2]), np.array([[0.3, 0.0, 0.4]])),
        RealBlock(np.array([0.1, -0.1]), np.array([[0.3, 0.0, 0.4]])),
    ]
    full = squared_norms(bounded(ptr, items, blocks, [MIXED]), [MIXED])[0, 0]
    assert 0.995 < full <= 1
    short = squared_norms(bounded(ptr, items, blocks, [MIXED], scaling="clip"), [MIXED])[0, 0]
    assert short == pytest.approx((0.1**2 + 0.2**2) * 0.5**4 + 2 * 0.1**2 * 0.5**2, rel=2e-2)


def test_a_report_of_a_user_does_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(1)
    ptr = np.array([0, 3, 3, 9, 11], np.int64)
    items = np.concatenate(
        [np.sort(rng.choice(ITEMS, size, replace=False)) for size in np.diff(ptr)]
    ).astype(np.int32)
    vectors = rng.normal(size=(4, WIDTH))
    blocks = [RealBlock(rng.normal(size=11), vectors), RealBlock(rng.normal(size=11), vectors)]
    whole = bounded(ptr, items, blocks, [MIXED])
    for user, (a, b) in enumerate(itertools.pairwise(ptr)):
        alone = bounded(
            np.array([0, b - a]),
            items[a:b],
            [RealBlock(x.coefficients[a:b], x.vectors[user : user + 1]) for x in blocks],
            [MIXED],
        )
        for one, all_ in zip(alone.blocks, whole.blocks, strict=True):
            np.testing.assert_array_equal(one.coefficients, all_.coefficients[a:b])
            np.testing.assert_array_equal(one.vectors[0], all_.vectors[user])


def test_a_user_that_repeats_an_item_is_refused_and_never_within_the_radius() -> None:
    """900 times one item: each row within the radius, their sum 30 times it."""
    ptr = np.array([0, 900, 902], np.int64)
    items = np.concatenate([np.zeros(900), [0, 2]]).astype(np.int32)
    blocks = [
        RealBlock(np.ones(902), np.ones((2, WIDTH))),
        RealBlock(np.ones(902), np.ones((2, WIDTH))),
    ]
    with pytest.raises(ValueError, match="user 0 names item 0 twice"):
        bounded(ptr, items, blocks, [MIXED])
    distinct = bounded(
        np.array([0, 2]),
        items[900:],
        [RealBlock(b.coefficients[900:], b.vectors[1:]) for b in blocks],
        [MIXED],
    )
    assert within_radius(distinct, [MIXED]).all()
    assert not within_radius(replace(distinct, items=np.array([2, 2], np.int32)), [MIXED]).any()


def test_numbers_that_are_not_finite_never_reach_the_grid() -> None:
    ptr = np.array([0, 1])
    items = np.array([0], np.int32)
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="finite"):
            bounded(
                ptr,
                items,
                [
                    RealBlock(np.array([bad]), np.ones((1, WIDTH))),
                    RealBlock(np.ones(1), np.ones((1, WIDTH))),
                ],
                [MIXED],
            )


def test_a_forged_report_is_seen_to_be_too_large() -> None:
    forged = Reports(
        np.array([0, 1]),
        np.array([0], np.int32),
        (BlockReports(np.array([2**31 - 1], np.int32), np.array([[2**31 - 1]], np.int32)),),
    )
    spec = ReleaseSpec("x", (block("x", "linear", rows=ITEMS, width=1),))
    assert not within_radius(forged, [spec]).any()


def _one(coefficient: int, vectors: list[int], item: int, *, folds: int) -> Reports:
    blocks = (
        BlockReports(np.array([coefficient], np.int32), np.array(vectors, np.int32)[:, None]),
    )
    assert len(vectors) == folds
    return Reports(np.array([0, 1]), np.array([item], np.int32), blocks)


def test_a_report_a_grain_longer_than_its_radius_is_turned_away() -> None:
    spec = ReleaseSpec("x", (block("x", "linear", rows=ITEMS, width=1, radius=1.5),), radius=1.5)
    shape = spec.blocks[0]
    whole = round(1 / shape.vector_step) - 1
    longest = int(1.5 / (shape.coefficient_step * whole * shape.vector_step))
    assert within_radius(_one(longest, [whole], 0, folds=1), [spec]).all()
    assert not within_radius(_one(longest + 1, [whole], 0, folds=1), [spec]).any()


@pytest.mark.parametrize("item", range(ITEMS))
def test_a_vector_of_any_fold_that_is_too_long_is_seen(item: int) -> None:
    """An item's coefficient multiplies the vector of its own fold, and no other."""
    folds = 3
    spec = ReleaseSpec("x", (block("x", "linear", rows=ITEMS, width=1, folds=folds),))
    most = round(1 / spec.blocks[0].coefficient_step) - 1
    long = 2 * round(1 / spec.blocks[0].vector_step)
    for fold in range(folds):
        vectors = [long if fold == other else 0 for other in range(folds)]
        seen = not within_radius(_one(most, vectors, item, folds=folds), [spec]).any()
        assert seen is (fold == item % folds)


@given(st.floats(-1, 1), st.sampled_from([2.0**-5, 2.0**-14]))
def test_the_grid_never_enlarges_a_number(value: float, step: float) -> None:
    cut = quantise(np.array([value]), step, bits=15)[0] * step
    assert abs(cut) <= abs(value) < abs(cut) + step


@given(st.floats(1e-9, 1e9), st.integers(2, 30))
def test_the_step_is_the_finest_that_holds_the_bound(bound: float, bits: int) -> None:
    step = step_for(bound, bits=bits)
    assert bound / step < 2.0**bits <= 2 * bound / step + 1e-9 * 2.0**bits
    quantise(np.array([bound]), step, bits=bits)
    with pytest.raises(ValueError):
        quantise(np.array([4 * bound]), step, bits=bits)


def test_a_report_too_large_for_one_of_two_releases_is_seen() -> None:
    ptr = np.array([0, 1, 2])
    items = np.array([0, 3], np.int32)
    blocks = [
        RealBlock(np.ones(2), np.ones((2, WIDTH))),
        RealBlock(np.ones(2), np.ones((2, WIDTH))),
        RealBlock(np.ones(2), np.ones((2, 1))),
    ]
    honest = bounded(ptr, items, blocks, [MIXED, DENSE])
    for forged in range(3):
        reports = Reports(
            honest.user_ptr,
            honest.items,
            tuple(BlockReports(b.coefficients.copy(), b.vectors) for b in honest.blocks),
        )
        reports.blocks[forged].coefficients[1] *= 2
        assert within_radius(reports, [MIXED, DENSE]).tolist() == [True, False]


@pytest.mark.parametrize("size", [1e-160, 1.6e-162, 2.71e-162, 5e-324, 1e-130, 1e130])
@pytest.mark.parametrize("scaling", ["exact", "clip"])
def test_numbers_whose_squares_underflow_never_make_a_report_longer(
    size: float, scaling: Any
) -> None:
    """A server may send such numbers for one item: who has it must not be told by a long report."""
    ptr = np.array([0, 2], np.int64)
    items = np.array([0, 1], np.int32)
    small = np.array([size, 1.05 * size])
    unit = np.ones((1, WIDTH))
    for real in (RealBlock(small, unit), RealBlock(np.ones(2), size * unit)):
        for kind in ("linear", "outer"):
            spec = ReleaseSpec("r", (block("b", kind, rows=ITEMS, width=WIDTH),))
            reports = bounded(ptr, items, [real], [spec], scaling=scaling)
            assert within_radius(reports, [spec]).all()
            vectors = reports.blocks[0].vectors * spec.blocks[0].vector_step
            assert float(np.linalg.norm(vectors)) <= 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["linear", "outer"]), st.floats(-150, 70))
def test_sparse_vectors_give_the_integers_sums_and_norms_of_dense_ones(
    seed: int, kind: str, exponent: float
) -> None:
    draws = np.random.default_rng(seed)
    users, width = int(draws.integers(1, 6)), int(draws.integers(1, 8))
    lengths = draws.integers(0, width + 1, users)  # of nobody, of one, of all
    pointer = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    items = np.concatenate(
        [np.sort(draws.permutation(width)[:n]) for n in lengths]
    ).astype(np.int32)  # fmt: skip
    # of all sizes that float64 has room for, zeros among them
    values = draws.normal(size=len(items)) * 10**exponent * draws.integers(0, 2, len(items))
    sparse_rows = sparse.csr_array((values, items, pointer), (users, width))
    release = ReleaseSpec("r", (block("b", kind, rows=width + 1, width=width),))
    made = [
        bounded(pointer, items, [RealBlock(values, vectors)], (release,))
        for vectors in (sparse_rows, sparse_rows.toarray())
    ]
    assert isinstance(made[0].blocks[0], SparseReports)
    lean, full = (reports.blocks[0] for reports in made)
    assert lean.shape == full.shape
    assert lean.coefficients.tolist() == full.coefficients.tolist()
    assert lean.vectors.tolist() == full.vectors.tolist()
    norms = [squared_norms(reports, (release,)).tolist() for reports in made]
    assert norms[0] == norms[1]
    sums = [exact_sums(reports, release.blocks)[0].tolist() for reports in made]
    assert sums[0] == sums[1]
    assert made[0].wire_bytes == made[1].wire_bytes
    weights = draws.random(users)
    lean, full = (weighted(reports, weights, release.blocks).blocks[0] for reports in made)
    first = slice(0, 1)
    parts = [(lean, full), tuple(one.part(one.coefficients, first) for one in (lean, full))]
    for few, all_numbers in parts:
        assert isinstance(few, SparseReports)
        assert few.coefficients.tolist() == all_numbers.coefficients.tolist()
        assert few.vectors.tolist() == all_numbers.vectors.tolist()


def test_what_sums_could_reach_is_handed_on_by_every_merge() -> None:
    one = block("count", "linear", rows=1, width=1)
    part = ExactSums.of((one,), (np.array([[2**61]]),))
    total = ExactSums((one,))
    for _ in range(3):
        total.merge(part)
    with pytest.raises(ValueError, match="could pass"):
        total.merge(part)
    assert total.blocks[0].item() == 3 * 2**61
