from dataclasses import replace

import numpy as np
import pytest

from fedrec.data.features import svd_embedding
from fedrec.data.planted import (
    SHAPES,
    PlantedShape,
    generate_chunks,
    planted,
    planted_truth,
    shape_of_sizes,
    write_parquet,
)
from fedrec.data.read import read

SHAPE = PlantedShape(users=1500, items=300, events=60_000)


@pytest.fixture(scope="module")
def data():
    return planted(SHAPE, seed=3)


@pytest.fixture(scope="module")
def truth():
    return planted_truth(SHAPE, seed=3)


def test_sizes_are_the_declared_ones_and_each_users_items_are_distinct_and_sorted(data):
    events = data.interactions
    assert (len(events), events.num_users, events.num_items) == (60_000, 1500, 300)
    inside = np.ones(len(events), dtype=bool)
    inside[events.user_ptr[:-1]] = False
    assert np.all(np.diff(events.items.astype(int), prepend=-1)[inside] > 0)
    assert np.diff(events.user_ptr).min() >= SHAPE.least_events
    assert np.diff(events.user_ptr).max() <= SHAPE.most_events


def test_ratings_lie_on_the_public_scale(data):
    assert set(np.unique(data.interactions.values)) == {1, 2, 3, 4, 5}
    half = planted(replace(SHAPE, value_range=(0.5, 5.0), step=0.5), seed=3).interactions
    assert set(np.unique(half.values)) == set(np.arange(1, 11) / 2)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(data):
    again = planted(SHAPE, seed=3).interactions
    other = planted(SHAPE, seed=4).interactions
    for name in ("user_ptr", "items", "values", "times"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data.interactions, name))
    assert not np.array_equal(other.items, again.items)


def test_chunks_of_any_size_join_to_the_whole(data):
    chunks = list(generate_chunks(SHAPE, seed=3, events_per_chunk=7_000))
    assert len(chunks) > 5
    assert max(len(chunk.interactions) for chunk in chunks) <= 7_000 + SHAPE.most_events
    for name in ("items", "values", "times"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(c.interactions, name) for c in chunks]),
            getattr(data.interactions, name),
        )
    assert [c.first_user for c in chunks] == [
        0,
        *np.cumsum([c.interactions.num_users for c in chunks])[:-1],
    ]


def test_written_parts_and_items_read_back_to_the_same_data_set(tmp_path, data):
    files = write_parquet(tmp_path, SHAPE, seed=3, events_per_chunk=20_000)
    assert files[-1].name == "items.csv"
    options = {
        "rating": "rating",
        "timestamp": "timestamp",
        "rating_range": (1, 5),
        "item_features": files[-1],
    }
    back = read(tmp_path, "table", **options)
    assert back.catalogue == data.catalogue
    for name in ("user_ptr", "items", "values", "times"):
        np.testing.assert_array_equal(
            getattr(back.interactions, name), getattr(data.interactions, name)
        )
    for name, bag in back.features.bags.items():
        if name != "title":
            assert bag.counts.sum() == data.features.bags[name].counts.sum()


def test_the_long_tail_is_long(data):
    counts = np.sort(np.bincount(data.interactions.items, minlength=300))[::-1]
    assert counts[:30].sum() > 0.35 * counts.sum()
    assert counts[150:].sum() < 0.12 * counts.sum()
    active = np.sort(np.diff(data.interactions.user_ptr))[::-1]
    assert active[:300].sum() > 0.4 * active.sum()


def test_the_noise_floor_is_what_the_truth_leaves_over(data, truth):
    """The ratings' deviations from their planted means have the size that the noise gives them, and
    no linear trace of the truth."""
    events = data.interactions
    left = events.values - truth.expected(events)
    assert 0.9 * SHAPE.noise_std < truth.noise_floor(events) < 1.05 * SHAPE.noise_std
    assert abs(left.mean()) < 5 * left.std() / np.sqrt(len(left))  # false alarm 6e-7
    assert abs(np.corrcoef(left, truth.affinity(events))[0, 1]) < 5 / np.sqrt(len(left))


