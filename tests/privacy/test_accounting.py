import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from fedrec.errors import UnitMismatchError
from fedrec.numerics.roots import root
from fedrec.privacy.accounting import GaussianEvent, compose, delta_of, epsilon_of, mu_for, opinions


def quadrature_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """delta as the hockey-stick divergence of N(mu, 1) from N(0, 1), integrated: second code, no
    closed form."""
    with mpmath.workdps(40):
        cut = (mpmath.mpf(epsilon) + mpmath.mpf(mu) ** 2 / 2) / mu
        excess = lambda x: mpmath.npdf(x, mu, 1) - mpmath.e**epsilon * mpmath.npdf(x, 0, 1)  # noqa: E731
        return mpmath.quad(excess, [cut, cut + 2, cut + 6, cut + 20])


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(0.2681, 1.0), (1.1212, 5.0), (3.4478, 20.0), (0.05, 0.1), (1.0, 0.0)]
)
def test_delta_equals_the_integral_of_the_excess_likelihood(mu: float, epsilon: float) -> None:
    assert delta_of(mu, epsilon) == pytest.approx(float(quadrature_delta(mu, epsilon)), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "mu"), [(1, 0.2681), (5, 1.1212), (10, 2.0004), (20, 3.4478)])
def test_calibration_reaches_the_known_mu_at_delta_one_in_a_hundred_thousand(
    epsilon: float, mu: float
) -> None:
    assert mu_for(epsilon, 1e-5) == pytest.approx(mu, abs=6e-5)


@given(epsilon=st.floats(0.01, 50), delta=st.floats(1e-12, 1e-2))
def test_calibration_never_promises_more_than_it_keeps(epsilon: float, delta: float) -> None:
    mu = mu_for(epsilon, delta)
    assert delta_of(mu, epsilon) <= delta
    assert delta_of(mu * 1.000001, epsilon) > delta * (1 - 1e-9)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0, 20.0])
def test_second_opinions_agree_or_over_estimate(epsilon: float) -> None:
    mu = mu_for(epsilon, 1e-5)
    events = [GaussianEvent(str(share), mu * math.sqrt(share)) for share in (0.1, 0.2, 0.3, 0.4)]
    said = opinions(events, 1e-5)
    assert said.gdp == pytest.approx(epsilon, rel=1e-9)
    assert epsilon * (1 - 1e-6) <= said.pld <= epsilon * 1.001
    assert epsilon <= said.rdp <= epsilon * 1.15


def test_a_release_without_noise_costs_infinity_by_every_accountant() -> None:
    said = opinions([GaussianEvent("a", 1.0), GaussianEvent("b", math.inf)], 1e-5)
    assert (said.gdp, said.pld, said.rdp) == (math.inf, math.inf, math.inf)


def test_guarantees_of_different_units_do_not_add() -> None:
    with pytest.raises(UnitMismatchError):
        compose([GaussianEvent("a", 1.0, "user"), GaussianEvent("b", 1.0, "example")])
    with pytest.raises(UnitMismatchError):
        compose(
            [
                GaussianEvent("a", 1.0, "user", "add/remove"),
                GaussianEvent("b", 1.0, "user", "replace"),
            ]
        )


def test_nothing_spent_cannot_be_composed_and_no_event_is_free() -> None:
    with pytest.raises(ValueError):
        compose([])
    for mu in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError):
            GaussianEvent("a", mu)


@given(st.floats(1e-3, 1e3), st.floats(1e-12, 0.1), st.floats(0.01, 100))
def test_roots_are_those_of_scipy_to_the_last_bit(epsilon: float, delta: float, mu: float) -> None:
    def of_mu(m: float) -> float:
        return delta_of(m, epsilon) - delta if m else -delta

    def of_epsilon(e: float) -> float:
        return delta_of(mu, e) - delta

    for function, high, tight in ((of_mu, 2.0**20, 1e-14), (of_epsilon, 2.0**20, 1e-12)):
        if function(0.0) * function(high) < 0:
            expected = optimize.brentq(function, 0.0, high, xtol=tight, rtol=1e-14)
            assert root(function, 0.0, high, xtol=tight, rtol=1e-14) == expected
    with pytest.raises(ValueError, match="no change of sign"):
        root(lambda x: x + 1, 0.0, 1.0, xtol=1e-9, rtol=1e-9)
