"""Where compiled loops are kept decides who may run code as whom."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numba.core.config
import pytest

from fedrec import numerics
from fedrec.compiling import keep_compiled

PACKAGE = Path("/package")


@pytest.fixture(autouse=True)
def _read_only_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A home and a temporary folder of the test's, and a package that nobody can write."""
    ask = os.access
    monkeypatch.setattr(os, "access", lambda path, how: path != PACKAGE and ask(path, how))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("numba.core.config.CACHE_DIR", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "home").mkdir()


def test_a_package_that_can_be_written_and_a_folder_that_is_set_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep_compiled(tmp_path)
    assert os.environ.get("NUMBA_CACHE_DIR") == ""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/elsewhere")
    keep_compiled(PACKAGE)
    assert os.environ.get("NUMBA_CACHE_DIR") == "/elsewhere"


def test_a_read_only_package_s_loops_lie_in_the_user_s_cache(tmp_path: Path) -> None:
    keep_compiled(PACKAGE)
    folder = tmp_path / "home" / ".cache" / "fedrec"
    assert os.environ["NUMBA_CACHE_DIR"] == str(folder)
    assert vars(numba.core.config)["CACHE_DIR"] == str(folder)  # read when it was imported
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_a_home_they_lie_in_a_temporary_folder_of_the_user_s_own(tmp_path: Path) -> None:
    (tmp_path / "home").rmdir()
    (tmp_path / "home").write_text("no folder")
    own = tmp_path / "tmp" / f"fedrec-{os.geteuid()}"
    for _ in range(2):  # the second process finds the first one's
        os.environ["NUMBA_CACHE_DIR"] = ""
        keep_compiled(PACKAGE)
        assert os.environ["NUMBA_CACHE_DIR"] == str(own)


@pytest.mark.parametrize("planted", [0o777, 0o770, 0o720, 0o702, 0o775, "a link"])
def test_a_folder_that_somebody_else_can_write_is_not_taken(
    planted: int | str, tmp_path: Path
) -> None:
    (tmp_path / "home").rmdir()
    (tmp_path / "home").write_text("no folder")
    own = tmp_path / "tmp" / f"fedrec-{os.geteuid()}"
    there = tmp_path / "there"
    there.mkdir()
    if isinstance(planted, int):
        own.mkdir()
        own.chmod(planted)
    else:
        own.symlink_to(there)
    keep_compiled(PACKAGE)
    taken = Path(os.environ["NUMBA_CACHE_DIR"])
    assert taken.parent == tmp_path / "tmp"
    assert taken != own
    assert stat.S_IMODE(taken.stat().st_mode) == 0o700


_LOOP = """
from fedrec.numerics import compiled

@compiled()
def squares(n):
    total = 0
    for i in range(n):
        total += i * i
    return total
"""
_CALLS = """
import sys, time
from numba.core import event
from loop import squares

class Slow(event.Listener):
    def on_start(self, event):
        time.sleep(2)

    def on_end(self, event):
        pass

event.register("numba:compile", Slow())
print("ready", flush=True)
sys.stdin.readline()
print(squares(4), sum(squares.stats.cache_misses.values()), flush=True)
"""


def test_of_processes_that_need_a_function_at_once_one_compiles_it(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(_LOOP)
    paths = [str(tmp_path), *filter(None, sys.path)]
    known = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _CALLS],
            env=known,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = sorted(process.communicate()[0] for process in processes)
    assert said == ["14 0\n", "14 0\n", "14 1\n"]


def test_a_process_that_keeps_a_function_for_good_is_waited_for_no_longer_than_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numerics, "_PATIENCE_S", 0.1)
    holder = f"""
import fcntl, os, sys
fcntl.lockf(os.open({str(tmp_path / "compiling.lock")!r}, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with numerics._alone(tmp_path, "a loop"):
            pass
        assert process.poll() is None


def test_where_no_file_can_be_locked_functions_are_compiled_all_the_same(tmp_path: Path) -> None:
    with numerics._alone(tmp_path / "nowhere", "a loop"):
        pass
    assert not (tmp_path / "nowhere").exists()
