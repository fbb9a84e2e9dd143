"""What is given as public was not counted from the private data."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import fedrec
from fedrec.errors import DataWarning

RNG = np.random.default_rng(1)
ROWS = RNG.random((300, 60)) < np.linspace(0.05, 0.6, 60)
USERS, ITEMS = np.nonzero(ROWS)
LOG = pl.DataFrame({"user": USERS, "item": ITEMS})


def items(column: str, values: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({"item": np.arange(60), column: values})


def test_a_column_that_orders_items_as_their_counts_do_is_warned_of_by_name() -> None:
    """As it is, rounded, or turned round. No refusal, which whoever made the table would see."""
    counts = ROWS.sum(axis=0)
    for values in (counts, counts // 10, 1000 - counts):
        with pytest.warns(DataWarning, match="'reviews'"):
            fedrec.Dataset.from_frame(LOG, items=items("reviews", values))


def test_numbers_that_say_something_else_are_taken() -> None:
    found = fedrec.Dataset.from_frame(LOG, items=items("year", 1990 + RNG.integers(0, 30, 60)))
    assert list(found.source.features.bags) == ["year"]


def test_weights_of_pairs_that_were_counted_here_are_warned_of() -> None:
    one, other = np.triu_indices(60, 1)
    both = (ROWS.T.astype(int) @ ROWS)[one, other]
    pairs = pl.DataFrame({"item": one, "other": other, "score": both})
    with pytest.warns(DataWarning, match="pairs of clicks"):
        fedrec.Dataset.from_frame(LOG, similar_items=pairs)
    drawn = pairs.with_columns(score=RNG.random(len(one)))
    assert (
        "similar items" in fedrec.Dataset.from_frame(LOG, similar_items=drawn).source.features.bags
    )
    links = pairs.select("item", "other").head(40)
    assert (
        "similar items" in fedrec.Dataset.from_frame(LOG, similar_items=links).source.features.bags
    )


def test_a_coordinate_of_vectors_that_is_a_count_is_warned_of() -> None:
    drawn = RNG.standard_normal((60, 5))
    counted = drawn.copy()
    counted[:, 3] = np.log(ROWS.sum(axis=0))
    frame = pl.DataFrame({"item": np.arange(60), "vector": drawn.tolist()})
    assert "item vectors" in fedrec.Dataset.from_frame(LOG, item_vectors=frame).source.features.bags
    with pytest.warns(DataWarning, match="coordinate"):
        fedrec.Dataset.from_frame(
            LOG, item_vectors=frame.with_columns(vector=pl.Series(counted.tolist()))
        )
