"""One demonstration of a deployment at its smallest, for all tests of what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SMALLEST = ["data.preset=small", "data.keep_users=0", "recipe=published", "model.steps=1"]


@dataclass(frozen=True)
class Demonstration:
    """What `fedrec demo --deployment --json` printed, the folder it kept, and its process group."""

    content: dict[str, Any]
    folder: Path
    errors: str
    pid: int


@pytest.fixture(scope="session")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Demonstration:
    place = tmp_path_factory.mktemp("demo")
    words = [word for key in SMALLEST for word in ("--set", key)]
    command = [
        sys.executable,
        "-m",
        "fedrec.cli",
        "demo",
        "--deployment",
        "--json",
        "--keep",
        "kept",
        *words,
    ]
    process = subprocess.Popen(
        command,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
        text=True,
    )
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return Demonstration(json.loads(out.splitlines()[-1]), place / "kept", errors, process.pid)
