"""`fedrec research study`: every system at every epsilon and seed on one data set.

Seeds come outermost: a study that is stopped has few seeds of every system rather than all seeds of
a few.
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
from fedrec_research.study.systems import DELTA, LIKES, SYSTEMS, Place
from fedrec_research.study.training import METRICS, study_row
from fedrec_research.trials import Asked, Row, code, trial

QUICK_SEEDS = 2
QUICK_EPSILONS = (5.0, math.inf)


@dataclass(frozen=True)
class Task:
    """One row to make."""

    system: str
    epsilon: float
    seed: int


def run(asked: Asked, *, likes: bool = False, kept_in: Path | None = None) -> Row:
    """The study of one data set, seeds 1 to 5 or as asked; `only` these systems, at `epsilons`; of
    a small part two seeds at epsilon 5 and inf. likes: ratings of 4 or more as clicks. kept_in:
    where the study is kept: with `only`, its cells of other systems stay.

    Raises SettingsError on an unknown system and, before any row is made, where `kept_in` holds a
    study of other data or another protocol, DataError on bad data.
    """
    place = place_of(asked.path, likes=likes)
    if unknown := set(asked.only) - set(SYSTEMS[place.kind]):
        raise SettingsError(
            f"there is no system {min(unknown)!r} on {place.kind}",
            f"Use one of: {', '.join(SYSTEMS[place.kind])}.",
        )
    kept = _kept(place, kept_in) if asked.only and kept_in is not None else None
    trials = {
        task: trial(row_or_refusal, place, task.system, task.epsilon, task.seed)
        for task in _tasks(place, asked.seeds or 5, asked.quick)
        if not asked.only or task.system in asked.only
        if not asked.epsilons or task.epsilon in asked.epsilons
    }
    rows = asked.rows(trials)
    missing = {task.system: row["refused"] for task, row in rows.items() if "refused" in row}
    made = {task: row for task, row in rows.items() if "refused" not in row}
    result = _result(place, made, missing)
    return dict(finite(result if kept is None else beside(result, kept)))


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
    invented = data.partition("-")[0] == "planted"
    kind = "ratings" if invented else read(data).interactions.kind
    name = data if invented else Path(data).resolve().name
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
        "code": code(),
        "guarantee": first["guarantee"],
        "accountants": first["accountants"],
        "seconds": [found["seconds"] for _, found in rows],
        "train_seconds": [found["train_seconds"] for _, found in rows],
    }
