"""A trained model's next version takes over without a failed request: of ratings, clicks and news,
from a folder and from an address."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrec.data.features import PublicFeatures
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.news.local_clients import LocalClients
from fedrec.news.topics import public_vectors
from fedrec.news.trained import Catalogue, TrainedNews
from fedrec.news.variant import train_news
from fedrec.operations.addresses import Address
from fedrec.serving import bundle as files
from fedrec.serving.asking import exact
from fedrec.serving.exporting import Origin
from fedrec.serving.news_bundles import news_bundle
from fedrec.settings import validated
from fedrec_server.bundle_endpoint import bundle_endpoint
from tests.serving.test_factorization_bundles import export, released
from tests.waiting import until

TOKEN = "a token of this test"
Write = Callable[[Path, int], str]


def _factorization(kind: str) -> Write:
    return lambda path, number: files.write(path, *export(released(kind, seed=number)))


def _news() -> Write:
    torch.set_num_threads(1)
    planted = planted_news(
        PlantedNewsShape(
            users=60, news=300, history_mean=8, impressions_mean=2, candidates=6, strength=5.0
        ),
        seed=3,
    )
    catalogue = Catalogue(
        planted.news, public_vectors(planted.news, PublicFeatures({}), seed=3, dimension=16)
    )
    content = {
        "recipe": "privaterec",
        "data": {"format": "planted-news"},
        "privacy": {"epsilon": 8, "unit": "click"},
        "news": {"variant": "additive", "history": 12, "rounds": 2, "epochs": 1},
    }
    *_, first, last = train_news(
        chosen := validated(content, source="test"),
        catalogue,
        LocalClients(chosen, catalogue, planted.log.train),
    )
    models = [model for model in (first, last) if isinstance(model, TrainedNews)]

    def write(path: Path, number: int) -> str:
        model = models[number % len(models)]
        return files.write(
            path,
            *news_bundle(
                model.recommender,
                planted.news,
                Origin(f"{number}", 1e-5, model.guarantee, model.spent, "seeded"),
            ),
        )

    return write


@pytest.mark.parametrize("way", ["folder", "address"])
@pytest.mark.parametrize("kind", ["ratings", "clicks", "news"])
def test_the_next_version_takes_over_without_a_failed_request(
    kind: str, way: str, start: Any, tmp_path: Path
) -> None:
    write = (
        _news() if kind == "news" else _factorization("default" if kind == "ratings" else "clicks")
    )
    folder = tmp_path / "server"
    folder.mkdir()
    path = folder / files.FILE
    old = write(path, 1)
    read = files.read(path)
    query = exact(read, np.full((1, read.about.history), -1, np.int32))[0].tolist()
    failed = list[Exception]()
    answered = list[str]()
    stop = threading.Event()
    with ExitStack() as stack:
        source: Any = folder
        if way == "address":
            (tmp_path / "token").write_text(TOKEN)
            known = (hashlib.sha256(TOKEN.encode()).hexdigest(),)
            source = f"http://{stack.enter_context(bundle_endpoint(folder, Address('127.0.0.1', 0), known))}"
        running = start(
            [source],
            demo=True,
            state=str(tmp_path / "state"),
            fetch={"token": str(tmp_path / "token"), "every_s": 0.1},
        )

        def ask() -> None:
            while not stop.is_set():
                try:
                    for version in (old, running.http.get("/v1/models").json()["newest"]):
                        running.recommend(version, query)
                        answered.append(version)
                except Exception as failure:
                    failed.append(failure)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            until(lambda: answered, "an answer of the first version")
            new = write(path, 2)
            until(lambda: new in answered, "an answer of the second version")
        finally:
            stop.set()
            asking.join()
    assert new != old
    assert failed == []
