import numpy as np
import pytest

from fedrec.data.impressions import News
from fedrec.encoders.tokens import PADDING, UNKNOWN, tokenise, vocabulary_of, word_vectors, words_of
from fedrec.randomness import Streams


def some_news() -> News:
    titles = ("Rain, rain and rain!", "The sun", "")
    abstracts = ("It rains.", "A star called sun", "no title here")
    return News(
        ("a", "b", "c"),
        titles,
        abstracts,
        ("weather", "space", ""),
        ("local", "", "odd"),
        ((), (), ()),
    )


def test_words_are_lower_case_and_marks_are_words() -> None:
    assert words_of("It's 3 O'Clock, Zürich!") == ["it", "s", "3", "o", "clock", ",", "zürich", "!"]


def test_vocabulary_orders_by_count_then_alphabet_and_drops_the_rare() -> None:
    vocabulary = vocabulary_of([["b", "a", "c"], ["b", "a"], ["b"]], least_count=2)
    assert vocabulary.words == ("b", "a")
    assert vocabulary.row(["a", "never", "b"], 5) == [3, UNKNOWN, 2, PADDING, PADDING]
    assert len(vocabulary) == 4


def test_tokens_are_cut_at_the_length_padded_behind_and_spell_the_text() -> None:
    tokens = tokenise(some_news(), title_length=4, abstract_length=3)
    words = (None, None, *tokens.vocabulary.words)
    assert [words[i] for i in tokens.titles[0]] == ["rain", ",", "rain", "and"]
    assert tokens.titles.dtype == np.int32
    assert tokens.titles.shape == (3, 4)
    assert tokens.abstracts.shape == (3, 3)
    assert [words[i] for i in tokens.titles[1]] == ["the", "sun", None, None]
    assert tokens.titles[2].tolist() == [PADDING] * 4
    assert "!" not in words  # behind the cut: it would be a vector without use


def test_categories_are_numbered_and_the_missing_one_is_padding() -> None:
    tokens = tokenise(some_news())
    assert tokens.categories.tolist() == [2, 1, PADDING]
    assert tokens.subcategories.tolist() == [1, PADDING, 2]
    assert (tokens.num_categories, tokens.num_subcategories) == (3, 3)


def test_title_rows_may_hold_other_columns_too() -> None:
    tokens = tokenise(
        some_news(),
        title_length=6,
        abstract_length=0,
        title_fields=("titles", "categories", "abstracts"),
    )
    words = (None, None, *tokens.vocabulary.words)
    assert [words[i] for i in tokens.titles[1]] == ["the", "sun", "space", "a", "star", "called"]
    assert tokens.abstracts.shape == (3, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"title_fields": ("ids",)},
        {"title_fields": ()},
        {"title_length": 0},
        {"abstract_length": -1},
    ],
)
def test_other_columns_and_lengths_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="need fields of"):
        tokenise(some_news(), **wrong)  # type: ignore[arg-type]


def test_given_vectors_are_taken_and_the_others_are_random_at_their_scale() -> None:
    vocabulary = vocabulary_of([[f"w{i}" for i in range(2000)]])
    given = {"w7": np.full(8, 3.0), "w8": np.full(8, -3.0), "not a word of ours": np.zeros(8)}
    rows = word_vectors(vocabulary, 8, rng=Streams(1).numpy("words"), given=given)
    assert rows.dtype == np.float32
    assert rows.shape == (2002, 8)
    np.testing.assert_array_equal(
        rows[[vocabulary.ids["w7"], vocabulary.ids["w8"]]], [[3.0] * 8, [-3.0] * 8]
    )
    # 2,000 x 8 normal draws: the empirical std is within 5 of its standard deviations, 5.6e-3
    # relative, but for 6e-7 of seeds
    assert rows[: len(vocabulary) - 100].std() == pytest.approx(3.0, rel=5 * 0.0056)
    assert np.abs(rows[PADDING]).max() > 0


def test_the_same_stream_draws_the_same_vectors() -> None:
    vocabulary = vocabulary_of([["a", "b"]])
    draws = [word_vectors(vocabulary, 3, rng=Streams(seed).numpy("words")) for seed in (1, 1, 2)]
    assert draws[0].tobytes() == draws[1].tobytes() != draws[2].tobytes()


def test_vectors_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        word_vectors(
            vocabulary_of([["a"]]), 4, rng=Streams(0).numpy("words"), given={"a": np.zeros(3)}
        )
