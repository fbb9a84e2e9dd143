"""The step of news that is noised on devices, and the one that Flower's own FedAdam takes."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy

from fedrec.errors import RunError
from fedrec.news.rounds import Course, FedAdam
from fedrec_server.news import averaged_step
from tests.flower_grid import InProcessGrid


def told(gradient: np.ndarray, weight: int) -> dict[str, np.ndarray]:
    return {
        "gradient": gradient,
        "weight": np.array([weight]),
        "loss": np.array([float(weight)]),
    }


def reply(parameters: np.ndarray, told: dict[str, np.ndarray]) -> Message:
    """A Flower client that has gone where the gradient leads."""
    arrays = ArrayRecord({"x": Array(parameters - told["gradient"].astype(np.float64))})
    metrics = MetricRecord({"num-examples": int(told["weight"][0])})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), 2, "train")


@pytest.mark.parametrize("rule", [FedAdam(0.03, 0.8, 0.95, 1e-2), FedAdam(2e-3, tau=1e-6)])
def test_our_step_is_that_of_flowers_fedadam_to_rounding_over_many_rounds(rule: FedAdam) -> None:
    InProcessGrid({})  # tells Flower which run its messages are of
    rng = np.random.default_rng(1)
    course = Course.begin(rng.standard_normal(50).astype(np.float32))
    theirs = course.parameters
    flower = strategy.FedAdam(
        eta=rule.learning_rate, beta_1=rule.beta_1, beta_2=rule.beta_2, tau=rule.tau
    )
    for t in range(1, 13):
        gradients = rng.standard_normal((3, 50)).astype(np.float32) * 1e-4
        clients = [told(g, w) for g, w in zip(gradients, [3, 1, 7], strict=True)]
        course, loss = averaged_step(course, clients, rule)
        flower.current_arrays = {"x": theirs}
        moved, _ = flower.aggregate_train(t, [reply(theirs, each) for each in clients])
        assert moved is not None
        theirs = moved["x"].numpy()
        assert loss == pytest.approx((9 + 1 + 49) / 11)
        assert course.moments.rounds == t
        np.testing.assert_allclose(course.parameters, theirs, rtol=1e-6, atol=1e-7)


def test_a_round_in_which_nobody_has_anything_ends_with_words() -> None:
    with pytest.raises(RunError, match="anything to learn"):
        averaged_step(Course.begin(np.zeros(3, np.float32)), [], FedAdam())
