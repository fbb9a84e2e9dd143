"""Item-item weights from a noised Gram: what is exact without noise, and what is known about
noise."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks import gram_pairs, item_item
from fedrec.factorization.default_clicks.client import user_vectors
from fedrec.factorization.default_clicks.gram_pairs import (
    Chance,
    Pairs,
    beyond,
    beyond_popularity,
    denoised_diagonal,
    shared,
    subspaces,
    tells,
)
from fedrec.factorization.default_clicks.item_item import ItemItem, ease, head_size
from fedrec.factorization.default_clicks.model import ClickModel, ItemItemModel
from fedrec.factorization.default_clicks.spectrum import denoised

K = 40


def some_gram(seed: int = 0, users: int = 500) -> np.ndarray:
    """Z'Z of users' unit vectors, dense."""
    rng = np.random.default_rng(seed)
    X = (
        rng.random((users, K)) < 0.05 + 0.4 * (rng.random((users, 4)) @ rng.random((4, K)) > 1.3)
    ).astype(float)
    Z = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1)
    return np.asarray(Z.T @ Z)


def noise(std: float, size: int, seed: int = 1) -> np.ndarray:
    """The symmetric part of isometric noise."""
    E = np.random.default_rng(seed).standard_normal((size, size)) * std
    return np.asarray((E + E.T) / 2)


def some_clicks(seed: int = 2, num_users: int = 30, num_items: int = K + 5) -> Interactions:
    users, items = np.nonzero(np.random.default_rng(seed).random((num_users, num_items)) < 0.2)
    return Interactions.from_columns(
        users,
        items,
        None,
        num_users=num_users,
        num_items=num_items,
        value_range=(0.0, 1.0),
        kind="clicks",
    )


def weights_of(gram: np.ndarray, std: float = 0.0) -> ItemItem:
    diagonal = denoised_diagonal(
        np.diag(gram), noise_std=std, expected=np.maximum(np.diag(gram), 0.1)
    )
    pairs = shared(gram, diagonal, diagonal, noise_std=std, clicks=8.0)
    return ease(pairs, diagonal, head=np.arange(K), weights=np.ones(K))


def test_weights_of_all_of_a_gram_are_steck_s_closed_form() -> None:
    """Scores of items a user does not have, up to a constant of the user: the weights are centred
    over items, and kept in float32."""
    gram = some_gram()
    P = np.linalg.inv(gram + item_item.RIDGE * np.diag(gram).mean() * np.eye(K))
    B = -P / np.diag(P)
    values, vectors = np.linalg.eigh(gram)
    Q = vectors * np.sqrt(np.maximum(values, 0))
    similar = ease(Pairs(Q), np.diag(gram), head=np.arange(K), weights=np.ones(K))
    ours = similar.left.astype(float) @ similar.right.astype(float).T
    off = ~np.eye(K, dtype=bool)
    for i in range(K):
        difference = (B[i] - ours[i])[off[i]]
        assert np.ptp(difference) < 1e-5 * np.ptp(B[i][off[i]])


def test_the_largest_eigenvalue_of_noise_is_inside_its_edge() -> None:
    """Of 300 x 300 noise, up to its own spread of about K^(-2/3), 2%."""
    for seed in range(20):
        found = denoised(noise(2.0, 300, seed), noise_std=2.0, rank=300)
        assert found.values[0] < 1.05 * 2.0 * math.sqrt(600)
        assert np.count_nonzero(found.shrunk) <= 2
    nothing = np.zeros((K, 1))
    similar = ease(Pairs(nothing), np.ones(K), head=np.arange(K), weights=np.ones(K))
    assert similar.left.shape == (K, 1)
    assert not similar.right.any()
    assert similar.spread == 0


def off_diagonal(matrix: np.ndarray) -> np.ndarray:
    return matrix - np.diag(np.diag(matrix))


@pytest.mark.slow
def test_most_of_the_noise_is_taken_out_of_pairs_and_most_of_tastes_is_left() -> None:
    """A hundred tastes from a tenth of the noise's edge to three times it, five draws: the estimate
    is nearer to them than zero, than what was released, and than eigenvalues cut at the edge. Of
    noise alone a twentieth of its squared norm is left at most: the worst of 20 draws."""
    size = 200
    std = 1.0
    directions = np.linalg.qr(np.random.default_rng(3).standard_normal((size, 100)))[0]
    truth = directions * np.geomspace(2, 60, 100) @ directions.T

    def estimate(released: np.ndarray) -> np.ndarray:
        ones = np.ones(size)
        Q = shared(released, 10 * ones, 10 * ones, noise_std=std, clicks=10.0).Q
        return np.asarray(Q @ Q.T)

    def error(found: np.ndarray) -> float:
        return float(np.linalg.norm(off_diagonal(found - truth)))

    for seed in range(5):
        released = truth + noise(std, size, seed)
        cut = denoised(released, noise_std=std, rank=size)
        ours = error(estimate(released))
        assert ours < 0.98 * error((cut.vectors * cut.shrunk) @ cut.vectors.T)
        assert ours < 0.7 * min(error(released), error(np.zeros((size, size))))
    for seed in range(20):
        alone = noise(std, size, seed)
        assert np.linalg.norm(estimate(alone)) ** 2 < 0.05 * np.linalg.norm(alone) ** 2


@pytest.mark.slow
def test_where_pairs_say_less_than_noise_would_popularity_is_all_that_is_left() -> None:
    """p p' itself, and a diagonal that is not p; and noise alone, half of whose draws have less
    energy than expected: fewer than 3 of 20 with probability 2e-4."""
    popular = np.geomspace(10, 1, K)
    diagonal = np.linspace(5, 1, K)
    pairs = np.outer(popular, popular) / 100
    Q = shared(pairs, diagonal, popular, noise_std=5.0, clicks=8.0).Q
    np.testing.assert_allclose(off_diagonal(Q @ Q.T), off_diagonal(pairs), atol=1e-9)
    alone = [
        shared(noise(5.0, K, seed), diagonal, popular, noise_std=5.0, clicks=8.0).Q
        for seed in range(20)
    ]
    assert sum(np.linalg.matrix_rank(found) <= 1 for found in alone) >= 3


@pytest.mark.slow
def test_two_directions_that_stand_out_bring_in_nothing_of_the_noise_beside_them() -> None:
    """Of 20 draws the mean of what is left beside the two is 2e-4 of the noise's energy; where the
    energy of the two counted for all, 3.6e-3."""
    size = 200
    ones = np.full(200, 10.0)
    directions = np.linalg.qr(np.random.default_rng(3).standard_normal((size, 2)))[0]
    left = []
    for seed in range(20):
        released = 60 * directions @ directions.T + noise(1.0, size, seed)
        Q = shared(released, ones, ones, noise_std=1.0, clicks=1e6).Q
        made = np.linalg.svd(Q, compute_uv=False) ** 2
        assert (made[:2] > 40).all()
        left.append(float(np.sum(made[2:] ** 2)))
    assert np.mean(left) < 1e-3 * size * (size - 1) / 2


@pytest.mark.slow
def test_directions_that_stand_out_are_as_long_as_what_they_are_made_of_says() -> None:
    """Twenty beyond the noise's edge, on average over draws: what is made of them is within 5% of
    what the truth has along their eigenvectors, an eighth less than their eigenvalues."""
    size = 200
    ones = np.full(200, 1e3)
    rng = np.random.default_rng(3)
    directions = np.linalg.qr(rng.standard_normal((size, 20)))[0]
    truth = directions * np.linspace(28, 40, 20) @ directions.T
    made = []
    true = []
    released = []
    for seed in range(10):
        seen = truth + noise(1.0, size, seed)
        Q = shared(seen, ones, 0.01 * ones, noise_std=1.0, clicks=1e9).Q
        vectors, lengths, _ = np.linalg.svd(Q, full_matrices=False)
        top = vectors[:, :15]
        made.append(np.sum(lengths[:15] ** 2))
        true.append(np.trace(top.T @ truth @ top))
        released.append(np.trace(top.T @ seen @ top))
    assert np.mean(made) == pytest.approx(np.mean(true), rel=0.05)
    assert np.mean(released) > 1.15 * np.mean(true)


@pytest.mark.parametrize(("standing_out", "kept"), [(2, 2 / 6), (20, 20 / 24)])
def test_the_more_directions_stand_out_the_more_is_made_of_those_that_do_not(
    standing_out: int, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty directions inside the noise's edge, beside few or many outside
    of it: eigenvalues of what is made of them, over those without `FEW`."""
    size = 200
    ones = np.full(200, 1e3)
    directions = np.linalg.qr(np.random.default_rng(4).standard_normal((size, standing_out + 60)))[
        0
    ]
    strengths = np.concatenate([np.full(standing_out, 60.0), np.full(60, 5.0)])
    released = (directions * strengths) @ directions.T + noise(1.0, size, 7)
    sums = []
    for few in (gram_pairs.FEW, 1e-9):
        monkeypatch.setattr(gram_pairs, "FEW", few)
        Q = shared(released, ones, ones, noise_std=1.0, clicks=1e9).Q
        sums.append(float(np.sum(np.linalg.svd(Q, compute_uv=False)[standing_out + 1 :] ** 2)))
    assert sums[0] / sums[1] == pytest.approx(kept, rel=0.1)


