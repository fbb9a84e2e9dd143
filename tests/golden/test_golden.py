"""Some golden cases on every test run; `python tests/golden/run.py --check` does all."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys

import pytest

from tests.golden import run as golden
from tests.waiting import HANG_S

HELD_BEFORE = {"MALLOC_PERTURB_": "1", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""glibc fills memory with numbers of 1e303 when it is given out, and keeps none back from that."""


@pytest.mark.parametrize("case", golden.QUICK)
def test_a_small_training_gives_what_it_gave(case: str) -> None:
    assert not golden.check([case])


def test_every_case_is_kept() -> None:
    assert set(json.loads(golden.KEPT.read_text())["portable"]) == set(golden.CASES)


def test_another_byte_another_word_and_another_size_are_each_told() -> None:
    kept = json.loads(golden.KEPT.read_text())["portable"]["default/loopback"]
    exact = dict.fromkeys(kept, "as it was")
    found = {part: {**of, "exact": "as it was"} for part, of in kept.items()}
    assert golden.differences("case", found, kept, exact) == []
    for key, value, told in (
        ("exact", "another", "bytes"),
        ("words", "another", "words"),
        ("size", 2.0, "numbers"),
    ):
        other = copy.deepcopy(found)
        other["model"][key] = value
        assert [told in line for line in golden.differences("case", other, kept, exact)] == [True]
    assert len(golden.differences("case", {}, kept, None)) == len(kept)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_no_result_depends_on_what_memory_held_before() -> None:
    """`numpy.empty` is filled before it is read, in trainings."""
    cases = ["default/loopback", "dp-cmf/loopback", "clicks/loopback"]
    subprocess.run(
        [sys.executable, golden.__file__, "--check", *cases],
        env=os.environ | HELD_BEFORE,
        timeout=HANG_S,
        check=True,
    )
