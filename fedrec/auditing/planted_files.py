"""A small planted data set as files, with one person and without: what an attack on the whole
command begins with.

The person is the first of the file and all its ratings are the highest, so that its reports are as
long as they may be; every item it names is named by others too, so that the catalogue is the same
without it. Ids are words, as in a file that somebody brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedrec.data.planted import PlantedShape, planted
from fedrec.settings_tables.data import DataSettings

PERSON = "a-person"
_SHAPE = PlantedShape(users=60, items=24, events=60 * 7, least_events=4)
_OF_PERSON = 10  # events: enough for every split to leave some to train on
_RATINGS = (1.0, 5.0)


def planted_neighbours(seed: int, folder: Path, *, clicks: bool) -> Iterator[DataSettings]:
    """Write two files into `folder`, with the person and without, and yield where each is."""
    rows = _rows(seed)
    for name, kept in (("with", rows), ("without", [row for row in rows if row[0] != PERSON])):
        path = folder / f"{name}.csv"
        header, width = ("user,item,timestamp", 3) if clicks else ("user,item,timestamp,rating", 4)
        path.write_text(
            "\n".join([header, *(",".join(map(str, row[:width])) for row in kept)]) + "\n"
        )
        yield DataSettings(
            path=str(path),
            format="table",
            columns={name: name for name in ("user", "item", "timestamp", "rating")[:width]},
            rating_range=None if clicks else _RATINGS,
        )


def _rows(seed: int) -> list[tuple[str, str, int, int]]:
    """(user, item, time, rating) of everybody, the person first; times rise within a user and are
    spread over all."""
    events = planted(replace(_SHAPE), seed=seed).interactions
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(10**9, 10**9 + 10**8, len(events) + _OF_PERSON))
    order = rng.permutation(len(times))
    common = np.argsort(-np.bincount(events.items, minlength=events.num_items), kind="stable")[
        :_OF_PERSON
    ]
    columns = [
        np.concatenate([np.full(_OF_PERSON, -1), events.users]),
        np.concatenate([common, events.items]),
    ]
    values = np.concatenate([np.full(_OF_PERSON, _RATINGS[1]), events.values])
    return [
        (
            PERSON if user < 0 else f"user-{user:03d}",
            f"item-{item:03d}",
            int(times[place]),
            int(value),
        )
        for user, item, place, value in zip(*columns, order, values, strict=True)
    ]
