"""`fedrec demo --deployment`: real parties train twice, one of them is killed on the way, and the
models are compared with those of one process."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrec.cli.supervisor import Supervisor
from fedrec.errors import RunError, SettingsError
from fedrec.report.wording import power
from fedrec.run.progress import stage
from fedrec.settings import load
from fedrec.shipped import path_of
from fedrec.storage import finite
from fedrec_simulations.demo.parties import Deployment
from fedrec_simulations.demo.trial import SITES, TRAININGS, Trial

_BYTES = {
    True: "both models are those that one process trains from the same data, byte for byte",
    False: "A MODEL DIFFERS from what one process trains from the same data",
    None: "not compared: the operating system's noise gives other bytes each time",
}


def run(overrides: tuple[str, ...], *, keep: Path | None, quiet: bool) -> dict[str, Any]:
    """Start the parties, train twice, kill one, compare.

    Args:
        overrides: Settings in place of those of the scenario `deployment`.
        keep: A new folder for all that the parties write, or None for one that is removed.
        quiet: Whether nothing is printed.

    Returns:
        What `--json` prints.

    Raises:
        FedRecError: A party gave up, or something did not hold.
    """
    scenario = load(path_of("deployment"), ("privacy.noise=seeded", *overrides))
    if scenario.learns_news:
        raise SettingsError(
            "the demonstration of a deployment is of ratings or clicks",
            'Leave recipe = "privaterec" out.',
        )
    with ExitStack() as stack:
        folder = _new(keep) if keep else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trial = Trial(scenario, folder.resolve())
        there = Deployment(trial.files(0), Supervisor())
        screen = Console(stderr=True, quiet=quiet)
        try:
            killed = _trained(trial, there, screen)
        finally:
            there.company.stop()
        with stage(screen, "one process trains the same, to compare"):
            content = _content(trial, there) | {"killed": killed, "folder": str(keep or "")}
    show(content, Console(quiet=quiet))
    if not content["holds"]:
        raise RunError(
            "it did NOT hold that "
            + " and that ".join(words for words, holds in content["checks"].items() if not holds),
            "Run it with --keep DIR and look at the logs there; report it as a defect.",
        )
    return dict(finite(content))


def _new(keep: Path) -> Path:
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise SettingsError(f"{keep} is there already", "Name a new folder for --keep.")
    keep.mkdir(parents=True, exist_ok=True)
    return keep


def _trained(trial: Trial, there: Deployment, screen: Console) -> dict[str, Any]:
    """Both trainings; who was killed, and after which round."""
    victim = there.files.aggregators[-1]
    people = there.files.holdings.num_users
    with stage(screen, f"aggregator, server and {SITES} sites with {people:,} people start"):
        there.start()
    with stage(screen, f"first training; the {victim} is killed with kill -9 on the way"):
        for number in there.rounds():
            if number == 0:
                os.kill(there.company.pid(victim), signal.SIGKILL)
    later = len(trial.events(1)) - len(trial.events(0))
    with stage(screen, f"{later:,} more ratings arrive; second training"):
        there.train_again(trial.files(1))
        for _ in there.rounds():
            pass
    return {"party": victim, "signal": int(signal.SIGKILL), "training": 1, "round": 1}


def _content(trial: Trial, there: Deployment) -> dict[str, Any]:
    """What the parties kept, and what of it holds."""
    people = there.files.holdings.num_users
    spent = there.spent()
    [(unit, training)] = spent[there.files.aggregators[0]].items()
    same = (
        all(trial.same_bytes(there.folder(number), number) for number in range(TRAININGS))
        if trial.scenario.privacy.noise == "seeded"
        else None
    )
    holds = {
        "everybody was counted in every round": all(
            line["reported"] == people
            for number in range(TRAININGS)
            for line in there.lines(number)
        ),
        "all ledgers say the same": all(one == {unit: training} for one in spent.values()),
        "the models are the same bytes": same is not False,
    }
    return {
        "trained": [run.version for run in there.runs],
        "rounds": [len(there.lines(number)) for number in range(TRAININGS)],
        "users": people,
        "spent": {"unit": f"per {unit}", **training, "limit": there.files.job.limit.epsilon},
        "noise": trial.scenario.privacy.noise,
        "aggregation": trial.scenario.privacy.aggregation,
        "same_bytes": same,
        "checks": holds,
        "holds": all(holds.values()),
    }


def show(content: dict[str, Any], out: Console) -> None:
    """Print what `run` returns: a line for each fact, the verdict and the next command."""
    spent = content["spent"]
    killed = content["killed"]
    lines = {
        "spent": f"ε = {spent['epsilon']:.3g} of {spent['limit']:.3g} {spent['unit']}, "
        f"δ = {power(spent['delta'])}, over {TRAININGS} trainings",
        "killed": f"the {killed['party']}, with kill -9 after round {killed['round']} of training "
        f"{killed['training']}; another process went on",
        "bytes": _BYTES[content["same_bytes"]],
        "noise": content["noise"] == "seeded"
        and "seeded, to compare: whoever knows the seed can remove it",
        "three": content["aggregation"] == "three-party"
        and "not yet reviewed from outside; any two aggregators together can read every report",
        "files": content["folder"],
        "verdict": content["holds"]
        and f"It held: two trainings of {content['users']:,} people and a kill -9 later, nothing "
        "is lost, doubled or smaller than promised.",
        "next": content["holds"]
        and "fedrec certs trial certificates --client hospital (docs/deploy.md)",
    }
    for name, words in lines.items():
        if words:
            out.print(f"{name:<9}{words}", markup=False, highlight=False)
