import pytest

from fedrec_simulations.bench import enrolment

pytestmark = pytest.mark.slow


def test_enrolment_is_measured_on_a_ledger_that_is_filled_and_through_the_service() -> None:
    table = enrolment.run(quick=True)
    assert set(table["per_call"]) == {"1 new", "100 new", "1 enrolled already"}
    assert all(row["durable"]["wall_us"] > 0 for row in table["per_call"].values())
    assert "10,000 enrolled" in enrolment.markdown(table)
