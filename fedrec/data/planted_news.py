"""Planted news and the clicks on them, of any size and from a seed alone: texts, topics,
popularity, and interests that drift.

News j has a category, a subcategory s_j of it, a title and an abstract with words of both, an
exposure (long-tailed) and a quality q_j. User k has an interest in every subcategory, which moves
in a straight line from where its history begins to where its last impression ends. At time t in [0,
1] it sees distinct news, drawn by exposure and new to it, and clicks where

    strength * interest_k(s_j, t) + q_j + Gumbel noise

is largest: a draw from the softmax of what stands before the noise, the utility, which
`PlantedNews.utilities` tells. No model ranks better than the utilities in expectation. Better news
are shown more, and what is shown more is clicked more; but among the candidates, which exposure has
chosen already, popularity alone ranks little better than chance.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s, Int32s, Int64s
from fedrec.data.clicklog import ClickLog, draw_one
from fedrec.data.impressions import Impressions, News
from fedrec.numerics import compiled
from fedrec.randomness import Streams

_CATEGORIES = (
    "sports", "news", "finance", "lifestyle", "health", "travel", "food", "autos", "weather",
    "video", "music", "movies", "television",
    "games", "science", "technology", "arts", "kids",
)  # fmt: skip
_GENERAL_WORDS = 600
_CATEGORY_WORDS = 40
_SUBCATEGORY_WORDS = 20
"""Sizes of the three invented vocabularies."""
# general, of the category, of the subcategory
_TITLE_WORDS = (2, 3, 4)
_ABSTRACT_WORDS = (8, 6, 10)  # as above
_SLATE = 12  # news seen for each click of the history
_SHARED = 0.75  # of the variance of interests: what the subcategories of a category have in common
_OF_TASTES = 0.8  # of the variance of interests in categories, where there are tastes


@dataclass(frozen=True)
class PlantedNewsShape:
    """Sizes, and how strongly what decides a click.

    history_mean, impressions_mean: per user; histories are log-normal from 1 to 8 times their mean,
    impressions 1 + Poisson. candidates: of an impression. several: share of impressions with a
    second click. drift: correlation lost between a user's first and last interests. tastes: so
    many, each a liking for some categories and against others, explain `_OF_TASTES` of the variance
    of interests in categories: who reads one reads another, which no text says. 0: interests in
    categories are independent.
    """

    users: int
    news: int
    subcategories: int = 5
    history_mean: float = 32.0
    impressions_mean: float = 4.6
    candidates: int = 37
    several: float = 0.0
    strength: float = 1.8
    quality: float = 0.5
    drift: float = 0.3
    tastes: int = 0

    def __post_init__(self) -> None:
        if (
            min(
                self.users - 9,
                self.news,
                self.subcategories,
                self.history_mean,
                self.impressions_mean,
                self.candidates - 2,
            )
            < 1
        ):
            raise ValueError(
                f"sizes must be positive, with at least 10 users and 3 candidates, found {self}"
            )
        if not (0 <= self.several <= 1 and 0 <= self.drift <= 1):
            raise ValueError(
                f"several and drift must be in [0, 1], found {self.several} and {self.drift}"
            )
        if self.news < 4 * (8 * self.history_mean + self.candidates):
            raise ValueError(
                f"{self.news} news are too few for histories of {self.history_mean:g} on average"
            )


NEWS_SHAPES: dict[str, PlantedNewsShape] = {
    "small": PlantedNewsShape(users=300, news=500, history_mean=10, candidates=10),
    "demo": PlantedNewsShape(
        users=3_000, news=2_000, history_mean=25, impressions_mean=10, tastes=4
    ),
    "mind-small": PlantedNewsShape(users=50_000, news=51_282, several=0.25),
}


@dataclass(frozen=True)
class PlantedNews:
    """News, impressions by users who are in one part only (81, 9 and 10%), and the utility of every
    candidate of each part, float32."""

    shape: PlantedNewsShape
    news: News
    log: ClickLog
    utilities: dict[str, Float32s]


def planted_news(shape: PlantedNewsShape, *, seed: int) -> PlantedNews:
    """Planted news; equal shapes and seeds give equal bytes.

    Memory: 4 (users x subcategories x 2 x 18 + 2.25 candidates) bytes and the texts."""
    streams = Streams(seed)
    rng = streams.numpy("planted-news")
    subcategory = rng.integers(0, len(_CATEGORIES) * shape.subcategories, shape.news).astype(
        np.int32
    )
    quality = (shape.quality * rng.standard_normal(shape.news)).astype(np.float32)
    better_first = np.argsort(
        np.argsort(-quality - shape.quality * rng.standard_normal(shape.news))
    )
    exposure = (better_first + 0.02 * shape.news + 1) ** -1.2
    everyone, utilities = _clicks(shape, subcategory, quality, np.cumsum(exposure), streams)
    # nine tenths train, of them a tenth validates
    ends = [0, round(0.81 * shape.users), round(0.9 * shape.users), shape.users]
    parts = [everyone.users_subset(np.arange(a, b)) for a, b in itertools.pairwise(ends)]
    cuts = everyone.candidate_ptr[np.searchsorted(everyone.users, ends)]
    names = ("train", "validation", "test")
    truth = {name: utilities[a:b] for name, a, b in zip(names, cuts, cuts[1:], strict=False)}
    return PlantedNews(
        shape,
        _texts(shape, subcategory, streams.numpy("planted-news-texts")),
        ClickLog(*parts),
        truth,
    )


def _clicks(
    shape: PlantedNewsShape,
    subcategory: Int32s,
    quality: Float32s,
    cumulated: Float64s,
    streams: Streams,
) -> tuple[Impressions, Float32s]:
    """The impressions of all users, by user, and the utility of each candidate."""
    rng = streams.numpy("planted-news-users")
    sizes = shape.history_mean * np.exp(0.8 * rng.standard_normal(shape.users) - 0.32)
    history_ptr = _pointers(  # numbers of clicks are whole; a log-normal one may be any size
        np.clip(np.round(sizes), 1, int(8 * shape.history_mean)).astype(np.int64)
    )
    impression_ptr = _pointers(1 + rng.poisson(shape.impressions_mean - 1, shape.users))
    shown = int(impression_ptr[-1]) * shape.candidates
    history = np.empty(history_ptr[-1], np.int32)
    candidates = np.empty(shown, np.int32)
    clicked = np.zeros(shown, np.bool_)
    utilities = np.empty(shown, np.float32)
    _fill(
        history_ptr, impression_ptr, cumulated, subcategory, quality, *_interests(shape, rng),
        shape.several,
        streams.numpy("planted-news-clicks"), history, candidates.reshape(-1, shape.candidates),
        clicked.reshape(-1, shape.candidates),
        utilities.reshape(-1, shape.candidates),
    )  # fmt: skip
    users = np.repeat(np.arange(shape.users, dtype=np.int32), np.diff(impression_ptr))
    candidate_ptr = np.arange(len(users) + 1, dtype=np.int64) * shape.candidates
    return Impressions(
        shape.news, history_ptr, history, users, candidate_ptr, candidates, clicked
    ), utilities


def _interests(shape: PlantedNewsShape, rng: np.random.Generator) -> tuple[Float32s, Float32s]:
    """(users, 18 * subcategories) at the beginning and at the end, of variance strength^2, most of
    it shared within a category."""

    loadings = rng.standard_normal((shape.tastes, len(_CATEGORIES)), np.float32)
    loadings *= np.sqrt(_OF_TASTES / np.maximum((loadings**2).sum(axis=0), 1e-9), dtype=np.float32)

    def fresh() -> Float32s:
        categories = rng.standard_normal((shape.users, len(_CATEGORIES)), np.float32)
        if shape.tastes:
            categories *= np.float32(np.sqrt(1 - _OF_TASTES))
            categories += rng.standard_normal((shape.users, shape.tastes), np.float32) @ loadings
        wide = np.repeat(categories, shape.subcategories, axis=1)
        wide *= np.float32(np.sqrt(_SHARED))
        wide += np.float32(np.sqrt(1 - _SHARED)) * rng.standard_normal(wide.shape, np.float32)
        return np.float32(shape.strength) * wide

    first = fresh()
    other = fresh()
    return first, np.float32(1 - shape.drift) * first + np.float32(
        np.sqrt(1 - (1 - shape.drift) ** 2)
    ) * other


def _texts(shape: PlantedNewsShape, subcategory: Int32s, rng: np.random.Generator) -> News:
    names = [f"{category}-{p + 1}" for category in _CATEGORIES for p in range(shape.subcategories)]
    kinds = [_CATEGORIES[s // shape.subcategories] for s in subcategory]
    subcategories = [names[s] for s in subcategory]
    about = rng.integers(0, 3, (shape.news, 2))  # two of the three entities of a subcategory
    return News(
        ids=tuple(f"N{j + 1}" for j in range(shape.news)),
        titles=_sentences(subcategory, shape.subcategories, _TITLE_WORDS, rng),
        abstracts=_sentences(subcategory, shape.subcategories, _ABSTRACT_WORDS, rng),
        categories=tuple(kinds),
        subcategories=tuple(subcategories),
        entities=tuple(
            tuple({f"Q{3 * s + a + 1}": None, f"Q{3 * s + b + 1}": None})
            for s, (a, b) in zip(subcategory, about, strict=True)
        ),
    )


def _sentences(
    subcategory: Int32s, each: int, counts: tuple[int, int, int], rng: np.random.Generator
) -> tuple[str, ...]:
    """Words in random order; within its lexicon, a word is drawn with a weight that falls with its
    rank."""
    owners = np.zeros_like(subcategory), subcategory // each, subcategory
    sizes = (_GENERAL_WORDS, _CATEGORY_WORDS, _SUBCATEGORY_WORDS)
    lexicons = (
        ("word",),
        _CATEGORIES,
        [f"{category}{chr(97 + p % 26)}" for category in _CATEGORIES for p in range(each)],
    )
    vocabulary = np.array(
        [
            f"{name}{w + 1}"
            for names, size in zip(lexicons, sizes, strict=True)
            for name in names
            for w in range(size)
        ]
    )
    starts = np.cumsum(
        [0, *(len(names) * size for names, size in zip(lexicons, sizes, strict=True))]
    )
    columns = [
        starts[level]
        + owner[:, None] * sizes[level]
        + (sizes[level] * rng.random((len(subcategory), count)) ** 2).astype(np.int64)
        for level, (owner, count) in enumerate(zip(owners, counts, strict=True))
    ]
    written = vocabulary[rng.permuted(np.hstack(columns), axis=1)]
    return tuple(" ".join(row) for row in written.tolist())


def _pointers(sizes: npt.NDArray[np.integer]) -> Int64s:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@compiled()
def _fill(
    history_ptr: Int64s, impression_ptr: Int64s, cumulated: Float64s, subcategory: Int32s,
    quality: Float32s, first: Float32s,
    last: Float32s, several: float, rng: np.random.Generator, history: Int32s, candidates: Int32s,
    clicked: npt.NDArray[np.bool_],
    utilities: Float32s,
) -> None:  # fmt: skip
    """User by user: its history click by click, then its impressions.

    `taken` stamps what a user clicked, `seen` what a page shows."""
    taken = np.full(len(cumulated), -1, np.int64)
    seen = np.full(len(cumulated), -1, np.int64)
    slate = np.empty(_SLATE, np.int32)
    page = 0
    slate_utility = np.empty(_SLATE, np.float32)
    noisy = np.empty(max(_SLATE, candidates.shape[1]))
    for k in range(len(first)):
        clicks = history_ptr[k + 1] - history_ptr[k]
        total = clicks + impression_ptr[k + 1] - impression_ptr[k]
        for e in range(total):
            t = np.float32(e / total)
            page = page + 1
            kept = e < clicks
            i = impression_ptr[k] + e - clicks
            shown, utility = (slate, slate_utility) if kept else (candidates[i], utilities[i])
            best = 0
            second = -1
            for c in range(len(shown)):
                j = draw_one(cumulated, rng)
                while taken[j] == k or seen[j] == page:
                    j = draw_one(cumulated, rng)
                s = subcategory[j]
                seen[j] = page
                shown[c] = j
                utility[c] = (1 - t) * first[k, s] + t * last[k, s] + quality[j]
                noisy[c] = utility[c] - np.log(-np.log(1 - rng.random()))
                if c > 0 and noisy[c] > noisy[best]:
                    second = best
                    best = c
                elif c > 0 and (second < 0 or noisy[c] > noisy[second]):
                    second = c
            taken[shown[best]] = k
            if kept:
                history[history_ptr[k] + e] = shown[best]
                continue
            clicked[i, best] = True
            if rng.random() < several:
                clicked[i, second] = True
                taken[shown[second]] = k
            for c in range(len(shown) - 1, 0, -1):  # in any order, as MIND's are
                other = int(rng.random() * (c + 1))
                shown[c], shown[other] = shown[other], shown[c]
                utility[c], utility[other] = utility[other], utility[c]
                clicked[i, c], clicked[i, other] = clicked[i, other], clicked[i, c]