def test_planted_signals_have_their_declared_sizes(truth):
    inner = truth.user_vectors @ truth.item_vectors.T
    assert inner.std() == pytest.approx(SHAPE.interaction_std, rel=0.1)
    assert truth.item_bias.std() == pytest.approx(SHAPE.item_bias_std, rel=0.01)
    assert truth.user_bias.std() == pytest.approx(SHAPE.user_bias_std, rel=0.1)


def test_the_better_features_explain_item_vectors_the_better_they_predict_unseen_items():
    """Share of variance that ridge regression on public coordinates explains of the last quarter of
    the items, fitted on the others."""

    def share(explained: float) -> float:
        shape = replace(SHAPE, items=1200, explained=explained)
        F = svd_embedding(planted(shape, seed=5).features, dimension=60, seed=0).astype(np.float64)
        V = planted_truth(shape, seed=5).item_vectors.astype(np.float64)
        F = np.concatenate([F / F.std(axis=0).max(), np.ones((1200, 1))], axis=1)
        W = np.linalg.solve(F[:900].T @ F[:900] + 3 * np.eye(61), F[:900].T @ V[:900])
        return float(1 - np.mean((V[900:] - F[900:] @ W) ** 2) / V[900:].var())

    nothing = share(0.0)
    half = share(0.5)
    most = share(0.9)
    assert nothing < 0.02 < 0.15 < half < most - 0.1


def test_clicks_follow_popularity_and_affinity():
    shape = replace(SHAPE, kind="clicks")
    events = planted(shape, seed=3).interactions
    truth = planted_truth(shape, seed=3)
    assert events.kind == "clicks"
    assert np.all(events.values == 1)
    counts = np.bincount(events.items, minlength=300)
    assert np.corrcoef(np.log1p(counts), np.log(truth.popularity))[0, 1] > 0.7
    clicked = np.einsum(
        "nd,nd->n", truth.user_vectors[events.users], truth.item_vectors[events.items]
    ).mean()
    strangers = np.einsum(
        "nd,nd->n", truth.user_vectors[np.roll(events.users, 777)], truth.item_vectors[events.items]
    ).mean()
    assert clicked > strangers + 0.1


def test_a_shape_that_cannot_be_met_is_refused():
    with pytest.raises(ValueError, match="events must be between"):
        PlantedShape(users=10, items=10, events=1000)
    # such users would look for an item that they have not seen, without end
    with pytest.raises(ValueError, match="distinct items: 10 events each need as many"):
        PlantedShape(users=10, items=5, events=100)


def test_presets_have_the_shapes_they_are_named_for():
    assert (SHAPES["ml10m"].users, SHAPES["ml10m"].items, SHAPES["ml10m"].events) == (
        69_878,
        10_677,
        10_000_000,
    )
    assert SHAPES["ml10m_x10"].events == 10 * SHAPES["ml10m"].events
    skewed = planted(SHAPES["skewed"], seed=1).interactions
    counts = np.sort(np.bincount(skewed.items, minlength=skewed.num_items))
    assert counts[-skewed.num_items // 10 :].sum() / len(skewed) == pytest.approx(0.86, abs=0.01)


def test_sizes_alone_make_a_shape_with_the_strengths_of_the_presets():
    shape = shape_of_sizes(2_000, 500, 50_000)
    assert shape == PlantedShape(
        users=2_000, items=500, events=50_000, least_events=20, value_range=(0.5, 5.0), step=0.5
    )
    assert shape_of_sizes(2_000, 500, 8_000).least_events == 4
    wide = shape_of_sizes(300, 120, 7_500, value_range=(0.0, 9.0), step=1.0)
    assert (wide.mean, wide.noise_std) == pytest.approx((2 * (3.6 - 0.5), 1.5))
    values = planted(wide, seed=1).interactions.values
    assert (values.min(), values.max()) == (0.0, 9.0)
    with pytest.raises(ValueError, match="events must be between"):
        shape_of_sizes(10, 10, 1_000)
