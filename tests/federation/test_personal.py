"""Personal epsilons: a user is heard as much as its own limit allows, and every sum is weighted
alike."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrec.data.interactions import Interactions
from fedrec.data.planted import planted, shape_of_sizes
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import BlockReports, Reports, train
from fedrec.federation.releases import announced, mean_weight, weight, weighted, with_limits
from fedrec.federation.reports import ExactSums, block, squared_norms
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger, compose, epsilon_of
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import load

PROMISED = Guarantee(5.0, 1e-5)
LIMITS = {1.0: 0.3, 5.0: 0.7}


def _data(users: int = 40) -> Interactions:
    rng = np.random.default_rng(1)
    columns = (
        np.repeat(np.arange(users), 6),
        np.concatenate([rng.permutation(12)[:6] for _ in range(users)]),
    )
    values = rng.integers(1, 6, 6 * users).astype(np.float32)
    return Interactions.from_columns(
        *columns, values, num_users=users, num_items=12, value_range=(1.0, 5.0)
    )


def _prepared(data: Interactions, *said: str) -> Prepared:
    scenario = load(None, ["recipe=published", "model.encoder=id", "data.features=false", *said])
    facts = PublicFacts(
        data.num_users, data.num_items, data.kind, data.value_range, None, Streams(1)
    )
    return prepare(scenario, facts)


def _reports(prepared: Prepared, data: Interactions) -> tuple[Reports, tuple]:  # type: ignore[type-arg]
    question = prepared.recipe.ask(prepared.recipe.begin())
    assert question is not None
    return prepared.steps[question.step](question, data), question.releases


def test_limits_that_are_all_the_run_s_epsilon_are_the_plain_run() -> None:
    """Also without noise: infinite noise multipliers aside, weights of 1 change no report."""
    data = _data()
    plain = _prepared(data)
    limited = _prepared(data, "privacy.personal_epsilons={5=1.0}")
    for a, b in zip(
        _reports(plain, data)[0].blocks, _reports(limited, data)[0].blocks, strict=True
    ):
        np.testing.assert_array_equal(a.coefficients, b.coefficients)


@settings(max_examples=25, deadline=None)
@given(own=st.floats(0.05, 5.0), users=st.integers(2, 30))
def test_a_user_who_leaves_moves_every_release_by_at_most_its_weight_of_the_radius(
    own: float, users: int
) -> None:
    data = _data(users)
    prepared = _prepared(data)
    question = prepared.recipe.ask(prepared.recipe.begin())
    assert question is not None
    share = weight(own, PROMISED)
    made = weighted(
        prepared.steps[question.step](question, data), np.full(users, share), question.blocks
    )
    for release, norms in zip(
        question.releases, squared_norms(made, question.releases), strict=True
    ):
        assert np.all(norms <= (share * release.radius) ** 2 * (1 + 1e-12))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_no_coefficient_is_larger_than_its_weight_allows(seed: int, share: float) -> None:
    """Each, so that no norm of any shape is: whatever rounds, rounds towards zero."""
    rng = np.random.default_rng(seed)
    ptr = np.array([0, 3, 3, 9], np.int64)
    blocks = (block("one", "linear", rows=1, width=2), block("many", "linear", rows=12, width=2))
    parts = tuple(
        BlockReports(rng.integers(-(2**14), 2**14, n).astype(np.int32), np.zeros((3, 2), np.int32))
        for n in (3, 9)
    )
    sent = Reports(ptr, np.arange(9, dtype=np.int32), parts)
    for before, after in zip(parts, weighted(sent, np.full(3, share), blocks).blocks, strict=True):
        limit = np.abs(before.coefficients) * share  # a product of doubles: right to 2^-53
        assert (np.abs(after.coefficients) <= limit * (1 + 1e-15)).all()
        assert (after.coefficients * before.coefficients >= 0).all()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6, unique=True), st.floats(0.01, 100))
def test_nobody_pays_more_than_its_own_limit(limits: list[float], own: float) -> None:
    shares = dict.fromkeys(limits, 1 / len(limits))
    below = [math.nextafter(limit, 0) for limit in limits]
    for mine in (own, *limits, *below):
        chosen = announced(mine, shares)
        assert chosen <= mine
        assert chosen in shares or (chosen == 0 and mine < min(limits))


def test_noise_is_that_of_the_run_whatever_people_chose() -> None:
    """Released less exact sums, over the std that the plan states: standard normal (KS, false
    alarms 1 in 1000), and not at 2/3 or 3/2."""
    data = _data(60)
    prepared = _prepared(data, "privacy.personal_epsilons={1=0.3,5=0.7}")
    question = prepared.recipe.ask(prepared.recipe.begin())
    assert question is not None
    sums = ExactSums(question.blocks)
    sums.add(prepared.steps[question.step](question, data))
    drawn = []
    for seed in range(60):
        answer = Loopback(
            data, prepared.steps, prepared.plan, Streams(seed), Ledger(prepared.plan.guarantee)
        ).answer(question)
        exact = np.asarray(sums.blocks[0]) * question.blocks[0].step
        drawn.append((answer.values["counts"] - exact).ravel() / answer.noise_std["counts"])
    noise = np.concatenate(drawn)
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise / wrong, "norm").pvalue < 1e-3


@pytest.mark.parametrize("own", [0.5, 1.0, 3.0, 4.8, 5.0, 9.0])
def test_a_user_s_epsilon_equals_an_independent_computation(own: float) -> None:
    """Balle and Wang's delta of the composed mu, and the plan's releases scaled one by one."""
    plan = _prepared(_data()).plan
    share = weight(own, PROMISED)
    mu = math.sqrt(sum((share * release.mu) ** 2 for release in plan.releases))
    epsilon = min(own, PROMISED.epsilon)
    delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )
    assert delta == pytest.approx(1e-5, rel=1e-6)
    scaled = [replace(plan.event(release.name), mu=share * release.mu) for release in plan.releases]
    assert epsilon_of(compose(scaled), 1e-5) == pytest.approx(epsilon, rel=1e-6)


def test_the_planted_answer_is_found_and_the_mean_is_not_drawn_to_mid_scale() -> None:
    """At a large epsilon, where half of the people are heard less: their mean rating, and that of
    the others, weigh as announced."""
    data = planted(shape_of_sizes(600, 60, 6_000), seed=3).interactions
    limits = {20.0: 0.5, 200.0: 0.5}
    said = (
        "privacy.epsilon=200",
        "privacy.personal_epsilons={20=0.5,200=0.5}",
        "privacy.noise=seeded",
    )
    prepared = _prepared(data, *said)
    link = Loopback(
        data, prepared.steps, prepared.plan, Streams(1), Ledger(prepared.plan.guarantee)
    )
    *_, last = train(prepared.recipe, link, prepared.recipe.begin())
    means = np.array(
        [
            data.values[a:b].mean()
            for a, b in zip(data.user_ptr, data.user_ptr[1:], strict=False)
            if b > a
        ]
    )
    assert mean_weight(limits, Guarantee(200.0, 1e-5)) < 0.8
    assert float(last.state["mean"]) == pytest.approx(float(means.mean()), abs=0.1)


def test_everybody_draws_a_limit_by_its_id_in_the_announced_shares() -> None:
    data = planted(shape_of_sizes(2_000, 60, 12_000), seed=3).interactions
    plain, limited = (
        _reports(_prepared(data, *said), data)[0]
        for said in ((), ("privacy.personal_epsilons={1=0.3,5=0.7}",))
    )
    dense = limited.blocks[1].coefficients / np.where(
        plain.blocks[1].coefficients == 0, 1, plain.blocks[1].coefficients
    )
    low = np.abs(dense - weight(1.0, PROMISED)) < 0.01
    assert abs(low.sum() / np.count_nonzero(plain.blocks[1].coefficients) - 0.3) < 4 * math.sqrt(
        0.3 * 0.7 / 2_000
    )


def test_what_limits_mean() -> None:
    assert weight(1.0, PROMISED) == pytest.approx(0.2681 / 1.1212, rel=1e-3)
    assert weight(7.0, PROMISED) == 1.0
    assert mean_weight(LIMITS, PROMISED) == pytest.approx(0.3 * weight(1.0, PROMISED) + 0.7)
    assert mean_weight({}, PROMISED) == 1.0
    assert announced(3.0, LIMITS) == 1.0
    assert announced(0.9, LIMITS) == 0.0
    with pytest.raises(ValueError, match="weights"):
        weighted(_reports(_prepared(_data()), _data())[0], np.full(40, 1.5), ())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (("privacy.personal_epsilons={1=0.5}",), "sum to 1"),
        (("privacy.personal_epsilons={7=1.0}",), "at most privacy.epsilon"),
        (("privacy.personal_epsilons={many=1.0}",), "numbers above 0"),
        (("privacy.personal_epsilons={1=1.0}", "privacy.epsilon=inf"), "finite"),
        (
            ("privacy.personal_epsilons={1=1.0}", "privacy.aggregation=three-party"),
            "one trusted aggregator",
        ),
        (("privacy.personal_epsilons={1=1.0}", "recipe=privaterec", "privacy.unit=click"), "unit"),
    ],
)
def test_limits_that_promise_nothing_are_refused(said: tuple[str, ...], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(None, said)


def test_a_step_is_limited_user_by_user_whatever_batch_they_come_in() -> None:
    data = _data()
    prepared = _prepared(_data())
    words = np.random.default_rng(0).integers(0, 2**63, data.num_users).astype(np.uint64)
    data = replace(data, user_words=words)
    question = prepared.recipe.ask(prepared.recipe.begin())
    assert question is not None
    step = with_limits(prepared.steps[question.step], LIMITS, PROMISED)
    together = step(question, data).blocks[1].coefficients
    apart = np.concatenate(
        [
            step(question, data.users_subset(np.array([k]))).blocks[1].coefficients
            for k in range(data.num_users)
        ]
    )
    np.testing.assert_array_equal(together, apart)
