import pytest

from fedrec_simulations.bench import sharing_intake

pytestmark = pytest.mark.slow


def test_every_user_is_held_by_all_three_and_the_table_has_its_rows() -> None:
    found = sharing_intake.run(quick=True)
    assert found["users"] == 128
    assert found["upload_bytes"] == 8 * (200 + 8 * 9) + 5 * 32 + 3 * 128
    assert len(found["aggregator_peak_mb"]) == 3
    assert sharing_intake.markdown(found).count("\n") >= 5
