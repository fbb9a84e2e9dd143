import numpy as np
import numpy.typing as npt
import pytest

from fedrec.data.interactions import Interactions
from fedrec.factorization.item_statistics import item_statistics
from fedrec.factorization.least_squares import map_rows
from fedrec.federation.messages import BlockReports, BlockSpec, Reports
from fedrec.federation.reports import ExactSums, exact_sums
from fedrec.numerics import threads
from fedrec.numerics.segments import ItemOrder, order_by_item, pack, unpack

LARGEST = 2**15 - 1


@pytest.fixture(params=[-1, 1 << 23], ids=["compiled", "few"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of many numbers, and SciPy's form of few."""
    monkeypatch.setattr("fedrec.federation.reports._FEW_NUMBERS", request.param)


def some_interactions(
    rng: np.random.Generator, *, users: int = 60, items: int = 23, events: int = 700
) -> Interactions:
    return Interactions.from_columns(
        rng.integers(0, users, events),
        # a long tail: some items have hundreds, some none
        np.minimum(rng.geometric(0.15, events) - 1, items - 1),
        rng.standard_normal(events).astype(np.float32),
        num_users=users,
        num_items=items,
        value_range=(-9, 9),
    )


def some_reports(
    rng: np.random.Generator, width: int, *, num_items: int = 19
) -> tuple[Reports, tuple[BlockSpec, ...]]:
    ptr = np.concatenate([[0], np.cumsum(rng.integers(0, 14, 50))]).astype(np.int64)
    popular = np.arange(1, num_items + 1) ** -1.5
    each = [
        np.sort(rng.choice(num_items, size, replace=False, p=popular / popular.sum()))
        for size in np.diff(ptr)
    ]
    items = np.concatenate(each).astype(np.int32)

    def integers(*shape: int) -> npt.NDArray[np.int32]:
        return rng.integers(-LARGEST, LARGEST, shape, endpoint=True, dtype=np.int32)

    blocks = (
        BlockReports(integers(ptr[-1]), integers(50, width)),
        BlockReports(integers(ptr[-1]), integers(50, width)),
        BlockReports(integers(50), integers(50, width)),
        BlockReports(integers(50), integers(50, width)),
        BlockReports(integers(ptr[-1]), integers(150, width)),
    )
    specs = (
        BlockSpec("A", "outer", num_items, width, 1.0, 1.0),
        BlockSpec("b", "linear", num_items, width, 1.0, 1.0),
        BlockSpec("gramian", "outer", 1, width, 1.0, 1.0),
        BlockSpec("sum", "linear", 1, width, 1.0, 1.0),
        BlockSpec("folds", "linear", num_items, width, 1.0, 1.0, folds=3),
    )
    return Reports(ptr, items, blocks), specs


def big_integer_sums(
    reports: Reports, specs: tuple[BlockSpec, ...]
) -> list[npt.NDArray[np.object_]]:
    """The same sums in Python's unlimited integers, one user and item at a time."""
    totals = []
    for spec, block in zip(specs, reports.blocks, strict=True):
        total = np.zeros((spec.rows, spec.columns), object)
        for k in range(reports.num_users):
            for e in [k] if spec.rows == 1 else range(reports.user_ptr[k], reports.user_ptr[k + 1]):
                fold = 0 if spec.rows == 1 else int(reports.items[e]) % spec.folds
                x = np.array([int(v) for v in block.vectors[k * spec.folds + fold]], object)
                term = np.outer(x, x)[np.triu_indices(spec.width)] if spec.kind == "outer" else x
                total[0 if spec.rows == 1 else reports.items[e]] += (
                    int(block.coefficients[e]) * term
                )
        totals.append(total)
    return totals


def users_of(reports: Reports, chosen: npt.NDArray[np.int64]) -> Reports:
    """The reports of the chosen users, in the given order."""
    events = [np.arange(reports.user_ptr[k], reports.user_ptr[k + 1]) for k in chosen]
    index = np.concatenate([np.empty(0, np.int64), *events]).astype(np.int64)
    ptr = np.concatenate([[0], np.cumsum([len(e) for e in events])]).astype(np.int64)
    blocks = tuple(
        BlockReports(
            b.coefficients[chosen if len(b.coefficients) == reports.num_users else index],
            b.vectors.reshape(reports.num_users, -1, b.vectors.shape[1])[chosen].reshape(
                -1, b.vectors.shape[1]
            ),
        )
        for b in reports.blocks
    )
    return Reports(ptr, reports.items[index], blocks)


@pytest.mark.parametrize("d", [1, 3, 8, 20, 33])
@pytest.mark.parametrize("weighted", [True, False])
def test_item_statistics_are_the_sums_of_outer_products_and_of_targets_times_vectors(
    d: int, weighted: bool
) -> None:
    rng = np.random.default_rng(d)
    data = some_interactions(rng)
    U = rng.standard_normal((data.num_users, d)).astype(np.float32)
    weights = rng.random(len(data), np.float32) if weighted else None
    found = item_statistics(
        order_by_item(data.user_ptr, data.items, data.num_items), U, data.values, weights
    )
    w = np.ones(len(data)) if weights is None else weights.astype(np.float64)
    A = np.zeros((data.num_items, d, d))
    b = np.zeros((data.num_items, d))
    vectors = U[data.users].astype(np.float64)
    np.add.at(A, data.items, w[:, None, None] * vectors[:, :, None] * vectors[:, None, :])
    np.add.at(b, data.items, data.values[:, None] * vectors)
    np.testing.assert_allclose(unpack(found.gram, d), A, atol=2e-4)
    np.testing.assert_allclose(found.moment, b, atol=2e-4)


def test_columns_already_grouped_by_item_give_the_same_bytes() -> None:
    rng = np.random.default_rng(0)
    data = some_interactions(rng)
    order = order_by_item(data.user_ptr, data.items, data.num_items)
    U = rng.standard_normal((data.num_users, 12)).astype(np.float32)
    grouped = ItemOrder(order.item_ptr, order.users, np.empty(0, np.int64))
    weights = rng.random(len(data), np.float32)
    one = item_statistics(order, U, data.values, weights)
    two = item_statistics(grouped, U, data.values[order.positions], weights[order.positions])
    assert one.gram.tobytes() == two.gram.tobytes()
    assert one.moment.tobytes() == two.moment.tobytes()


def test_packing_and_unpacking_are_inverse() -> None:
    packed = np.arange(2 * 10.0).reshape(2, 10)
    np.testing.assert_array_equal(pack(unpack(packed, 4)), packed)


def test_grouping_by_item_equals_a_stable_sort() -> None:
    data = some_interactions(np.random.default_rng(1))
    ours = order_by_item(data.user_ptr, data.items, data.num_items)
    positions = np.argsort(data.items, kind="stable")
    np.testing.assert_array_equal(ours.positions, positions)
    np.testing.assert_array_equal(ours.users, data.users[positions])
    np.testing.assert_array_equal(
        np.diff(ours.item_ptr), np.bincount(data.items, minlength=data.num_items)
    )


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("width", [1, 7, 16, 25])
def test_exact_sums_equal_those_of_unlimited_integers(width: int) -> None:
    reports, specs = some_reports(np.random.default_rng(width), width)
    for found, expected in zip(
        exact_sums(reports, specs), big_integer_sums(reports, specs), strict=True
    ):
        assert found.dtype == np.int64
        assert (found.astype(object) == expected).all()


@pytest.mark.usefixtures("form")
def test_a_thousand_terms_of_the_largest_and_of_alternating_sign_lose_no_bit() -> None:
    n = 1000
    width = 9
    vectors = np.full((n, width), LARGEST, np.int32)
    vectors[::3, 0] = 1  # beside 2^53, a rounded sum would lose these
    signs = np.where(np.arange(n) % 7 == 0, -1, 1).astype(np.int32)
    specs = (BlockSpec("A", "outer", 2, width, 1.0, 1.0),)
    reports = Reports(
        np.arange(n + 1), np.ones(n, np.int32), (BlockReports(signs * LARGEST, vectors),)
    )
    assert (
        exact_sums(reports, specs)[0].astype(object) == big_integer_sums(reports, specs)[0]
    ).all()


@pytest.mark.usefixtures("form")
def test_shuffled_and_resharded_users_give_the_same_bytes() -> None:
    rng = np.random.default_rng(3)
    reports, specs = some_reports(rng, 10)
    expected = [block.tobytes() for block in exact_sums(reports, specs)]
    for shards in (2, 3, 17):
        parts = np.array_split(rng.permutation(reports.num_users), shards)
        sums = ExactSums(specs)
        other = ExactSums(specs)
        for number, part in enumerate(parts):
            (sums if number % 2 else other).add(users_of(reports, part))
        sums.merge(other)
        assert [block.tobytes() for block in sums.blocks] == expected


@pytest.mark.usefixtures("form")
def test_the_number_of_threads_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    reports, specs = some_reports(rng, 10)
    data = some_interactions(rng)
    U = rng.standard_normal((data.num_users, 10)).astype(np.float32)

    def everything() -> list[bytes]:
        found = item_statistics(
            order_by_item(data.user_ptr, data.items, data.num_items), U, data.values
        )
        return [
            found.gram.tobytes(),
            found.moment.tobytes(),
            *(block.tobytes() for block in exact_sums(reports, specs)),
        ]

    expected = everything()
    monkeypatch.setattr(threads, "cores", lambda: 1)
    assert everything() == expected


@pytest.mark.parametrize("bad", [2**15, -(2**15), 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("part", ["coefficients", "vectors"])
def test_numbers_beyond_the_format_are_refused_and_nothing_is_added(bad: int, part: str) -> None:
    reports, specs = some_reports(np.random.default_rng(5), 4)
    sums = ExactSums(specs)
    getattr(reports.blocks[3], part).reshape(-1)[-1] = bad
    with pytest.raises(ValueError, match=f"block sum: {part} must fit 15 bits.*{bad}"):
        sums.add(reports)
    assert not any(block.any() for block in sums.blocks)


def test_sums_that_could_pass_63_bits_are_refused_before_anything_is_added() -> None:
    n = 2**17
    specs = (BlockSpec("gramian", "outer", 1, 1, 1.0, 1.0),)
    reports = Reports(
        np.zeros(n + 1, np.int64),
        np.empty(0, np.int32),
        (BlockReports(np.full(n, LARGEST, np.int32), np.full((n, 1), LARGEST, np.int32)),),
    )
    sums = ExactSums(specs)
    sums.add(reports)
    sums.add(reports)
    with pytest.raises(ValueError, match=r"past 2\^63"):
        sums.add(reports)
    with pytest.raises(ValueError, match=r"2\^63"):
        sums.merge(sums)
    assert int(sums.blocks[0][0, 0]) == 2 * n * LARGEST**3


def test_an_item_named_twice_by_one_user_is_not_added() -> None:
    reports, specs = some_reports(np.random.default_rng(6), 4)
    user = int(np.flatnonzero(np.diff(reports.user_ptr) > 1)[0])
    items = reports.items.copy()
    items[reports.user_ptr[user] + 1] = items[reports.user_ptr[user]]
    sums = ExactSums(specs)
    with pytest.raises(
        ValueError, match=f"user {user} names item {items[reports.user_ptr[user]]} twice"
    ):
        sums.add(Reports(reports.user_ptr, items, reports.blocks))
    assert not any(block.any() for block in sums.blocks)


def test_malformed_reports_are_refused() -> None:
    reports, specs = some_reports(np.random.default_rng(6), 4)
    for items, ptr in (
        (np.where(reports.items == 3, 19, reports.items), reports.user_ptr),
        (np.where(reports.items == 3, -1, reports.items), reports.user_ptr),
        (reports.items, reports.user_ptr[::-1]),
        (reports.items, reports.user_ptr + 1),
    ):
        with pytest.raises(ValueError, match=r"item ids must|user_ptr must"):
            ExactSums(specs).add(
                Reports(ptr.astype(np.int64), items.astype(np.int32), reports.blocks)
            )
    short = BlockReports(reports.blocks[0].coefficients[:-1], reports.blocks[0].vectors)
    with pytest.raises(ValueError, match="block A: expected"):
        ExactSums(specs).add(Reports(reports.user_ptr, reports.items, (short, *reports.blocks[1:])))
    with pytest.raises(ValueError, match="expected 5 blocks, found 1"):
        ExactSums(specs).add(Reports(reports.user_ptr, reports.items, reports.blocks[:1]))
    with pytest.raises(ValueError, match="targets must have one entry"):
        item_statistics(
            order_by_item(reports.user_ptr, reports.items, 19),
            np.zeros((50, 2), np.float32),
            np.zeros(3, np.float32),
        )


def test_ranges_of_rows_cover_every_row_once_whatever_the_tail() -> None:
    ptr = np.concatenate([[0], np.cumsum([0, 5000, 0, 1, 0, 0, 2, *[0] * 100])]).astype(np.int64)
    seen = np.zeros(len(ptr) - 1, np.int64)

    def visit(first: int, last: int) -> None:
        seen[first:last] += 1

    map_rows(visit, ptr)
    assert (seen == 1).all()
