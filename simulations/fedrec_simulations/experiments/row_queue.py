"""Queue of trials: each is made once, in this process or in several, kept when it is done, and told
of with the time that is left.

A plan is a generator: it yields the trials that it needs next, by keys of its own, is sent their
rows by the same keys, and returns what it makes of them. Where rows decide which others are needed,
it yields the first ones as `Choices`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedrec_simulations.experiments.progress import Pace, Progress, Tell
from fedrec_simulations.experiments.rows import Row
from fedrec_simulations.experiments.trials import ResultFile, Store, Summary, Trial
from fedrec_simulations.experiments.workers import ThisProcess, first_done, workers

K = TypeVar("K")
T = TypeVar("T")
Stage = Mapping[Any, Trial]
Plan = Generator[Stage, dict[Any, Row], T]


class Choices(dict[Any, Trial]):
    """Trials whose rows decide which ones come next: until they are there, nobody knows how
    many."""


def silent(progress: Progress) -> None:
    """Tells nobody."""


class RowQueue(Generic[T]):
    """Carries several plans at once; a trial that two of them ask for, known by its name, is made
    once."""

    _plans: Mapping[str, Plan[T]]

    def __init__(self, store: Store, *, jobs: int = 1, tell: Tell = silent) -> None:
        """jobs: rows at a time, in processes where there are more than one. tell: hears after every
        row."""
        self._store, self._jobs, self._tell, self._pace = store, jobs, tell, Pace()
        self._stages, self._results, self._waiting = (
            dict[str, Stage](),
            dict[str, T](),
            deque[tuple[str, Trial]](),
        )
        # by name, of all that were asked for and of those that are there
        self._kinds, self._rows = dict[str, str](), dict[str, Row]()

    def results(self, plans: Mapping[str, Plan[T]]) -> dict[str, T]:
        """What each plan returns.

        Raises what a trial raises, and RunError where a process that made rows was ended from
        outside."""
        self._plans = plans
        for name in plans:
            self._advance(name)
        self._told("")
        running = dict[Future[tuple[Row, float]], tuple[str, Trial]]()
        with workers(self._jobs) if self._jobs > 1 else nullcontext(ThisProcess()) as pool:
            while running or self._waiting:
                while self._waiting and len(running) < self._jobs:
                    name, trial = self._waiting.popleft()
                    running[pool.submit(_timed, trial.make)] = name, trial
                for future in first_done(running):
                    name, trial = running.pop(future)
                    row, seconds = future.result()
                    self._rows[trial.name] = self._store.keep(trial, row, seconds)
                    self._pace.note(trial.kind, seconds)
                    for plan in [
                        plan for plan, stage in self._stages.items() if self._there(stage)
                    ]:
                        self._advance(plan)
                    self._told(name or trial.name)
        return {name: self._results[name] for name in plans}

    def _advance(self, name: str) -> None:
        """Send a plan its rows, until it asks for some that are not there or returns."""
        while True:
            stage = self._stages.pop(name, None)
            try:
                rows = {key: self._rows[trial.name] for key, trial in (stage or {}).items()}
                stage = next(self._plans[name]) if stage is None else self._plans[name].send(rows)
            except StopIteration as end:
                self._results[name] = end.value
                return
            for trial in stage.values():
                self._ask(name, trial)
            self._stages[name] = stage
            if not self._there(stage):
                return

    def _there(self, stage: Stage) -> bool:
        return all(trial.name in self._rows for trial in stage.values())

    def _ask(self, name: str, trial: Trial) -> None:
        if trial.name in self._kinds:
            return
        self._kinds[trial.name] = trial.kind
        if (kept := self._store.find(trial)) is None:
            self._waiting.append((name, trial))
            return
        self._rows[trial.name] = kept
        if isinstance(seconds := kept.get("seconds"), float):
            self._pace.note(trial.kind, seconds)

    def _told(self, name: str) -> None:
        left_s = self._pace.left_s(
            [kind for row, kind in self._kinds.items() if row not in self._rows], self._jobs
        )
        complete = not any(isinstance(stage, Choices) for stage in self._stages.values())
        self._tell(Progress(name or "rows", len(self._rows), len(self._kinds), left_s, complete))


def of_one_stage(trials: Stage) -> Plan[dict[Any, Row]]:
    """The plan that returns the rows of these trials."""
    return (yield trials)


def rows_of(
    trials: Mapping[K, Trial], store: Store, *, jobs: int = 1, tell: Tell = silent
) -> dict[K, Row]:
    """Rows by the keys of their trials."""
    return RowQueue[dict[Any, Row]](store, jobs=jobs, tell=tell).results(
        {"": of_one_stage(trials)}
    )[""]


def result_of(
    trials: Sequence[Trial], *, output: Path | None, jobs: int, summary: Summary, tell: Tell
) -> dict[str, Any]:
    """`summary` of all rows, with the rows; written to `output` after each, which holds those made
    before."""
    kept = ResultFile(output, trials, summary)
    rows_of({trial.name: trial for trial in trials}, kept, jobs=jobs, tell=tell)
    return kept.content()


def _timed(make: partial[Row]) -> tuple[Row, float]:
    started = time.perf_counter()
    row = make()
    return row, time.perf_counter() - started
