"""Serving bundle of news with articles that came after training: what ranks them follows from what
everybody may know of them.

    Y = 1 mean' + X B,    X (m, f) leading directions of texts, categories and vectors of the news

Y are the vectors, biases and public rows of the known news, and B is the ridge regression of
`factorization.released`. So a new article is ranked, and is read in histories too.

Guarantee: post-processing of a release, and public data. A device draws the noise of an answer for
the longest distance of any two public rows, those of new articles among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Floats
from fedrec.data.added_items import AddedItems
from fedrec.factorization.released import expected, public_directions
from fedrec.privacy.bounded_mean import BITS, topic_table
from fedrec.serving.bundle import Bundle, Texts
from fedrec.serving.exporting import Export, PublicItems

Today = Callable[[Sequence[str], Sequence[str]], AddedItems]
"""From ids and titles of the trained catalogue to those of today, `added_items.added_items`."""


def with_news(bundle: Bundle, today: Today) -> Export:
    """About and arrays of the bundle with the articles that `today` adds.

    An article of which today's table says nothing has the mean vector. Raises DataError as
    `added_items` and `released.public_directions`."""
    added = today(bundle.ids.all(), bundle.titles.all())
    X = public_directions(added.features)
    told = added.described & X[: bundle.size].any(axis=1)
    about = bundle.about

    def extended(Y: Floats) -> npt.NDArray[np.float64]:
        return np.concatenate([np.asarray(Y, np.float64), expected(Y, X, told)])

    rows = bundle.rows
    if about.form == "additive":
        public = extended(bundle.rows * 2.0**-BITS)
        longest = np.maximum(np.linalg.norm(public, axis=1, keepdims=True), 1.0)
        table = topic_table(public / longest)
        rows = table.rows.astype(np.int32)
        apart = math.nextafter(table.diameter / about.history, math.inf)
        about = about.model_copy(update={"sensitivity": max(apart, about.sensitivity)})
    bias = np.minimum(extended(bundle.bias[:, None])[:, 0], bundle.bias.max())
    listed = PublicItems.of_features(added.ids, added.titles, added.features).listed
    bit = {name: 1 << k for k, name in enumerate(about.categories)}
    new = [sum(bit.get(name, 0) for name in set(names)) for names in listed[bundle.size :]]
    ids = Texts.of(added.ids)
    titles = Texts.of(PublicItems(added.ids, added.titles, listed).shown)
    return about, {
        **bundle.users.arrays(),
        **bundle.more,
        "items": extended(bundle.items).astype(np.float32),
        "bias": bias.astype(np.float32),
        "categories": np.concatenate([bundle.categories, np.array(new, np.uint64)]),
        "rows": rows,
        "mean": bundle.mean,
        "covariance": bundle.covariance,
        "ids.content": ids.content,
        "ids.ptr": ids.ptr,
        "titles.content": titles.content,
        "titles.ptr": titles.ptr,
    }
