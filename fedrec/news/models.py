"""News models of the published kinds, made from a scenario's words, and how a trained one
serves.

Start of the training of a news model: what the public catalogue says by itself. No click is
looked at, so none is paid for.

- Words start as the mean vector of the news that hold them (`public_words`), as GloVe's do for the
  paper, which needs a file.
- A basis starts at B clusters of news as the fresh user encoder sees them (`start_basis`). From a
  random basis, attention is almost the same for everybody, and what is noised tells nothing; behind
  it, in the variant `local`, a user encoder learns nothing either.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from fedrec.arrays import Float32s, Int32s
from fedrec.data.ids import require_named
from fedrec.data.impressions import News
from fedrec.encoders.news import NamlUsers, NrmsUsers
from fedrec.encoders.news_model import (
    NAML_PUBLISHED,
    NRMS_PUBLISHED,
    NewsModel,
    NewsModelSettings,
    naml,
    nrms,
    plm_nr,
)
from fedrec.encoders.tokens import NewsTokens, tokenise, word_vectors
from fedrec.encoders.word_vectors import read_vectors
from fedrec.news.local_update import recentre, user_vectors
from fedrec.news.text_topics import kmeans
from fedrec.news.variant import of
from fedrec.randomness import Streams
from fedrec.settings import NewsScenario

_LENGTH = 2.0  # of a basis vector: scores of a fresh model are then near 1
# standard deviation of what the softmax of attention sees, over invented readers: the largest
# weight is then about .85
_SPREAD = 4.0
# how many, of how many news, from clusters in shares of Dirichlet(_MIX)
_READERS = 400
_CLICKS = 50  # as many as a history of MIND holds
_MIX = 0.5  # below 1: most readers have one or two interests
_WORD_WIDTH = {"small": 64, "published": 300}
_LEAST_COUNT = 2  # a word that occurs once says nothing of other news


def public_words(tokens: NewsTokens, vectors: Float32s, *, width: int) -> Float32s | None:
    """(vocabulary, width) for every word the mean of the first `width` coordinates of `vectors` (m,
    p) over the places that hold it.

    Root mean square 1 / sqrt(width), as random words have; padding and unknown words are words too.
    None where the vectors are zero.
    """
    rows = np.concatenate([tokens.titles, tokens.abstracts], 1)
    news = np.repeat(np.arange(len(rows)), rows.shape[1])
    held = sparse.csr_matrix(
        (np.ones(rows.size), (rows.ravel(), news)), (len(tokens.vocabulary), len(rows))
    )
    words = (held @ vectors[:, :width].astype(np.float64)) / np.maximum(held.sum(1), 1)
    size = math.sqrt(np.mean(np.square(words)))
    return np.asarray(words / (size * math.sqrt(width)), np.float32) if size else None


def start_basis(model: NewsModel, vectors: Float32s, *, rng: np.random.Generator) -> None:
    """Set the basis of a fresh model, and the size of user vectors, so that attention tells
    clusters of news from each other.

    The basis vectors are the directions in which readers of one cluster differ from the average of
    invented readers, of one length: a reader of a cluster then has its largest weight there.
    """
    assert model.basis is not None
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    alone, mixed = invented_readers(unit, len(model.basis.vectors), rng=rng)
    if isinstance(model.users, NamlUsers):
        model.users.scale.fill_(_LENGTH)  # no longer as published: from here on it is centred
        recentre(model)
    with torch.no_grad():
        users = user_vectors(model, mixed)
        pure = user_vectors(model, alone)
        mean = users.mean(0)
        away = pure - mean
        # the average reader then prefers no vector
        away -= torch.outer(away @ mean, mean) / (mean @ mean).clamp(min=1e-30)
        away *= _LENGTH / torch.linalg.vector_norm(away, dim=1, keepdim=True).clamp(min=1e-30)
        model.basis.vectors.copy_(away)
        _enlarge(model, _SPREAD / max(_spread(users, away), 1e-30))


def invented_readers(
    vectors: npt.NDArray[np.floating], clusters: int, *, rng: np.random.Generator
) -> tuple[Int32s, Int32s]:
    """(clusters, n) news of one k-means cluster of `vectors` each, and (readers, n) news of
    several: histories of nobody."""
    X = np.asarray(vectors, np.float64)
    centres = kmeans(X, clusters, rng=rng)
    nearest = ((centres**2).sum(1) - 2 * X @ centres.T).argmin(1)
    found = [np.flatnonzero(nearest == i) for i in range(clusters)]
    members = [some if len(some) else np.arange(len(X)) for some in found]
    alone = np.stack([rng.choice(some, _CLICKS) for some in members])
    chosen = [
        rng.choice(clusters, _CLICKS, p=rng.dirichlet(np.full(clusters, _MIX)))
        for _ in range(_READERS)
    ]
    mixed = np.array([[rng.choice(members[i]) for i in row] for row in chosen])
    return alone.astype(np.int32), mixed.astype(np.int32)


def _spread(users: Tensor, basis: Tensor) -> float:
    logits = users @ basis.T / math.sqrt(basis.shape[1])
    return float((logits - logits.mean(0)).std())


def _enlarge(model: NewsModel, factor: float) -> None:
    """Every user vector by `factor`: by NRMS's values, or by the scale of NAML's averages."""
    if isinstance(model.users, NamlUsers):
        model.users.scale.mul_(factor)
    elif isinstance(model.users, NrmsUsers):
        model.users.attention.project.chunk(3, -1)[2].mul_(factor)


def news_model(scenario: NewsScenario, news: News, vectors: Float32s, *, basis: int) -> NewsModel:
    """The scenario's model, with a basis of `basis` vectors or none, at its public start. Raises
    DataError on files that cannot be read.

    Only `printed` starts at a random basis, as the paper does, unless it is told otherwise.
    """
    rng = Streams(scenario.seed).numpy("news-model")
    settings = replace(_sizes(scenario), basis_size=basis)
    model = _encoders(scenario, news, vectors, settings, rng)
    random = (in_rounds := of(scenario).in_rounds) and in_rounds.random_basis
    if basis and not (random and "public-start" not in scenario.news.printed):
        start_basis(model, vectors, rng=Streams(scenario.seed).numpy("news-basis"))
    return model


def _sizes(scenario: NewsScenario) -> NewsModelSettings:
    if scenario.news.sizes == "small":
        return NewsModelSettings()
    return NAML_PUBLISHED if scenario.news.model == "naml" else NRMS_PUBLISHED


def untrained_news(scenario: NewsScenario, news: News, vectors: Float32s) -> Float32s:
    """(m, d) vectors of all news by the scenario's news encoder at its public start: no click is
    looked at."""
    model = news_model(scenario, news, vectors, basis=0)
    with torch.no_grad():
        return np.asarray(model.encode_news(np.arange(len(news))).numpy(), np.float32)


def _encoders(
    scenario: NewsScenario,
    news: News,
    vectors: Float32s,
    settings: NewsModelSettings,
    rng: np.random.Generator,
) -> NewsModel:
    chosen = scenario.news
    if chosen.model == "plm-nr":
        return plm_nr(_language_vectors(scenario, news, vectors), settings, rng=rng)
    # a film's title says little
    fields = (
        ("titles",) if scenario.data.format == "mind" else ("titles", "subcategories", "abstracts")
    )
    tokens = tokenise(news, title_fields=fields, least_count=_LEAST_COUNT)
    widest = _WORD_WIDTH[chosen.sizes]
    words = (
        None
        if chosen.word_vectors
        else public_words(tokens, vectors, width=min(widest, vectors.shape[1]))
    )
    if words is None:
        given = {}
        if chosen.word_vectors:
            path = Path(chosen.word_vectors)
            given = read_vectors(path, wanted=tokens.vocabulary.ids)
            require_named(tokens.vocabulary.ids, given, path, what="words of these news", few=0.5)
        width = len(next(iter(given.values()))) if given else widest
        words = word_vectors(tokens.vocabulary, width, rng=rng, given=given)
    return (nrms if chosen.model == "nrms" else naml)(tokens, words, settings, rng=rng)


def _language_vectors(scenario: NewsScenario, news: News, vectors: Float32s) -> Float32s:
    if not scenario.news.language_model:
        return vectors
    from fedrec.encoders.language_model import open_encoder
    from fedrec.encoders.text_encoder import cached_vectors

    encoder = open_encoder(Path(scenario.news.language_model))
    # an abstract, of a film its plot, says what a title leaves out
    texts = [
        f"{title}. {rest}" if rest else title
        for title, rest in zip(news.titles, news.abstracts, strict=True)
    ]
    return cached_vectors(Path(scenario.run.directory) / "news-vectors", texts, encoder)
