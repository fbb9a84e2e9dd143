"""From somebody's table to a private list: three commands, and at most 300 words to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HANG_S

SCRIPT = Path(__file__).parents[1] / "release" / "three_commands.py"


@pytest.mark.processes
def test_a_table_of_35_000_clicks_becomes_a_private_list_by_following_what_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert found["listed"] == 10
