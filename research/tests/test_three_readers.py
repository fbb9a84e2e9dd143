"""Three readers have histories of their own, and what their lists share is counted by hand."""

import numpy as np
import pytest

from fedrec.data.features import PublicFeatures, bag_of
from fedrec.data.interactions import Interactions
from fedrec_research.quality import three_readers


def train_of(counts: list[int]) -> Interactions:
    users = np.concatenate([np.arange(n) for n in counts])
    return Interactions.from_columns(
        users,
        np.repeat(np.arange(len(counts)), counts),
        np.full(len(users), 3.0),
        num_users=max(counts),
        num_items=len(counts),
        value_range=(1.0, 5.0),
    )


def test_a_reader_likes_the_most_rated_of_its_genre_alone_without_the_first_five() -> None:
    genres = [[genre] for genre in three_readers.THREES[0] for _ in range(7)]
    genres += [["Horror", "Film-Noir"], ["Horror", "Drama"]]
    train = train_of([*range(1, 22), 90, 80])
    (found,) = three_readers.threes(PublicFeatures({"listed_genre": bag_of(genres)}), train)
    assert {genre: items.tolist() for genre, items in found.items()} == {
        "Children's": [1, 0],
        "Film-Noir": [8, 7],
        "Horror": [16, 15, 14],  # the best known is a drama too; one of both is nobody's
    }
    events = three_readers.events(found, train, draws=2)
    assert events.num_users == 6
    assert events.items.reshape(2, 7).tolist() == [[0, 1, 7, 8, 14, 15, 16]] * 2
    assert set(events.values.tolist()) == {5.0}


@pytest.mark.parametrize("genres", [None, [["Drama"]] * 20])
def test_data_without_three_genres_has_no_readers(genres: list[list[str]] | None) -> None:
    features = PublicFeatures({} if genres is None else {"genre": bag_of(genres)})
    assert three_readers.threes(features, train_of([1] * 20)) == []


def test_what_lists_share_is_counted_over_pairs_and_draws() -> None:
    first = [[1, 2, 3, 4], [4, 3, 2, 1], [5, 6, 7, -1]]
    second = [[1, 2, 8, 9], [1, 5, 6, 0], [5, 6, 1, -1]]
    lists = np.array([first, second], np.int32)
    found = three_readers.shared(lists)
    assert found["each_pair"] == [(4 + 1) / 2, (0 + 1) / 2, (0 + 3) / 2]
    assert found["mean"] == pytest.approx(9 / 6)
    assert found["most"] == 4
    assert found["draws_of_few"] == 0.5  # no pair shares more than three in the second draw
    assert found["same_reader"] == pytest.approx((2 + 1 + 2) / 3)
    alone = three_readers.shared(lists[:1])
    assert alone["same_reader"] is None
