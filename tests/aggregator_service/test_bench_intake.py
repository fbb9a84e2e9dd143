import pytest

from fedrec_simulations.bench import intake

pytestmark = pytest.mark.slow


def test_every_report_of_both_ways_is_counted_and_the_table_has_its_rows() -> None:
    table = intake.run(quick=True)
    assert table["reports"] == {"batches of 256": 1_024, "one user a call": 128}
    assert set(table["reports_per_second"]) == set(table["reports"])
    assert 143 * 6 < table["bytes_per_report"] < 1_100
    assert table["aggregator_peak_mb"] > 0
    assert {name: each["numbers"] for name, each in table["large"].items()} == {
        "d = 4": 500 * (10 + 4),
        "d = 8": 500 * (36 + 8),
    }
    assert all(
        8 * each["numbers"] < each["release_bytes"] < 9 * each["numbers"]
        for each in table["large"].values()
    )
