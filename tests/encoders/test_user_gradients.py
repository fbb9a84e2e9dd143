"""Gradients per user against backward on that user alone, and what it names."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch.nn import functional

from fedrec.data.impressions import News
from fedrec.encoders.news_model import NewsModel, NewsModelSettings, naml, needed_news, nrms, plm_nr
from fedrec.encoders.tokens import tokenise, word_vectors
from fedrec.encoders.user_gradients import (
    UserExamples,
    per_user_gradients,
    softmax_loss,
)
from fedrec.randomness import Streams

KINDS = ["nrms", "naml", "plm-nr"]
M = 30
USERS = 7
B = 3


def a_model(kind: str, *, basis: int = 0) -> NewsModel:
    rng = Streams(0).numpy("model")
    settings = NewsModelSettings(width=8, heads=2, queries=5, category_width=3, basis_size=basis)
    if kind == "plm-nr":
        return plm_nr(rng.standard_normal((M, 6)).astype(np.float32), settings, rng=rng)
    texts = tuple(" ".join(f"w{w}" for w in rng.integers(0, 40, 5)) for _ in range(M))
    names = tuple(f"c{j % 4}" for j in range(M))
    tokens = tokenise(
        News(texts, texts, texts, names, names, ((),) * M), title_length=6, abstract_length=6
    )
    return (nrms if kind == "nrms" else naml)(
        tokens, word_vectors(tokens.vocabulary, 6, rng=rng), settings, rng=rng
    )


def some_examples(*, released: bool = False, seed: int = 0) -> UserExamples:
    """Ragged: absent clicks, candidates and impressions; user 0 has no history, user 1 no
    impression, user 2 the anonymous news."""
    rng = Streams(seed).numpy("examples")
    history = rng.integers(0, M, (USERS, 6))
    history[rng.random(history.shape) < 0.3] = -1
    history[0] = -1
    history[2, 0] = M
    candidates = rng.integers(0, M, (USERS, 4, 5))
    candidates[:, :, 4][rng.random((USERS, 4)) < 0.5] = -1
    labels = rng.integers(0, 4, (USERS, 4))
    labels[3, 2:] = -1
    candidates[3, 2:] = -1
    labels[1] = -1
    candidates[1] = -1
    weights = rng.dirichlet(np.ones(B), USERS).astype(np.float32)
    return UserExamples(history, candidates, labels, weights if released else None)


def alone(model: NewsModel, examples: UserExamples, k: int) -> Any:
    """One user, the whole catalogue encoded, impression by impression, by backward."""
    model.zero_grad()
    news = model.encode_news(np.arange(M + 1))
    if examples.released is None:
        user = model.interests(
            model.encode_users(news, torch.from_numpy(examples.history[k : k + 1]))
        )[0]
    else:
        assert model.basis is not None
        user = torch.from_numpy(examples.released[k]) @ model.basis.vectors
    losses = []
    for shown, label in zip(examples.candidates[k], examples.labels[k], strict=True):
        if label >= 0:
            losses.append(
                functional.cross_entropy(news[shown[shown >= 0]] @ user, torch.tensor(label))
            )
    if losses:
        torch.stack(losses).mean().backward()
    return model.gradient_vector()


CASES = [
    (kind, basis, released)
    for kind in KINDS
    for basis, released in ((0, False), (B, False), (B, True))
]


@pytest.mark.parametrize(("kind", "basis", "released"), CASES)
def test_a_users_gradient_is_that_of_the_user_alone(kind: str, basis: int, released: bool) -> None:
    model = a_model(kind, basis=basis)
    examples = some_examples(released=released)
    found = list(per_user_gradients(model, examples))
    assert len(found) == USERS
    for k in range(USERS):
        np.testing.assert_allclose(found[k], alone(model, examples, k), rtol=1e-3, atol=2e-6)
    assert not found[1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_released_weights_make_the_history_irrelevant_bit_by_bit(kind: str) -> None:
    """The coupling test: same released values and labels, another history, the same upload."""
    model = a_model(kind, basis=B)
    examples = some_examples(released=True)
    other = UserExamples(
        examples.history[::-1], examples.candidates, examples.labels, examples.released
    )
    for one, two in zip(
        per_user_gradients(model, examples), per_user_gradients(model, other), strict=True
    ):
        assert one.tobytes() == two.tobytes()


def test_a_gradient_with_its_history_names_the_history() -> None:
    """Why `printed` is not established: candidates apart, only the vectors of clicked news have a
    gradient."""
    model = a_model("nrms", basis=B)
    examples = some_examples()
    k = 4
    step = needed_news(examples.history[k], examples.candidates[k], num_news=M)
    news = model.encode_news(step.items).detach().requires_grad_()
    places = step.history[None], step.candidates, np.asarray(examples.labels[k], np.int64)
    history, candidates, labels = map(torch.from_numpy, places)
    softmax_loss(model.forward(news, history, candidates), labels).backward()
    assert news.grad is not None
    named = set(step.items[news.grad.abs().amax(1).numpy() > 0].tolist()) - set(
        examples.candidates[k].ravel().tolist()
    )
    clicked = set(examples.history[k].tolist()) - {-1}
    assert named == clicked - set(examples.candidates[k].ravel().tolist())
    assert named


def test_the_loss_is_the_mean_over_impressions_that_exist() -> None:
    scores = torch.tensor([[1.0, 2.0, -torch.inf], [0.0, 0.0, 0.0], [-torch.inf] * 3])
    value = softmax_loss(scores, torch.tensor([1, 2, -1]))
    expected = (np.log(1 + np.exp(-1)) + np.log(3)) / 2
    assert value.item() == pytest.approx(expected, rel=1e-6)
    assert softmax_loss(scores[2:], torch.tensor([-1])).item() == 0


def test_released_weights_need_a_basis() -> None:
    with pytest.raises(ValueError, match="need a basis"):
        next(per_user_gradients(a_model("nrms"), some_examples(released=True)))
