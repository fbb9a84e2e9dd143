"""Clicks weigh by their age: the weights, the charged question of how much, and where it is asked."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import fedrec
from fedrec.api.datasets import undivided
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks.asked import asked_of
from fedrec.factorization.default_clicks.item_item import ItemItem, recency_weights
from fedrec.factorization.default_clicks.model import ItemItemModel, PublicPriorModel
from fedrec.factorization.default_clicks.recency import (
    DECAYS,
    LEAST_TOLD,
    MOST_SHARE,
    chosen_decay,
    report_recency,
    share_for,
)
from fedrec.factorization.default_clicks.settings import default_settings
from fedrec.factorization.facts import public_facts
from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.reports import block
from fedrec.privacy.guarantee import Guarantee

USERS, ITEMS, GROUPS = 200, 40, 8


def _walks(*, drift: bool, seed: int = 3) -> Interactions:
    """20 clicks of each person: in one group of items after the other, or the same in no order."""
    rng = np.random.default_rng(seed)
    users, items, times = [], [], []
    for user in range(USERS):
        groups = rng.permutation(GROUPS)[:5]
        clicked = np.concatenate([5 * g + rng.permutation(5)[:4] for g in groups])
        users += [user] * 20
        items += (clicked if drift else rng.permutation(clicked)).tolist()
        times += range(20)
    return Interactions.from_columns(
        np.array(users), np.array(items), None, num_users=USERS, num_items=ITEMS,
        value_range=(1.0, 1.0), kind="clicks", times=np.array(times),
    )  # fmt: skip


def _model() -> ItemItemModel:
    """Items of a group are alike."""
    group = np.eye(GROUPS)[np.arange(ITEMS) // 5].astype(np.float32)
    right = group - group.mean(axis=0)
    return ItemItemModel(ItemItem(np.arange(ITEMS), group, right, 1.0), np.ones(ITEMS))


def _question(share: float = 1.0) -> Question:
    public = PublicPriorModel(_model(), (), np.ones(1))
    told = {"weights": np.ones(1), "judges_of_time": np.array(share)}
    spec = block("recency", "linear", rows=1, width=len(DECAYS))
    return Question(
        3, "clicks/recency", asked_of(public) | told, (ReleaseSpec("recency", (spec,)),)
    )


def _rows(events: Interactions, question: Question | None = None) -> np.ndarray:
    asked = question or _question()
    (sent,) = report_recency(asked, events).blocks
    return sent.coefficients[:, None] * sent.vectors * asked.blocks[0].step


def test_a_weight_is_a_power_of_how_many_clicks_came_since() -> None:
    events = Interactions.from_columns(
        np.array([0, 0, 0, 1, 1, 1, 1]), np.array([3, 1, 2, 0, 1, 2, 3]), None, num_users=3,
        num_items=4, value_range=(1.0, 1.0), kind="clicks", times=np.array([9, 1, 1, 5, 5, 5, 7]),
    )  # fmt: skip
    # the first user's items 1 and 2 have the same time: the mean of ages 1 and 2
    assert recency_weights(events, 2.0) == pytest.approx([2.5**-2] * 2 + [1] + [1 / 9] * 3 + [1])
    assert recency_weights(events, 0.0).tolist() == [1.0] * 7
    assert recency_weights(replace(events, times=None), 2.0).tolist() == [1.0] * 7


@pytest.mark.parametrize("drift", [True, False])
def test_a_decay_is_chosen_where_the_order_of_clicks_tells_and_only_there(drift: bool) -> None:
    events = _walks(drift=drift)
    told = _rows(events).sum(axis=0)
    chosen = chosen_decay(told, noise_std=2.0, judges=USERS)
    assert (chosen >= 0.5) == drift
    assert (chosen == 0.0) == (not drift)


def test_a_report_has_at_most_norm_one_and_depends_on_its_user_alone() -> None:
    events = _walks(drift=True)
    rows = _rows(events)
    assert np.sqrt((rows**2).sum(axis=1)).max() <= 1
    for user in (0, 7, USERS - 1):
        alone = events.users_subset(np.array([user]))
        assert np.array_equal(_rows(alone)[0], rows[user])
    assert not _rows(replace(events, times=None)).any()
    assert not _rows(events, _question(share=0.0)).any()
    one = events.select(np.arange(len(events)) % 20 == 0)
    assert not _rows(one).any()  # a single click follows nothing


def test_recency_is_asked_for_at_a_stated_price_where_it_can_be_told() -> None:
    share, judges = share_for(mu=0.27, users=943)
    assert 0 < share <= MOST_SHARE
    assert judges == 1
    assert share_for(mu=0.27, users=int(LEAST_TOLD)) == (0.0, 0.0)
    assert share_for(mu=1.0, users=400_000)[1] == pytest.approx(0.01)


@pytest.fixture(scope="module")
def walked() -> fedrec.Dataset:
    events = _walks(drift=True)
    frame = {
        "user": [f"walker-{user}" for user in events.users],
        "item": [f"i{item}" for item in events.items],
        "time": (events.times + 1_700_000_000).tolist(),
    }
    return fedrec.Dataset.from_frame(frame, user="user", item="item", time="time")


def test_the_order_of_a_list_decides_what_follows_where_the_data_says_so(
    walked: fedrec.Dataset, tmp_path
) -> None:
    model = fedrec.MatrixFactorization(epsilon=50).fit(walked)
    history = ["i0", "i1", "i35", "i36"]
    assert model.recommend(history=history, k=1)["item"][0] in {"i37", "i38", "i39"}
    assert model.recommend(history=history[::-1], k=1)["item"][0] in {"i2", "i3", "i4"}
    model.save(tmp_path / "model")
    again = fedrec.load(tmp_path / "model")
    assert again.recommend(history=history, k=3).equals(model.recommend(history=history, k=3))
    assert fedrec.verify(tmp_path / "model").difference == 0


def test_recency_is_asked_of_a_model_with_vectors_too(walked: fedrec.Dataset) -> None:
    model = fedrec.MatrixFactorization(epsilon=math.inf).fit(walked)
    assert model.released.model.vectors.any()
    history = ["i0", "i1", "i35", "i36"]
    assert model.recommend(history=history, k=1)["item"][0] in {"i37", "i38", "i39"}


def test_rows_held_out_at_random_are_asked_for_in_no_order(walked: fedrec.Dataset) -> None:
    parts = {kind: walked.split(kind, seed=1)[0] for kind in ("random", "leave-last-out")}
    parts["all rows"] = undivided(walked)
    timed = {kind: public_facts(1, part.source, part.split).timed for kind, part in parts.items()}
    assert timed == {"random": False, "leave-last-out": True, "all rows": True}
    guarantee = Guarantee(5.0, 1e-5, "user", "add/remove")
    for kind, asked in timed.items():
        chosen = default_settings(guarantee, users=USERS * 5, items=ITEMS, timed=asked)
        assert ("recency" in chosen.shares) == (kind != "random")
        assert sum(chosen.shares.values()) == pytest.approx(1)
