"""Some golden cases on every test run; `python tests/golden/run.py --check` does all."""

from __future__ import annotations

import copy
import json

import pytest

from tests.golden import run as golden


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
