"""Where news models start: from the public catalogue, with attention that tells its clusters from
each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedrec.data.impressions import News
from fedrec.encoders.news_model import NewsModel, NewsModelSettings, naml, nrms, plm_nr
from fedrec.encoders.tokens import PADDING, NewsTokens, tokenise
from fedrec.news.local_update import recentre, user_vectors
from fedrec.news.models import invented_readers, public_words, start_basis
from tests.cases import slow_but

CLUSTERS = 4
EACH = 30
WIDTH = 12


def catalogue() -> tuple[NewsTokens, npt.NDArray[np.float32]]:
    """News of four subjects with words of their own, and vectors near one centre a subject."""
    rng = np.random.default_rng(1)
    subjects = np.repeat(np.arange(CLUSTERS), EACH)
    titles = tuple(" ".join(f"w{s}x{i}" for i in rng.integers(0, 10, 6)) for s in subjects)
    n = len(titles)
    empty = ("",) * n
    news = News(tuple(map(str, range(n))), titles, empty, empty, empty, ((),) * n)
    centres = rng.standard_normal((CLUSTERS, WIDTH))
    vectors = centres[subjects] + 0.1 * rng.standard_normal((n, WIDTH))
    return tokenise(news), (vectors - vectors.mean(0)).astype(np.float32)


def fresh(kind: str, basis: int = CLUSTERS) -> tuple[NewsModel, npt.NDArray[np.float32]]:
    tokens, vectors = catalogue()
    settings = NewsModelSettings(basis_size=basis)
    rng = np.random.default_rng(2)
    words = public_words(tokens, vectors, width=WIDTH)
    assert words is not None
    made = {
        "nrms": lambda: nrms(tokens, words, settings, rng=rng),
        "naml": lambda: naml(tokens, words, settings, rng=rng),
    }
    return (plm_nr(vectors, settings, rng=rng) if kind == "plm-nr" else made[kind]()), vectors


def test_a_word_is_the_mean_of_the_news_that_hold_it() -> None:
    tokens, vectors = catalogue()
    words = public_words(tokens, vectors, width=5)
    assert words is not None
    expected = np.zeros((len(tokens.vocabulary), 5))
    for word in range(len(expected)):
        places = np.concatenate([tokens.titles, tokens.abstracts], 1) == word
        if places.any():
            expected[word] = (places.sum(1)[:, None] * vectors[:, :5]).sum(0) / places.sum()
    expected /= np.sqrt(np.mean(expected**2) * 5)
    np.testing.assert_allclose(words, expected, atol=1e-5)
    assert (tokens.titles == PADDING).any()
    assert np.sqrt(np.mean(words**2)) == pytest.approx(5**-0.5, rel=1e-5)


def test_without_public_knowledge_there_is_no_public_start_of_words() -> None:
    tokens, vectors = catalogue()
    assert public_words(tokens, np.zeros_like(vectors), width=5) is None


@pytest.mark.parametrize("kind", ["nrms", "naml", "plm-nr"])
def test_attention_tells_readers_of_different_subjects_apart(kind: str) -> None:
    model, vectors = fresh(kind)
    histories = np.arange(CLUSTERS * EACH).reshape(CLUSTERS, EACH)[:, :20]
    assert model.basis is not None
    with torch.no_grad():
        before = model.basis.attention(user_vectors(model, histories))
        start_basis(model, vectors, rng=np.random.default_rng(3))
        after = model.basis.attention(user_vectors(model, histories))
    assert len(set(after.argmax(1).tolist())) == CLUSTERS
    assert after.max(1).values.min() > 0.5
    assert before.max(1).values.max() < 0.5  # of a random basis, which is what this is for


def test_attention_of_naml_stays_apart_while_what_news_have_in_common_grows() -> None:
    model, vectors = fresh("naml")
    histories = np.arange(CLUSTERS * EACH).reshape(CLUSTERS, EACH)[:, :20]
    assert model.basis is not None
    start_basis(model, vectors, rng=np.random.default_rng(3))
    with torch.no_grad():  # training without a gradient through attention moves all news alike
        for view in (model.news.title, model.news.abstract):  # type: ignore[attr-defined]
            view.bias += 0.3
        drifted = model.basis.attention(user_vectors(model, histories))
        recentre(model)
        after = model.basis.attention(user_vectors(model, histories))
    assert len(set(drifted.argmax(1).tolist())) == 1
    assert len(set(after.argmax(1).tolist())) == CLUSTERS


def test_a_published_model_is_not_centred_and_nobody_without_clicks_has_a_vector() -> None:
    model, vectors = fresh("naml")
    recentre(model)
    assert not model.users.centre.any()  # type: ignore[attr-defined]
    start_basis(model, vectors, rng=np.random.default_rng(3))
    with torch.no_grad():
        assert not user_vectors(model, np.full((2, 5), -1)).any()


@pytest.mark.parametrize(
    ("kind", "basis"),
    slow_but(
        [("naml", CLUSTERS)],
        [("nrms", 1), ("nrms", 9), ("naml", CLUSTERS), ("plm-nr", CLUSTERS)],
    ),
)
def test_the_start_is_finite_and_a_function_of_public_things_and_the_stream(
    kind: str, basis: int
) -> None:
    found = []
    for seed in (3, 3, 4):
        model, vectors = fresh(kind, basis)
        start_basis(model, vectors, rng=np.random.default_rng(seed))
        found.append(model.parameters_vector())
    assert all(np.isfinite(one).all() for one in found)
    assert found[0].tobytes() == found[1].tobytes()
    assert found[0].tobytes() != found[2].tobytes()


def test_invented_readers_of_one_cluster_have_news_of_that_cluster_alone() -> None:
    _, vectors = catalogue()
    alone, mixed = invented_readers(
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        CLUSTERS,
        rng=np.random.default_rng(5),
    )
    subjects = [set((row // EACH).tolist()) for row in alone]
    assert sorted(len(s) for s in subjects) == [1] * CLUSTERS
    assert set().union(*subjects) == set(range(CLUSTERS))
    assert 0 <= mixed.min() <= mixed.max() < len(vectors)
