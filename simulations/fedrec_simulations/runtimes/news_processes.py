"""The runtime `processes` for news: a server, clients and, for `central`, an aggregator as
processes of their own on this machine.

As for ratings (`processes`), the parent takes part in no message. The trained model is what the
server kept: training is gone through once more here from the server's last step, over a fleet that
nobody can ask.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fedrec.arrays import Int64s
from fedrec.cli.supervisor import Supervisor
from fedrec.data.impressions import Impressions
from fedrec.errors import RunError
from fedrec.federation.messages import Question
from fedrec.news.checkpoints import Kept
from fedrec.news.fedadam import FedAdam
from fedrec.news.rounds import Course
from fedrec.news.trained import Progress, TrainedNews
from fedrec.news.variant import of, train_news
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.calibration import Plan
from fedrec.privacy.click_accounting import TrainingPlan
from fedrec.run.news_job import NewsJob, NewsRuntime, NewsShard, news_shards
from fedrec.storage import read_json
from fedrec_client.readers import write_news_shard
from fedrec_server.news import check
from fedrec_server.public_news import write_public_news
from fedrec_server.runs import run_folder
from fedrec_simulations.runtimes.deployment_files import Holdings, PartyFiles
from fedrec_simulations.runtimes.news_in_process import readers
from fedrec_simulations.runtimes.processes import start


def processes(*, clients: int) -> NewsRuntime:
    """Carries a job by a server, `clients` clients and, for `central`, an aggregator."""

    def carry(job: NewsJob) -> Generator[Progress | TrainedNews, None, None]:
        check(job.scenario, job)
        files, company = PartyFiles(job, holdings(job, clients)), Supervisor()
        try:
            start(files, company)
            yield from followed(files.state("server"), company)
        finally:
            company.stop()
        yield kept_news(job, run_folder(files.state("server")))

    return carry


def holdings(job: NewsJob, clients: int) -> Holdings[NewsShard]:
    """News, divided over so many clients."""
    aggregated, seeded = of(job.scenario).plan is not None, job.scenario.privacy.noise == "seeded"
    return Holdings(
        news_shards(job.train, clients),
        job.train.num_users,
        job.train.num_news,
        ("news", "news-shard"),
        lambda folder: write_public_news(folder, job.catalogue),
        lambda path, shard: write_news_shard(path, readers(job, shard)),
        aggregated=aggregated,
        client={"rehearsal_seed": job.scenario.seed} if seeded and not aggregated else {},
        privacy={
            "unit": job.limit.unit,
            "open_categories": list(job.scenario.news.open_categories),
        },
    )


def followed(server: Path, company: Supervisor) -> Iterator[Progress]:
    """What the server says of its steps, until it has finished.

    Raises RunError as `Supervisor.look` does."""
    told = 0
    while True:
        finished = company.has_finished("server")
        path = run_folder(server) / "progress.json"
        if path.exists():
            latest = Progress(**read_json(path))
            if latest.step != told:
                told = latest.step
                yield latest
        if finished:
            return
        company.look()
        company.rest()


def kept_news(job: NewsJob, server: Path) -> TrainedNews:
    """What the server of a finished training kept in its folder.

    Raises RunError where it is not finished."""
    *_, last = train_news(
        job.scenario, job.catalogue, Finished(job.train.num_users), kept=Kept(server)
    )
    assert isinstance(last, TrainedNews)
    return last


@dataclass(frozen=True)
class Finished:
    """The fleet of a training that is over: everything was asked."""

    num_users: int

    def reports(self, topics: TopicTable, plan: TrainingPlan) -> NoReturn:
        """See `NewsClients`."""
        raise _unfinished()

    def step(self, course: Course, users: Int64s, rule: FedAdam) -> NoReturn:
        """See `NewsClients`."""
        raise _unfinished()

    def link(self, plan: Plan, released: Sequence[str]) -> Finished:
        """See `NewsClients`."""
        return self

    def answer(self, question: Question) -> NoReturn:
        """See `federation.rounds.Link`."""
        raise _unfinished()

    def data(self) -> Impressions:
        """See `NewsClients`."""
        raise _unfinished()


def _unfinished() -> RunError:
    return RunError(
        "the server ended well, but what it kept is not a finished training",
        "Run it again with --resume.",
    )
