"""The step that Flower's own FedAdam takes, and ours."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.errors import RunError
from fedrec.news.fedadam import FedAdam
from fedrec.news.rounds import Course
from fedrec_server.strategy import flower_step
from fedrec_simulations.runtimes.in_process_grid import InProcessGrid


def told(gradient: np.ndarray, weight: int, loss: float = 0.0) -> dict[str, np.ndarray]:
    return {"gradient": gradient, "weight": np.array([weight]), "loss": np.array([loss])}


@pytest.mark.parametrize("rule", [FedAdam(0.03, 0.8, 0.95, 1e-2), FedAdam(2e-3, tau=1e-6)])
def test_flowers_aggregate_train_is_our_step_to_rounding_over_many_rounds(rule: FedAdam) -> None:
    InProcessGrid({})  # tells Flower which run its messages are of
    rng = np.random.default_rng(1)
    ours = theirs = Course.begin(rng.standard_normal(50).astype(np.float32))
    for _ in range(12):
        gradients = rng.standard_normal((3, 50)).astype(np.float32) * 1e-4
        weights = [3, 1, 7]
        mean = np.average(gradients.astype(np.float64), axis=0, weights=weights)
        ours = ours.moved(mean, rule)
        theirs, loss = flower_step(
            theirs, [told(g, w, float(w)) for g, w in zip(gradients, weights, strict=True)], rule
        )
        assert loss == pytest.approx(np.average(weights, weights=weights))
        np.testing.assert_allclose(theirs.parameters, ours.parameters, rtol=1e-9, atol=1e-12)
        assert theirs.moments.rounds == ours.moments.rounds
    assert np.abs(ours.parameters - theirs.parameters).max() < 1e-6


def test_a_round_in_which_nobody_has_anything_ends_with_words() -> None:
    with pytest.raises(RunError, match="anything to learn"):
        flower_step(Course.begin(np.zeros(3, np.float32)), [], FedAdam())
