from fedrec_simulations.bench import cohorts


def test_a_share_of_the_users_in_every_round_is_measured_beside_everybody() -> None:
    table = cohorts.run(quick=True)
    (cell,) = table["cells"]
    assert set(cell["rmse"]) == {"1", "0.5", "0.25"}
    assert 0 < cell["rmse"]["1"]["mean"] < cell["rmse"]["0.25"]["mean"] < 2  # seeded: a quarter of the people teaches less
    assert "50% of users" in cohorts.markdown(table)
