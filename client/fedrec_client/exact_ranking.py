"""Ranking on the device, by the clicks themselves: what the server would rank without noise, or
better where the model is in the bundle.

A factorisation model comes with its released parts (`model.*`), so the device solves its own vector
from the whole history, with its ratings; any other model is ranked through the bundle's user map,
with coefficients before noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import tie_keys
from fedrec.factorization.model import Model, ranker_of
from fedrec.factorization.released import model_of
from fedrec.privacy.guarantee import non_private
from fedrec.registry import model_kinds
from fedrec.serving.asking import ask
from fedrec.serving.bundle import Bundle
from fedrec.serving.ranking import Exact, Query

Event = tuple[int, float | None]
"""Row of an item, and its rating where there is one."""


def best(
    bundle: Bundle,
    window: npt.NDArray[np.int32],
    events: Sequence[Event],
    *,
    k: int,
    categories: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Rows and scores of the k best items that are not in `events`, best first. window: (H,) rows;
    categories: bits, 0 for all."""
    seen = {row for row, _ in events}
    model = released_model(bundle)
    if model is None:
        found = Exact(bundle)(
            [Query(_unnoised(bundle, window), min(k + len(seen), bundle.size), categories)]
        )[0]
        rows = found.items.astype(np.int64)
        scores = found.scores.astype(np.float64)
    else:
        rows, scores = _by_local_solve(model, bundle, events, categories)
    unseen = ~np.isin(rows, list(seen))
    return rows[unseen][:k], scores[unseen][:k]


def is_everybodys(
    bundle: Bundle, events: Sequence[Event], rows: npt.NDArray[np.int64], *, categories: int
) -> bool:
    """Whether these rows, best first, are those that a reader of nothing gets, less what is in
    `events`."""
    seen = [row for row, _ in events]
    nothing = np.full(bundle.about.history, -1, np.int32)
    found, _ = best(bundle, nothing, (), k=len(rows) + len(seen), categories=categories)
    return bool(np.array_equal(rows, found[~np.isin(found, seen)][: len(rows)]))


def released_model(bundle: Bundle) -> Model | None:
    """The factorisation model in a bundle, None where there is none."""
    arrays = {
        name.removeprefix("model."): array
        for name, array in bundle.more.items()
        if name.startswith("model.")
    }
    for kind in model_kinds() if arrays else ():
        with suppress(KeyError):
            return model_of(arrays, kind)
    return None


def _unnoised(bundle: Bundle, window: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """(B,) what would be sent without noise."""
    nothing = non_private(bundle.about.delta, "click", "replace")
    sent: npt.NDArray[np.float32] = ask(
        bundle, window[None], guarantee=nothing, key=bytes(32)
    ).sent[0]
    return sent


def _by_local_solve(
    model: Model, bundle: Bundle, events: Sequence[Event], categories: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Every item that is allowed, best first, by the vector that the device solves from all
    events."""
    history = _interactions(bundle, events)
    ranker = ranker_of(model)
    scores = (
        ranker.item_vectors.astype(np.float64)
        @ np.asarray(ranker.user_vectors(history), np.float64)[0]
        + ranker.offset
    )
    rows = np.lexsort((tie_keys(np.arange(len(scores))), -scores))
    if categories:
        rows = rows[bundle.categories[rows] & np.uint64(categories) != 0]
    return rows.astype(np.int64), scores[rows]


def _interactions(bundle: Bundle, events: Sequence[Event]) -> Interactions:
    """One user.

    Of two events on an item the later counts; a rating that is missing is the best there is, and
    none is off the scale."""
    kept = dict(events)
    clicked = bundle.about.family == "clicks"
    given = [rating for rating in kept.values() if rating is not None]
    scale = bundle.more.get(
        "model.value_range", np.array([min(given, default=0.0), max(given, default=1.0)])
    )
    low, high = (0.0, 1.0) if clicked else (float(end) for end in scale)
    values = np.array([high if rating is None or clicked else rating for rating in kept.values()])
    return Interactions.from_columns(
        np.zeros(len(kept), np.int32),
        np.array(list(kept), np.int32),
        np.clip(values, low, high),
        num_users=1,
        num_items=bundle.size,
        value_range=(low, high),
        kind="clicks" if clicked else "ratings",
    )
