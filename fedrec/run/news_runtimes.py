"""Runtimes of a training of news: this process alone, Flower in this process, or real processes;
the same runtimes as for ratings."""

from __future__ import annotations

from collections.abc import Generator

from fedrec.errors import SettingsError
from fedrec.news.checkpoints import Kept
from fedrec.news.local_clients import LocalClients
from fedrec.news.trained import Progress, TrainedNews
from fedrec.news.variant import of, train_news
from fedrec.run.news_job import NewsJob, NewsRuntime
from fedrec.run.runtime_choice import RuntimeChoice
from fedrec.settings import Scenario


def carrier(scenario: Scenario, choice: RuntimeChoice) -> NewsRuntime:
    """The choice's runtime. Raises SettingsError where it cannot carry the scenario."""
    if choice.runtime == "loopback":
        return loopback
    news = scenario.news
    if not of(scenario).on_devices:
        raise SettingsError(
            f'news.variant = "{news.variant}" has no devices: it collects the clicks',
            "Run it without --runtime.",
        )
    if news.word_vectors or news.language_model:
        named = "word_vectors" if news.word_vectors else "language_model"
        raise SettingsError(
            f"--runtime {choice.runtime} does not send news.{named} to clients",
            "Leave out one of the two.",
        )
    runtime: NewsRuntime = choice.installed("news-")(clients=choice.clients)
    return runtime


def loopback(job: NewsJob) -> Generator[Progress | TrainedNews, None, None]:
    """Everybody in this process."""
    kept = Kept(job.folder)
    clients = LocalClients(job.scenario, job.catalogue, job.train, kept)
    yield from train_news(job.scenario, job.catalogue, clients, kept=kept)
