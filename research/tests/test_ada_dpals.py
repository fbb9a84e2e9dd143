"""The figures of Ada-DPALS: their tasks, their scenarios, and their settings at every epsilon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrec.data.interactions import Interactions
from fedrec.data.splits import Split, random_split
from fedrec_research.papers import ada_dpals, ada_dpals_tasks
from fedrec_research.papers.ada_dpals_runs import TAIL, ada, scenario_of
from fedrec_research.papers.ada_dpals_tasks import Point
from fedrec_research.papers.multitask import TaskShape
from fedrec_research.papers.starts import Start


@pytest.mark.parametrize("algorithm", ["SSP", "noisy gradient"])
def test_the_planted_tasks_say_what_they_take_as_public_and_choose_without_test(
    algorithm: ada_dpals_tasks.Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = TaskShape(users=500)
    point = Point(algorithm, 1.0, 5.0, 0.5)
    found, estimated = (
        ada_dpals_tasks.one_run(p, shape, 1) for p in (point, replace(point, estimated=True))
    )
    assert "public knowledge" in found["guarantee"]
    assert "public knowledge" not in estimated["guarantee"]

    def with_other_test(labels: Interactions, *, seed: int) -> Split:
        split = random_split(labels, seed=seed)
        targets = replace(split.test.targets, values=-split.test.targets.values)
        return replace(split, test=replace(split.test, targets=targets))

    monkeypatch.setattr(ada_dpals_tasks, "random_split", with_other_test)
    changed = ada_dpals_tasks.one_run(point, shape, 1)
    assert changed["chosen"] == found["chosen"]
    assert changed["rmse"] != found["rmse"]


@pytest.mark.parametrize(
    "name", [name for name in ada_dpals.PAPER.figures if name not in {"figure5", "figure7"}]
)
def test_the_scenario_of_a_figure_is_one_of_its_points(name: str) -> None:
    """What `fedrec simulate` makes of the file is a row of the figure: same method, settings and
    seed."""
    start = Start(f"ada_dpals_{name}")
    written = start.scenario
    said = scenario_of(start, ada(written.model.weight_exponent), written.privacy.epsilon, 1)
    assert said.digest() == written.digest()
    assert written.privacy.epsilon in start.figure.epsilons


def test_an_epsilon_without_a_line_takes_the_nearest_one_s() -> None:
    for asked, nearest in ((0.5, 1.0), (10.0, 5.0), (15.0, 20.0), (float("inf"), 20.0)):
        found = scenario_of(Start("ada_dpals_figure1", "ml-1m"), TAIL, asked, 1).model
        [line] = [
            line
            for line in Start("ada_dpals_figure1").figure.settings
            if (line.curve, line.epsilon) == (TAIL, nearest)
        ]
        assert line.model.model_dump(exclude_unset=True).items() <= found.model_dump().items()
