"""One gradient as a client would upload it: a fresh news model, one user's history, its impressions, and a way to treat the history.

- `bare`: no privacy, the whole gradient (fedrec).
- `as_printed`: Alg. 3 with noise between attention and user vector, and the gradient taken through it (printed).
- `behind_release`: the gradient of the loss at weights that were released before; the history is not looked at (local).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedrec.data.impressions import Impressions, News
from fedrec.encoders.basis import Release, exact, noised, relu_share
from fedrec.encoders.needed import needed_news
from fedrec.encoders.news_model import NewsModel, NewsModelSettings, naml, nrms, plm_nr
from fedrec.encoders.tokens import NewsTokens, tokenise, word_vectors
from fedrec.encoders.user_gradients import UserExamples, per_user_gradients, softmax_loss
from fedrec.privaterec import attention, labels
from fedrec.privaterec.attention import GaussianAttention
from fedrec.privaterec.labels import Mechanism
from fedrec.streams import Streams

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]
Gradient = dict[str, Float32s]
"""By the name of the parameter, in its shape."""


@dataclass(frozen=True)
class Lesson:
    """What one client learns from. history: (H,) news, -1 behind. candidates: (E, C) news. labels: (E,) places of the (told) click."""

    history: Int64s
    candidates: Int64s
    labels: Int64s


@dataclass(frozen=True)
class Pupil:
    """A model at its start, and what is public about its catalogue: `texts` (m, L) word ids for models of words, else `vectors` (m, p)."""

    model: NewsModel
    texts: npt.NDArray[np.int32] | None
    vectors: Float32s | None

    @property
    def first_layer(self) -> str:
        """The parameter that an attack on support or row space reads."""
        return "news.words" if self.texts is not None else "news.dense"


Upload = Callable[[Pupil, Lesson, Streams], Gradient]
Labels = Callable[[Lesson, Streams], Lesson]
"""What a variant makes of candidates and labels before it learns from them."""


def pupil(news: News, vectors: Float32s, kind: str, *, basis: int, streams: Streams) -> Pupil:
    """A fresh model of `kind` "nrms", "naml" or "plm-nr", of the default sizes, with B = `basis` vectors between user and score."""
    settings, rng = NewsModelSettings(basis_size=basis), streams.numpy("audit/model")
    if kind == "plm-nr":
        return Pupil(plm_nr(vectors, settings, rng=rng), None, vectors)
    tokens = tokenise(news, title_length=_TITLE, abstract_length=0 if kind == "nrms" else _ABSTRACT)
    words = word_vectors(tokens.vocabulary, _WORDS, rng=rng)
    return Pupil({"nrms": nrms, "naml": naml}[kind](tokens, words, settings, rng=rng), _texts(tokens), None)


_TITLE, _ABSTRACT, _WORDS = 20, 30, 64


def bare(pupil: Pupil, lesson: Lesson, streams: Streams) -> Gradient:
    """The gradient as it is."""
    return _gradient(pupil.model, lesson, exact)


def as_printed(plan: GaussianAttention) -> Upload:
    """Alg. 3: fresh noise, ReLU, and the gradient of everything before them. Padding hides clicks behind the anonymous news. NOT ESTABLISHED."""

    def upload(pupil: Pupil, lesson: Lesson, streams: Streams) -> Gradient:
        rng, model = streams.numpy("audit/printed"), pupil.model
        noise = rng.normal(scale=plan.noise_std or 0.0, size=(1, model.basis.vectors.shape[0]))  # type: ignore[union-attr]
        masked = (rng.random(len(lesson.history)) < plan.padding) & (lesson.history >= 0)
        history = np.where(masked, model.news.anonymous, lesson.history)
        release = noised(torch.from_numpy(noise.astype(np.float32)), radius=plan.theta, renormalise=relu_share)
        return _gradient(model, Lesson(history, lesson.candidates, lesson.labels), release)

    return upload


def behind_release(weights: Callable[[Pupil, Lesson, Streams], Float32s]) -> Upload:
    """The gradient at released weights (1, B), which `weights` gives; the history is handed over, and must not matter."""

    def upload(pupil: Pupil, lesson: Lesson, streams: Streams) -> Gradient:
        released = weights(pupil, lesson, streams)
        one = UserExamples(lesson.history[None], lesson.candidates[None], lesson.labels[None], released)
        flat = next(per_user_gradients(pupil.model, one))
        names = [(name, p.shape) for name, p in pupil.model.named_parameters()]
        ends = np.cumsum([shape.numel() for _, shape in names])
        return {name: part.reshape(shape) for (name, shape), part in zip(names, np.split(flat, ends[:-1]), strict=True)}

    return upload


def released_attention(plan: GaussianAttention) -> Callable[[Pupil, Lesson, Streams], Float32s]:
    """(1, B) weights by `attention.release` of the history's own attention (Alg. 2)."""

    def weights(pupil: Pupil, lesson: Lesson, streams: Streams) -> Float32s:
        model, key = pupil.model, streams.key("audit/attention")
        masked = attention.padded_clicks(1, len(lesson.history), padding=plan.padding, key=streams.key("audit/padding"))
        history = np.where(masked & (lesson.history >= 0), model.news.anonymous, lesson.history)
        step = needed_news(history, lesson.candidates, num_news=model.news.anonymous)
        with torch.no_grad():
            users = model.encode_users(model.encode_news(step.items), torch.from_numpy(step.history))
            shares = model.basis.attention(users).double().numpy()  # type: ignore[union-attr]
        return attention.renormalise_relu(attention.release(shares, plan, key=key)[0]).astype(np.float32)

    return weights


