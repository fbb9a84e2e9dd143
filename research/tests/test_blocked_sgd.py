"""Blocked passes against one loop over the same events, and the law of the aggregated noise."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrec.data.interactions import Interactions
from fedrec.numerics import threads
from fedrec_research.fast_dpmf.blocked_sgd import (
    Blocks,
    Diffusion,
    Pass,
    Rows,
    blocks_of,
    descend,
    products,
    settle,
)
from fedrec_research.fast_dpmf.normals import fill_normals
from tests.cases import slow_but

ITEMS = 40
USERS = 30


def some_ratings(seed: int) -> Interactions:
    """Users and items of very different sizes, some with nothing."""
    rng = np.random.default_rng(seed)
    chosen = rng.random((USERS, ITEMS)) < rng.random((USERS, 1)) * rng.random(ITEMS)
    users, items = np.nonzero(chosen)
    values = rng.integers(1, 6, len(users)).astype(float)
    return Interactions.from_columns(
        users, items, values, num_users=USERS, num_items=ITEMS, value_range=(1.0, 5.0)
    )


def some_rows(
    blocks: Blocks, width: int, dtype: type, seed: int = 0
) -> tuple[Rows, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    U, V = ((0.3 * rng.standard_normal((n, width))).astype(dtype) for n in (USERS, ITEMS))
    return Rows.of(U, V, blocks), U, V


def plain_pass(
    ratings: Interactions, blocks: Blocks, U: np.ndarray, V: np.ndarray, one: Pass
) -> None:
    """Second code: the events in the order that the module's docstring promises, one at a time."""
    number_of = np.argsort(blocks.item_rank)
    for turn in range(blocks.stripes):
        for s in range(blocks.stripes):
            b = s * blocks.stripes + (s + turn) % blocks.stripes
            for e in range(blocks.starts[b], blocks.starts[b + 1]):
                k = blocks.users[e]
                j = number_of[blocks.ranks[e]]
                residual = blocks.values[e] - U[k] @ V[j]
                w = 1.0 if one.weights is None else one.weights[k]
                step = one.rate * w * residual if abs(residual) <= one.cap else 0.0
                U[k], V[j] = one.keep * U[k] + step * V[j], one.keep * V[j] + step * U[k]


@pytest.mark.slow
@settings(max_examples=15)
@given(seed=st.integers(0, 1000), width=st.integers(1, 70), stripes=st.integers(1, 7))
def test_a_pass_without_noise_is_plain_sgd(seed: int, width: int, stripes: int) -> None:
    ratings = some_ratings(seed)
    blocks = blocks_of(ratings, ratings.values.astype(np.float64) - 3, stripes=stripes)
    rows, U, V = some_rows(blocks, width, np.float64)
    weights = np.random.default_rng(seed).random(USERS)
    for one in (Pass(0.01, keep=0.999), Pass(0.05, cap=1.5, weights=weights)):
        descend(rows, blocks, one)
        plain_pass(ratings, blocks, U, V, one)
    np.testing.assert_allclose(rows.U[:, :width], U, rtol=0, atol=1e-10)
    np.testing.assert_allclose(rows.item_vectors(blocks), V, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        products(rows, blocks, blocks.users, ratings.items),
        np.sum(U[blocks.users] * V[ratings.items], 1),
        atol=1e-10,
    )


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), stripes=st.integers(1, 9))
def test_every_rating_is_in_one_block_and_blocks_of_a_round_share_no_row(
    seed: int, stripes: int
) -> None:
    ratings = some_ratings(seed)
    blocks = blocks_of(ratings, ratings.values, stripes=stripes)
    found = sorted(
        zip(blocks.users, np.argsort(blocks.item_rank)[blocks.ranks], blocks.values, strict=True)
    )
    assert found == sorted(zip(ratings.users, ratings.items, ratings.values, strict=True))
    for turn in range(stripes):
        users = set[int]()
        items = set[int]()
        for s in range(stripes):
            b = s * stripes + (s + turn) % stripes
            block = slice(blocks.starts[b], blocks.starts[b + 1])
            mine = set(blocks.users[block].tolist())
            theirs = set(blocks.ranks[block].tolist())
            assert not mine & users
            assert not theirs & items
            users = users | mine
            items = items | theirs


