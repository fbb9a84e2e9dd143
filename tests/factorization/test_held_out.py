"""Evaluation by people: which row each holds out, what is reported of it, what comes of the sum.
The five tests of a private algorithm are in `test_recipes.py`, that people stand apart in
`test_people_apart.py`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import dot_product
from fedrec.factorization import held_out
from fedrec.factorization.facts import PublicFacts, predict
from fedrec.factorization.held_out import (
    LEAST_ROWS,
    RELEASE,
    STEP,
    measured,
    reports_of,
    sent,
    sent_model,
)
from fedrec.federation.messages import Question, ReleaseSpec, train
from fedrec.federation.releases import release
from fedrec.federation.reports import ExactSums, block, squared_norms, within_radius
from fedrec.in_process import Loopback
from fedrec.preparing import (
    Prepared,
    RecipeFacts,
    client_recipe,
    client_steps,
    guarantee_of,
    prepare,
)
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.registry import BUILT_IN, require
from fedrec.settings import load
from tests.factorization.test_recipes import FEATURES, ITEMS, some_events
from tests.factorization.test_worth import clicks_of

EVALUATING = [
    (name, kind)
    for name in BUILT_IN
    for kind in require(name).kinds
    if kind in {"ratings", "clicks"} and require(name).evaluates
]


def people_of(
    kind: str, users: int = 60, items: int = ITEMS, *, times: bool = False
) -> Interactions:
    rng = np.random.default_rng(7)
    clicks = clicks_of(rng.random((users, items)) < rng.random((users, 1)) * 0.5)
    found = replace(clicks, times=rng.integers(0, 9, len(clicks)) if times else None)
    if kind == "clicks":
        return found
    values = rng.integers(1, 6, len(found)).astype(np.float32)
    return replace(found, kind="ratings", values=values, value_range=(1.0, 5.0))


def made_for(name: str, events: Interactions, *keys: str, share: float = 0.02) -> Prepared:
    facts = PublicFacts(
        events.num_users, events.num_items, events.kind, events.value_range, FEATURES, Streams(1)
    )
    told = [f"recipe={name}", f"privacy.evaluation_share={share}", *keys]
    return prepare(load(None, told), facts)


def trained(name: str, events: Interactions, *keys: str, seed: int = 1) -> tuple[Any, Any]:
    made = made_for(name, events, *keys)
    link = Loopback(events, made.steps, made.plan, Streams(seed), Ledger(made.plan.guarantee))
    *_, last = train(made.recipe, link, made.recipe.begin())
    return made.recipe, last.state


@pytest.mark.parametrize("times", [False, True])
def test_a_person_holds_one_row_out_whoever_else_there_is(times: bool) -> None:
    events = people_of("clicks", times=times)
    held = held_out.held_out(events)
    counts = np.add.reduceat(np.append(held, False), events.user_ptr[:-1])
    counts[np.diff(events.user_ptr) == 0] = 0
    assert np.array_equal(counts, (np.diff(events.user_ptr) >= LEAST_ROWS).astype(int))
    for k in (3, 41):
        alone = held_out.held_out(events.users_subset(np.array([k])))
        assert np.array_equal(alone, held[events.user_ptr[k] : events.user_ptr[k + 1]])
    if events.times is not None:
        latest = np.maximum.reduceat(
            events.times, events.user_ptr[:-1][np.diff(events.user_ptr) > 0]
        )
        of = latest[np.cumsum(np.diff(events.user_ptr) > 0) - 1][events.users]
        assert (events.times == of)[held].all()


@pytest.mark.parametrize(("name", "kind"), EVALUATING)
def test_no_report_but_the_last_changes_with_the_held_out_row(name: str, kind: str) -> None:
    """Its value or, of clicks, whether it is there at all."""
    events = people_of(kind)
    made = made_for(name, events)
    held = held_out.held_out(events)
    other = replace(events, values=np.where(held, 1.0, events.values).astype(np.float32))
    without = events.select(~held)  # nobody loses another row: what is left is told apart below
    link = Loopback(events, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
    state = made.recipe.begin()
    asked = 0
    plain = require(name).build(
        require(name).chosen(load(None, [f"recipe={name}"])), _facts(events)
    )
    while (question := made.recipe.ask(state)) is not None:
        if question.step != STEP:
            mine = made.steps[question.step](question, events)
            bare = plain.steps[question.step](question, without)
            assert _same(mine, bare)
            assert _same(mine, made.steps[question.step](question, other)) or kind == "clicks"
            asked += 1
        state = made.recipe.tell(state, question, link.answer(question))
    assert asked
    assert RELEASE in state


def _facts(events: Interactions) -> Any:
    promised = guarantee_of(load(None, []).privacy)
    return RecipeFacts(
        events.num_users, events.num_items, events.kind, events.value_range, FEATURES, Streams(1),
        guarantee=promised,
    )  # fmt: skip


def _same(left: Any, right: Any) -> bool:
    return all(
        np.array_equal(a.vectors, b.vectors) and np.array_equal(a.coefficients, b.coefficients)
        for a, b in zip(left.blocks, right.blocks, strict=True)
    )


@pytest.mark.parametrize(("name", "kind"), EVALUATING)
def test_devices_are_sent_the_model_that_is_released(name: str, kind: str) -> None:
    """Rows, scores and predictions of what they put together are the model's own."""
    events = people_of(kind)
    recipe, state = trained(name, events)
    model = recipe.model(state)
    arrays = sent(model, name="model")
    assert all(a.ndim == 0 or len(a) == events.num_items for a in arrays.values())
    assert all(np.isfinite(np.asarray(a, np.float64)).all() for a in arrays.values())
    again = sent_model(arrays, name="model")
    assert np.array_equal(again.item_vectors, model.item_vectors)
    assert np.allclose(again.user_vectors(events), model.user_vectors(events), atol=1e-5)
    assert again.offset == model.offset
    with pytest.raises(StopIteration):
        sent_model(arrays, name="serving")


