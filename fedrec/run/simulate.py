"""`fedrec simulate`: one scenario from a data file to a released model, a guarantee, numbers beside
their controls, and a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrec.data.interactions import Dataset
from fedrec.errors import SettingsError
from fedrec.run.code_version import note_code
from fedrec.run.data.budget import budget_of
from fedrec.run.input_digests import bind
from fedrec.run.job import LOOPBACK, RuntimeChoice
from fedrec.run.progress import stage
from fedrec.run.ratings import Ratings
from fedrec.run.run_folder import open_folder, require_free
from fedrec.run.training import OnRound
from fedrec.run.workload import Setting, Workload, write_run
from fedrec.settings import Scenario
from fedrec.storage import write_json


def workload_of(learns_news: bool) -> type[Workload[Any]]:
    """What the scenario is about: ratings and clicks, or news."""
    if not learns_news:
        return Ratings
    from fedrec.run.news import News  # brings torch

    return News


def run(
    scenario: Scenario,
    *,
    name: str,
    choice: RuntimeChoice = LOOPBACK,
    resume: bool = False,
    quiet: bool = False,
    details: bool = False,
    at: Path | None = None,
    overwrite: bool = False,
    given: Dataset | None = None,
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Do everything and return what `--json` prints. `choice` decides who carries the messages, and
    no number. Raises FedRecError.

    details: say every verdict, too. at: the run's folder, in the place of one that is named by the
    scenario; one with a run in it is replaced only with `overwrite`.
    given: a data set in memory, in the place of the one that the scenario's data table names.
    on_round: called after every round of ratings or clicks.
    """
    try:
        scenario.data.path.encode()
    except UnicodeEncodeError:
        raise SettingsError(
            f"the name {scenario.data.path!r} is no UTF-8, and a run is recorded with its data's",
            "Rename the file, or give it to Python: Dataset.from_file.",
        ) from None
    workload = workload_of(scenario.learns_news)
    workload.require_carried(scenario, choice)
    console = Console(stderr=True, quiet=quiet)
    started = time.perf_counter()
    if at is not None:
        require_free(at, resume=resume, overwrite=overwrite)
    with stage(console, "reading data"):  # before a folder is emptied for it
        data = workload.load(scenario, given)
    with open_folder(scenario, name, choice, resume=resume, at=at) as folder:
        note_code(folder)
        bind(folder, data.inputs)
        write_json(folder / "data.json", data.described())
        budget = budget_of(scenario.privacy, data.files, data.people)
        setting = Setting(scenario, choice, folder, console, budget, on_round)
        trained = data.train(setting)
        return write_run(
            data.evaluate(setting, trained), setting, started=started, quiet=quiet, details=details
        )
