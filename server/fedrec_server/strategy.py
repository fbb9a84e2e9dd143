"""The server's step by Flower's own `FedAdam`: what clients told becomes its replies, float64, so
that nothing is lost on the way.

A client's gradient g stands for parameters x - g, weighted by "num-examples"; `aggregate_train`
averages them and moves x. The strategy's moments are put in before and taken out after: a `Course`
is all there is to keep.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy

from fedrec.errors import RunError
from fedrec.news.fedadam import FedAdam, Moments
from fedrec.news.rounds import Course

_X = "parameters"
_NODE = 2  # any but the server's own: the replies are made here

# at every step it would tell how many replies it got, which are made here
logging.getLogger("flwr").setLevel(logging.WARNING)


def flower_step(
    course: Course, told: Sequence[Mapping[str, npt.NDArray[Any]]], rule: FedAdam
) -> tuple[Course, float]:
    """The course after a step down the mean of "gradient" weighted by "weight", and the mean
    "loss". Raises RunError where nobody is."""
    if not told:
        raise RunError(
            "no user of the round has anything to learn from",
            "Give data with labelled impressions.",
        )
    flower = strategy.FedAdam(
        eta=rule.learning_rate, beta_1=rule.beta_1, beta_2=rule.beta_2, tau=rule.tau
    )
    moments = course.moments
    t = course.moments.rounds + 1
    flower.current_arrays = {_X: course.parameters}
    flower.m_t = {_X: moments.first}
    flower.v_t = {_X: moments.second}
    moved, metrics = flower.aggregate_train(t, [_reply(course, each) for each in told])
    assert moved is not None
    assert metrics is not None
    after = Moments(np.asarray(flower.m_t[_X]), np.asarray(flower.v_t[_X]), t)
    return Course(moved[_X].numpy(), after), float(metrics["loss"])  # type: ignore[arg-type]


def _reply(course: Course, told: Mapping[str, npt.NDArray[Any]]) -> Message:
    arrays = ArrayRecord({_X: Array(course.parameters - told["gradient"].astype(np.float64))})
    metrics = MetricRecord({"num-examples": int(told["weight"][0]), "loss": float(told["loss"][0])})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), _NODE, "train")
