import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.evaluation import als
from fedrec.evaluation.als import Posterior
from fedrec.factorization.facts import predict


def _planted(
    rng: np.random.Generator, *, users: int, items: int, width: int, noise: float
) -> tuple[Interactions, np.ndarray]:
    truth = (
        rng.normal(0, 0.5, (users, width)) @ rng.normal(0, 1, (width, items))
        + rng.normal(0, 0.4, (users, 1))
        + rng.normal(0, 0.4, items)
    )
    u, i = np.nonzero(rng.random((users, items)) < 0.4)
    y = (truth[u, i] + rng.normal(0, noise, len(u))).astype(np.float32)
    return Interactions.from_columns(
        u, i, y, num_users=users, num_items=items, value_range=(-20.0, 20.0)
    ), truth


def test_a_posterior_is_the_one_of_bayes_rule_written_out() -> None:
    rng = np.random.default_rng(0)
    events, _ = _planted(rng, users=7, items=5, width=2, noise=0.1)
    mean = rng.normal(size=(5, 3))
    factor = rng.normal(size=(5, 3, 3))
    other = Posterior(mean, factor @ factor.transpose(0, 2, 1))
    prior = np.diag([1.0, 2.0, 0.3])
    noise = 0.7
    found = als._posterior(
        als._Side(events.items, als._by_user(events)),
        other,
        events.values,
        noise=noise,
        prior=prior,
    )
    for k in range(events.num_users):
        precision = np.linalg.inv(prior)
        moment = np.zeros(3)
        for e in range(events.user_ptr[k], events.user_ptr[k + 1]):
            j = events.items[e]
            x = np.append(mean[j, :2], 1.0)
            C = np.zeros((3, 3))
            C[:2, :2] = other.covariance[j, :2, :2]
            precision += (np.outer(x, x) + C) / noise
            moment += x * (events.values[e] - mean[j, 2]) / noise
        np.testing.assert_allclose(
            found.covariance[k], np.linalg.inv(precision), rtol=2e-4, atol=1e-6
        )
        np.testing.assert_allclose(
            found.mean[k], np.linalg.solve(precision, moment), rtol=2e-4, atol=1e-5
        )


def test_a_planted_answer_is_found_and_so_is_its_noise() -> None:
    events, truth = _planted(np.random.default_rng(1), users=300, items=120, width=2, noise=0.3)
    # twice the width that is there
    *_, model = als.alternate(events, width=4, iterations=25, rng=np.random.default_rng(2))
    u, i = np.nonzero(np.ones_like(truth))
    everything = Interactions.from_columns(
        u,
        i,
        truth[u, i].astype(np.float32),
        num_users=300,
        num_items=120,
        value_range=(-20.0, 20.0),
    )
    error = np.sqrt(np.mean((predict(model, events, everything) - everything.values) ** 2))
    # 300 x 48 ratings of noise .3 for 1,260 numbers: .3 sqrt(1260 / 14400) = .09
    assert error < 0.11
    assert model.noise == pytest.approx(0.09, rel=0.1)


def test_the_expected_square_error_is_that_of_draws_from_the_posteriors() -> None:
    """Monte Carlo of 100,000 draws a side; a wrong term would be off by more than 10%."""
    rng = np.random.default_rng(3)
    sides = [
        Posterior(
            rng.normal(size=(4, 3)), np.stack([np.diag(rng.uniform(0.2, 1, 3)) for _ in range(4)])
        )
        for _ in range(2)
    ]
    y = rng.normal(size=4).astype(np.float32)
    U, V = (
        s.mean + rng.standard_normal((100_000, 4, 3)) * np.sqrt(np.einsum("nii->ni", s.covariance))
        for s in sides
    )
    drawn = y - U[..., 2] - V[..., 2] - np.einsum("snd,snd->sn", U[..., :2], V[..., :2])
    every = np.arange(4)
    assert als._noise(*sides, every, every, y) == pytest.approx(float(np.mean(drawn**2)), rel=0.02)


def test_items_and_users_without_ratings_have_finite_vectors() -> None:
    events = Interactions.from_columns(
        np.array([0, 0]),
        np.array([1, 2]),
        np.array([1.0, 4.0], np.float32),
        num_users=3,
        num_items=4,
        value_range=(1.0, 5.0),
    )
    *_, model = als.alternate(events, width=2, iterations=3, rng=np.random.default_rng(4))
    assert np.isfinite(model.item_vectors).all()
    assert np.isfinite(model.user_vectors(events)).all()