def of_few_people(*, groups: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Gram over 1,000 items and their counts, of 200 people who click by popularity alone, within
    their own of so many groups of items."""
    rng = np.random.default_rng(seed)
    size = 1000
    popular = np.arange(1, size + 1.0) ** -0.8
    rows = np.zeros((200, size))
    for row in rows:
        likely = popular * (np.arange(size) % groups == rng.integers(groups))
        n = int(rng.choice([10, 12, 15, 20, 40, 150 // groups]))
        row[rng.choice(size, n, replace=False, p=likely / likely.sum())] = n**-0.5
    return rows.T @ rows, rows.sum(axis=0) + 0.02


def test_a_spectrum_of_few_users_ends_at_its_edge_and_beyond_that_of_many() -> None:
    """Of 100 users' vectors over 400 items that have nothing in common, less the diagonal."""
    users = 100
    size = 400
    _, edge = Chance(variance=1.0, every=1.0, user=users**-0.5).edges(size)
    for seed in range(5):
        rows = np.random.default_rng(seed).standard_normal((users, size))
        pairs = off_diagonal(rows.T @ rows) / math.sqrt(users)
        assert np.linalg.eigvalsh(pairs)[-1] == pytest.approx(edge, rel=0.05)
        assert Chance(1.0, 1.0, 0.0).edges(size)[1] < 0.6 * edge


def test_pairs_vary_by_who_happened_to_click_as_is_said() -> None:
    """200 people with 4 of 200 items each: the mean variance over pairs, of 40 draws, within a
    tenth. Items share a sixtieth of their diagonal."""
    rng = np.random.default_rng(9)
    size, users, held = 200, 200, 4
    drawn = []
    for _ in range(40):
        X = np.zeros((users, size))
        for row in X:
            row[rng.choice(size, held, replace=False)] = held**-0.5
        drawn.append(X.T @ X)
    seen = off_diagonal(np.var(drawn, axis=0, ddof=1)).sum()
    s = gram_pairs._sampled(np.full(size, users / size), clicks=held, users=users)
    assert off_diagonal(np.outer(s, s)).sum() == pytest.approx(seen, rel=0.1)


def beside_popularity(gram: np.ndarray, counts: np.ndarray, users: float) -> float:
    """What all but the first direction makes of a Gram without noise, over the diagonal."""
    diagonal = np.diag(gram) + 0.02
    Q = shared(gram, diagonal, counts, noise_std=0, clicks=25.0, users=users).Q
    return float(np.sum(np.linalg.svd(Q, compute_uv=False)[1:] ** 2) / np.trace(gram))


@pytest.mark.slow
def test_few_people_who_click_by_popularity_alone_make_few_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fiftieth of the diagonal; were they many, a fifth, and were rare items' own clicks to
    decide how pairs vary, a fifteenth. Where people keep to groups of items, an eighth is left."""
    alone, grouped = (of_few_people(groups=groups, seed=0) for groups in (1, 3))
    left = beside_popularity(*alone, users=200)
    assert left < 0.035
    assert beside_popularity(*alone, users=math.inf) > 4 * left
    assert beside_popularity(*grouped, users=200) > 0.1
    monkeypatch.setattr(gram_pairs, "RARE", 0.0)
    assert beside_popularity(*alone, users=200) > 1.5 * left


def of_content(size: int, seed: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (size, 40), popularity, and pairs that popularity and features make, l = .02."""
    rng = np.random.default_rng(seed)
    F = rng.standard_normal((size, 40))
    popular = rng.uniform(5, 15, size)
    taste = np.column_stack([np.ones(size), 0.4 * F[:, :6]]) * popular[:, None]
    return F, popular, 0.02 * taste @ taste.T


def test_where_noise_hides_what_features_hold_they_are_taken_if_asked_to() -> None:
    """Of 20 draws of noise that hides all, at least 14 (each is taken with probability .93: fewer
    with probability 1e-4), and none where they must be seen. With little noise only what holds much
    is taken, whatever is asked."""
    F, popular, truth = of_content(240)
    basis, _ = subspaces(popular, F)[-1]
    pairs = truth - np.diag(np.diag(truth)) - 0.02 * np.outer(popular, popular)
    other = np.linalg.qr(np.random.default_rng(6).standard_normal(basis.shape))[0]
    taken = {False: 0, True: 0}
    for seed, if_hidden in product(range(20), taken):
        hidden = pairs + noise(300.0, 240, seed)
        shown = pairs + noise(0.5, 240, seed)
        taken[if_hidden] += tells(basis, hidden, 300.0**2 / 2, if_hidden=if_hidden)
        assert tells(basis, shown, 0.5**2 / 2, if_hidden=if_hidden)
        assert not tells(other, shown, 0.5**2 / 2, if_hidden=if_hidden)
    assert (taken[False], taken[True] >= 14) == (0, True)


@pytest.mark.slow
def test_features_tell_what_noise_hides_and_others_change_nothing() -> None:
    """Six tastes that public features explain, of seven tenths of the noise's edge, five draws:
    less than half the squared error, in and outside of the Gram, of what is told without features.
    Features of other items change no byte."""
    size = 240
    told = 200
    F, popular, truth = of_content(size)
    p = popular[:told]
    content = F[:told]
    for seed in range(5):
        gram = truth[:told, :told] + noise(5.0, told, seed)

        def found(features: np.ndarray | None, gram: np.ndarray = gram) -> Pairs:
            return shared(gram, 1e3 * p, p, noise_std=5.0, clicks=1e6, content=features)

        ours = found(content)
        without = found(None)
        of_ours, of_none = (
            np.sum(off_diagonal(pairs.Q @ pairs.Q.T - truth[:told, :told]) ** 2)
            for pairs in (ours, without)
        )
        assert of_ours < 0.5 * of_none
        outside = beyond(ours, popular[told:], F[told:]) @ ours.Q.T - truth[told:, :told]
        by_popularity_alone = 0.02 * np.outer(popular[told:], p) - truth[told:, :told]
        assert np.sum(outside**2) < 0.5 * np.sum(by_popularity_alone**2)
        others = found(np.random.default_rng(seed).permutation(content))
        assert others.public is None
        np.testing.assert_array_equal(others.Q, without.Q)


def test_an_item_outside_of_the_gram_has_the_row_that_its_features_make() -> None:
    """Pairs of popularity and features alone: items of the Gram, as if they were outside of it, get
    their own rows back. None shares more than it has."""
    F, popular, gram = of_content(250)
    known = {"clicks": 1e6, "users": 1e12, "content": F}
    pairs = shared(gram, 1e3 * popular, popular, noise_std=0, **known)
    small = 1e-3  # lengths grow with popularity, what an item has as well
    rows = beyond(pairs, small * popular, F)
    np.testing.assert_allclose(rows / small, pairs.Q, atol=0.05 * np.abs(pairs.Q).max())
    much = beyond(pairs, popular, 100 * F)
    np.testing.assert_allclose(np.sum(much**2, axis=1), popular, rtol=1e-9)


def test_what_stands_on_the_diagonal_says_nothing_of_pairs() -> None:
    gram = some_gram()
    diagonal = np.diag(some_gram())
    released = gram + noise(2.0, K)
    ours, others = (
        shared(known, diagonal, diagonal, noise_std=2.0, clicks=8.0).Q
        for known in (released, released + np.diag(np.arange(K)))
    )
    np.testing.assert_allclose(others, ours, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("exponent", [0.0, 0.25])
def test_people_who_click_by_popularity_alone_are_seen_to_do_so(exponent: float) -> None:
    """Without any noise but that of who happened to click, the estimate of pairs has less than half
    the squared error of the pairs themselves, also where clicks are weighed: two draws of .36 and
    .34."""
    rng = np.random.default_rng(7)
    popularity = np.geomspace(0.4, 0.02, K)
    omega = popularity**-exponent

    def gram(users: int) -> np.ndarray:
        X = (rng.random((users, K)) < popularity) * omega
        Z = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)
        return np.asarray(Z.T @ Z)

    seen = gram(1000)
    truth = gram(200_000) / 200
    diagonal = np.diag(seen)
    clicks = float(popularity.sum())
    Q = shared(seen, diagonal, diagonal, noise_std=0, clicks=clicks, users=1000).Q
    error, usual = (float(np.sum(off_diagonal(found - truth) ** 2)) for found in (Q @ Q.T, seen))
    assert error < 0.5 * usual


def test_a_planted_direction_is_found_and_its_length_shrunk_towards_the_truth() -> None:
    """Gavish and Donoho's shrinkage: closer to the planted matrix than the released eigenvalues
    are, in Frobenius norm."""
    size = 200
    std = 1.0
    u = np.random.default_rng(3).standard_normal(size)
    truth = 40 * np.outer(u, u) / (u @ u)  # twice the edge of the noise
    found = denoised(truth + noise(std, size), noise_std=std, rank=5)
    assert np.count_nonzero(found.shrunk) == 1
    assert found.shrunk[0] < found.values[0]
    shrunk, raw = (
        values[0] * np.outer(found.vectors[:, 0], found.vectors[:, 0])
        for values in (found.shrunk, found.values)
    )
    assert np.linalg.norm(shrunk - truth) < np.linalg.norm(raw - truth)
    assert abs(found.vectors[:, 0] @ u) > 0.8 * np.linalg.norm(u)


def some_single_pairs(size: int, value: float = 8.0) -> np.ndarray:
    """Every item shares `value` with one other, as no matrix of low rank does."""
    other = np.arange(size) ^ 1
    return np.where(np.arange(size)[:, None] == other, value, 0.0)


@pytest.mark.slow
def test_pairs_that_stand_out_one_by_one_are_found_and_noise_is_none() -> None:
    """Beside one direction that all items share, 100 of 19,900 pairs at 11 standard deviations: the
    error is a fifth of that without them, the worst of 10 draws .09. Of noise alone nothing, in all
    of 20 draws."""
    size = 200
    std = 1.0
    ones = np.ones(200)
    truth = some_single_pairs(size) + 0.5 * off_diagonal(np.ones((size, size)))
    for seed in range(10):
        found = shared(
            truth + noise(std, size, seed), 10 * ones, 10 * ones, noise_std=std, clicks=1e6
        )
        assert found.single is not None
        np.testing.assert_array_equal(found.single, found.single.T)
        assert not np.diag(found.single).any()
        missing = off_diagonal(truth - found.Q @ found.Q.T)
        assert np.sum((missing - found.single) ** 2) < 0.2 * np.sum(missing**2)
    for seed in range(20):
        alone = shared(noise(std, size, seed), 10 * ones, 10 * ones, noise_std=std, clicks=1e6)
        assert alone.single is None


@pytest.mark.parametrize("std", [0.0, 10.0, 60.0])
def test_what_pairs_say_beyond_popularity_is_told_beside_noise(std: float) -> None:
    """A direction half for, half against, of a tenth of popularity's energy; at 60 the noise has
    twice that energy, its squares a standard error of a fiftieth: within four of them."""
    size = 200
    popular = np.geomspace(1, 5, 200)
    taste = np.where(np.arange(size) % 4 < 2, 1.0, -1.0)
    told = off_diagonal(4 * np.outer(popular, popular))
    liked = off_diagonal(np.outer(taste, taste))
    liked *= math.sqrt(0.1 * np.sum(told**2) / np.sum(liked**2))
    gram = told + liked + noise(std, size)
    found = beyond_popularity(gram, popular, noise_std=std)
    assert found == pytest.approx(0.1, abs=0.002 + 2.2e-5 * std**2)
    assert beyond_popularity(np.zeros((3, 3)), np.ones(3), noise_std=1.0) == math.inf


@pytest.mark.parametrize("value", [0.5, 50.0])
def test_weights_with_single_pairs_are_steck_s_closed_form(value: float) -> None:
    """At 50 the Gram is not positive: its eigenvalues are lifted to half the ridge."""
    Q = np.random.default_rng(7).standard_normal((K, 3))
    single = some_single_pairs(K, value)
    diagonal = np.full(K, 9.0)
    ridge = item_item.RIDGE * 9
    gram = Q @ Q.T + single + np.diag(np.maximum(diagonal - np.sum(Q**2, axis=1), 0) + ridge)
    lowest = np.linalg.eigvalsh(gram)[0]
    assert (lowest < ridge / 2) == (value == 50)
    P = np.linalg.inv(gram + max(ridge / 2 - lowest, 0) * np.eye(K))
    B = -P / np.diag(P)
    np.fill_diagonal(B, 0)
    weights = np.geomspace(1, 9, K)
    similar = ease(Pairs(Q, single), diagonal, head=np.arange(K), weights=weights)
    ours = similar.left.astype(float) @ similar.right.astype(float).T
    np.testing.assert_allclose(ours, B - B.mean(axis=1, keepdims=True), atol=1e-5)


def test_a_noised_diagonal_leans_on_counts_and_is_positive() -> None:
    rng = np.random.default_rng(4)
    expected = np.geomspace(1, 100, 300)
    truth = expected * np.exp(0.2 * rng.standard_normal(300))
    noisy = truth + 10 * rng.standard_normal(300)
    found = denoised_diagonal(noisy, noise_std=10.0, expected=expected)
    assert np.mean((found - truth) ** 2) < 0.5 * np.mean((noisy - truth) ** 2)
    assert found.min() > 0
    np.testing.assert_array_equal(denoised_diagonal(truth, noise_std=0.0, expected=expected), truth)
    assert denoised_diagonal(-np.ones(5), noise_std=1.0, expected=np.ones(5)).min() > 0


@given(users=st.integers(1, 10**7), items=st.integers(1, 10**6), std=st.floats(0, 1e4))
def test_the_head_is_some_items_and_more_of_them_with_less_noise_or_more_users(
    users: int, items: int, std: float
) -> None:
    size = head_size(users=users, items=items, noise_std=std)
    assert 1 <= size <= min(items, item_item.MOST)
    assert size <= head_size(users=users, items=items, noise_std=std / 2)
    assert size <= head_size(users=2 * users, items=items, noise_std=std)


def test_a_user_s_sum_does_not_depend_on_who_else_is_asked() -> None:
    similar = weights_of(some_gram())
    events = some_clicks()
    together = similar.user_vectors(events)
    for k in range(events.num_users):
        np.testing.assert_array_equal(
            similar.user_vectors(events.users_subset(np.array([k])))[0], together[k]
        )
    X = np.zeros((events.num_users, events.num_items))
    X[events.users, events.items] = 1
    np.testing.assert_allclose(together, X[:, :K] @ similar.left, rtol=1e-5, atol=1e-7)


def test_a_blend_is_what_it_says_score_by_score() -> None:
    """Second code: scores of vectors and of weights, centred over the head and mixed there; other
    items keep their score."""
    events = some_clicks()
    rng = np.random.default_rng(5)
    similar = replace(weights_of(some_gram()), head=np.arange(5, K + 5))
    counts = rng.uniform(1, 9, K + 5)
    V = rng.standard_normal((K + 5, 6)).astype(np.float32)
    w = 0.4
    model = ClickModel(V, counts, 10.0, 20.0, similar, blend=w)
    S = user_vectors(events, V, ridge=10.0, confidence=20.0) @ V.T
    E = similar.user_vectors(events) @ similar.right.T
    expected = S.copy()
    head = S[:, 5:]
    n = np.diff(events.user_ptr)[:, None]
    f = head.std(axis=1, keepdims=True) / (similar.spread * np.sqrt(n))
    expected[:, 5:] = (1 - w) * head + w * (head.mean(axis=1, keepdims=True) + f * E)
    np.testing.assert_allclose(
        model.user_vectors(events) @ model.item_vectors.T, expected, atol=1e-4
    )


def test_items_that_weights_do_not_know_come_last_by_popularity_and_first_for_nobody() -> None:
    events = some_clicks()
    counts = np.arange(K + 5.0)
    model = ItemItemModel(replace(weights_of(some_gram()), head=np.arange(5, K + 5)), counts)
    scores = model.user_vectors(events) @ model.item_vectors.T
    assert (scores[:, 5:].min(axis=1) >= scores[:, :5].max(axis=1)).all()
    assert (np.argsort(-scores[:, :5], axis=1) == np.arange(5)[::-1]).all()
    nobody = events.select(np.zeros(len(events), np.bool_))
    assert (
        np.argsort(-(model.user_vectors(nobody) @ model.item_vectors.T)[0])
        == np.arange(K + 5)[::-1]
    ).all()


def test_weights_of_a_gram_without_noise_predict_held_out_clicks_better_than_popularity() -> None:
    """Two kinds of people, two kinds of items: someone with three clicks of one kind is listed that
    kind."""
    rng = np.random.default_rng(6)
    kind = rng.integers(0, 2, 800)
    of = np.arange(K) % 2
    X = (rng.random((800, K)) < np.where(kind[:, None] == of, 0.3, 0.05)).astype(float)
    Z = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1)
    std = 2.0
    similar = weights_of(Z.T @ Z + noise(std, K), std)
    events = Interactions.from_columns(
        np.zeros(3, np.int64),
        np.array([0, 2, 4]),
        None,
        num_users=1,
        num_items=K,
        value_range=(0.0, 1.0),
        kind="clicks",
    )
    scores = (similar.user_vectors(events) @ similar.right.T)[0]
    first = np.argsort(-scores)[:15]
    assert np.mean(of[first] == 0) == pytest.approx(1)
