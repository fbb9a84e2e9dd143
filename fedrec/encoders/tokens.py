"""Words of public news as numbers: a vocabulary, padded rows of word ids, and the word vectors a
model starts from.

Everything here is a function of the catalogue, which is public, so it costs no budget. Id 0 is the
padding token: its vector e0 is trained like any other (PrivateRec, Sec. 3.2.3), since the anonymous
news is a row of nothing else. Id 1 is any unknown word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Int32s
from fedrec.data.impressions import News

PADDING = 0
"""Id of the padding token, and of a missing category."""
UNKNOWN = 1
"""Id of a word outside the vocabulary."""
_WORD = re.compile(r"\w+|[.,!?;|]")  # the tokeniser of MIND's public baselines
_FIELDS = ("titles", "abstracts", "categories", "subcategories")


def words_of(text: str) -> list[str]:
    """The words and punctuation marks of a text, in lower case."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Words with an id: `words[i]` has the id i + 2, after padding and unknown."""

    words: tuple[str, ...]

    def __len__(self) -> int:
        """Ids in use, padding and unknown among them."""
        return len(self.words) + 2

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of every word."""
        return {word: number for number, word in enumerate(self.words, start=2)}

    def row(self, words: Sequence[str], length: int) -> list[int]:
        """Ids of at most `length` words, padded behind."""
        known = [self.ids.get(word, UNKNOWN) for word in words]
        return known + [PADDING] * (length - len(known))


def vocabulary_of(texts: Iterable[Sequence[str]], *, least_count: int = 1) -> Vocabulary:
    """Words of the texts, lists of words, that occur at least `least_count` times, the frequent
    ones first, equal ones by alphabet."""
    counts = Counter(word for text in texts for word in text)
    kept = [(-count, word) for word, count in counts.items() if count >= least_count]
    return Vocabulary(tuple(word for _, word in sorted(kept)))


@dataclass(frozen=True)
class NewsTokens:
    """m news as numbers. titles: (m, L) int32 word ids, abstracts: (m, L') int32, categories and
    subcategories: (m,) int32, 0 is none."""

    vocabulary: Vocabulary
    titles: Int32s
    abstracts: Int32s
    categories: Int32s
    subcategories: Int32s
    num_categories: int
    num_subcategories: int

    def __len__(self) -> int:
        return len(self.titles)


def tokenise(
    news: News,
    *,
    title_length: int = 30,
    abstract_length: int = 50,
    title_fields: Sequence[str] = ("titles",),
    least_count: int = 1,
) -> NewsTokens:
    """Number the words of a catalogue.

    A title row is the first `title_length` words of `title_fields`, columns of `news`, one after
    the other: titles as published, or e.g. ("titles", "categories", "abstracts") where titles say
    little, as with films. `abstract_length` 0 is for models that read no abstracts. The vocabulary
    has the words within those lengths that occur `least_count` times, so no vector is without use.

    Raises ValueError for other columns, a title length below 1, an abstract length below 0.
    """
    if (
        not title_fields
        or not set(title_fields) <= set(_FIELDS)
        or title_length < 1
        or abstract_length < 0
    ):
        raise ValueError(
            f"need fields of {_FIELDS} and lengths >= 1 and >= 0, found "
            f"{tuple(title_fields)}, {title_length}, {abstract_length}"
        )
    joined = zip(*(getattr(news, field) for field in title_fields), strict=True)
    titles = [words_of(" ".join(parts))[:title_length] for parts in joined]
    abstracts = [words_of(text)[:abstract_length] for text in news.abstracts]
    vocabulary = vocabulary_of([*titles, *abstracts], least_count=least_count)
    categories = _numbered(news.categories)
    subcategories = _numbered(news.subcategories)
    return NewsTokens(
        vocabulary,
        _rows(vocabulary, titles, title_length),
        _rows(vocabulary, abstracts, abstract_length),
        categories,
        subcategories,
        int(categories.max(initial=0)) + 1,
        int(subcategories.max(initial=0)) + 1,
    )


def word_vectors(
    vocabulary: Vocabulary,
    width: int,
    *,
    rng: np.random.Generator,
    given: Mapping[str, npt.NDArray[np.floating]] | None = None,
) -> Float32s:
    """(len(vocabulary), width) vectors to start from: those of `given` (e.g. GloVe, (width,) each)
    where there are, else Gaussian.

    Random rows have the root mean square of the given ones, or 1 / sqrt(width) per coordinate
    without any, so that no word outshouts another by its origin. Padding is random too. Raises
    ValueError if a given vector has another width.
    """
    found = {
        vocabulary.ids[word]: vector
        for word, vector in (given or {}).items()
        if word in vocabulary.ids
    }
    shapes = {np.shape(vector) for vector in found.values()}
    if shapes - {(width,)}:
        raise ValueError(f"word vectors must have shape ({width},), found {sorted(shapes)}")
    rows = rng.standard_normal((len(vocabulary), width))
    known = np.array([*found.values()], np.float64).reshape(-1, width)
    rows *= np.sqrt(np.mean(known**2)) if len(known) else width**-0.5
    rows[list(found)] = known
    return rows.astype(np.float32)


def _rows(vocabulary: Vocabulary, texts: Sequence[Sequence[str]], length: int) -> Int32s:
    return np.array([vocabulary.row(text, length) for text in texts], np.int32).reshape(
        len(texts), length
    )


def _numbered(names: Sequence[str]) -> Int32s:
    """Ids from 1 in alphabetical order, 0 for the empty name."""
    ids = {name: number for number, name in enumerate(sorted(set(names) - {""}), start=1)}
    return np.array([ids.get(name, PADDING) for name in names], np.int32)