def test_the_number_of_threads_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    ratings = some_ratings(3)
    found = list[bytes]()
    for count in (1, 3):
        with ThreadPoolExecutor(count) as pool:
            monkeypatch.setattr(threads, "cores", lambda count=count: count)
            monkeypatch.setattr(threads, "_pool", lambda pool=pool: pool)
            blocks = blocks_of(ratings, ratings.values - 3, stripes=5)
            rows, *_ = some_rows(blocks, 16, np.float32)
            for _ in range(3):
                descend(rows, blocks, Pass(0.01, time=0.1), Diffusion(2.0, 0.5, key=1))
            settle(rows, Diffusion(2.0, 0.5, key=1))
            found.append(rows.U.tobytes() + rows.V.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("wrong", slow_but([2 / 3, 3 / 2], [1.0, 2 / 3, 3 / 2]))
def test_aggregated_noise_has_the_law_of_many_small_steps(wrong: float) -> None:
    """One step of time s, and 10 of s / 10, against a^10 theta + N(0, the 10 steps' variances): KS
    at level 1e-4; a third off fails."""
    ridge = 1.5
    temperature = 0.7
    time = 0.3
    steps = 10
    part = time / steps
    a = math.exp(-2 * ridge * part)
    small = temperature * (1 - a**2) / (2 * ridge)
    std = wrong * math.sqrt(sum(small * a ** (2 * t) for t in range(steps)))
    none = np.empty(0, np.int64)
    nothing = Interactions.from_columns(
        none, none, np.empty(0), num_users=USERS, num_items=ITEMS, value_range=(1.0, 5.0)
    )
    for cuts in (1, steps):
        noise = list[np.ndarray]()
        for key in range(20):
            blocks = blocks_of(nothing, nothing.values, stripes=1)
            rows, U, V = some_rows(blocks, 13, np.float64)
            for _ in range(cuts):
                descend(
                    rows, blocks, Pass(0.1, time=time / cuts), Diffusion(ridge, temperature, key)
                )
                settle(rows, Diffusion(ridge, temperature, key))
            noise += [
                (rows.U[:, :13] - a**steps * U).ravel(),
                (rows.item_vectors(blocks) - a**steps * V).ravel(),
            ]
        assert (stats.kstest(np.concatenate(noise) / std, "norm").pvalue > 1e-4) == (wrong == 1.0)


def test_a_row_met_late_gets_one_draw_for_all_the_time_since() -> None:
    """A user with one rating is met in one round of three and settled at the end: decay and
    variance are those of the whole time."""
    ratings = Interactions.from_columns(
        np.array([0, 1, 1]),
        np.array([0, 1, 2]),
        np.ones(3),
        num_users=2,
        num_items=3,
        value_range=(1.0, 5.0),
    )
    draws = list[np.ndarray]()
    for key in range(400):
        blocks = blocks_of(ratings, np.zeros(3), stripes=3)
        rows = Rows.of(np.ones((2, 8)), np.zeros((3, 8)), blocks)
        descend(rows, blocks, Pass(0.0, time=0.3), Diffusion(1.0, 1.0, key))
        settle(rows, Diffusion(1.0, 1.0, key))
        draws.append((rows.U[0] - math.exp(-0.6)) / math.sqrt((1 - math.exp(-1.2)) / 2))
    assert stats.kstest(np.concatenate(draws), "norm").pvalue > 1e-4


def test_normals_are_normal_and_belong_to_their_counter() -> None:
    """KS at level 1e-4 on 2^18 draws, and on sums of pairs that share a radius or a counter; where
    counters differ, draws do."""
    table = np.empty((1024, 256), np.float32)
    out = np.empty(256, np.float32)
    for row in range(1024):
        fill_normals(out, 256, 5, row, 9, 1)
        table[row] = out
    assert stats.kstest(table.astype(np.float64).ravel(), "norm").pvalue > 1e-4
    for shift in (64, 128):
        pairs = (table[:, :64] + table[:, shift : shift + 64]).astype(
            np.float64
        ).ravel() / math.sqrt(2)
        assert stats.kstest(pairs, "norm").pvalue > 1e-4
    assert 4.0 < np.abs(table).max() < 6.6
    for counter in ((5, 1023, 9, 0), (5, 1023, 8, 1), (5 + 2**40, 1023, 9, 1)):
        fill_normals(out, 256, *counter)
        assert abs(np.corrcoef(out, table[-1])[0, 1]) < 0.3
        assert len(np.intersect1d(out, table)) < 8


def test_a_planted_answer_is_found() -> None:
    """Ratings of exact rank 2: SGD predicts unseen ones closely."""
    rng = np.random.default_rng(1)
    tastes = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 60))
    seen = rng.random((300, 60)) < 0.5
    users, items = np.nonzero(seen)
    ratings = Interactions.from_columns(
        users, items, tastes[seen], num_users=300, num_items=60, value_range=(-9.0, 9.0)
    )
    blocks = blocks_of(ratings, ratings.values, stripes=4)
    U, V = ((0.3 * rng.standard_normal((n, 2))).astype(np.float32) for n in (300, 60))
    rows = Rows.of(U, V, blocks)
    for _ in range(100):
        descend(rows, blocks, Pass(0.03, keep=0.9999))
    asked, about = (column.astype(np.int32) for column in np.nonzero(~seen))
    assert np.std(products(rows, blocks, asked, about) - tastes[~seen]) < 0.1 * np.std(tastes)
