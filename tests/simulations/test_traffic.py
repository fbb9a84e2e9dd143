"""Bytes of a person that `fedrec account --bytes` says are those of a run of the same sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec.errors import SettingsError
from fedrec.run.account import describe, table
from fedrec.run.simulate import run
from fedrec.settings import load
from fedrec.shipped import path_of

PLANTED = ["data.planted.users=1500", "data.planted.items=300", "data.planted.events=112500"]
QUICK = [
    "privacy.noise=seeded",
    "compare.als=false",
    "compare.baselines=false",
    "evaluation.ranking=false",
]


@pytest.mark.slow
def test_bytes_and_rounds_are_those_of_a_run(tmp_path: Path) -> None:
    done = run(load(None, [*PLANTED, *QUICK, f'run.directory="{tmp_path}"']), name="r", quiet=True)
    sizes = {"users": 1_500, "items": 300, "traffic": True}
    found = describe(load(None, ["data.rating_range=[0.5,5]"]), **sizes)  # type: ignore[arg-type]
    # planted people have other numbers of ratings than the run's
    assert found["bytes"]["sent"] == pytest.approx(done["bytes_up_per_client"], rel=0.5)
    assert found["bytes"]["received"] == pytest.approx(done["bytes_down_per_client"], rel=0.2)
    rounds = (Path(done["run_dir"]) / "epsilon-5" / "rounds.jsonl").read_text().splitlines()
    assert found["bytes"]["rounds"] == len(rounds)
    assert "a person sends" in table(found)


def test_bytes_of_news_are_refused() -> None:
    with pytest.raises(SettingsError, match="ratings and clicks"):
        describe(load(path_of("privaterec_planted")), users=10, traffic=True)
