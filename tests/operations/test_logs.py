"""Log files: every error line has a reason, nothing of data, and rotation loses no line."""

import errno
import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import DataError, MalformedRowError, RefusedError, RunError, UnreachableError
from fedrec.operations import logs
from fedrec.transport.channel import Access
from fedrec.transport.rounds_client import RoundsConnection
from tests.waiting import HANG_S


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "log.jsonl"
    logs.close(logging.getLogger("fedrec_server"))


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def failing(failure: Exception, path: Path) -> dict[str, object]:
    with pytest.raises(type(failure)), logs.party_log("server", file=path):
        raise failure
    return lines_of(path)[-1]


@pytest.mark.parametrize(
    ("failure", "cause", "remedy"),
    [
        (
            RunError("another aggregator uses it", "Stop it first."),
            "another aggregator uses it",
            "Stop it first.",
        ),
        (RefusedError("budget", "the limit is passed", "Ask."), "the limit is passed", "Ask."),
        (OSError(errno.ENOSPC, "SECRET"), "No space left on device", "Free disk space"),
        (MemoryError("SECRET"), "no memory is left", "memory"),
        (ValueError("SECRET"), "an unexpected ValueError", "defect"),
        (
            DataError("user SECRET has no rating", "Correct it."),
            "data cannot be read",
            "fedrec doctor",
        ),
        (
            MalformedRowError(Path("r.csv"), 7, "a number", "SECRET"),
            "r.csv, line 7: expected a number",
            "Correct",
        ),
    ],
)
def test_whatever_ends_a_party_is_its_last_line_with_cause_and_remedy_and_without_data(
    path: Path, failure: Exception, cause: str, remedy: str
) -> None:
    line = failing(failure, path)
    assert (line["event"], line["level"], line["error"]) == (
        "server-failed",
        "error",
        type(failure).__name__,
    )
    assert str(line["cause"]).startswith(cause)
    assert remedy in str(line["remedy"])
    assert "SECRET" not in path.read_text()


def test_an_error_without_a_reason_cannot_be_logged(path: Path) -> None:
    log = logs.configure("server", file=path)
    for reason in ({}, {"cause": "a"}, {"cause": "a", "remedy": ""}):
        with pytest.raises(ValueError, match="without cause and remedy"):
            logs.say(log, "broken", level=logging.ERROR, **reason)


def test_what_parties_share_is_said_in_the_log_of_each_with_cause_and_remedy(path: Path) -> None:
    access = Access("127.0.0.1:1", party="server", insecure=True)
    with logs.party_log("server", file=path):
        RoundsConnection(access)._say(UnreachableError("nobody answers", "Start it."))
    [line] = lines_of(path)
    assert (line["event"], line["level"], line["party"]) == ("server-away", "warning", "server")
    assert (line["cause"], line["remedy"]) == ("nobody answers", "Start it.")
    assert not logging.getLogger("fedrec").handlers


def test_a_file_is_rotated_at_its_size_and_so_many_are_kept(path: Path) -> None:
    log = logs.configure("server", file=path, max_bytes=1_000, kept=2)
    for number in range(60):
        logs.say(log, "said", round=number)
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "log.jsonl",
        "log.jsonl.1",
        "log.jsonl.2",
    ]
    files = [path.with_name(name) for name in ("log.jsonl.2", "log.jsonl.1", "log.jsonl")]
    assert all(file.stat().st_size <= 1_000 for file in files)
    rounds = [line["round"] for file in files for line in lines_of(file)]
    assert rounds == list(range(rounds[0], 60))


def test_a_file_that_logrotate_moved_away_is_opened_again(path: Path) -> None:
    with logs.party_log("server", file=path, max_bytes=0) as log:
        logs.say(log, "said", round=0)
        path.rename(path.with_name("moved"))
        logs.say(log, "said", round=1)
    assert [line["round"] for line in lines_of(path)] == [1]
    assert [line["round"] for line in lines_of(path.with_name("moved"))] == [0]


def test_sighup_opens_the_file_again_and_ends_nothing(path: Path) -> None:
    with logs.party_log("server", file=path) as log:
        logs.say(log, "said", round=0)
        before = log.handlers[0].stream  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGHUP)
        logs.say(log, "said", round=1)
        assert log.handlers[0].stream is not before  # type: ignore[attr-defined]
    assert [line["round"] for line in lines_of(path)] == [0, 1]


def test_a_line_that_a_full_disk_cut_off_does_not_spoil_the_next(path: Path) -> None:
    path.write_text('{"event": "cut o')
    log = logs.configure("server", file=path)
    logs.say(log, "said", round=1)
    assert json.loads(path.read_text().splitlines()[1])["round"] == 1


def test_a_log_that_cannot_be_written_ends_no_party_and_is_said_once(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    path.symlink_to("/dev/full")
    with logs.party_log("server", file=path, max_bytes=0) as log:
        for number in range(3):
            logs.say(log, "said", round=number)
    said = capsys.readouterr().err
    assert said.count("cannot be written: No space left on device") == 1
    assert "Traceback" not in said


@pytest.mark.slow
def test_kill_9_while_files_rotate_loses_no_line(tmp_path: Path) -> None:
    """The child says each number only after its line was written; rotation every few lines, so the
    kill falls anywhere in it."""
    program = (
        "import os, sys, pathlib\n"
        "from fedrec.operations import logs\n"
        "log = logs.configure('server', file=pathlib.Path(sys.argv[1]), max_bytes=300, kept=400)\n"
        "for n in range(300):\n"
        "    logs.say(log, 'said', round=n)\n"
        "    os.write(1, b'%d\\n' % n)\n"
    )
    for ended_at in (3, 57, 211):
        file = tmp_path / str(ended_at) / "log.jsonl"
        child = subprocess.Popen([sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE)
        assert child.stdout
        while int(child.stdout.readline()) < ended_at:
            pass
        child.kill()
        said = [ended_at, *map(int, child.stdout.read().split())]
        child.stdout.close()
        child.wait(HANG_S)
        rounds = sorted(
            int(str(line["round"]))
            for part in file.parent.glob("log.jsonl*")
            for line in lines_of(part)
        )
        assert set(range(said[-1] + 1)) <= set(rounds)
        log = logs.configure("server", file=file, max_bytes=300, kept=400)
        logs.say(log, "said", round=-1)
        logs.close(log)
        assert lines_of(file)[-1]["round"] == -1


def test_a_terminal_is_told_in_plain_lines_and_a_pipe_in_json(monkeypatch: Any) -> None:
    for terminal in (True, False):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda shown=terminal: shown)
        monkeypatch.setattr(sys, "stderr", stream)
        log = logs.configure("serving")
        logs.say(log, "stopping")
        logs.close(log)
        line = stream.getvalue()
        assert ("stopping" in line, line.startswith("{")) == (True, not terminal)
