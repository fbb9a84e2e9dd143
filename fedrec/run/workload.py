"""Workload of a run: what `fedrec simulate` does for ratings and clicks in one way, and for news in
another.

`simulate.run` goes one way with either: read, train at every epsilon, evaluate, write. What differs
is asked of these objects: `ratings.Ratings` and `news.News`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Protocol, Self, TypeVar

from rich.console import Console

from fedrec.data.interactions import Dataset, FileDigest
from fedrec.report.content import ReportContent
from fedrec.report.page import print_result, write
from fedrec.run import statement
from fedrec.run.data.budget import DataBudget
from fedrec.run.job import RuntimeChoice
from fedrec.run.progress import stage
from fedrec.run.run_folder import RESULT
from fedrec.run.training import OnRound
from fedrec.serving.exporting import Export
from fedrec.serving.model_bundles import write_bundle
from fedrec.settings import Scenario
from fedrec.storage import finite, write_json

Trained = TypeVar("Trained")


@dataclass(frozen=True)
class Setting:
    """Where a run happens: its scenario and folder, who carries messages, and what the data has
    cost so far. on_round: called after every round of ratings or clicks."""

    scenario: Scenario
    choice: RuntimeChoice
    folder: Path
    console: Console
    budget: DataBudget | None
    on_round: OnRound | None = None


class Finished(Protocol):
    """A run whose models are trained and tested."""

    def keep(self) -> None:
        """Write the released model, its guarantee and the metrics into the folder."""

    def bundle(self) -> Export:
        """The serving bundle. Raises SettingsError where the model cannot be served."""

    def report(self, serving: Mapping[str, object]) -> ReportContent:
        """Content of the page. serving: what `write_bundle` said."""

    def result(self, serving: Mapping[str, object]) -> dict[str, Any]:
        """What `--json` prints, but for runtime and seconds."""

    def lines(self) -> list[str]:
        """How the data was read, and what must not be done with the model."""


class Workload(Protocol[Trained]):
    """Data of one family that was read and divided, and what is done with it."""

    @staticmethod
    def require_carried(scenario: Scenario, choice: RuntimeChoice) -> None:
        """Raises SettingsError where `choice` cannot carry the scenario."""

    @classmethod
    def load(cls, scenario: Scenario, given: Dataset | None) -> Self:
        """Read and divide the scenario's data, or what is given."""

    @property
    def files(self) -> Iterable[FileDigest]:
        """Whose budget is charged."""

    @property
    def people(self) -> Dataset | None:
        """With the ids of all users, by which they are recognised in other versions of the data."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Everything that the run is computed from, by name: see `inputs.bind`."""

    def described(self) -> Mapping[str, object]:
        """Content of data.json: where it came from, and how it was divided."""

    def train(self, setting: Setting) -> dict[float, Trained]:
        """A training at each epsilon, each kept in a folder of its own and charged."""

    def evaluate(self, setting: Setting, trained: dict[float, Trained]) -> Finished:
        """Read the test rows, and set everything beside its controls."""


def write_run(
    done: Finished, setting: Setting, *, started: float, quiet: bool, details: bool = False
) -> dict[str, Any]:
    """Everything that a finished run leaves in its folder and on the terminal; what `--json`
    prints. started: by `perf_counter`. details: say every verdict, too."""
    folder = setting.folder
    console = setting.console
    done.keep()
    with stage(console, "making the serving bundle"):
        serving = write_bundle(folder, done.bundle)
    with stage(console, "drawing the report"):
        content = done.report(serving)
        write(folder / "report.html", content)
    seconds = time.perf_counter() - started
    about = {"runtime": setting.choice.described, **done.result(serving), "seconds": seconds}
    result = dict(finite(about))
    write_json(folder / RESULT, result)
    if not quiet:
        print_result(Console(), content, details=details)
        said = [*done.lines(), f"report     {folder / 'report.html'}"]
        ending = "\n".join([*said, _next_step(folder, serving, seeded=content.seeded)])
        Console().print(ending, soft_wrap=True, highlight=False, markup=False)
    return result


def _next_step(folder: Path, serving: Mapping[str, object], *, seeded: bool) -> str:
    if "refused" in serving:
        return (
            f"not served {serving['refused']}\n"
            f"next       fedrec compare {quote(str(folder))} --output compare.html"
        )
    return f"next       fedrec serve {quote(str(folder))} --page{' --demo' * seeded}"


def cautions(budget: DataBudget | None, more: Sequence[str], *, seeded: bool) -> list[str]:
    """Last words on privacy. seeded: whether there is noise, and it is."""
    spends = statement.spent(budget)
    several = sum(one.trainings + one.experiments + one.without_noise for one in spends) > 1
    told = [one for one in spends if several and (one.trainings or one.without_noise)]
    lines = [f"spent      by all runs on this data: {one.words}" for one in told]
    noise = (
        "noise      seeded: an experiment. Whoever knows the seed can remove the noise: "
        "do not release this model."
    )
    return [*lines, *more, *([noise] if seeded else ())]
