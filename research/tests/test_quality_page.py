"""research/docs/quality.md: one table for each data set and split, of the kept results."""

import json
import math
from pathlib import Path

import pytest

from fedrec_research.quality import tables

RESULTS = Path(__file__).parents[1] / "results"
FOUND = {(one.data, one.split, one.metric): one for one in tables.tables(RESULTS)}


def test_values_of_the_tables_are_those_of_the_results() -> None:
    clicks = json.loads((RESULTS / "clicks-yelp2018.json").read_text())
    yelp = FOUND["yelp2018, clicks", "given", "ndcg@20"].values
    assert yelp[tables.OURS][5.0] == clicks["epsilon 5"]["ndcg@20"]
    simple = [clicks[f"{name}, epsilon 5"]["ndcg@20"] for name in ("dp-item-item", "dp-popularity")]
    assert yelp[tables.SIMPLE][5.0] == max(simple)
    assert yelp[tables.EASE] == {math.inf: clicks["EASE"]["ndcg@20"]}
    rated = FOUND["ml-1m, ratings", "random", "rmse"].values
    cells = json.loads((RESULTS / "simple.json").read_text())["cells"]
    (cell,) = [c for c in cells if (c["data"], c["metric"], c["epsilon"]) == ("ml-1m", "rmse", 5)]
    assert rated[tables.OURS][5.0] == cell["means"]["default"]
    assert rated[tables.SIMPLE][5.0] == cell["means"][cell["best_simple"]]
    assert rated[tables.ALS][math.inf] == pytest.approx(0.8406, abs=1e-4)
    tagged = FOUND["lastfm-hetrec with tags, clicks", "random", "ndcg@20"].values
    assert tagged[tables.PUBLIC][math.inf] < tagged[tables.OURS][1.0] < tagged[tables.ALS][math.inf]


def test_splits_by_time_stand_first_and_what_was_not_measured_is_blank_and_counted(
    tmp_path: Path,
) -> None:
    row = {"ndcg@20": 0.1}
    found = {"no privacy, same rounds": row, "EASE": row, "exact ALS": row, "epsilon 5": row}
    for name, split in (("one-temporal", {"split": "temporal"}), ("one", {})):
        (tmp_path / f"clicks-{name}.json").write_text(json.dumps(found | split))
    first, second = tables.tables(tmp_path)
    assert (first.split, second.split) == ("temporal", "given")
    assert first.data == second.data == "one, clicks"
    assert "--set split.kind=temporal" in first.command
    assert first.blank == 15 - 4
    assert first.rows[2] == ["ours", "", "", "0.1000", "", "", "0.1000"]
