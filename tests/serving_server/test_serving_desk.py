"""Queries that wait are ranked together; callers that gave up, a full endpoint and a ranker that fails
hurt nobody else."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import RefusedError
from fedrec.serving.ranking import Query
from fedrec_server.serving import batcher as endpoints
from fedrec_server.serving.batcher import Batcher, ServingCounts
from fedrec_server.serving.settings import validated
from fedrec_server.serving.store import ServedModel, load
from tests.serving_server.conftest import B, planted

QUERIES = [Query(np.full(B, n, np.float32), 3) for n in range(1, 7)]


@pytest.fixture(params=["on the loop", "in the thread"])
def model(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ServedModel:
    if request.param == "in the thread":
        monkeypatch.setattr(endpoints, "_SMALL_BYTES", 0)
    planted(tmp_path / "a")
    return load(tmp_path / "a")


def at_a_endpoint(
    work: Callable[[Batcher], Awaitable[None]],
    clock: Callable[[], float] = time.monotonic,
    **tables: Any,
) -> None:
    async def open_and_work() -> None:
        endpoint = Batcher(validated(tables), ServingCounts("0"), clock=clock)
        try:
            await asyncio.wait_for(work(endpoint), 10)
        finally:
            endpoint.close()

    asyncio.run(open_and_work())


def test_queries_of_one_turn_are_ranked_together_and_answered_each(model: ServedModel) -> None:
    sizes = list[int]()

    def rank(queries: Any) -> Any:
        sizes.append(len(queries))
        return model.rank(queries)

    async def work(endpoint: Batcher) -> None:
        watched = replace(model, rank=rank)
        waiting = [endpoint.answer(watched, query) for query in QUERIES]
        waiting[1].cancel()
        for place, query in enumerate(QUERIES):
            if place != 1:
                assert (await waiting[place]).items.tolist() == model.rank([query])[
                    0
                ].items.tolist()
        await endpoint.answer(watched, QUERIES[0])
        assert sizes == [4, 1, 1]

    at_a_endpoint(work, ranking={"together": 4})


def test_no_query_waits_for_others_and_what_waits_while_a_batch_is_ranked_is_the_next(
    model: ServedModel,
) -> None:
    sizes = list[int]()

    def rank(queries: Any) -> Any:
        sizes.append(len(queries))
        return model.rank(queries)

    async def work(endpoint: Batcher) -> None:
        watched = replace(model, rank=rank)
        await endpoint.answer(watched, QUERIES[0])
        await asyncio.gather(*(endpoint.answer(watched, query) for query in QUERIES[:2]))
        # the batch before held two: nobody lingers for a third
        started = endpoint.answer(watched, QUERIES[0])
        await asyncio.sleep(0)
        later = [endpoint.answer(watched, query) for query in QUERIES[1:4]]
        await asyncio.gather(started, *later)
        assert sizes == [1, 2, 1, 2, 1]

    at_a_endpoint(work, ranking={"together": 2})


def test_versions_are_not_mixed_in_one_product(model: ServedModel, tmp_path: Path) -> None:
    planted(tmp_path / "b", seed=2)
    other = load(tmp_path / "b")

    async def work(endpoint: Batcher) -> None:
        waiting = [
            (one, query, endpoint.answer(one, query)) for query in QUERIES for one in (model, other)
        ]
        for one, query, future in waiting:
            assert (await future).scores.tolist() == one.rank([query])[0].scores.tolist()

    at_a_endpoint(work)


def test_a_full_desk_is_busy_and_a_ranker_that_fails_tells_everybody(model: ServedModel) -> None:
    def broken(_: Any) -> Any:
        raise MemoryError

    async def work(endpoint: Batcher) -> None:
        failing = replace(model, rank=broken)
        waiting = [endpoint.answer(failing, query) for query in QUERIES[:2]]
        with pytest.raises(RefusedError, match="waiting"):
            endpoint.answer(model, QUERIES[0])
        for future in waiting:
            with pytest.raises(MemoryError):
                await future
        assert len((await endpoint.answer(model, QUERIES[0])).items) == 3

    at_a_endpoint(work, limits={"waiting": 2})


def test_a_query_whose_answer_would_come_too_late_is_refused_and_not_where_ranking_is_fast(
    model: ServedModel,
) -> None:
    now_s = [0.0]
    each_s = [1.0]

    def rank(queries: Any) -> Any:
        now_s[0] += each_s[0] * len(queries)
        return model.rank(queries)

    async def work(endpoint: Batcher) -> None:
        timed = replace(model, rank=rank)

        async def some(count: int) -> None:
            for _ in range(count):
                await endpoint.answer(timed, QUERIES[0])

        await some(50)
        waiting = [endpoint.answer(timed, QUERIES[0]) for _ in range(4)]
        with pytest.raises(RefusedError, match="waiting"):
            endpoint.answer(timed, QUERIES[0])
        for future in waiting:
            await future
        each_s[0] = 0.001
        await some(50)
        for future in [endpoint.answer(timed, QUERIES[0]) for _ in range(20)]:
            await future

    at_a_endpoint(work, lambda: now_s[0], limits={"wait_s": 3.5})
