"""What `fedrec plan` predicts is what a run of the same sizes then does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec.errors import SettingsError
from fedrec.run.planning import plan, table
from fedrec.run.simulate import run
from fedrec.settings import load

PLANTED = ["data.planted.users=1500", "data.planted.items=300", "data.planted.events=60000"]
QUICK = [
    "privacy.noise=seeded",
    "compare.als=false",
    "compare.baselines=false",
    "evaluation.ranking=false",
]


@pytest.mark.slow
def test_bytes_and_rounds_are_those_of_a_run(tmp_path: Path) -> None:
    done = run(load(None, [*PLANTED, *QUICK, f'run.directory="{tmp_path}"']), name="r", quiet=True)
    found = plan(load(None, ["data.rating_range=[0.5,5]"]), users=1_500, items=300, events=48_000)
    assert found["bytes_up_per_user"] == pytest.approx(done["bytes_up_per_client"], rel=0.2)
    assert found["bytes_down_per_user"] == pytest.approx(done["bytes_down_per_client"], rel=0.2)
    rounds = (Path(done["run_dir"]) / "epsilon-5" / "rounds.jsonl").read_text().splitlines()
    assert found["rounds"] == len(rounds)
    assert "a user sends" in table(found)
    assert "epsilon 5 at delta 1e-05 per user (add/remove, number of users public)" in table(found)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(SettingsError, match="each user has an event"):
        plan(load(None, []), users=100, items=10, events=50)
