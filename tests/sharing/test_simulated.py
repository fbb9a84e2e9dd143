"""`fedrec simulate` and `fedrec account` with three aggregators: the model of plain sums from
shares, and promises in every file."""

from pathlib import Path
from typing import Any

import pytest

from fedrec.run import account, simulate
from fedrec.run.statement import NOT_REVIEWED
from fedrec.settings import load
from fedrec.storage import read_json

KEYS = [
    "recipe=dp-bias",
    "data.planted={users=60, items=25, events=600}",
    "privacy.noise=seeded",
    "privacy.aggregation=three-party",
]
KEYS += ["compare.epsilons=[]", "compare.baselines=false", "run.examples=1"]


def simulated(folder: Path, *more: str) -> dict[str, Any]:
    return simulate.run(
        load(None, [*KEYS, f"run.directory={folder}", *more]), name="three", quiet=True
    )


def test_a_run_over_shares_is_the_run_with_three_noises_and_every_file_says_what_is_promised(
    tmp_path: Path,
) -> None:
    skipped = simulated(tmp_path / "a")
    real = simulated(tmp_path / "b", "privacy.shares=real")
    folders = [Path(result["run_dir"]) for result in (skipped, real)]
    one, other = ((folder / "model" / "model.safetensors").read_bytes() for folder in folders)
    assert one == other
    assert skipped["bytes_up_per_client"] == real["bytes_up_per_client"]
    page = (folders[0] / "report.html").read_text()
    assert "goes to the aggregator" not in page
    assert "three aggregators, none of which can read it alone" in page
    for content in (
        read_json(folders[0] / "epsilon-5" / "plan.json"),
        read_json(folders[0] / "guarantee.json"),
        skipped,
    ):
        assert content["aggregation"] == "three-party"
        assert NOT_REVIEWED in content["warnings"]
        assert len(content["promises"]) == 6
    for promise in skipped["promises"]:
        assert promise["promise"] in " ".join(page.replace("\u00a0", " ").split())


@pytest.mark.parametrize(
    ("calibrated_for", "outside", "one"),
    [("one-corrupt", "3.954", "5"), ("outsiders", "5", "6.348")],
)
def test_account_prints_both_epsilons(calibrated_for: str, outside: str, one: str) -> None:
    described = account.describe(
        load(None, [*KEYS[:1], KEYS[3], f"privacy.calibrate_for={calibrated_for}"]),
        users=1000,
        items=100,
    )
    text = account.table(described)
    assert f"against everybody outside, the server included: epsilon {outside} at delta" in text
    assert (
        f"against the server together with any one aggregator and any clients: epsilon {one} "
        "at delta"
    ) in text
    assert "not hidden: who took part" in text
    assert described["guarantee"]["epsilon"] == pytest.approx(float(one), abs=1e-3)
