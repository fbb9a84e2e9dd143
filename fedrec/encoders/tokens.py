"""Words of public news as numbers: a vocabulary, padded rows of word ids, and the word vectors a
model starts from.

Everything here is a function of the catalogue, which is public, so it costs no budget. Id 0 is the
padding token: its vector e0 is trained like any other (PrivateRec, Sec. 3.2.3), since the anonymous
news is a row of nothing else. Id 1 is any unknown word.

Text files of vectors by word: GloVe (`word 0.1 ...`) and MIND's `entity_embedding.vec`,
`relation_embedding.vec` (tabs).

Read line by line: memory grows with the words that are wanted, not with the file (GloVe 840B is 5.6
GB).
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Int32s
from fedrec.data.delimited import decoded, require_file
from fedrec.data.impressions import News
from fedrec.errors import DataError, MalformedRowError


def read_vectors(path: Path, *, wanted: Collection[str] | None = None) -> dict[str, Float32s]:
    """Word (or entity id) to its vector, (d,) float32, in the file's order; `wanted` None takes all
    of them.

    The first line decides d and whether tabs or blanks separate. Words may hold blanks, as some of
    GloVe 840B do. Where a word comes twice the first counts. Raises DataError on a missing or empty
    file, MalformedRowError at the first line read that is not a word and d finite numbers; lines of
    words that nobody wants are not checked beyond that they have a first field.
    """
    needed = None if wanted is None else {word.encode() for word in wanted}
    found: dict[str, Float32s] = {}
    separator, dimension = _shape_of(require_file(path))
    spaced = None if needed is None else {word.split(separator, 1)[0] for word in needed} | needed
    for line, text in _lines(path):
        if spaced is not None and text.split(separator, 1)[0] not in spaced:
            continue
        word, *numbers = text.rsplit(separator, dimension)
        if needed is not None and word not in needed and len(numbers) == dimension:
            continue
        name = decoded(word, path, line)
        if name not in found:
            found[name] = _vector(path, line, numbers, dimension)
    return found


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line that is not blank; MIND's lines end in a tab."""
    with path.open("rb") as file:
        for line, text in enumerate(file, start=1):
            begun = text.removeprefix(BOM_UTF8) if line == 1 else text
            if content := begun.rstrip(b"\r\n\t "):
                yield line, content


def _shape_of(path: Path) -> tuple[bytes, int]:
    for _, text in _lines(path):
        separator = b"\t" if b"\t" in text else b" "
        if dimension := text.count(separator):
            return separator, dimension
        break
    raise DataError(
        f"{path} does not begin with a word and its numbers",
        "Give a GloVe text file or a .vec file of MIND.",
    )


def _vector(path: Path, line: int, numbers: list[bytes], dimension: int) -> Float32s:
    try:
        vector = (
            np.array(numbers, dtype=np.bytes_).astype(np.float32)
            if len(numbers) == dimension
            else None
        )
    except ValueError:
        vector = None
    if vector is None or not np.isfinite(vector).all():
        raise MalformedRowError(
            path,
            line,
            f"a word and {dimension} numbers",
            b" ".join(numbers).decode("utf-8", "replace")[:80],
        )
    return vector


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
