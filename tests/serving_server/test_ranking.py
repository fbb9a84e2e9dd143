"""The k best are those that sorting everything would name, whoever else asks, in bounded memory."""

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.numerics.segments import tie_keys
from fedrec.serving import compressed, ranking
from fedrec.serving.compressed import Compressed
from fedrec.serving.ranking import Exact, Query
from fedrec.serving.user_map import UserMap


def catalogue(m: int, *, width: int = 8, seed: int = 0, levels: int = 0) -> Any:
    """levels: numbers are whole and small, so that many scores are equal; 0 for Gaussian ones."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return rng.integers(-levels, levels + 1, shape) if levels else rng.standard_normal(shape)

    users = UserMap.of_linear(np.asarray(draw(3, width), float), np.asarray(draw(width), float))
    items = np.asarray(draw(m, width), np.float32)
    bias = np.asarray(draw(m), np.float32)
    return SimpleNamespace(
        users=users, items=items, bias=bias, categories=rng.integers(0, 8, m).astype(np.uint8)
    )


def sorted_all(of: Any, query: Query) -> tuple[list[int], list[float]]:
    u = of.users(query.coefficients[None])[0].astype(np.float64)
    scores = ((of.items.astype(np.float64) * u).sum(1) + of.bias).astype(np.float32)
    keys = tie_keys(np.arange(len(scores)))
    order = sorted(range(len(scores)), key=lambda j: (-scores[j], keys[j]))
    order = [j for j in order if not query.categories or int(of.categories[j]) & query.categories][
        : query.k
    ]
    return order, [float(scores[j]) for j in order]


def told(best: ranking.Best) -> tuple[list[int], list[float]]:
    return best.items.tolist(), best.scores.tolist()


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Any, list[Query]]:
    of = catalogue(
        draw(st.integers(1, 300)),
        seed=draw(st.integers(0, 99)),
        levels=draw(st.sampled_from([0, 1, 3])),
    )
    numbers = st.floats(-1e3, 1e3, width=32)
    query = st.builds(
        lambda a, k, c: Query(np.array(a, np.float32), k, c),
        st.lists(numbers, min_size=3, max_size=3),
        st.integers(1, 320),
        st.integers(0, 7),
    )
    return of, draw(st.lists(query, min_size=1, max_size=13))


@pytest.mark.parametrize("ranker", [Exact, Compressed])
@given(crowds(), st.sampled_from([64, 256, 4096]))
def test_answers_are_those_of_sorting_every_score(
    ranker: Any, crowd: tuple[Any, list[Query]], tile: int
) -> None:
    of, queries = crowd
    # tiles, blocks and samples much smaller than the catalogue, and larger
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_LARGEST_TILE", "_BLOCK", "_SAMPLE", "_POOL"):
            patch.setattr(ranking, name, tile)
        patch.setattr(compressed, "_CAPACITY", tile)
        answers = ranker(of)(queries)
    assert [told(best) for best in answers] == [sorted_all(of, query) for query in queries]


@pytest.mark.parametrize("ranker", [Exact, Compressed])
@given(crowds())
def test_an_answer_does_not_depend_on_who_else_asks(
    ranker: Any, crowd: tuple[Any, list[Query]]
) -> None:
    of, queries = crowd
    rank = ranker(of)
    assert [told(best) for best in rank(queries)] == [told(rank([query])[0]) for query in queries]


@pytest.mark.parametrize("ranker", [Exact, Compressed])
def test_scores_in_ascending_and_equal_order_are_no_special_case(ranker: Any) -> None:
    of = catalogue(5_000, width=1)
    of.users = UserMap.of_linear(np.eye(3, 1), np.zeros(1))
    query = Query(np.array([1, 0, 0], np.float32), 7)
    for values in (np.arange(5_000), -np.arange(5_000), np.zeros(5_000)):
        of.items = values.astype(np.float32)[:, None]
        of.bias = np.zeros(5_000, np.float32)
        assert told(ranker(of)([query])[0]) == sorted_all(of, query)


def test_codes_add_little_more_than_a_quarter_and_leave_few_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 50,000 items for k = 10, all but some dozens are behind the bound, and lists are exact."""
    of = catalogue(50_000, width=64)
    rank = Compressed(of)
    assert rank.nbytes < 0.3 * of.items.nbytes
    seen = list[int]()

    def rescored(of: Any, u: Any, rows: Any, k: int) -> ranking.Best:
        seen.append(len(rows))
        return ranking.rescored(of, u, rows, k)

    rng = np.random.default_rng(3)
    queries = [Query(rng.standard_normal(3).astype(np.float32), 300) for _ in range(16)]
    assert list(map(told, rank(queries))) == list(map(told, Exact(of)(queries)))
    monkeypatch.setattr(compressed, "rescored", rescored)
    rank([Query(np.array([1, -2, 3], np.float32), 10)])
    assert 10 <= seen[0] <= 60


def test_memory_does_not_grow_with_the_catalogue() -> None:
    peaks = []
    for m in (200_000, 400_000):
        of = catalogue(m)
        queries = [Query(np.full(3, n, np.float32), 10) for n in range(1, 17)]
        tracemalloc.start()
        Exact(of)(queries)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 2**24  # a matrix of all scores would be 25 MB
