"""Help: verbs in three groups, keys found by a word, and a next command at the end of what is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from fedrec.cli.main import GROUPS, MEANT, app, guarded
from fedrec.cli.scenario_keys import COMMON, keys
from fedrec.data.features import PublicFeatures
from fedrec.serving.exporting import PublicItems


def test_every_verb_stands_in_one_of_three_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["--help"]) == 0
    said = capsys.readouterr().out
    places = [said.index(f"\n{title}:") for title in ("Start", "Research", "Operate")]
    assert places == sorted(places)
    verbs = {name: verb for name, verb in get_command(app).commands.items() if not verb.hidden}  # type: ignore[attr-defined]
    for name in verbs:
        assert said.count(f"\n  {name} ") == 1
    # research is another package's
    assert {name for names in GROUPS.values() for name in names} - {"research"} <= set(verbs)
    assert set(MEANT.values()) <= set(verbs)


def test_fifteen_keys_are_explained_and_the_others_found_by_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = {name for name, _, _ in keys()}
    assert len(COMMON) == 15
    assert set(COMMON) <= known
    assert guarded(["schema", "--common"]) == 0
    assert {line.split(" = ")[0] for line in lines(capsys)} == set(COMMON)
    assert guarded(["schema", "--search", "Threshold"]) == 0
    assert "data.click_threshold" in {line.split(" = ")[0] for line in lines(capsys)}
    assert guarded(["schema", "--search", "nosuchword"]) == 2


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("    ")]


def test_a_first_look_ends_with_the_command_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("user_id,song\n1,a\n2,b\n1,b\n")
    assert guarded(["data", "describe", "log.csv", "--set", "data.duplicates=last"]) == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last[1:] == [
        "fedrec",
        "train",
        "log.csv",
        "--set",
        "data.duplicates=last",
        "-o",
        "model",
    ]


def test_an_item_with_a_blank_title_is_shown_by_its_id() -> None:
    items = PublicItems.of_features(("7", "8", "9"), ("Heat", "", " "), PublicFeatures({}))
    assert items.shown == ["Heat", "8", "9"]


def test_a_command_sums_with_one_blas_thread_on_every_machine() -> None:
    """Its bytes depend on their number, so that a certificate made with two does not hold with
    one. In a process of its own: NumPy reads the variable once."""
    look = "import json, threadpoolctl, scipy.linalg; print(json.dumps([own['num_threads'] for "
    look += "own in threadpoolctl.threadpool_info() if own['user_api'] == 'blas']))"
    unset = {name: word for name, word in os.environ.items() if "NUM_THREADS" not in name}
    program = [sys.executable, "-c", f"import fedrec.cli.main; {look}"]
    found = json.loads(subprocess.run(program, env=unset, capture_output=True, check=True).stdout)
    assert found
    assert {*found} == {1}
