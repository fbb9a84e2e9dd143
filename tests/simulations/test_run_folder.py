"""Run folders: one process at a time, whatever becomes of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedrec
from fedrec.cli.main import guarded
from fedrec.errors import RunError
from fedrec.run.job import LOOPBACK
from fedrec.run.run_folder import open_folder
from fedrec.settings import validated

SETTINGS: dict[str, Any] = {
    "recipe": "dp-bias",
    "data.preset": "small",
    "compare.als": False,
    "compare.baselines": False,
    "compare.epsilons": [],
    "run.examples": 0,
}
HOLDS = """
import sys, time
from fedrec.settings import validated
from fedrec.run.run_folder import open_folder
from fedrec.run.job import LOOPBACK
scenario = validated({"run": {"directory": sys.argv[1]}}, source="test")
with open_folder(scenario, "run", LOOPBACK, resume=False):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_scenario_that_runs_is_not_run_beside_itself(tmp_path: Path) -> None:
    inside = list[str]()

    def another(_: object) -> None:
        if inside:
            return
        inside.append("one")
        with pytest.raises(RunError, match="another process is running this scenario"):
            fedrec.simulate({}, settings=SETTINGS, noise="seeded", directory=tmp_path)
        with pytest.raises(RunError, match="another process is running this scenario"):
            fedrec.simulate({}, settings=SETTINGS, noise="seeded", directory=tmp_path, resume=True)

    options: dict[str, Any] = {"settings": SETTINGS, "noise": "seeded", "directory": tmp_path}
    run = fedrec.simulate({}, callbacks=[another], **options)
    assert inside
    assert (run.folder / "result.json").exists()
    again = fedrec.simulate({}, resume=True, **options)  # the first has let go
    assert again.metrics == run.metrics


@pytest.mark.slow
def test_a_killed_process_holds_no_folder(tmp_path: Path) -> None:
    scenario = validated({"run": {"directory": str(tmp_path)}}, source="test")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(RunError, match="another process"),
            open_folder(scenario, "run", LOOPBACK, resume=False),
        ):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with open_folder(scenario, "run", LOOPBACK, resume=True) as folder:
        assert (folder / "settings.json").exists()
    assert [path for path in tmp_path.iterdir() if path.name[0] != "."] == [folder]


def test_the_command_line_refuses_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["data.preset=small", f"run.directory={tmp_path}"]
    words = ["simulate", *(word for key in keys for word in ("--set", key))]
    scenario = validated(
        {"data": {"preset": "small"}, "run": {"directory": str(tmp_path)}}, source="test"
    )
    with open_folder(scenario, "run", LOOPBACK, resume=False):
        assert guarded(words) == 6
    said = capsys.readouterr().err
    assert "another process is running this scenario" in said
    assert "remedy:" in said
