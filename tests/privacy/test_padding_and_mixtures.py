import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrec.errors import UnitMismatchError
from fedrec.privacy import laplace
from fedrec.privacy.accounting import GaussianEvent, delta_of, epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import (
    PaddedEvent,
    amplified,
    epsilon_of_events,
    inner_epsilon,
    inner_mu,
)
from fedrec.privacy.selection import PureEvent, output_table, randomised_response
from fedrec.randomness import Streams

KEY = Streams(5).key("laplace")


def gaussian(mu: float) -> GaussianEvent:
    return GaussianEvent("history", mu, "click", "replace")


@given(epsilon=st.floats(0.001, 30), padding=st.floats(0, 0.99))
def test_amplification_and_its_inverse_undo_each_other(epsilon: float, padding: float) -> None:
    inner = inner_epsilon(epsilon, padding)
    assert inner >= epsilon
    assert inner == pytest.approx(math.log((math.exp(epsilon) - padding) / (1 - padding)), rel=1e-9)
    assert amplified(inner, padding) == pytest.approx(epsilon, rel=1e-9)


@given(
    laws=st.lists(st.lists(st.floats(0.01, 1), min_size=4, max_size=4), min_size=3, max_size=3),
    padding=st.floats(0, 0.95),
    epsilon=st.floats(0, 3),
)
@settings(max_examples=200, deadline=None)
def test_padding_amplifies_as_proved_for_any_three_laws(
    laws: list[list[float]], padding: float, epsilon: float
) -> None:
    """N, P, Q arbitrary: d0 is their largest pairwise divergence at e0, and the mixtures keep (1 -
    p) d0 at e."""
    N, P, Q = (np.array(law) / sum(law) for law in laws)
    inner = inner_epsilon(epsilon, padding)
    stick = lambda a, b, e: np.maximum(a - math.exp(e) * b, 0).sum()  # noqa: E731
    d0 = max(stick(P, Q, inner), stick(P, N, inner))
    mixed = stick(padding * N + (1 - padding) * P, padding * N + (1 - padding) * Q, epsilon)
    assert mixed <= (1 - padding) * d0 + 1e-12


def test_the_inner_release_is_calibrated_exactly_and_padding_allows_less_noise() -> None:
    guarantee = Guarantee(1.0, 1e-5, "click", "replace")
    mus = [inner_mu(guarantee, p) for p in (0.0, 0.2, 0.5, 0.8)]
    assert mus == sorted(mus)
    assert mus[0] == mu_for(1.0, 1e-5)
    for mu, p in zip(mus, (0.0, 0.2, 0.5, 0.8), strict=True):
        assert PaddedEvent("x", mu, p).delta(1.0) == pytest.approx(1e-5, rel=1e-9)
    with pytest.raises(ValueError):
        inner_mu(Guarantee(1.0, 0.6, "click", "replace"), 0.5)


def test_gaussian_and_pure_releases_compose_as_second_code_says() -> None:
    """Divergence of the product of an enumerated table and two Gaussians on a fine grid."""
    selection = randomised_response(6, 1.2)
    mu = 0.7
    delta = 1e-3
    epsilon = epsilon_of_events([selection.event("label"), gaussian(mu)], delta)
    p, q = output_table(selection)[:2]
    z = np.linspace(-12, 12, 200_001)
    P = np.outer(p, stats.norm.pdf(z - mu))
    Q = np.outer(q, stats.norm.pdf(z))
    assert np.maximum(P - math.exp(epsilon) * Q, 0).sum() * (z[1] - z[0]) == pytest.approx(
        delta, rel=1e-4
    )
    assert max(1.2, epsilon_of(mu, delta)) < epsilon < 1.2 + epsilon_of(mu, delta)


def test_one_kind_alone_costs_what_it_says() -> None:
    assert epsilon_of_events([], 1e-5) == 0.0
    assert epsilon_of_events([gaussian(0.3), gaussian(0.4)], 1e-5) == epsilon_of(0.5, 1e-5)
    assert epsilon_of_events([randomised_response(37, 2.0).event("label")], 1e-12) == pytest.approx(
        2.0, rel=1e-9
    )
    assert epsilon_of_events([PureEvent("a", 1.0), PureEvent("b", 0.5)], 1e-14) == pytest.approx(
        1.5, rel=1e-9
    )
    assert math.isinf(epsilon_of_events([PureEvent("a", math.inf), gaussian(1.0)], 1e-5))
    with pytest.raises(UnitMismatchError):
        epsilon_of_events([gaussian(1.0), GaussianEvent("b", 1.0)], 1e-5)


@pytest.mark.parametrize("answers", [1, 5, 20])
def test_padded_releases_compose_between_their_parts_and_the_unpadded_ones(answers: int) -> None:
    mu = 0.6
    padding = 0.5
    delta = 1e-5
    got = epsilon_of_events([PaddedEvent(f"{i}", mu, padding) for i in range(answers)], delta)
    assert got < epsilon_of(mu * math.sqrt(answers), delta)
    if answers == 1:
        assert PaddedEvent("x", mu, padding).delta(got) == pytest.approx(delta, rel=1e-6)
    else:
        # second code: with N = Q a padded release is the mixture (1 - p) N(mu, 1) + p N(0, 1)
        # against N(0, 1), which composition must cover
        rng = np.random.default_rng(1)
        z = rng.standard_normal((200_000, answers)) + mu * (
            rng.random((200_000, answers)) > padding
        )
        loss = np.log(padding + (1 - padding) * np.exp(mu * z - mu**2 / 2)).sum(1)
        assert np.maximum(1 - np.exp(got / 2 - loss), 0).mean() > delta  # half of it would not do
        assert np.maximum(1 - np.exp(got - loss), 0).mean() < 4 * delta


def test_padding_beside_other_releases_is_never_dearer_than_without() -> None:
    events = [PaddedEvent("a", 0.5, 0.3), randomised_response(5, 0.5).event("b"), gaussian(0.2)]
    assert epsilon_of_events(events, 1e-5) <= epsilon_of_events([gaussian(0.5), *events[1:]], 1e-5)


def test_padding_of_zero_changes_nothing() -> None:
    assert epsilon_of_events([PaddedEvent("a", 0.5, 0.0)], 1e-5) == pytest.approx(
        epsilon_of(0.5, 1e-5), rel=1e-9
    )
    for epsilon in (-2.0, -0.1, 0.0, 0.7):
        assert PaddedEvent("a", 0.5, 0.0).delta(epsilon) == pytest.approx(
            delta_of(0.5, epsilon), rel=1e-9
        )


def test_discrete_laplace_has_its_law_and_not_that_of_another_parameter() -> None:
    """KS against the continuous law of the same parameter (1,000 steps): level 1e-4, 20,000
    draws."""
    draws = laplace.sample(20_000, parameter=1000.0, key=KEY)
    assert stats.kstest(draws, stats.laplace(scale=1000.0).cdf).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(draws, stats.laplace(scale=1000.0 * wrong).cdf).pvalue < 1e-4


def test_discrete_laplace_has_exact_ratios_on_the_smallest_grid() -> None:
    """Chi-squared at level 1e-4 against P(z) ~ exp(-|z| / 1.5) for |z| <= 6."""
    draws = laplace.sample(60_000, parameter=1.5, key=KEY)
    z = np.arange(-6, 7)
    counts = np.array([(draws == k).sum() for k in z])
    law = np.exp(-np.abs(z) / 1.5)
    assert stats.chisquare(counts, law / law.sum() * counts.sum()).pvalue > 1e-4
    with pytest.raises(ValueError):
        laplace.sample(3, parameter=0.5, key=KEY)
