"""A data format and a metric from outside."""

import numpy as np
import polars as pl

from fedrec.data.frames import read_frame
from fedrec.data.read import Reader


def read_json_lines(path, *, rating_range=(1.0, 5.0)):
    return read_frame(pl.read_ndjson(path), rating="stars", rating_range=rating_range)


READER = Reader(
    "one JSON object a line: user, item, stars",
    read_json_lines,
    lambda path: path.suffix == ".jsonl",
)


def first_is_hit(lists, targets, k):
    """1 where the first of a list is a target."""
    found = np.zeros(len(lists))
    for user in range(len(lists)):
        found[user] = (
            lists[user, 0] in targets.items[targets.user_ptr[user] : targets.user_ptr[user + 1]]
        )
    return found
