"""Rows are made once by a commit, in one process or several, and workers end with whoever gave them
work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedrec.errors import RunError, SettingsError
from fedrec.numerics import threads
from fedrec_research import trials, workers
from fedrec_research.trials import Asked, Row, rows_of, trial
from tests.waiting import HANG_S

MADE = list[int]()


def squared(number: int) -> Row:
    MADE.append(number)
    return {"squared": number**2, "cores": threads.cores()}


def refused(number: int) -> Row:
    MADE.append(number)
    return {"refused": "no such thing"}


def wrong() -> Row:
    raise SettingsError("this cannot be", "Do that.")


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    MADE.clear()


def test_a_row_is_made_once_whoever_asks_and_a_refusal_again(tmp_path: Path) -> None:
    asked = {"a": trial(squared, 2), "b": trial(squared, 3), "again": trial(squared, 2)}
    first = rows_of(asked, folder=tmp_path)
    assert [first[name]["squared"] for name in asked] == [4, 9, 4]
    assert MADE == [2, 3]
    assert rows_of({"c": trial(squared, 3)}, folder=tmp_path)["c"] == first["b"]
    assert MADE == [2, 3]
    for _ in range(2):
        rows_of({"d": trial(refused, 7)}, folder=tmp_path)
    assert MADE == [2, 3, 7, 7]


def test_rows_of_another_commit_or_another_question_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for commit, number in (("one", 2), ("other", 2), ("other", 3)):
        monkeypatch.setattr(trials, "code", lambda commit=commit: commit)
        rows_of({"": trial(squared, number)}, folder=tmp_path)
    assert MADE == [2, 2, 3]


def test_a_changed_file_is_another_code(monkeypatch: pytest.MonkeyPatch) -> None:
    dirty = {"version": "1", "commit": "abc-dirty"}
    monkeypatch.setattr(trials, "code_version", lambda: dirty)
    assert trials.code.__wrapped__().startswith("1 abc-dirty-")  # type: ignore[attr-defined]
    monkeypatch.setattr(trials, "code_version", lambda: {"version": "1", "commit": "abc"})
    assert trials.code.__wrapped__() == "1 abc"  # type: ignore[attr-defined]


def test_two_processes_share_the_cores_and_give_the_same_rows(tmp_path: Path) -> None:
    told = list[tuple[int, int]]()
    asked = {n: trial(squared, n) for n in (2, 3, 4)}
    found = rows_of(
        asked, folder=tmp_path, jobs=2, tell=lambda done, total, _: told.append((done, total))
    )
    assert [found[n]["squared"] for n in asked] == [4, 9, 16]
    assert {row["cores"] for row in found.values()} == {max(threads.cores() // 2, 1)}
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert rows_of(asked, folder=tmp_path) == found


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_goes_wrong_in_a_worker_is_said_as_it_is_without_one(
    jobs: int, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="this cannot be") as caught:
        rows_of({"": trial(wrong)}, folder=tmp_path, jobs=jobs)
    assert caught.value.remedy == "Do that."


def test_a_worker_that_was_ended_is_said_to_be() -> None:
    with pytest.raises(RunError, match="ended from outside"), workers.workers(1) as pool:
        pool.submit(os._exit, 9).result()


@pytest.mark.parametrize(
    ("end", "said"), [(signal.SIGINT, "left: []\n"), (signal.SIGKILL, "")], ids=["ctrl-c", "killed"]
)
def test_workers_end_with_the_process_that_gave_them_work(end: signal.Signals, said: str) -> None:
    """polars has a handler of its own, after which a wait without end hears no Ctrl-C.

    A worker that lived on would hold stdout open."""
    script = (
        "import multiprocessing, time, polars\n"
        "from fedrec_research.workers import first_done, workers\n"
        "try:\n"
        "    with workers(2) as pool:\n"
        "        pool.submit(int).result()\n"
        "        print('started', flush=True)\n"
        "        first_done([pool.submit(time.sleep, 600), pool.submit(time.sleep, 600)])\n"
        "except KeyboardInterrupt:\n"
        "    print('left:', multiprocessing.active_children())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(0.2)  # into the wait
        process.send_signal(end)
        assert process.communicate(timeout=HANG_S)[0] == said


def test_one_data_folder_is_asked_for_and_seeds_are_counted_from_one() -> None:
    for data in ((), ("a", "b")):
        with pytest.raises(SettingsError, match="one data folder"):
            _ = Asked(data).path
    assert Asked().seeds_of((7, 8)) == (7, 8)
    assert Asked(seeds=3).seeds_of((7, 8)) == (1, 2, 3)
    assert Asked(quick=True).seeds_of((7, 8)) == (7,)