def test_lists_are_measured_as_the_evaluation_of_a_split_does() -> None:
    events = people_of("clicks", 80)
    recipe, state = trained("dp-item-item", events, "privacy.epsilon=50")
    model = recipe.model(state)
    held = held_out.held_out(events)
    history, targets = events.select(~held), events.select(held)
    scores = dot_product(
        np.asarray(model.user_vectors(history), np.float32),
        np.asarray(model.item_vectors, np.float32),
    )
    counts = np.bincount(history.items, minlength=events.num_items)
    said = evaluate_ranking(
        scores, history=history, targets=targets, train_counts=counts, cutoffs=(20,)
    ).at[20]
    found = recipe.exactly(state, events)
    assert found.people == said.users
    assert found.model.value == pytest.approx(said.ndcg, abs=1e-6)
    assert found.hit == pytest.approx(said.hit_rate, abs=1e-6)


def test_errors_are_squared_over_half_the_scale_and_cut() -> None:
    events = people_of("ratings")
    recipe, state = trained("dp-bias", events)
    model = recipe.model(state)
    held = held_out.held_out(events)
    history, targets = events.select(~held), events.select(held)
    errors = predict(model, history, targets) - targets.values
    rows = measured(events, model)
    told = rows[rows[:, 0] == 1]
    assert np.allclose(told[:, 1] + 0.5, np.minimum((errors / 2) ** 2, 1))
    assert not rows[np.diff(events.user_ptr) < LEAST_ROWS].any()


@pytest.mark.parametrize("paired", [False, True])
def test_no_report_is_longer_than_its_radius_and_none_is_cut(paired: bool) -> None:
    """At the corners of what a person can say, and beyond them where arrays are false."""
    rng = np.random.default_rng(4)
    centred = 5
    corners = rng.choice([-0.5, 0.5], (200, centred))
    rows = np.column_stack([np.ones(200), corners])
    width = 6
    if paired:
        d = rng.choice([-1.0, 0.0, 1.0], 200)
        rows = np.column_stack([rows, d, d**2 - 0.5])
        width = 8
    spec = ReleaseSpec(RELEASE, (block(RELEASE, "linear", rows=1, width=width),))
    public = {"serving.clicks.x": np.array(0.0)} if paired else {}
    question = Question(3, STEP, public, (spec,))
    made = reports_of(question, rows)
    norms = np.sqrt(squared_norms(made, (spec,))[0])
    assert within_radius(made, (spec,)).all()
    assert 0.999 < norms.max() <= 1
    people = made.blocks[0].coefficients * made.blocks[0].vectors[:, 0] * spec.blocks[0].step
    assert np.ptp(people) < 1e-3  # everybody counts as much as any other
    assert within_radius(reports_of(question, rows * 1e9), (spec,)).all()


