from pathlib import Path

import pytest

from fedrec.errors import SettingsError
from fedrec_research.quality import clicks
from fedrec_research.trials import Asked
from research.tests.paper_rows import write_lists


def test_the_table_has_every_row_and_each_private_row_its_guarantee(tmp_path: Path) -> None:
    pytest.importorskip("implicit")
    write_lists(tmp_path)
    table = clicks.run(Asked((str(tmp_path),), quick=True, folder=tmp_path / "rows"))
    private = table["epsilon 5"]
    promise = private["guarantee"]
    assert (promise["epsilon"], promise["delta"]) == (5.0, 1e-5)
    assert (promise["unit"], promise["neighbours"]) == ("user", "add/remove")
    assert private["second_opinion"]["pld"] == pytest.approx(5, rel=1e-3)
    assert private["second_opinion"]["rdp"] >= 5
    assert (
        table["no privacy, same rounds"]["ndcg@20"]
        > 1.2 * table["popularity, not private"]["ndcg@20"]
    )
    assert table["exact ALS over implicit"]["ndcg@20"] > 0.8


def test_data_without_its_own_test_events_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("user,item\n" + "".join(f"u{k},i{j}\n" for k in range(5) for j in range(4)))
    with pytest.raises(SettingsError, match="its own test events"):
        clicks.run(Asked((str(path),), folder=tmp_path / "rows"))
