"""Processes that make rows: they share the cores, and end with whoever gave them work."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from fedrec.errors import RunError
from fedrec.numerics.threads import cores, use_at_most

T = TypeVar("T")


def in_own_process(make: Callable[..., T], *arguments: Any) -> T:
    """`make(*arguments)` in a fresh process, so that its peak memory is its own; a worker makes it
    itself. `make` must be importable."""
    if parent_process() is not None:
        return make(*arguments)
    with workers(1) as process:
        return first_done([process.submit(make, *arguments)]).pop().result()


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """Processes that make row after row, so that imports and compiled code are paid for once, with
    one BLAS thread and their share of the cores each.

    Whatever goes wrong in the block, Ctrl-C too, ends them at once. Raises RunError where something
    else has ended one.
    """
    others = set(active_children())
    share = max(cores() // jobs, 1)
    context = get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_as_worker, initargs=(share,)
    ) as pool:
        try:
            yield pool
        except BaseException as failure:
            for process in set(active_children()) - others:
                process.terminate()
            pool.shutdown(cancel_futures=True)
            if isinstance(failure, BrokenProcessPool):
                raise RunError(
                    "a process that made rows was ended from outside",
                    "Was memory short? Finished rows are kept: go on with fewer --jobs.",
                ) from None
            raise


def first_done(running: Collection[Future[T]]) -> set[Future[T]]:
    """Those that are done, as soon as one is.

    It looks every second: with polars' handler of SIGINT a wait without end hears no Ctrl-C."""
    while not (done := wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done):
        pass
    return done


def _as_worker(share: int) -> None:
    """Ctrl-C is for the process that gave the work, which then ends this one; where that one is
    killed, this one goes too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
    threadpool_limits(1)
    use_at_most(share)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
