"""A small public bundle, a server in this process that records what it was sent, and real servers
in a thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedrec.errors import RefusedError
from fedrec.privacy.bounded_mean import topic_table
from fedrec.serving import bundle as bundles
from fedrec.serving import ranking
from fedrec.serving.bundle import Texts
from fedrec.serving.user_map import UserMap
from fedrec_client import recommending
from fedrec_client.serving_link import WRONG_VERSION, Left, ServingQuery, ServingReply
from fedrec_server.serving.main import Serving, run
from fedrec_server.serving.settings import validated
from tests.threads import serving

Asking = partial(recommending.Recommender, via="server")
"""A device that asks, however small the bundle."""
ITEMS = 120
TOPICS = 16
HISTORY = 10
WIDTH = 6
CATEGORIES = ("drama", "comedy")


def write_bundle(
    path: Path,
    *,
    seed: int = 0,
    rows_seed: int = 0,
    about: dict[str, Any] | None = None,
    **arrays: Any,
) -> str:
    """A bundle of random public numbers; returns its version. rows_seed: of the rows, which answers
    are made with."""
    rng = np.random.default_rng(seed)
    rng_rows = np.random.default_rng(rows_seed)
    table = topic_table(rng_rows.dirichlet(np.full(TOPICS, 0.3), ITEMS))
    spread = rng.normal(size=(TOPICS, TOPICS))
    ids = Texts.of([f"i{j}" for j in range(ITEMS)])
    titles = Texts.of([f"Title {j}" for j in range(ITEMS)])
    words = {
        "name": "planted", "family": "news", "form": "additive", "history": HISTORY, "delta": 1e-5,
        "scale": 0.1,
        "sensitivity": math.nextafter(table.diameter / HISTORY, math.inf), "categories": CATEGORIES,
        "training": {"epsilon": 5.0}, "noise": "system", "fedrec": "0",
    }  # fmt: skip
    parts = {
        "rows": table.rows.astype(np.int32),
        "mean": table.weights.mean(0),
        "covariance": spread @ spread.T * 0.01,
        **UserMap.of_linear(rng.normal(size=(TOPICS, WIDTH)), rng.normal(size=WIDTH)).arrays(),
        "items": rng.normal(size=(ITEMS, WIDTH)).astype(np.float32),
        "bias": rng.normal(size=ITEMS).astype(np.float32),
        "categories": rng.integers(0, 4, ITEMS).astype(np.uint64),
        **{
            "ids.content": ids.content,
            "ids.ptr": ids.ptr,
            "titles.content": titles.content,
            "titles.ptr": titles.ptr,
        },
    }
    return bundles.write(path, bundles.About(**(words | (about or {}))), parts | arrays)


@dataclass
class PlainServer:
    """A server without a network: it ranks, and keeps every query it got.

    `retired` versions are refused."""

    paths: list[Path]
    queries: list[ServingQuery] = field(default_factory=list)
    journal: list[Left] = field(default_factory=list)
    retired: set[str] = field(default_factory=set)
    fetched: int = 0
    answers: Callable[[ServingReply], ServingReply] = lambda reply: reply
    fault: Exception | None = None
    rankers: dict[str, ranking.Exact] = field(default_factory=dict)

    def newest(self) -> str:
        return bundles.sha256_of(self.paths[-1])[:16]

    def bundle(self, version: str) -> Iterator[bytes]:
        self.fetched += 1
        yield next(
            path for path in self.paths if bundles.sha256_of(path)[:16] == version
        ).read_bytes()

    def recommend(self, query: ServingQuery) -> ServingReply:
        self.queries.append(query)
        self.journal.append(Left("plain", (), query.sent.tobytes()))
        if self.fault:
            raise self.fault
        if query.version in self.retired:
            raise RefusedError(WRONG_VERSION, "retired", "take the newest")
        if query.version not in self.rankers:
            path = next(
                path for path in self.paths if bundles.sha256_of(path)[:16] == query.version
            )
            self.rankers[query.version] = ranking.Exact(bundles.read_ranked(path))
        best = self.rankers[query.version](
            [ranking.Query(query.sent, query.k, query.category_bits)]
        )[0]
        return self.answers(ServingReply(query.version, best.items.astype(np.int64), best.scores))

    def close(self) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> PlainServer:
    path = tmp_path / "models" / "first.safetensors"
    write_bundle(path)
    return PlainServer([path])


@pytest.fixture
def bundle(served: PlainServer) -> bundles.Bundle:
    return bundles.read(served.paths[0])


def by_rows(rows: npt.NDArray[np.integer]) -> list[str]:
    return [f"i{row}" for row in rows]


@pytest.fixture
def real_server(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Starts the real server in a thread: `real_server(path, tls=...)`; all are stopped at the
    end."""
    content = {
        "grpc": "127.0.0.1:0",
        "http": "127.0.0.1:0",
        "log": str(tmp_path / "serving.jsonl"),
        "limits": {"notice_s": 0.0},
    }
    with ExitStack() as stack:
        yield lambda *paths, **settings: stack.enter_context(
            serving(run, paths, validated(content | settings))
        )
