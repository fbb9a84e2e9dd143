"""The measurement of public sides on a small made-up folder of HetRec's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedrec.errors import SettingsError
from fedrec_research.quality import public_prior, simple
from fedrec_research.trials import Asked


def write_listens(folder: Path) -> None:
    """200 people, 60 artists in circles of 6, whose tags are their circles; 10 listens each."""
    rng = np.random.default_rng(1)
    listens = []
    for user in range(200):
        circles = rng.choice(10, 2, replace=False)
        inside = (circles[:, None] * 6 + np.arange(6)).ravel()
        listens += [f"{user}\t{item}\t7\n" for item in rng.choice(inside, 10, replace=False)]
    (folder / "user_artist.dat").write_text("".join(listens))
    tags = [f"{item}\t{tag}\n" for item in range(60) for tag in (item // 6, 100 + item % 6)]
    (folder / "artist_tag.dat").write_text("".join(tags))


def test_the_default_is_measured_with_and_without_tags_beside_every_control(
    tmp_path: Path,
) -> None:
    write_listens(tmp_path)
    asked = Asked((str(tmp_path),), seeds=1, epsilons=(2.0,), folder=tmp_path / "rows")
    table = public_prior.run(asked)
    assert [row["line"] for row in table["private"]] == list(public_prior.LINES)
    first, without, *_ = (row["test"][0] for row in table["private"])
    others = table["not private"]
    assert set(others) == {
        "popularity",
        "public sides alone",
        "non-private item-item",
        "non-private ALS",
    }
    assert first > 2 * without
    assert first > 2 * others["popularity"]["test"][0]
    assert others["public sides alone"]["test"][0] > 2 * others["popularity"]["test"][0]
    assert all(0 < row[fold][0] < 1 for row in others.values() for fold in ("validation", "test"))


def test_no_folder_is_refused() -> None:
    with pytest.raises(SettingsError, match="one data folder"):
        public_prior.run(Asked())


def test_what_planted_public_sides_gain_or_cost_is_told_of_ratings_and_clicks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simple, "SHAPES", ((400, 100, 12),))
    asked = Asked((simple.PLANTED,), seeds=1, epsilons=(2.0,), folder=tmp_path / "rows")
    cells = public_prior.run(asked)["cells"]
    said = [(cell["says"], cell["metric"]) for cell in cells]
    assert said == [(s, m) for s in public_prior.SAYS for m in ("rmse", "ndcg@20")]
    for cell in cells:
        with_them, without = cell["with"][0], cell["without"][0]
        told = without - with_them if cell["metric"] == "rmse" else with_them / without - 1
        assert cell["gain"][0] == pytest.approx(told)
