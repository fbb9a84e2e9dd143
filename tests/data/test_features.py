import json

import numpy as np
import pytest
from scipy import sparse

from fedrec.data.features import (
    FeatureBag,
    PublicFeatures,
    bag_of,
    idf_weighted,
    joined,
    metadata_bags,
    read_metadata,
    soft_bag,
    split_names,
    svd_embedding,
    title_year,
    words,
)
from fedrec.errors import DataError, MalformedRowError


def random_features(seed: int, items: int = 60) -> PublicFeatures:
    rng = np.random.default_rng(seed)
    lists = [[f"v{p}" for p in rng.integers(0, 25, 5)] for _ in range(items)]
    return PublicFeatures({"a": bag_of(lists), "b": bag_of([values[:2] for values in lists[::-1]])})


def test_a_bag_counts_repeats_and_leaves_out_rare_values():
    bag = bag_of([["x", "y", "x"], ["x"], []], min_items=2)
    assert bag.vocabulary == ("x",)
    np.testing.assert_array_equal(bag.counts.toarray(), [[2], [1], [0]])


def test_a_bag_of_nothing_has_no_columns():
    assert bag_of([[], []]).counts.shape == (2, 0)


def test_words_are_lower_case_without_stop_words_or_numbers():
    assert words("The Postman's 2 Cafés of the North") == ["postman", "cafés", "north"]


def test_soft_weights_fall_on_neighbouring_knots_and_sum_to_one():
    counts = soft_bag(
        np.array([1985.0, np.nan]), (1980, 1990, 2000, 2010, 2020, 2030)
    ).counts.toarray()
    assert counts[0, 0] == counts[0, 1] > counts[0, 2] > 0
    assert counts[0].sum() == pytest.approx(1)
    assert counts[0, 5] == counts[1].sum() == 0


def test_idf_is_log_of_items_over_items_that_carry_the_value():
    features = PublicFeatures({"a": bag_of([["x", "z"], ["x", "x"], ["x"], ["x", "y"]])})
    weighted = idf_weighted(features).bags["a"].counts.toarray()
    np.testing.assert_allclose(weighted[0], [0, 0, np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(weighted[3], [0, np.log(4), 0], rtol=1e-6)


def test_each_bags_row_has_its_weight_as_norm():
    features = random_features(0)
    norms = np.sqrt(joined(features, weights={"b": 0.5}).power(2).sum(axis=1))
    np.testing.assert_allclose(np.asarray(norms).ravel(), np.sqrt(1.25), rtol=1e-6)


def test_svd_embedding_agrees_with_the_dense_decomposition_up_to_the_sign_rule():
    features = random_features(1)
    dense = joined(features).toarray()
    left, values, _ = np.linalg.svd(dense - dense.mean(axis=0), full_matrices=False)
    expected = (left * values)[:, :6]
    expected *= np.sign(expected[np.abs(expected).argmax(axis=0), np.arange(6)])
    np.testing.assert_allclose(svd_embedding(features, dimension=6, seed=0), expected, atol=2e-4)


def test_svd_embedding_pads_with_zeros_beyond_the_rank():
    features = PublicFeatures({"a": bag_of([["x"], ["y"], ["x"], ["y"]])})
    embedding = svd_embedding(features, dimension=5, seed=0)
    assert embedding.shape == (4, 5)
    np.testing.assert_allclose(np.abs(embedding[:, 0]), np.abs(embedding[0, 0]))
    assert np.all(embedding[:, 1:] == 0)
    assert svd_embedding(PublicFeatures({}), dimension=3, seed=0).shape == (0, 3)


def test_svd_embedding_is_the_same_twice():
    features = random_features(2)
    np.testing.assert_array_equal(
        svd_embedding(features, dimension=8, seed=1), svd_embedding(features, dimension=8, seed=1)
    )


def test_bags_of_different_lengths_are_refused():
    bags = {
        "a": bag_of([["x"]]),
        "b": FeatureBag((), sparse.csr_matrix(np.zeros((2, 0), np.float32))),
    }
    with pytest.raises(ValueError, match="one row per item"):
        PublicFeatures(bags)


def test_only_selects_bags_and_refuses_unknown_names():
    assert list(random_features(0).only(["b"]).bags) == ["b"]
    with pytest.raises(ValueError, match="no feature bag"):
        random_features(0).only(["c"])


def test_roles_are_taken_off_and_a_person_counts_once():
    assert split_names(
        "John Lasseter (original story by, with others), Pete Docter (screenplay by), John Lasseter"
    ) == [
        "John Lasseter",
        "Pete Docter",
    ]
    assert split_names(None) == []


def test_year_of_a_title():
    assert title_year("2001: A Space Odyssey (1968)") == 1968
    assert np.isnan(title_year("Untitled"))


RECORD = {
    "movieId": 1,
    "title": "Blue Door (1995)",
    "year": "1995",
    "genre": "Drama, Comedy",
    "director": "A B",
    "actors": "A B, C D",
    "rated": "PG",
}


@pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")
def test_metadata_becomes_one_bag_per_category_with_empty_rows_where_nothing_is_known(tmp_path):
    path = tmp_path / "metadata.jsonl"
    path.write_text(
        "\n".join(
            json.dumps(r)
            for r in (RECORD, RECORD | {"movieId": 7, "runtime": "90 min"}, {"movieId": 99})
        )
    )
    bags, known = read_metadata(path, ["7", "5", "1"], min_items=1)
    assert known == 2
    assert bags["genre"].vocabulary == ("Comedy", "Drama")
    np.testing.assert_array_equal(bags["genre"].counts.toarray(), [[1, 1], [0, 0], [1, 1]])
    assert bags["person"].vocabulary == ("A B", "C D")
    np.testing.assert_array_equal(bags["person"].counts.toarray()[0], [1, 1])
    assert bags["length"].counts[0].sum() == pytest.approx(1)
    assert bags["length"].counts[2].sum() == 0


def test_metadata_bags_need_no_value_at_all():
    assert metadata_bags([{}, {}])["genre"].counts.shape == (2, 0)


@pytest.mark.parametrize("bad", ["{", "[]", '{"title": "x"}', '{"movieId": 1}'])
def test_a_bad_metadata_line_is_named(tmp_path, bad):
    path = tmp_path / "metadata.jsonl"
    path.write_text(json.dumps(RECORD) + "\n" + bad + "\n")
    with pytest.raises(MalformedRowError) as raised:
        read_metadata(path, ["1"])
    assert raised.value.line == 2


def test_metadata_of_other_films_is_refused(tmp_path):
    path = tmp_path / "metadata.jsonl"
    path.write_text(json.dumps(RECORD))
    with pytest.raises(DataError, match="none of the 2 items"):
        read_metadata(path, ["8", "9"])


def test_directions_are_those_of_the_matrix_at_hand_whichever_was_asked_for_before() -> None:
    """Of one shape and pattern, in turns: only the numbers tell the matrices apart."""
    rng = np.random.default_rng(4)
    names = ("a", "b", "c", "d")
    pattern = rng.random((30, 4)) < 0.5
    one, other = (
        PublicFeatures(
            {"bag": FeatureBag(names, sparse.csr_matrix(pattern * (1 + rng.random((30, 4)))))}
        )
        for _ in range(2)
    )
    alone = svd_embedding(one, dimension=2, seed=0)
    between = svd_embedding(other, dimension=2, seed=0)
    assert np.abs(between - alone).max() > 1e-3
    np.testing.assert_array_equal(svd_embedding(one, dimension=2, seed=0), alone)
