"""Commands of research/docs/papers.md, each run once: seconds, and the error beside a model that
knows nobody.

    fedrec research measure names --data PATH/ml-100k --data PATH/MINDsmall

Every name on planted data, and on a folder of ratings or, `privaterec`, of MIND, whose news without
a text are kept. Processor seconds are those of a process of its own, imports and references such as
ALS included.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from fedrec.errors import RunError
from fedrec.storage import finite, read_json
from fedrec_research.trials import Asked, Row, trial

NAMES = (
    "ssp1",
    "ssp2",
    "am-ssp",
    "am-dpsgd",
    "dp-sgd",
    "ada-dpals",
    "ada-dpgd",
    "dp-cmf",
    "dpmf",
    "noisy-descent",
)
NEWS = "privaterec"
_MIND = ("data.format=mind", "data.unknown_news=add", "split.kind=held-out-users")


def run(asked: Asked) -> Row:
    """Rows by name and data; `only` some names."""
    wanted = {
        (name, place): trial(command_row, *command)
        for name, place, command in _commands(asked)
        if not asked.only or name in asked.only
    }
    rows = asked.rows(wanted)
    return {"rows": [{"name": name, "data": place, **rows[name, place]} for name, place in wanted]}


def _commands(asked: Asked) -> Iterator[tuple[str, str, tuple[str, tuple[str, ...]]]]:
    for name in NAMES[:1] if asked.quick else NAMES:
        yield name, "planted", ("planted", (f"recipe={name}",))
    if not asked.quick:
        yield NEWS, "planted", ("privaterec_as_printed", ())
    for folder in asked.data:
        place = Path(folder).name
        if (Path(folder) / "behaviors.tsv").exists():
            yield NEWS, place, ("privaterec_as_printed", (*_MIND, f"data.path={folder}"))
            continue
        for name in NAMES:
            yield name, place, ("planted", (f"recipe={name}", f"data.path={folder}"))


def command_row(scenario: str, keys: tuple[str, ...]) -> Row:
    """What `fedrec simulate` finds, and how long it takes. Raises RunError where it fails."""
    with TemporaryDirectory() as place:
        sets = [part for key in (*keys, f"run.directory={place}") for part in ("--set", key)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "fedrec.cli", "simulate", scenario, *sets, "--json"],
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            said = done.stderr.strip()[-200:]
            raise RunError(f"{scenario} {' '.join(keys)}: {said}", "See above.")
        found = json.loads(done.stdout)
        method = read_json(Path(found["run_dir"]) / "settings.json")["recipe"]
    metric = "rmse" if "rmse" in found["metrics"] else "auc"
    beside = "global mean" if metric == "rmse" else "popularity"
    return dict(
        finite(
            {
                "method": method,
                "metric": metric,
                "value": found["metrics"][metric],
                "beside": beside,
                "beside_value": found["baselines"][beside][metric],
                "established": found["guarantee"]["established"],
                "seconds": seconds,
                "processor_seconds": sum(
                    getattr(after, part) - getattr(before, part)
                    for part in ("ru_utime", "ru_stime")
                ),
            }
        )
    )
