"""Bundles of factorisation models: what they rank, what they read, what one click can move."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from scipy import stats

from fedrec.data.features import PublicFeatures, bag_of
from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.factorization.am_ssp.client import PublishedModel
from fedrec.factorization.default_clicks.model import ClickModel
from fedrec.factorization.default_ratings.liked_ranker import LikedRanker
from fedrec.factorization.default_ratings.model import DefaultModel
from fedrec.factorization.rankers import Model
from fedrec.privacy.accounting import delta_of
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec.serving import bundle as files
from fedrec.serving.asking import ask, exact
from fedrec.serving.exporting import Origin, PublicItems
from fedrec.serving.factorization_basis import (
    BasisSettings,
    Released,
    SyntheticSettings,
    factorization_basis,
    latest_liked,
)
from fedrec.serving.model_bundles import factorization_bundle

ITEMS = 60
TASTES = 3
H = 20
FREE = non_private(1e-5, "click", "replace")
CLICK = Guarantee(4.0, 1e-5, "click", "replace")
KEY = bytes(range(32))
SYNTHETIC = SyntheticSettings(users=400)
SETTINGS = BasisSettings(coefficients=4, history=H)


def nobody(kind: str) -> Interactions:
    scale = (1.0, 5.0) if kind == "ratings" else (0.0, 1.0)
    none = np.zeros(0, np.int64)
    return Interactions.from_columns(
        none, none, None, num_users=1, num_items=ITEMS, value_range=scale, kind=kind
    )  # type: ignore[arg-type]


def tastes() -> np.ndarray:
    """(ITEMS, TASTES): item j is of taste j % TASTES."""
    return np.eye(TASTES)[np.arange(ITEMS) % TASTES]


def released(kind: str, seed: int = 1) -> Released:
    """A model in which every item has one taste, and a little of everything."""
    rng = np.random.default_rng(seed)
    vectors = tastes() + 0.05 * rng.standard_normal((ITEMS, TASTES))
    popularity = rng.uniform(1, 3, ITEMS)
    model: Model
    if kind == "clicks":
        model = ClickModel((3 * vectors).astype(np.float32), popularity, 1.0, 20.0)
    elif kind == "published":
        model = PublishedModel(vectors.astype(np.float32), 3.0, 1.0, 1.0)
    else:
        model = DefaultModel(
            vectors, 0.1 * rng.standard_normal(ITEMS), np.full(ITEMS, 0.05), 0.3, 0.5, (1.0, 5.0)
        )
        if kind == "ranked":
            ranker = LikedRanker.of(model, popularity, std=0.8, value_range=(1.0, 5.0))
            model = replace(model, ranker=ranker)
    return Released.of(
        model, popularity, events=15, empty=nobody("clicks" if kind == "clicks" else "ratings")
    )


def exported(kind: str, folder: Path, **more: object) -> files.Bundle:
    path = folder / files.FILE
    files.write(path, *export(released(kind), **more))
    return files.read(path)


def export(of: Released, **more: object) -> tuple[files.About, dict[str, np.ndarray]]:
    names = [f"item {j}" for j in range(ITEMS)]
    catalogue = PublicItems.of_features(
        names, None, PublicFeatures({"genre": bag_of([["ab"[j % 2]] for j in range(ITEMS)])})
    )
    origin = Origin("test", 1e-5, Guarantee(5.0, 1e-5), 5.0, "seeded")
    chosen = {
        "liked": 4.0 if of.like.kind == "ratings" else 0.0,
        "settings": SETTINGS,
        "synthetic": SYNTHETIC,
        **more,
    }
    return factorization_bundle(
        of, catalogue, origin, rng=Streams(1).numpy("serving-basis"), **chosen
    )  # type: ignore[arg-type]


def history_of(taste: int) -> np.ndarray:
    liked = np.flatnonzero(np.arange(ITEMS) % TASTES == taste)[:12]
    return np.concatenate([np.full(H - len(liked), -1), liked]).astype(np.int32)[None]


def top(bundle: files.Bundle, history: np.ndarray, guarantee: Guarantee, k: int = 8) -> np.ndarray:
    scores = (
        bundle.items @ bundle.users(ask(bundle, history, guarantee=guarantee, key=KEY).sent)[0]
        + bundle.bias
    )
    scores[history[history >= 0]] = -np.inf
    return np.argsort(-scores)[:k]


@pytest.mark.parametrize("kind", ["default", "ranked", "clicks", "published"])
@pytest.mark.parametrize("taste", range(TASTES))
def test_a_history_of_one_taste_gets_that_taste_on_top(
    kind: str, taste: int, tmp_path: Path
) -> None:
    bundle = exported(kind, tmp_path)
    # of eight left: popularity may place one other
    assert (top(bundle, history_of(taste), FREE) % TASTES == taste).mean() >= 0.85
    assert (
        top(bundle, history_of(taste), Guarantee(30.0, 1e-5, "click", "replace")) % TASTES == taste
    ).mean() >= 0.7


@pytest.mark.parametrize("kind", ["default", "ranked", "clicks", "published"])
def test_scores_through_the_bundle_are_prior_and_directions_times_the_query(
    kind: str, tmp_path: Path
) -> None:
    of = released(kind)
    bundle = exported(kind, tmp_path)
    rng = Streams(1).numpy("serving-basis")
    basis = factorization_basis(of, SETTINGS, SYNTHETIC, liked=bundle.about.liked, rng=rng)
    history = np.concatenate([history_of(taste) for taste in range(TASTES)])
    expected = (
        basis.sizes.read(exact(bundle, history), noise_std=0.0) @ basis.directions.T + basis.prior
    )
    got = (
        bundle.users(ask(bundle, history, guarantee=FREE, key=KEY).sent) @ bundle.items.T
        + bundle.bias
    )
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


@given(user=st.integers(0, 3), place=st.integers(0, H - 1), new=st.integers(-1, ITEMS - 1))
@examples(max_examples=60)
def test_exchanging_a_click_moves_coefficients_by_at_most_what_the_bundle_states(
    user: int, place: int, new: int, bundle_of_ratings: files.Bundle
) -> None:
    bundle = bundle_of_ratings
    history = np.random.default_rng(user).integers(-1, ITEMS, (1, H)).astype(np.int32)
    other = history.copy()
    other[0, place] = new
    assert np.linalg.norm(
        exact(bundle, history) - exact(bundle, other)
    ) <= bundle.about.sensitivity * (1 + 1e-12)


@pytest.fixture(scope="module")
def bundle_of_ratings(tmp_path_factory: pytest.TempPathFactory) -> files.Bundle:
    return exported("default", tmp_path_factory.mktemp("bundle"))


def test_the_noise_of_a_query_has_the_std_that_is_stated_and_no_other(
    bundle_of_ratings: files.Bundle,
) -> None:
    """Kolmogorov-Smirnov at a false-alarm rate of 1e-3 for a fixed key; 2/3 and 3/2 of the std are
    rejected."""
    history = np.repeat(history_of(1), 3000, axis=0)
    asked = ask(bundle_of_ratings, history, guarantee=CLICK, key=KEY)
    noise = (asked.raw - exact(bundle_of_ratings, history)).ravel() / asked.noise_std
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise / wrong, "norm").pvalue < 1e-6


def test_the_price_of_a_query_is_the_guarantee_by_an_independent_computation(
    bundle_of_ratings: files.Bundle,
) -> None:
    asked = ask(bundle_of_ratings, history_of(0), guarantee=CLICK, key=KEY)
    mu = bundle_of_ratings.about.sensitivity / asked.noise_std
    assert delta_of(mu, CLICK.epsilon) == pytest.approx(CLICK.delta, rel=1e-3)
    # the hockey-stick divergence of N(mu, 1) and N(0, 1), by a sum
    x, step = np.linspace(-12, 12, 200_001, retstep=True)
    p = stats.norm.pdf(x, mu)
    q = stats.norm.pdf(x)
    assert np.maximum(p - math.exp(CLICK.epsilon) * q, 0).sum() * step == pytest.approx(
        CLICK.delta, rel=2e-3
    )


def test_without_noise_a_query_is_the_mean_of_the_rows(bundle_of_ratings: files.Bundle) -> None:
    rows = bundle_of_ratings.rows
    history = history_of(2)
    plain = rows[history[history >= 0]].sum(0) / H * 2.0**-20
    np.testing.assert_allclose(
        ask(bundle_of_ratings, history, guarantee=FREE, key=KEY).raw[0], plain, atol=1e-10
    )


@pytest.mark.parametrize("kind", ["default", "clicks"])
def test_the_export_reads_the_release_and_no_events(kind: str, tmp_path: Path) -> None:
    """The same release from other data gives the same bytes, since data is no argument; what could
    hold events refuses them."""
    assert "events" not in inspect.signature(factorization_bundle).parameters
    first = files.write(tmp_path / "a", *export(released(kind)))
    second = files.write(tmp_path / "b", *export(released(kind)))
    other = files.write(tmp_path / "c", *export(released(kind, seed=2)))
    assert first == second != other
    one = Interactions.from_columns(
        np.zeros(1, int),
        np.zeros(1, int),
        None,
        num_users=1,
        num_items=ITEMS,
        value_range=(1.0, 5.0),
    )
    with pytest.raises(ValueError, match="reads no events"):
        Released.of(released(kind).model, np.ones(ITEMS), events=5.0, empty=one)


def test_categories_titles_and_the_model_go_along(bundle_of_ratings: files.Bundle) -> None:
    assert bundle_of_ratings.about.categories == ("a", "b")
    np.testing.assert_array_equal(
        bundle_of_ratings.categories[:4], np.array([1, 2, 1, 2], np.uint64)
    )
    assert bundle_of_ratings.titles[3] == bundle_of_ratings.ids[3] == "item 3"
    kept = {
        name.removeprefix("model."): a
        for name, a in bundle_of_ratings.more.items()
        if name.startswith("model.")
    }
    again = DefaultModel.of_arrays(kept)
    np.testing.assert_allclose(
        again.item_vectors, released("default").model.item_vectors, atol=1e-6
    )


def test_a_model_that_knows_nothing_is_refused() -> None:
    flat = ClickModel(np.zeros((ITEMS, 2), np.float32), np.ones(ITEMS), 1.0, 20.0)
    with pytest.raises(SettingsError, match="nothing to rank by"):
        export(Released.of(flat, np.ones(ITEMS), events=5.0, empty=nobody("clicks")))


def test_the_latest_likes_are_taken_and_one_exchange_moves_one_place() -> None:
    def table(items: list[int], times: list[int] | None) -> np.ndarray:
        stamps = None if times is None else np.array(times)
        columns = (
            np.zeros(len(items), int),
            np.array(items),
            np.array([5.0, 4.0, 3.0, 5.0, 4.0][: len(items)]),
        )
        events = Interactions.from_columns(
            *columns, num_users=2, num_items=ITEMS, value_range=(1.0, 5.0), times=stamps
        )
        return latest_liked(events, places=2, liked=4.0)

    np.testing.assert_array_equal(table([9, 3, 7, 5, 1], [5, 9, 99, 7, 1]), [[5, 3], [-1, -1]])
    for new in range(10, ITEMS):
        before, after = (set(table([first, 3, 7, 5, 1], None)[0].tolist()) for first in (9, new))
        assert len(before - after) <= 1
        assert len(after - before) <= 1


@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_the_bundle_says_where_the_noise_of_training_came_from(noise: str) -> None:
    origin = Origin("run", 1e-5, Guarantee(5.0, 1e-5), 5.0, noise)  # type: ignore[arg-type]
    names = [f"item {j}" for j in range(ITEMS)]
    catalogue = PublicItems.of_features(names, None, PublicFeatures({}))
    about, _ = factorization_bundle(
        released("ratings"),
        catalogue,
        origin,
        settings=SETTINGS,
        synthetic=SYNTHETIC,
        rng=Streams(1).numpy("serving-basis"),
    )
    assert (about.noise, about.experiment) == (noise, noise == "seeded")
