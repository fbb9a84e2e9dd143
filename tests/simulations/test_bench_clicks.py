from pathlib import Path

import numpy as np
import pytest

from fedrec.errors import SettingsError
from fedrec_simulations.bench import clicks


def write_lists(folder: Path) -> None:
    """Two tastes; every user's last two clicks of its own taste are test."""
    rng = np.random.default_rng(0)
    lists = [rng.permutation(30)[:12] + 30 * (user % 2) for user in range(200)]
    for name, part in (("train.txt", slice(0, 10)), ("test.txt", slice(10, 12))):
        (folder / name).write_text(
            "".join(f"{k} {' '.join(map(str, items[part]))}\n" for k, items in enumerate(lists))
        )


def test_the_table_has_every_row_and_each_private_row_its_guarantee(tmp_path: Path) -> None:
    pytest.importorskip("implicit")
    write_lists(tmp_path)
    table = clicks.run(str(tmp_path), quick=True)
    private = table["epsilon 5"]
    assert private["guarantee"] == {
        "epsilon": 5.0,
        "delta": 1e-5,
        "unit": "user",
        "neighbours": "add/remove",
    }
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
        clicks.run(str(path))
