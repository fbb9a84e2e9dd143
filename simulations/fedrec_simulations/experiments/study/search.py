"""`fedrec bench search`: the same number of trials on validation for every line, epsilon and data
set of the study on one model.

A third of the trials are drawn at random from the line's space (`forms.METHODS`), the first of them
its middle; each further one takes the best so far and changes one or two of its keys. Judged is the
RMSE, or of clicks the NDCG@20, of the validation part of split 1 with noise seed 1; the split is
sealed, and no trial reads a test event. A trial whose training diverges counts, as the worst.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.errors import FedRecError, RunError
from fedrec.randomness import Streams
from fedrec.settings import validated
from fedrec.storage import finite, read_json, write_json
from fedrec_simulations.experiments.progress import Progress, Tell
from fedrec_simulations.experiments.rows import Row, merged
from fedrec_simulations.experiments.study import searched
from fedrec_simulations.experiments.study.forms import EPSILONS, METHODS, TRIALS, Form, Space, line
from fedrec_simulations.experiments.study.measure import place_of
from fedrec_simulations.experiments.study.searched import tables
from fedrec_simulations.experiments.study.systems import SYSTEMS, Place, common
from fedrec_simulations.experiments.study.training import validation_score
from fedrec_simulations.experiments.workers import first_done, workers

_RANDOM = 5


def run(
    data: str,
    *,
    likes: bool = False,
    only: Sequence[str] = (),
    trials: int = TRIALS,
    jobs: int = 1,
    output: Path | None,
    tell: Tell,
) -> Row:
    """Trials of every line, or of `only` these lines or methods, as `searched` reads them; goes on
    from what `output` holds. likes: ratings of 4 or more as clicks.

    Raises SettingsError, DataError.
    """
    place, kept = place_of(data, likes=likes), _kept(output, trials)
    lines = [
        (name, form) for name, method in METHODS.items() for form in method.forms_of(place.kind)
    ]
    chosen = [
        (name, form) for name, form in lines if not only or {name, line(name, form)} & set(only)
    ]
    asked = [(name, form, epsilon) for name, form in chosen for epsilon in EPSILONS]
    left = [task for task in asked if f"{task[2]:g}" not in kept.get(line(task[0], task[1]), {})]
    with workers(jobs) as pool:
        futures = {pool.submit(_tried, place, *task, trials): task for task in left}
        while futures:
            for future in first_done(futures):
                name, form, epsilon = futures.pop(future)
                kept.setdefault(line(name, form), {})[f"{epsilon:g}"] = future.result()
                tell(
                    Progress(
                        f"{line(name, form)}, epsilon {epsilon:g}",
                        len(left) - len(futures),
                        len(left),
                    )
                )
                if output is not None:
                    write_json(output, _result(place, kept, trials))
    return _result(place, kept, trials)


def proposals(space: Space, trials: int, rng: np.random.Generator) -> Generator[Row, float, None]:
    """Settings to try, each other than those before; send the last one's error back for the
    next."""
    keys, best, least, seen = list(space), dict[str, Any](), math.inf, set[tuple[Any, ...]]()
    for number in range(trials):
        chosen = {key: values[len(values) // 2] for key, values in space.items()}
        while number and (not chosen or tuple(chosen.values()) in seen):
            if number < _RANDOM or not best:
                chosen = {key: values[rng.integers(len(values))] for key, values in space.items()}
            else:
                moved = rng.choice(keys, size=int(rng.integers(1, 3)), replace=False)
                chosen = {
                    **best,
                    **{
                        str(key): space[str(key)][rng.integers(len(space[str(key)]))]
                        for key in moved
                    },
                }
        seen.add(tuple(chosen.values()))
        error: float = yield chosen
        if error < least:
            best, least = chosen, error


def _tried(place: Place, name: str, form: Form, epsilon: float, trials: int) -> list[Row]:
    method, found = METHODS[name], list[Row]()
    # the same draws in every form and on every data set
    rng = Streams(0).numpy(f"search/{name}/{epsilon:g}")
    suggested = proposals(method.choices(form, place.kind), trials, rng)
    metric = searched.JUDGES[place.kind]
    settings = next(suggested)
    while True:
        started = time.perf_counter()
        scenario = merged(common(place, epsilon, 1), method.forms[form], tables(settings))
        try:
            value = validation_score(
                SYSTEMS[place.kind][line(name, form)],
                validated(scenario, source=line(name, form)),
                metric,
            )
        except FedRecError:
            value = searched.worst(metric)
        found.append(
            {"settings": settings, metric: value, "seconds": time.perf_counter() - started}
        )
        try:
            settings = suggested.send(searched.error(found[-1]))
        except StopIteration:
            return [dict(finite(trial)) for trial in found]


def _kept(output: Path | None, trials: int) -> dict[str, dict[str, list[Row]]]:
    if output is None or not output.exists():
        return {}
    try:
        content = read_json(output)
    except RunError:
        return {}
    lines = content.get("lines", {}) if isinstance(content, dict) else {}
    return {
        name: {e: rows for e, rows in by.items() if len(rows) == trials}
        for name, by in lines.items()
    }


def _rounded(trial: Row) -> Row:
    metric = searched.metric_of(trial)
    value = float(trial[metric])
    return {
        **trial,
        metric: round(value, 5) if math.isfinite(value) else "inf",
        "seconds": round(float(trial["seconds"]), 1),
    }


def _result(place: Place, kept: dict[str, dict[str, list[Row]]], trials: int) -> Row:
    """Seconds and errors in the digits that matter."""
    lines = {
        name: {epsilon: [_rounded(trial) for trial in rows] for epsilon, rows in by.items()}
        for name, by in kept.items()
    }
    return {
        "data": place.name,
        "trials": trials,
        "judged_by": f"validation {searched.JUDGES[place.kind].upper()}, split seed 1, "
        "noise seed 1",
        "lines": lines,
    }
