"""What releases that are priced per click cost a whole person: reached where it is said to be
exact, and a limit that reads no history."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from fedrec.errors import SettingsError, UnitMismatchError
from fedrec.news.answer_costs import answer_costs
from fedrec.news.person import require_user_limit, training_costs
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import GaussianEvent, delta_of, epsilon_of, mu_for
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import PaddedEvent, epsilon_of_events
from fedrec.privacy.person import epsilon_of_person, of_person
from fedrec.privacy.selection import PureEvent, Selection, output_table
from fedrec.settings import load

KEYS = [
    "recipe=privaterec",
    "news.variant=additive",
    "data.format=planted-news",
    "privacy.unit=click",
]
REPORT = GaussianEvent("report", 0.5, "click", "replace")


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_no_exchange_of_c_clicks_moves_a_report_by_more_than_c_times_one_and_one_exchange_reaches_it(
    clicks: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    H = 6
    rows = rng.standard_normal((8, 3))
    table = bounded_mean.topic_table(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    before = rng.integers(-1, 8, (1, H))
    after = before.copy()
    after[0, :clicks] = rng.integers(-1, 8, clicks)
    apart = np.linalg.norm(
        bounded_mean.coefficients(before, table) - bounded_mean.coefficients(after, table)
    )
    one = table.diameter / H
    assert apart <= clicks * one * (1 + 1e-12)
    pair = max(
        itertools.combinations(range(8), 2),
        key=lambda ij: np.linalg.norm(table.weights[ij[0]] - table.weights[ij[1]]),
    )
    left, right = (np.full((1, H), -1) for _ in range(2))
    left[0, :clicks], right[0, :clicks] = pair
    furthest = np.linalg.norm(
        bounded_mean.coefficients(left, table) - bounded_mean.coefficients(right, table)
    )
    assert furthest <= clicks * one * (1 + 1e-12)
    # else a click and none are further apart
    if np.linalg.norm(table.weights[pair[0]] - table.weights[pair[1]]) > 1:
        assert furthest == pytest.approx(clicks * one, rel=1e-9)


def test_a_report_costs_a_person_as_often_its_mu_as_it_sees_clicks_and_fresh_answers_add_up() -> None:  # fmt: skip
    assert of_person(REPORT, 50) == GaussianEvent("report", 25.0, "user", "replace")
    found = epsilon_of_person(Costs((REPORT,) * 4, ()), 1e-5, clicks=10)
    assert found == pytest.approx(epsilon_of(10.0, 1e-5), rel=1e-9)
    assert delta_of(10.0, found) == pytest.approx(1e-5, rel=1e-6)


def test_labels_cost_a_person_one_answer_an_impression_composed_exactly() -> None:
    """Three randomised responses by enumeration of all outputs, against the worst other clicks."""
    each = Selection(2, 1, 0.7)
    P = output_table(each)
    joint = [
        np.array(
            [
                math.prod(P[x, o] for o in outputs)
                for outputs in itertools.product(range(2), repeat=3)
            ]
        )
        for x in (0, 1)
    ]
    found = epsilon_of_person(Costs((), (each.event("label"),)), 1e-3, clicks=0, labels=3)
    assert np.maximum(joint[0] - math.exp(found) * joint[1], 0).sum() == pytest.approx(
        1e-3, rel=1e-3
    )
    assert epsilon_of_person(
        Costs((), (PureEvent("label", 5.0),)), 1e-5, clicks=0, labels=10
    ) == pytest.approx(50, abs=0.1)


def test_report_and_labels_are_both_seen_by_the_person() -> None:
    costs = Costs((REPORT,), (PureEvent("label", 1.0),))
    both = epsilon_of_person(costs, 1e-5, clicks=4, labels=2)
    alone = [epsilon_of_person(costs, 1e-5, clicks=c, labels=k) for c, k in ((4, 0), (0, 2))]
    assert max(alone) < both < sum(alone) + 1e-6


@given(st.lists(st.floats(0, 1), min_size=5, max_size=5), st.floats(0.05, 0.9), st.floats(0.2, 2.0))
def test_padding_hides_two_exchanged_clicks_as_often_as_both_are_hidden(
    places: list[float], padding: float, mu: float
) -> None:
    """Outputs on a line, in units of the noise; the three places of each history by what is hidden,
    and the one where all is."""
    hidden = padding**2
    weights = [(1 - padding) ** 2, padding * (1 - padding), padding * (1 - padding)]
    centres = [
        [mu * (2 * x - 1) / 2 for x in places[:2]] + [mu / 2],
        [mu * (2 * x - 1) / 2 for x in places[2:4]] + [-mu / 2],
    ]
    nobody = mu * (2 * places[4] - 1) / 2
    grid = np.linspace(-12, 12, 4001)
    common = hidden * stats.norm.pdf(grid, nobody)
    p, q = (
        common + sum(w * stats.norm.pdf(grid, c) for w, c in zip(weights, some, strict=True))
        for some in centres
    )
    event = of_person(PaddedEvent("attention", mu, padding), 2)
    assert isinstance(event, PaddedEvent)
    for epsilon in (0.0, 0.3, 1.0):
        assert (
            integrate.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), grid)
            <= event.delta(epsilon) + 1e-5
        )


def test_what_holds_for_any_two_histories_costs_a_person_no_more_than_a_click() -> None:
    for name in ("attention", "gradient"):
        assert of_person(GaussianEvent(name, 0.5, "click", "replace"), 50).mu == 0.5  # type: ignore[union-attr]
    assert of_person(GaussianEvent("something new", 0.5, "click", "replace"), 50).mu == 25  # type: ignore[union-attr]
    many = of_person(PaddedEvent("attention", 0.5, 0.2), 50)
    assert many == GaussianEvent("attention", 0.5, "user", "replace")  # all fifty are never hidden


def test_prices_for_a_person_do_not_add_to_prices_of_a_click() -> None:
    with pytest.raises(UnitMismatchError):
        epsilon_of_events([REPORT, of_person(REPORT, 3)], 1e-5)


@pytest.mark.parametrize(
    ("keys", "times"),
    [
        (["news.variant=additive"], 50),
        (["news.variant=local"], 1),
        (["news.variant=local", "news.padding=0.2"], 1),
    ],
)
def test_a_served_answer_costs_a_person_by_its_form(keys: list[str], times: int) -> None:
    scenario = load(None, [*KEYS, *keys])
    each = Guarantee(5.0, 1e-5, "click", "replace")
    found = epsilon_of_person(answer_costs(scenario, each), 1e-5, clicks=50)
    least = epsilon_of(times * mu_for(5.0, 1e-5), 1e-5)
    assert (
        found == pytest.approx(least, rel=1e-6)
        if not scenario.news.padding
        else least < found < 1.2 * least
    )
    assert epsilon_of_person(answer_costs(scenario, each), 1e-5, clicks=1) == pytest.approx(
        5.0, rel=1e-6
    )


def test_without_privacy_a_person_has_none() -> None:
    for keys in (["privacy.epsilon=inf"], ["news.variant=printed"]):
        assert (
            epsilon_of_person(training_costs(load(None, [*KEYS, *keys])), 1e-5, clicks=1)
            == math.inf
        )


def test_a_limit_per_user_refuses_a_plan_and_names_an_epsilon_per_click_that_fits() -> None:
    limited = load(None, [*KEYS, "news.max_user_epsilon=20", "news.history=10"])
    with pytest.raises(
        SettingsError, match=r"10 clicks and 15 labels epsilon .* per user"
    ) as refused:
        require_user_limit(limited, users=100, labels=15)
    fits = float(refused.value.remedy.split()[2])
    assert 0.5 < fits < 2
    require_user_limit(limited.with_epsilon(fits), users=100, labels=15)
    with pytest.raises(SettingsError):
        require_user_limit(limited.with_epsilon(1.1 * fits), users=100, labels=15)
    require_user_limit(load(None, [*KEYS, "news.history=10"]), users=100, labels=15)
