"""Public rows: every item as B numbers, from text or from categories. No click is looked at, so
none is paid for.

Directions: the first B coordinates of the item vectors, made length 1. They are signed, so that two
rows lie up to 2 apart and not up to sqrt2, but tell more of an item: what is ranked by is nearly
their inner product.
Topics from text: k-means with k-means++ seeds (Arthur & Vassilvitskii 2007) on item vectors of
length 1, and s_i = softmax(cos(v_i, c) / T) over the centres c. The smaller the temperature T, the
nearer to one topic per item: rows then lie farther apart (up to sqrt2, which is what is noised),
and a history's mean says more. Categories: equal shares among those an item has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s
from fedrec.data.features import METADATA_WEIGHTS, PublicFeatures, bag_of, svd_embedding, words
from fedrec.data.ids import require_named
from fedrec.data.impressions import News
from fedrec.encoders.word_vectors import read_vectors
from fedrec.privacy.bounded_mean import TopicTable, topic_table

VECTOR_WIDTH = 200  # by judgement, not fitted: so are the weights of parts below
# by judgement, not fitted
_NEWS_WEIGHTS = {
    "category": 1.0,
    "subcategory": 1.0,
    "headline": 1.0,
    "abstract": 0.7,
    "entity": 0.7,
}


def public_vectors(
    news: News, features: PublicFeatures, *, seed: int, dimension: int = VECTOR_WIDTH
) -> Float32s:
    """(m, dimension) of each item's public features and texts, root mean square row norm 1; zero
    rows where nothing is known.

    features: bags that came with the items; without any, the bags of `news_features` are taken.
    """
    bags = features if features.bags else news_features(news)
    vectors = svd_embedding(
        bags, dimension=dimension, seed=seed, weights=METADATA_WEIGHTS | _NEWS_WEIGHTS
    )
    said = [np.diff(bag.counts.indptr) > 0 for bag in bags.bags.values()]
    vectors[~np.any(said, axis=0)] = 0  # centring would give all of these one row
    norm = float(np.sqrt((vectors.astype(np.float64) ** 2).sum(1).mean()))
    return vectors / np.float32(norm or 1.0)


def entity_vectors(news: News, path: Path) -> Float32s:
    """(m, d) the mean vector of each item's entities, root mean square row norm 1; zero rows where
    none has a vector.

    Raises DataError on a file that names none of them; warns where it names few.
    """
    wanted = {name for names in news.entities for name in names}
    found = read_vectors(path, wanted=wanted)
    require_named(sorted(wanted), found, path, what="entities of these news", few=0.5)
    means = np.zeros((len(news), len(next(iter(found.values())))), np.float32)
    for item, names in enumerate(news.entities):
        if known := [found[name] for name in names if name in found]:
            means[item] = np.mean(known, axis=0)
    return np.asarray(
        means / (float(np.sqrt((means.astype(np.float64) ** 2).sum(1).mean())) or 1.0), np.float32
    )


def news_features(news: News) -> PublicFeatures:
    """Bags of a catalogue of news: categories, words that at least 3 items share, entities that 2
    share."""
    bags = {
        "category": bag_of([(name,) if name else () for name in news.categories]),
        "subcategory": bag_of([_parts(name) for name in news.subcategories]),
        "headline": bag_of([words(text) for text in news.titles], min_items=3),
        "abstract": bag_of([words(text) for text in news.abstracts], min_items=3),
        "entity": bag_of(news.entities, min_items=2),
    }
    return PublicFeatures({name: bag for name, bag in bags.items() if bag.vocabulary})


def leading(vectors: npt.NDArray[np.floating], *, width: int) -> Float32s:
    """(m, `width`) principal coordinates of `vectors` (m, p), centred, by falling variance.

    Raises ValueError on more than there are."""
    if not 1 <= width <= vectors.shape[1]:
        raise ValueError(f"need 1 to {vectors.shape[1]} coordinates, found {width}")
    X = np.asarray(vectors, np.float64)
    X = X - X.mean(0)
    _, Q = np.linalg.eigh(X.T @ X)
    Q *= np.sign(Q[np.abs(Q).argmax(0), np.arange(Q.shape[1])])  # eigenvectors have no sign
    return np.asarray(X @ Q[:, ::-1][:, :width], np.float32)


def category_topics(news: News) -> tuple[TopicTable, tuple[str, ...]]:
    """(m, B) equal shares among the categories of each item, and their names, sorted; a row of
    zeros where an item has none."""
    bag = bag_of(listed_categories(news))
    counts = np.asarray(bag.counts.todense(), np.float64)
    return topic_table(counts / np.maximum(counts.sum(1, keepdims=True), 1.0)), bag.vocabulary


def listed_categories(news: News) -> list[Sequence[str]]:
    """Categories of each item: several where its subcategory lists them with `|` between (film
    genres), else its one category, or none."""
    pairs = zip(news.categories, news.subcategories, strict=True)
    return [_parts(sub) if "|" in sub else (name,) if name else () for name, sub in pairs]


def _parts(names: str) -> Sequence[str]:
    return tuple(name for name in names.split("|") if name)
