"""Logistic against quadratic loss on small planted clicks: the rows, and that nothing but the
finished model meets test events."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec_research.papers import convex_ssp
from fedrec_research.papers.starts import Start
from research.tests.paper_rows import paper_rows


def test_a_figure_has_both_losses_and_their_difference(tmp_path: Path) -> None:
    rows = paper_rows("convex-ssp/yelp2018", tmp_path)
    found = {(row["metric"], row["series"]): row["value"] for row in rows}
    assert len(found) == len(rows) == 8
    for metric in ("ndcg@20", "recall@20"):
        apart = found[metric, convex_ssp.LOGISTIC] - found[metric, convex_ssp.QUADRATIC]
        assert found[metric, convex_ssp.DIFFERENCE] == pytest.approx(apart)
        assert found[metric, convex_ssp.LOGISTIC] > 0


@pytest.mark.parametrize("name", list(convex_ssp.PAPER.figures))
def test_the_losses_differ_in_nothing_that_the_budget_is_spent_on(name: str) -> None:
    start = Start(f"convex_ssp_{name}")
    for epsilon in start.figure.epsilons:
        logistic, quadratic = (
            convex_ssp.scenario_of(start, curve, epsilon, 1) for curve in ("logistic", "quadratic")
        )
        assert (logistic.model.loss, quadratic.model.loss) == ("logistic", "quadratic")
        assert logistic.privacy == quadratic.privacy
        assert logistic.model.dimension == quadratic.model.dimension
        assert {line.curve for line in start.figure.settings if line.epsilon == epsilon} == {
            "logistic",
            "quadratic",
        }
