from fedrec_simulations.bench import intake


def test_every_report_of_both_ways_is_counted_and_the_table_has_its_rows() -> None:
    table = intake.run(quick=True)
    assert table["reports"] == {"batches of 256": 1_024, "one user a call": 128}
    assert set(table["reports_per_second"]) == set(table["reports"])
    assert 143 * 6 < table["bytes_per_report"] < 1_100
    assert table["aggregator_peak_mb"] > 0
