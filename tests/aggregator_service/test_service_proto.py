"""The generated modules are those of the .proto, and every field of it says what it is."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "fedrec/transport/aggregator_api/aggregator.proto"


def test_the_generated_modules_are_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    out = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "grpc_tools.protoc",
        "-I",
        str(ROOT),
        *out,
        str(PROTO),
    ]
    subprocess.run(command, check=True, timeout=HANG_S)
    for name in ("aggregator_pb2.py", "aggregator_pb2.pyi"):
        assert (tmp_path / "fedrec/transport/aggregator_api" / name).read_text() == PROTO.with_name(
            name
        ).read_text()


def test_every_field_and_call_has_a_comment() -> None:
    lines = [line.strip() for line in PROTO.read_text().splitlines()]
    for before, line in itertools.pairwise(lines):
        if line.startswith("rpc ") or (
            " = " in line and line.endswith(";") and not line.startswith(("//", "syntax"))
        ):
            assert before.startswith("//"), line
