"""`fedrec bench study`: every system at every epsilon and seed on one data set, in processes,
resumable, with the time that is left.

A finished row is a file that holds its settings' digest, and is never made twice. Seeds come
outermost: a study that is stopped has few seeds of every system rather than all seeds of a few.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.data.kinds import KINDS
from fedrec.data.read import read
from fedrec.errors import SettingsError
from fedrec.storage import finite, read_json
from fedrec_simulations.experiments.progress import Tell
from fedrec_simulations.experiments.row_queue import rows_of
from fedrec_simulations.experiments.rows import Row, folder_of
from fedrec_simulations.experiments.source import source_digest
from fedrec_simulations.experiments.study.systems import DELTA, LIKES, SYSTEMS, Place
from fedrec_simulations.experiments.study.training import METRICS, study_row
from fedrec_simulations.experiments.trials import RowFiles, Trial

QUICK_SEEDS, QUICK_EPSILONS = 2, (5.0, math.inf)
_DIVIDED = "by-ids"
"""How splits and public people are drawn: rows of another way, whose scenario says the same, are
other rows."""


@dataclass(frozen=True)
class Task:
    """One row to make."""

    system: str
    epsilon: float
    seed: int


def run(
    data: str,
    *,
    quick: bool = False,
    jobs: int = 1,
    likes: bool = False,
    only: Sequence[str] = (),
    seeds: int = 5,
    folder: Path = Path("runs/bench-study"),
    output: Path | None = None,
    tell: Tell,
) -> Row:
    """The study of one data set as a JSON-able dict, seeds 1 to `seeds`; `only` these systems,
    `quick` two seeds at epsilon 5 and inf. likes: ratings of 4 or more as clicks. output: where the
    study is kept: with `only`, its cells of other systems stay, each with the digest of its own
    code.

    Raises SettingsError without data, on an unknown system and, before any row is made, where
    `output` holds a study of other data or another protocol, DataError on bad data.
    """
    if not data:
        raise SettingsError("the study needs a data folder", "Give one, e.g. --data PATH/ml-1m.")
    place = place_of(data, likes=likes)
    if unknown := set(only) - set(SYSTEMS[place.kind]):
        raise SettingsError(
            f"there is no system {min(unknown)!r} on {place.kind}",
            f"Use one of: {', '.join(SYSTEMS[place.kind])}.",
        )
    kept = _kept(place, output) if only and output is not None else None
    trials, missing = dict[Task, Trial](), dict[str, str]()
    for task in (task for task in _tasks(place, seeds, quick) if not only or task.system in only):
        try:
            trials[task] = _trial(place, task)
        except SettingsError as refusal:
            missing[task.system] = refusal.cause
    rows = rows_of(trials, RowFiles(folder_of(folder, data)), jobs=jobs, tell=tell)
    missing |= {task.system: row["refused"] for task, row in rows.items() if "refused" in row}
    made = _result(
        place, {task: row for task, row in rows.items() if "refused" not in row}, missing
    )
    return dict(finite(made if kept is None else beside(made, kept)))


def _kept(place: Place, output: Path) -> Row | None:
    if not output.exists():
        return None
    kept: Row = read_json(output)
    if (kept["data"]["name"], kept["protocol"]) != (place.name, _protocol(place)):
        raise SettingsError(
            f"{output} holds a study of {kept['data']['name']}, {kept['protocol']}",
            "Give another --output, or leave --only out.",
        )
    return kept


def _protocol(place: Place) -> dict[str, Any]:
    divided = "random 80/10/10, by a hash of seed, user and item ids"
    return {"split": "given, all train events" if place.given else divided, "delta": DELTA}


def beside(made: Mapping[str, Any], kept: Mapping[str, Any]) -> Row:
    """New cells beside those of other systems in a kept study, in its order; what a kept study says
    of its cells stays while it has any."""
    new = {(cell["system"], float(cell["epsilon"])): cell for cell in made["cells"]}
    names = {name for name, _ in new}
    cells = [
        new.pop((cell["system"], float(cell["epsilon"])), cell)
        for cell in kept["cells"]
        if cell["system"] not in names or (cell["system"], float(cell["epsilon"])) in new
    ]
    said = kept if names < {cell["system"] for cell in cells} else {}
    return {
        **said,
        **made,
        "cells": [*cells, *new.values()],
        "missing": {
            **{name: why for name, why in kept["missing"].items() if name not in names},
            **made["missing"],
        },
        "seconds": sum(sum(cell["seconds"]) for cell in (*cells, *new.values())),
        "data": {
            **made["data"],
            "sizes": {**kept["data"]["sizes"], **made["data"]["sizes"]},
        },
    }


def place_of(data: str, *, likes: bool = False) -> Place:
    """A data set by its folder; the folder's name says which settings for clicks are meant.

    Raises SettingsError where clicks are asked for as likes."""
    kind = "ratings" if data == "planted" else read(data).interactions.kind
    name = Path(data).resolve().name if data != "planted" else data
    if not likes:
        return Place(data, name, kind)
    if not KINDS[kind].rated:
        raise SettingsError(
            f"--likes makes clicks of ratings, but {data} holds clicks", "Leave --likes out."
        )
    return Place(data, name + LIKES, "clicks", likes=True)


def _tasks(place: Place, seeds: int, quick: bool) -> Iterator[Task]:
    for seed in range(1, (min(seeds, QUICK_SEEDS) if quick else seeds) + 1):
        for name, system in SYSTEMS[place.kind].items():
            yield from (
                Task(name, epsilon, seed)
                for epsilon in system.epsilons(place.name)
                if not quick or epsilon in QUICK_EPSILONS
            )


def _trial(place: Place, task: Task) -> Trial:
    # other settings, another row
    digest = SYSTEMS[place.kind][task.system].scenario(place, task.epsilon, task.seed).digest()[:8]
    likes = LIKES if place.likes else ""
    name = f"{task.system}{likes}-epsilon-{task.epsilon:g}-{task.seed}-{digest}-{_DIVIDED}"
    return Trial.of(
        name,
        row_or_refusal,
        place,
        task.system,
        task.epsilon,
        task.seed,
        kind=task.system,
        recipes=_recipes(place, task.system, task.epsilon),
    )


def _code(place: Place, system: str, epsilon: float) -> str:
    """Digest of what decides a row: of recipes only the one that is trained, if one is."""
    return source_digest(study_row, recipes=_recipes(place, system, epsilon))


def _recipes(place: Place, system: str, epsilon: float) -> tuple[str, ...]:
    says = SYSTEMS[place.kind][system].says
    return (str(says(place.name, epsilon)["recipe"]),) if says is not None else ()


def row_or_refusal(place: Place, system: str, epsilon: float, seed: int) -> Row:
    """`study_row`; of a system that refuses its settings the cause."""
    try:
        return study_row(place, system, epsilon, seed)
    except SettingsError as refusal:
        return {"refused": refusal.cause}


def _result(place: Place, made: Mapping[Task, Row], missing: Mapping[str, str]) -> dict[str, Any]:
    groups = defaultdict[tuple[str, float], list[tuple[Task, Row]]](list)
    for task, found in made.items():
        groups[task.system, task.epsilon].append((task, found))
    sizes = {
        SYSTEMS[place.kind][task.system].group: {**found["sizes"], "test": found["test"]}
        for task, found in made.items()
    }
    return {
        "data": {"name": place.name, "kind": place.kind, "sizes": sizes},
        "protocol": _protocol(place),
        "cells": [_cell(place, name, epsilon, rows) for (name, epsilon), rows in groups.items()],
        "missing": dict(missing),
        "seconds": sum(found["seconds"] for found in made.values()),
    }


def _cell(place: Place, name: str, epsilon: float, rows: Sequence[tuple[Task, Row]]) -> Row:
    """One system at one epsilon: a value for every seed.

    Guarantee and opinions are functions of the plan, which no seed changes."""
    first = rows[0][1]
    if any(found["guarantee"] != first["guarantee"] for _, found in rows):
        raise AssertionError(f"{name} at epsilon {epsilon:g}: seeds of different guarantees")
    return {
        "system": name,
        "epsilon": epsilon,
        "seeds": [task.seed for task, _ in rows],
        **{metric: [found[metric] for _, found in rows] for metric in METRICS[place.kind]},
        "code": _code(place, name, epsilon),
        "guarantee": first["guarantee"],
        "accountants": first["accountants"],
        "seconds": [found["seconds"] for _, found in rows],
        "train_seconds": [found["train_seconds"] for _, found in rows],
    }
