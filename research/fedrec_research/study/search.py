"""`fedrec research search`: the same number of trials on validation for every line, epsilon and
data set of the study on one model.

A third of the trials are drawn at random from the line's space (`forms.METHODS`), the first of them
its middle; each further one takes the best so far and changes one or two of its keys. Judged is the
RMSE, or of clicks the NDCG@20, of the validation part of split 1 with noise seed 1; the split is
sealed, and no trial reads a test event. A trial whose training diverges counts, as the worst.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.errors import FedRecError
from fedrec.randomness import Streams
from fedrec.settings import validated
from fedrec.storage import finite, read_json
from fedrec_research.study import searched
from fedrec_research.study.forms import EPSILONS, METHODS, TRIALS, Form, Space, line
from fedrec_research.study.measure import place_of
from fedrec_research.study.searched import tables
from fedrec_research.study.systems import SYSTEMS, Place, common
from fedrec_research.study.training import validation_score
from fedrec_research.trials import Asked, Row, merged, trial

_RANDOM = 5


def run(
    asked: Asked, *, likes: bool = False, trials: int = TRIALS, kept_in: Path | None = None
) -> Row:
    """Trials of every line, or of `only` these lines or methods, as `searched` reads them. likes:
    ratings of 4 or more as clicks. kept_in: other lines that it holds stay.

    Raises SettingsError, DataError.
    """
    place = place_of(asked.path, likes=likes)
    lines = [
        (name, form) for name, method in METHODS.items() for form in method.forms_of(place.kind)
    ]
    only = set(asked.only)
    chosen = [(name, form) for name, form in lines if not only or {name, line(name, form)} & only]
    rows = asked.rows(
        {
            (line(*one), e): trial(searched_row, place, *one, e, trials)
            for one, e in product(chosen, EPSILONS)
        }
    )
    known = read_json(kept_in)["lines"] if kept_in is not None and kept_in.exists() else {}
    found = dict[str, Row](known)
    for (name, epsilon), row in rows.items():
        found.setdefault(name, {})[f"{epsilon:g}"] = [_rounded(one) for one in row["trials"]]
    judge = searched.JUDGES[place.kind].upper()
    return {
        "data": place.name,
        "trials": trials,
        "judged_by": f"validation {judge}, split seed 1, noise seed 1",
        "lines": found,
    }


def proposals(space: Space, trials: int, rng: np.random.Generator) -> Generator[Row, float, None]:
    """Settings to try, each other than those before; send the last one's error back for the
    next."""
    keys = list(space)
    best = dict[str, Any]()
    least = math.inf
    seen = set[tuple[Any, ...]]()
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
            best = chosen
            least = error


def searched_row(place: Place, name: str, form: Form, epsilon: float, trials: int) -> Row:
    """All trials of one line at one epsilon."""
    method = METHODS[name]
    found = list[Row]()
    # the same draws in every form and on every data set
    rng = Streams(0).numpy(f"search/{name}/{epsilon:g}")
    suggested = proposals(method.choices(form, place.kind), trials, rng)
    metric = searched.JUDGES[place.kind]
    system = SYSTEMS[place.kind][line(name, form)]
    settings = next(suggested)
    while True:
        started = time.perf_counter()
        told = merged(common(place, epsilon, 1), method.forms[form], tables(settings))
        try:
            value = validation_score(system, validated(told, source=system.name), metric)
        except FedRecError:
            value = searched.worst(metric)
        seconds = time.perf_counter() - started
        found.append({"settings": settings, metric: value, "seconds": seconds})
        try:
            settings = suggested.send(searched.error(found[-1]))
        except StopIteration:
            return dict(finite({"trials": found}))


def _rounded(trial: Row) -> Row:
    metric = searched.metric_of(trial)
    value = float(trial[metric])
    return {
        **trial,
        metric: round(value, 5) if math.isfinite(value) else "inf",
        "seconds": round(float(trial["seconds"]), 1),
    }
