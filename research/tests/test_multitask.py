"""The planted tasks of Ada-DPALS App. C."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.randomness import Streams
from fedrec_research.papers.multitask import TaskData, TaskShape, planted_tasks


@pytest.mark.parametrize("skew", [1.0, 2.0])
def test_users_take_part_in_twenty_tasks_on_average(skew: float) -> None:
    """The mean over 10,000 users of a sum of 100 coins has a std below .04: a seed in 10,000 would
    be .16 off."""
    planted = planted_tasks(TaskShape(skew=skew), streams=Streams(3))
    assert planted.share.sum() == pytest.approx(20)
    assert len(planted.data.labels) / 10_000 == pytest.approx(20, abs=0.16)


def test_shares_follow_the_power_law_of_the_skew() -> None:
    """E q of density a q^(a - 1) is a / (a + 1), E q^2 is a / (a + 2): the second moment in units
    of the mean tells a. 4 sigma is .03."""
    for a in (1.0, 2.0):
        share = planted_tasks(TaskShape(users=2, tasks=5_000, skew=a), streams=Streams(1)).share
        assert np.mean(share**2) / np.mean(share) ** 2 == pytest.approx(
            (a + 1) ** 2 / (a * (a + 2)), abs=0.03
        )


def test_labels_are_the_planted_products_up_to_the_stated_noise() -> None:
    planted = planted_tasks(TaskShape(users=2_000, label_noise=0.05), streams=Streams(1))
    labels = planted.data.labels
    residual = labels.values - np.einsum(
        "ed,ed->e", planted.data.features[labels.users], planted.theta[labels.items]
    )
    assert residual.std() == pytest.approx(0.05, rel=0.02)
    assert (
        max(
            np.linalg.norm(planted.theta, axis=1).max(),
            np.linalg.norm(planted.data.features, axis=1).max(),
        )
        <= 1
    )


def test_a_subset_of_users_keeps_their_features_and_labels() -> None:
    data = planted_tasks(TaskShape(users=50), streams=Streams(1)).data
    some = data.users_subset(np.array([7, 3]))
    np.testing.assert_array_equal(some.features, data.features[[7, 3]])
    mine = data.labels.items[data.labels.user_ptr[7] : data.labels.user_ptr[8]]
    np.testing.assert_array_equal(some.labels.items[: some.labels.user_ptr[1]], mine)
    assert some.num_users == 2


def test_what_does_not_fit_is_refused() -> None:
    data = planted_tasks(TaskShape(users=50), streams=Streams(1)).data
    with pytest.raises(ValueError, match="one feature vector"):
        TaskData(data.labels, data.features[:3])
    with pytest.raises(ValueError, match="skew"):
        TaskShape(skew=0.0)
