"""News on Flower's own simulation engine: clients' nodes are played by Ray's actors, as for ratings
(`ray_engine`)."""

from __future__ import annotations

from collections.abc import Generator

from fedrec.cli.supervisor import Supervisor
from fedrec.news.trained import Progress, TrainedNews
from fedrec.run.news_job import NewsJob, NewsRuntime
from fedrec_server.news import check
from fedrec_server.runs import run_folder
from fedrec_simulations.runtimes.deployment_files import PartyFiles
from fedrec_simulations.runtimes.news_processes import followed, holdings, kept_news
from fedrec_simulations.runtimes.ray_engine import rays_folder, start_aggregator_for, start_server


def ray(*, clients: int) -> NewsRuntime:
    """Carries a job by `clients` nodes on Ray's actors, of which there are as many as this machine
    has cores, or fewer."""

    def carry(job: NewsJob) -> Generator[Progress | TrainedNews, None, None]:
        check(job.scenario, job)
        files, company = PartyFiles(job, holdings(job, clients)), Supervisor()
        with rays_folder() as folder:
            try:
                start_aggregator_for(files, company)
                start_server(files, company, folder)
                yield from followed(files.state("server"), company)
            finally:
                company.stop()
        yield kept_news(job, run_folder(files.state("server")))

    return carry
