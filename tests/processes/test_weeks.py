"""A standing server (`--every`) whose trainings are weeks of one stream, as real processes, each of
which is killed with -9 between and within weeks: one charge, one guarantee from the first
certificate to the last, and the bytes of a year that nobody disturbed.

    python -m pytest tests/processes/test_weeks.py -m rare     twelve weeks, system noise
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.certificates.verifying import verify
from fedrec.cli.supervisor import Supervisor
from fedrec.data.interactions import Interactions
from fedrec.errors import RunError
from fedrec.factorization.facts import public_facts
from fedrec.recipes import prepare
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import Job
from fedrec.run.shards import Shard
from fedrec.settings import load
from fedrec.storage import Checkpoints
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.ledger import read_entries
from fedrec_server.runs import Runs, run_folder
from fedrec_server.schedule import ask_standing
from fedrec_simulations.runtimes.processes import start
from tests.processes.conftest import Play, Rehearsal, as_bytes

pytestmark = [pytest.mark.processes, pytest.mark.rare]  # restarts of four processes, minutes

PARTIES = ("client-1", "aggregator", "server", "client-2")


def job_of(folder: Path, *, weeks: int, noise: str) -> Play:
    scenario = load(
        None,
        ["data.preset=small", "data.kind=clicks", f"privacy.noise={noise}", "recipe=dp-item-item",
         f"privacy.horizon={weeks}"],
    )  # fmt: skip
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    facts = public_facts(scenario.seed, dataset, split)
    job = Job(scenario, facts, split.train, prepare(scenario, facts), folder)
    return Play(job, dataset.catalogue)


def part(play: Play, share: float) -> Interactions:
    """So much of people's clicks: more of them with a larger share."""
    data = play.job.data
    return data.select(np.random.default_rng(1).random(len(data)) < share)


def hold(run: Rehearsal, play: Play, *, share: float) -> None:
    """People hold so much of their clicks from now on."""
    data = part(play, share)
    for shard in run.files.shards:
        users = np.arange(shard.first_user, shard.first_user + shard.events.num_users)
        mine = Shard(shard.name, shard.first_user, data.users_subset(users))
        run.files.holdings.write_shard(run.files._shard(mine), mine)


def finished(run: Rehearsal) -> int:
    return sum(entry.finished_s > 0 for entry in Runs(run.files.state("server")).entries)


def asked(run: Rehearsal) -> bool:
    try:
        return ask_standing(run.files.state("server")) > 0
    except RunError:  # it is about to start
        return False


def year(run: Rehearsal, play: Play, *, weeks: int, kills: bool) -> list[Any]:
    """Every week's certificate; where parties are killed, one between weeks and one within."""
    start(run.files, run.company, server=("--every", "1d"))
    certificates = []
    for week in range(1, weeks + 1):
        if week > 1:
            hold(run, play, share=week / weeks)
            run.until(lambda: asked(run), f"the server before week {week}")
        if kills:
            within = PARTIES[week % len(PARTIES)]
            counts = 2 * (week - 1)
            run.until(lambda n=counts: run.said("server", "round-released", round=n), "counts")
            run.kill(within)
        run.until(lambda n=week: finished(run) >= n, f"week {week}")
        certificates.append(run_folder(run.files.state("server")) / "model")
        if kills:
            run.kill(PARTIES[(week + 1) % len(PARTIES)])
    return certificates


def states(run: Rehearsal) -> list[dict[str, bytes]]:
    return [
        as_bytes(state)
        for state in Checkpoints(run_folder(run.files.state("server")) / "checkpoints").all()
    ]


def require_charged_once(run: Rehearsal) -> None:
    run.company.stop()
    with closing(ReleaseLedger(run.files.state("aggregator"), limit=None)) as ledger:
        assert [charge.release for charge in ledger.spends().charges] == ["counts", "tastes"]
        assert ledger.spends().epsilon == pytest.approx(5.0, rel=1e-6)
    for name in ("client-1", "client-2"):
        entries = read_entries(run.files.state(name) / "ledger.sqlite")
        assert [name for entry in entries for name, _ in entry.releases] == ["counts", "tastes"]
    runs = Runs(run.files.state("server")).entries
    assert {entry.total for entry in runs} == {runs[0].guarantee}


def test_weeks_with_a_kill_of_each_party_are_charged_once_and_end_in_the_same_bytes(
    stage: Callable[..., Rehearsal], tmp_path: Path
) -> None:
    weeks = 4  # two years of three to five seconds a week, and eight restarts
    play = job_of(tmp_path / "job", weeks=weeks, noise="seeded")
    years = []
    for kills in (False, True):
        run = stage(plays=play, data=part(play, 1 / weeks))
        year(run, play, weeks=weeks, kills=kills)
        years.append(states(run))
        require_charged_once(run)
    assert years[0] == years[1]
    assert len(years[0]) == 2 * weeks


def test_twelve_weeks_with_kills_print_one_guarantee_from_the_first_to_the_last(
    stage: Callable[..., Rehearsal], tmp_path: Path
) -> None:
    play = job_of(tmp_path / "job", weeks=12, noise="system")
    run = stage(plays=play, data=part(play, 1 / 12), company=Supervisor(most_starts=20))
    certificates = year(run, play, weeks=12, kills=True)
    found = [verify(folder) for folder in certificates]
    assert [one.rounds for one in found] == list(range(2, 25, 2))
    assert {one.guarantee for one in found} == {found[0].guarantee}
    assert [one.price.gdp for one in found] == [pytest.approx(5.0, rel=1e-6)] * 12
    assert all(one.signed for one in found) or not any(one.signed for one in found)
    require_charged_once(run)
