"""Long benchmarks that may be stopped: every row is a file, and never made twice.

A row's name holds a digest of the source that decides it (`source`), so that figures of different code never share a table.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from fedrec.errors import RunError
from fedrec.numerics.threads import cores, use_at_most
from fedrec.storage import read_json, write_json
from fedrec_simulations.experiments.source import source_digest

Row = dict[str, Any]


def row(folder: Path, name: str, make: Callable[..., Row], *arguments: Any) -> Row:
    """`make(*arguments)`, or what it gave before. It must return JSON's types."""
    return keeper.get()(folder / f"{name}-{source_digest(make, *arguments)}.json", partial(make, *arguments))


def kept(path: Path, make: Callable[[], Row]) -> Row:
    """What the file holds; made and written first where it is not there."""
    if not path.exists():
        write_json(path, make())
    return dict(read_json(path))


Keeper = Callable[[Path, "partial[Row]"], Row]
keeper: ContextVar[Keeper] = ContextVar("keeper", default=kept)
"""How `row` comes by a row: progress puts its own here, to count and to time them."""


def folder_of(folder: Path, data: str) -> Path:
    """Where rows of this data are kept: another path is another folder."""
    place = str(Path(data).resolve())
    return folder / f"{Path(place).name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def in_own_process(make: Callable[..., Row], *arguments: Any) -> Row:
    """`make(*arguments)` in a fresh process, so that its peak memory is its own; a worker makes it itself. `make` must be importable."""
    if parent_process() is not None:
        return make(*arguments)
    with workers(1) as process:
        found: Row = first_done([process.submit(make, *arguments)]).pop().result()
        return found


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """Processes that make row after row, so that imports and compiled code are paid for once, with one BLAS thread and their share of
    the cores each.

    Whatever goes wrong in the block, Ctrl-C too, ends them at once. Raises RunError where something else has ended one.
    """
    others = set(active_children())
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_as_worker, initargs=(max(cores() // jobs, 1),)) as pool:
        try:
            yield pool
        except BaseException as failure:
            for process in set(active_children()) - others:
                process.terminate()
            pool.shutdown(cancel_futures=True)
            if isinstance(failure, BrokenProcessPool):
                raise RunError(
                    "a process that made rows was ended from outside", "Was memory short? Finished rows are kept: go on with fewer --jobs."
                ) from None
            raise


def first_done(running: Collection[Future[Any]]) -> set[Future[Any]]:
    """Those that are done, as soon as one is. It looks every second: with polars' handler of SIGINT a wait without end hears no Ctrl-C."""
    while not (done := wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done):
        pass
    return done


def _as_worker(share: int) -> None:
    """Ctrl-C is for the process that gave the work, which then ends this one; where that one is killed, this one goes too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
    threadpool_limits(1)
    use_at_most(share)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def peak_rss_mb() -> float:
    """Of this process, in MB; nan where the system does not say. VmHWM: Linux hands ru_maxrss down from the parent."""
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    except OSError:
        return math.nan
    return int(found.group(1)) / 1024 if found else math.nan


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, nan from fewer than two values."""
    n, mean = len(values), math.fsum(values) / len(values)
    error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else math.nan
    return mean, error


def table(header: Sequence[str], lines: Sequence[Sequence[str]], *, text: bool = False) -> str:
    """Markdown; all columns but the first hold numbers, or `text`."""
    rule = ["---"] + ["---" if text else "---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *lines])


def in_order(named: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Items by name, numbers in names by size: epsilon 5 before epsilon 20, and inf after them."""
    return sorted(named.items(), key=lambda item: [float(part) if part.isdigit() else part for part in re.split(r"(\d+)", item[0])])


def figure(value: Any, digits: int = 4) -> str:
    """A number of a row as text: a dash where there is none, "inf" as it is."""
    if isinstance(value, int | float) and math.isfinite(value):
        return f"{value:.{digits}f}"
    return "inf" if value in ("inf", math.inf) else "–"


def merged(*parts: Mapping[str, Any]) -> Row:
    """Nested tables of a scenario laid over each other."""
    result: Row = {}
    for part in parts:
        for key, value in part.items():
            result[key] = merged(result.get(key, {}), value) if isinstance(value, Mapping) else value
    return result