def test_a_released_evaluation_is_that_of_the_people_who_are_there() -> None:
    """A planted answer, with the product's own reports, sums and noise: of 3,000 people every third
    has her item first. 20 runs, each off by more than three of its noise's std once in 370."""
    events = people_of("clicks", 30)
    made = made_for("dp-popularity", events, "privacy.epsilon=5", share=0.05)
    spec = ReleaseSpec(RELEASE, (block(RELEASE, "linear", rows=1, width=6),))
    question = Question(1, STEP, {}, (spec,))
    v = (np.arange(3000) % 3 == 0).astype(float)
    rows = np.column_stack([np.ones(3000), v - 0.5, v**2 - 0.5, v * 0 - 0.5, v - 0.5, v * 0 - 0.5])
    sums = ExactSums(question.blocks)
    sums.add(reports_of(question, rows))
    for seed in range(20):
        ledger = Ledger(made.plan.guarantee)
        answer, _ = release(question, sums.blocks, made.plan, ledger, noise=Streams(seed))
        state = {"counts": np.ones(ITEMS), "round": np.array(1)}
        found = made.recipe.evaluated(made.recipe.tell(state, question, answer))  # type: ignore[attr-defined]
        std = 1.5 * answer.noise_std[RELEASE]
        assert abs(found.people - 3000) < 4 * std
        assert abs(found.model.value - 1 / 3) < 4 * std / 3000 + 1e-4  # the grid
        half = found.model.high - found.model.value
        people = 1.96 * math.sqrt(2 / 9 / 3000)
        assert people < half < 1.2 * math.hypot(people, 2 * std / 3000)
        assert found.everybody < 4 * std / 3000


@pytest.mark.parametrize(("name", "kind"), [("dp-bias", "ratings"), ("dp-item-item", "clicks")])
def test_the_plan_takes_its_share_and_both_sides_know_it(name: str, kind: str) -> None:
    events = people_of(kind)
    made = made_for(name, events, share=0.01)
    plain = made_for(name, events, share=0.0)
    assert made.plan[RELEASE].share == pytest.approx(0.01)
    assert made.plan.opinions().gdp == pytest.approx(plain.plan.opinions().gdp)
    for one in plain.plan.releases:
        noise = made.plan[one.name].noise_multiplier / one.noise_multiplier
        assert noise == pytest.approx(1 / math.sqrt(0.99))  # half a percent more
    scenario = load(None, [f"recipe={name}", "privacy.evaluation_share=0.01"])
    assert STEP in client_steps(client_recipe(scenario), kind)  # type: ignore[arg-type]
    quiet = load(None, [f"recipe={name}"])
    assert "evaluation_share" not in client_recipe(quiet)
    assert STEP not in client_steps(client_recipe(quiet), kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "keys",
    [
        ["recipe=convex-ssp"],
        ["recipe=privaterec", "news.variant=central", "data.format=planted-news"],
        ["recipe=published", "privacy.unit=example"],
        ["recipe=published", "privacy.accountant=am-ssp"],
    ],
)
def test_what_is_not_evaluated_is_refused_by_name(keys: list[str]) -> None:
    with pytest.raises(SettingsError, match="evaluation_share"):
        load(None, [*keys, "privacy.evaluation_share=0.01"])


def test_people_without_enough_rows_are_asked_and_say_nothing() -> None:
    events = some_events("dp-item-item, clicks", 3)
    few = events.select(np.arange(len(events)) - events.user_ptr[events.users] < LEAST_ROWS - 1)
    recipe, state = trained("dp-item-item", few, "privacy.epsilon=inf")
    assert recipe.evaluated(state).people == 0
    assert "of 0 people" in recipe.evaluated(state).words
