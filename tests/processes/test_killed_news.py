"""kill -9 of the aggregator and a client in the middle of a round of news, while the other client
hangs: the same bytes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedrec.data.features import PublicFeatures
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.news.topics import public_vectors
from fedrec.news.trained import Catalogue
from fedrec.run.news_run import NewsJob, loopback
from fedrec.settings import load
from fedrec.storage import read_arrays
from fedrec_client.ledger import read_entries
from fedrec_server.runs import run_folder
from tests.hidden import hidden_words, logs_with

pytestmark = pytest.mark.processes

SHAPE = PlantedNewsShape(
    users=64, news=500, history_mean=10, impressions_mean=3, candidates=6, strength=3.0
)
CLIENTS = ("client-1", "client-2")
KEYS = [
    "data.format=planted-news",
    "data.preset=small",
    "news.variant=central",
    "news.rounds=2",
    "news.users_per_round=24",
]


@pytest.fixture
def job(tmp_path: Path) -> NewsJob:
    planted = planted_news(SHAPE, seed=2)
    catalogue = Catalogue(
        planted.news, public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=16)
    )
    scenario = load(
        None,
        [
            "recipe=privaterec",
            "privacy.unit=user",
            "privacy.epsilon=5",
            "privacy.noise=seeded",
            "news.history=12",
            *KEYS,
        ],
    )
    return NewsJob(scenario, catalogue, planted.log.train, tmp_path / "loopback")


def test_whoever_is_killed_in_the_middle_of_a_round_of_news_the_model_is_the_same(
    job: NewsJob, stage: Callable[..., Any]
) -> None:
    *_, alone = loopback(job)
    run = stage(news=job)
    run.start()
    run.until(
        lambda: (run_folder(run.files.state("server")) / "clients.json").exists(),
        "clients that joined",
    )
    hanging = run.pid("client-2")
    os.kill(hanging, signal.SIGSTOP)  # from here on round 0 cannot end
    run.until(lambda: run.reporters(0), "report of the client that does not hang")
    run.kill("aggregator", "client-1")
    os.kill(hanging, signal.SIGCONT)
    run.until(lambda: run.company.has_finished("server"), "model")
    model = read_arrays(run.files.state("server") / "model" / "model.safetensors")
    assert {name: array.tobytes() for name, array in model.items()} == {
        n: a.tobytes() for n, a in alone.parameters.items()
    }
    run.company.stop()
    charged = [
        [
            name
            for entry in read_entries(run.files.state(c) / "ledger.sqlite")
            for name, _ in entry.releases
        ]
        for c in CLIENTS
    ]
    assert charged == [run.charges()] * 2
    assert len(set(run.charges())) == len(run.charges()) > 1
    hidden = hidden_words(run.files.root) | set(job.catalogue.news.titles)
    assert not logs_with(run.files.root, hidden)
