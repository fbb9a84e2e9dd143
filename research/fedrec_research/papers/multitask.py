"""Users who take part in a few of many regression tasks: the data of multi-task learning, and a
planted set of it.

The planted set is that of Ada-DPALS App. C (Krichene et al. 2023): every task i has a true theta_i,
every user k a vector x_k, both Gaussian and projected on the unit ball, and y_ik = theta_i . x_k +
noise. Task i holds each user with probability q_i; the q_i follow the power law of density a q^(a -
1) on [0, 1], normalised so that a user takes part in 20 tasks on average.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.privacy.clipping import clip_rows
from fedrec.randomness import Streams


@dataclass(frozen=True)
class TaskData:
    """Private: who takes part in which task with which label, and one feature vector for each user.

    labels: events (user, task, label) of n users on m tasks. features: (n, d) float64, x_k of user
    k in all its tasks.
    """

    labels: Interactions
    features: Float64s

    def __post_init__(self) -> None:
        if len(self.features) != self.labels.num_users or self.features.ndim != 2:
            raise ValueError(
                f"need one feature vector for each of {self.labels.num_users} users, found "
                f"shape {self.features.shape}"
            )

    @property
    def num_users(self) -> int:
        """Users, with or without a task."""
        return self.labels.num_users

    def users_subset(self, users: npt.NDArray[np.integer]) -> TaskData:
        """The given users alone, renumbered."""
        return TaskData(self.labels.users_subset(users), self.features[users])


@dataclass(frozen=True)
class TaskShape:
    """Sizes of a planted set; the values are App. C's. `skew` is a: 1 spreads the sizes of tasks
    most evenly over [0, largest].

    tasks_per_user: on average. label_noise: std of the noise on labels, sigma_F.
    """

    users: int = 10_000
    tasks: int = 100
    dimension: int = 5
    tasks_per_user: float = 20.0
    skew: float = 1.0
    label_noise: float = 1e-3

    def __post_init__(self) -> None:
        if (
            min(self.users, self.tasks, self.dimension) < 1
            or not 0 < self.tasks_per_user <= self.tasks
            or not self.skew > 0
        ):
            raise ValueError(
                f"sizes and skew must be positive, with at most all tasks per user, found {self}"
            )


@dataclass(frozen=True)
class PlantedTasks:
    """The data and its truth: `theta` (m, d), and `share` (m,), the probability q_i that a user
    takes part in task i."""

    data: TaskData
    theta: Float64s
    share: Float64s


def planted_tasks(shape: TaskShape, *, streams: Streams) -> PlantedTasks:
    """Draw a set.

    A share above 1, which happens where tasks_per_user is near tasks, is cut to 1."""
    theta = _in_unit_ball(streams.numpy("task-truth"), shape.tasks, shape.dimension)
    features = _in_unit_ball(streams.numpy("task-users"), shape.users, shape.dimension)
    # the inverse of the distribution function q^a
    powers = streams.numpy("task-shares").random(shape.tasks) ** (1 / shape.skew)
    share = np.minimum(powers * shape.tasks_per_user / powers.sum(), 1.0)
    rng = streams.numpy("task-labels")
    users, tasks = np.nonzero(rng.random((shape.users, shape.tasks)) < share)
    labels = np.einsum(
        "ed,ed->e", features[users], theta[tasks]
    ) + shape.label_noise * rng.standard_normal(len(users))
    events = Interactions.from_columns(
        users, tasks, labels, num_users=shape.users, num_items=shape.tasks, value_range=(-1.0, 1.0)
    )  # fmt: skip
    return PlantedTasks(TaskData(events, features), theta, share)


def _in_unit_ball(rng: np.random.Generator, rows: int, dimension: int) -> Float64s:
    return clip_rows(rng.standard_normal((rows, dimension)), radius=1.0).rows
