"""What the server frees goes back to the system."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from fedrec.operations.machine import keep_little

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "little":
    keep_little()
bytearray(16 * 2**20)  # freed at once: from here on glibc would take 16 MiB for small
before, large, small = resident(), [], []
for _ in range(20):
    large.append(bytearray(b"1") * (2 * 2**20))
    small.append(bytearray(b"1") * 100_000)
del large
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
@pytest.mark.parametrize(("how", "kept"), [("little", False), ("as it is", True)])
def test_large_blocks_between_small_ones_go_back_only_when_asked_for(how: str, kept: bool) -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    ).stdout
    assert (int(told) > 20 * 2**20) == kept
