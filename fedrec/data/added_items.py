"""Today's catalogue beside that of a training: known items first, then those that came after it,
with what everybody may know of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from fedrec.data.columns import usual
from fedrec.data.features import FeatureBag, PublicFeatures, words
from fedrec.data.frames import items_of_frame, polars_frame
from fedrec.data.ids import require_named
from fedrec.data.interactions import Dataset
from fedrec.data.item_tables import frame_of_items, untitled
from fedrec.data.public_sources import (
    ITEM_VECTORS,
    SIMILAR_ITEMS,
    item_vectors_bag,
    pairs_of_frame,
    rows_in_order,
    similar_items_bag,
    with_bag,
)
from fedrec.errors import DataError, DataWarning, warn

_TEXTS = ("abstract", "description", "plot", "summary")
"""Columns that are read by their words, as titles are."""


@dataclass(frozen=True)
class AddedItems:
    """ids: (m + n), the m known ones first. titles: of each. features: rows in that order.
    described: (m,) the known items that today's catalogue names. not_covered: sentences on what of
    it was read off people's rows."""

    ids: tuple[str, ...]
    titles: tuple[str, ...]
    features: PublicFeatures
    described: npt.NDArray[np.bool_]
    not_covered: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """How many items are new."""
        return len(self.ids) - len(self.described)


def added_items(
    known: Sequence[str],
    titles: Sequence[str],
    today: Any,
    *,
    similar_items: Any = None,
    item_vectors: Any = None,
    item: str | None = None,
) -> AddedItems:
    """Items of `today` that `known` lacks, after it. known, titles: of the trained catalogue.

    today: a data set, or a table of items as a frame or a file's path, known items among them:
    what is known of these tells what to expect of the others. similar_items, item_vectors: frames
    or paths, of the items of both. item: column of ids, None for a usual name.

    Raises DataError where `today` names no known item, or says nothing that tells items apart."""
    not_covered = today.provenance.not_covered if isinstance(today, Dataset) else ()
    if isinstance(today, Dataset):
        ids, names, features = today.catalogue.item_ids, today.catalogue.titles, today.features
    else:
        ids, names, features = _of_table(_frame(today, "frame of items"), item)
    # most of what was news is none today
    require_named(known, ids, "the table of today's items", few=0.01)
    now = set(ids)
    described = np.array([one in now for one in known], np.bool_)
    if note := untitled(ids, names or ids, "the table of today's items"):
        warn(DataWarning(note))
    old = set(known)
    order = (*known, *(one for one in ids if one not in old))
    called = dict(zip(known, titles, strict=True)) | dict(zip(ids, names or (), strict=False))
    features = _in_order(features, ids, order)
    if similar_items is not None:
        pairs = _frame(similar_items, "frame of similar items")
        bag = similar_items_bag(
            pairs_of_frame(pairs), Path("similar items"), order, width=pairs.width
        )
        features = with_bag(features, SIMILAR_ITEMS, bag)
    if item_vectors is not None:
        vectors = _frame(item_vectors, "frame of item vectors")
        features = with_bag(
            features, ITEM_VECTORS, item_vectors_bag(vectors, Path("item vectors"), order)
        )
    shown = tuple(called.get(one, "").strip() or one for one in order)
    return AddedItems(order, shown, features, described, not_covered)


def _of_table(
    frame: pl.DataFrame, item: str | None
) -> tuple[tuple[str, ...], tuple[str, ...] | None, PublicFeatures]:
    names = [item] if item in frame.columns else usual("item", frame.columns)
    if not names:
        raise DataError(
            f"the table of items has no column of ids: it has {', '.join(frame.columns)}",
            "Call one item, or as in the training data.",
        )
    texts = [name for name in frame.columns if name.lower() in _TEXTS]
    said = frame.with_columns(pl.col(texts).cast(pl.String).map_elements(_bag, pl.String))
    table = items_of_frame(said, names[0])
    return table.ids, table.titles, table.features


def _bag(text: str) -> str:
    """Words as the values of a field."""
    return "|".join(words(text))


def _frame(given: Any, what: str) -> pl.DataFrame:
    if isinstance(given, str | Path):
        return frame_of_items(Path(given))
    return polars_frame(given, what=what)


def _in_order(features: PublicFeatures, ids: Sequence[str], order: Sequence[str]) -> PublicFeatures:
    """Rows of `ids` in `order`; values that are items, too."""
    bags = {}
    for name, bag in features.bags.items():
        counts = rows_in_order(bag.counts, ids, order)
        if name == SIMILAR_ITEMS:
            counts = rows_in_order(counts.T.tocsr(), ids, order).T.tocsr()
        bags[name] = FeatureBag(tuple(order) if name == SIMILAR_ITEMS else bag.vocabulary, counts)
    return PublicFeatures(bags)
