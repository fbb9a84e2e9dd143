"""Scenarios on every runtime.

Every shipped scenario, on small planted data, by loopback, over Flower in this process, by separate
processes and on Ray's actors where Ray is installed: the same model, the same rows and the same
figures as from one process, byte for byte. News that is trained by gradients in rounds is the
exception: a mean of clients' means is the mean of all users but for rounding.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.results import Row, Tables
from fedrec.news.variant import of
from fedrec.shipped import shipped
from tests.simulations.carried import CASTS, carried, families, reduced


def run(*, quick: bool) -> Tables:
    """A row for each scenario and runtime; `quick`: one scenario, without processes."""
    paths = list(shipped().values())
    rows = list[Row]()
    for path in families(paths)[:1] if quick else paths:
        rows += _rows(path, [name for name in CASTS if not quick or name != "processes"])
    return {"Scenarios": rows}


def _rows(path: Path, runtimes: list[str]) -> list[Row]:
    """One scenario on each, the loopback first; no file is kept."""
    scenario, _ = reduced(path)
    # the last bits may differ (docs/news.md)
    rounded = scenario.learns_news and of(scenario).in_rounds is not None
    with TemporaryDirectory(prefix="fedrec-runtimes-") as place:
        came = {name: carried(scenario, CASTS[name], Path(place) / name) for name in runtimes}
    alone, *_ = came.values()
    return [
        {
            "scenario": path.stem,
            "runtime": name,
            "same_bytes": each.same_as(alone),
            "same": each.same_as(alone, rounded=rounded),
            "why_not": each.why,
            "seconds": each.seconds,
            "over_loopback": each.seconds / alone.seconds,
        }
        for name, each in came.items()
    ]