def told_by(mechanism: Mechanism, epsilon: float, *, negatives: int) -> Labels:
    """Labels told by `mechanism` over the whole impression first, then negatives among the rest (one symbol, or the first of a set)."""

    def told(lesson: Lesson, streams: Streams) -> Lesson:
        reports = labels.report_clicks(_impressions(lesson), epsilon=epsilon, key=streams.key("audit/told"), mechanism=mechanism)
        return _sent(lesson, labels.with_negatives(reports, negatives=negatives, key=streams.key("audit/negatives")))

    return told


def told_as_printed(epsilon: float, *, negatives: int) -> Labels:
    """Alg. 3 l. 16-18: the click among k others, permuted."""

    def told(lesson: Lesson, streams: Streams) -> Lesson:
        k = min(negatives, int((lesson.candidates >= 0).sum(1).min()) - 1)
        key = streams.key("audit/told")
        return _sent(lesson, labels.as_printed(_impressions(lesson), epsilon=min(epsilon, 700.0), negatives=k, key=key)[0])

    return told


def _impressions(lesson: Lesson) -> Impressions:
    """The lesson's impressions, of a user without history."""
    sizes = (lesson.candidates >= 0).sum(1)
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    shown = lesson.candidates[lesson.candidates >= 0].astype(np.int32)
    clicked = np.zeros(len(shown), np.bool_)
    clicked[ptr[:-1] + lesson.labels] = True
    nobody = np.zeros(2, np.int64)
    return Impressions(int(shown.max()) + 1, nobody, np.empty(0, np.int32), np.zeros(len(sizes), np.int32), ptr, shown, clicked)


def _sent(lesson: Lesson, places: Int64s) -> Lesson:
    chosen = np.where(places >= 0, np.take_along_axis(lesson.candidates, places.clip(min=0), 1), -1)
    return Lesson(lesson.history, chosen, np.zeros(len(chosen), np.int64))


def _gradient(model: NewsModel, lesson: Lesson, release: Release) -> Gradient:
    step = needed_news(lesson.history[None], lesson.candidates, num_news=model.news.anonymous)
    news = model.encode_news(step.items)
    users = model.interests(model.encode_users(news, torch.from_numpy(step.history)), release)
    each = users.expand(len(step.candidates), -1)
    loss = softmax_loss(model.scores(each, news, torch.from_numpy(step.candidates)), torch.from_numpy(lesson.labels))
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {
        name: (torch.zeros_like(p) if g is None else g).numpy() for name, p, g in zip(names, parameters, found, strict=True)
    }


def _texts(tokens: NewsTokens) -> npt.NDArray[np.int32]:
    return np.concatenate([tokens.titles, tokens.abstracts], 1)
