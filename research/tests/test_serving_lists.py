"""Lists through a real server are those that the bundle's own arithmetic makes, and stand beside
popularity and the exact list."""

import sys

import pytest

from fedrec_research.quality import serving_lists
from fedrec_research.trials import Asked

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform == "win32", reason="stops a process by a signal")
def test_ratings_and_clicks_are_asked_for_through_a_server() -> None:
    result = serving_lists.run(Asked(("planted",), quick=True))
    assert list(result["kinds"]) == ["ratings", "clicks"]
    for found in result["kinds"].values():
        methods = found["groups"]["all"]["methods"]
        assert list(methods) == ["popularity", "exact", "inf", "5"]
        assert all(0 <= row["ndcg"] <= 1 for row in methods.values())
        assert methods["popularity"]["gain"] == 0 == methods["popularity"]["gain_stderr"]
        assert methods["exact"]["gain_stderr"] > 0
        assert 0 < found["told"]["5"]["6"] < found["told"]["inf"]["6"] <= 1
        readers = found["readers"][0]["lists"]
        assert list(readers) == ["exact", "inf", "5"]
        assert readers["inf"]["same_reader"] == 10 > readers["5"]["same_reader"]
