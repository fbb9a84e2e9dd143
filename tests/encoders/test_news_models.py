"""Published forward passes again in NumPy, word by word, with no trick; then what padding, order
and sharing may and may not change."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")
import torch
from torch.nn import functional

from fedrec import errors
from fedrec.data.impressions import News
from fedrec.encoders import language_model, text_encoder
from fedrec.encoders.news import Dropout, PlmNews, SelfAttention
from fedrec.encoders.news_model import NewsModel, NewsModelSettings, naml, needed_news, nrms, plm_nr
from fedrec.encoders.tokens import tokenise, word_vectors
from fedrec.errors import DataError, SettingsError
from fedrec.news.models import news_model
from fedrec.randomness import Streams
from fedrec.settings import load

Floats = npt.NDArray[np.floating]
SETTINGS = NewsModelSettings(width=8, heads=2, queries=5, category_width=3)
M = 24
TOPICS = 4


def a_catalogue(seed: int = 0) -> News:
    """Titles and abstracts of words of one of four topics, of different lengths; news 0 has an
    empty title."""
    rng = Streams(seed).numpy("catalogue")
    texts = [
        " ".join(f"t{j % TOPICS}w{w}" for w in rng.integers(0, 6, rng.integers(1, 8)))
        for j in range(M)
    ]
    names = tuple(f"topic {j % TOPICS}" for j in range(M))
    return News(
        tuple(map(str, range(M))), ("", *texts[1:]), tuple(texts[::-1]), names, names, ((),) * M
    )


def a_model(
    kind: str, *, settings: NewsModelSettings = SETTINGS, seed: int = 0, title_length: int = 6
) -> NewsModel:
    rng = Streams(seed).numpy("model")
    tokens = tokenise(a_catalogue(), title_length=title_length, abstract_length=7)
    if kind == "plm-nr":
        return plm_nr(rng.standard_normal((M, 10)).astype(np.float32), settings, rng=rng)
    words = word_vectors(tokens.vocabulary, 10, rng=rng)
    model = (nrms if kind == "nrms" else naml)(tokens, words, settings, rng=rng)
    return scrambled(model, rng)


def scrambled(model: NewsModel, rng: np.random.Generator) -> NewsModel:
    """With offsets that are not zero, so that a forgotten one shows."""
    vector = model.parameters_vector()
    model.load_vector(vector + 0.1 * rng.standard_normal(len(vector)).astype(np.float32))
    return model


KINDS = ["nrms", "naml", "plm-nr"]


def array(x: Any) -> Floats:
    return x.detach().double().numpy()


def softmax(x: Floats) -> Floats:
    z = np.exp(x - x.max())
    return z / z.sum()


def additive(module: Any, rows: list[Floats]) -> Floats:
    """NRMS eq. 3-5, place by place."""
    W = array(module.dense)
    c = array(module.bias)
    q = array(module.query)[:, 0]
    w = softmax(np.array([q @ np.tanh(W.T @ h + c) for h in rows]))
    return sum(w[i] * h for i, h in enumerate(rows))  # type: ignore[return-value]


def self_attended(module: SelfAttention, rows: list[Floats]) -> list[Floats]:
    """NRMS eq. 1-2, head by head and place by place."""
    Q, K, V = np.split(array(module.project), 3, axis=1)
    size = Q.shape[1] // module.heads
    out = []
    for i in range(len(rows)):
        heads = []
        for s in (slice(h * size, (h + 1) * size) for h in range(module.heads)):
            w = softmax(
                np.array(
                    [(Q[:, s].T @ rows[i]) @ (K[:, s].T @ other) / size**0.5 for other in rows]
                )
            )
            heads.append(sum(w[j] * (V[:, s].T @ rows[j]) for j in range(len(rows))))
        out.append(np.concatenate(heads))
    return out


def nrms_news(news: Any, item: int) -> Floats:
    words = array(news.words)
    return additive(news.pool, self_attended(news.attention, [words[t] for t in news.titles[item]]))


def naml_text(view: Any, words: Floats, row: Any) -> Floats:
    """NAML eq. 1-2: a filter over the words i-1, i, i+1."""
    after, own, before = np.split(array(view.filters), 3, axis=1)
    e = [np.zeros(words.shape[1]), *(words[t] for t in row), np.zeros(words.shape[1])]
    convolved = [
        e[i - 1] @ after + e[i] @ own + e[i + 1] @ before + array(view.bias)
        for i in range(1, len(e) - 1)
    ]
    return additive(view.pool, [np.maximum(h, 0) for h in convolved])


def naml_news(news: Any, item: int) -> Floats:
    words = array(news.words)
    labels = [(news.category, news.topics[item, 0]), (news.subcategory, news.topics[item, 1])]
    views = [
        naml_text(news.title, words, news.titles[item]),
        naml_text(news.abstract, words, news.abstracts[item]),
    ]
    views += [
        np.maximum(array(v.embeddings)[c] @ array(v.dense) + array(v.bias), 0) for v, c in labels
    ]
    return additive(news.views, views)


def plm_news(news: Any, item: int) -> Floats:
    given = array(news.padding)[0] if item == news.anonymous else array(news.vectors)[item]
    return given @ array(news.dense) + array(news.bias)


SLOW_NEWS: dict[str, Callable[[Any, int], Floats]] = {
    "nrms": nrms_news,
    "naml": naml_news,
    "plm-nr": plm_news,
}


@pytest.mark.parametrize("kind", KINDS)
def test_forward_is_the_published_one(kind: str) -> None:
    model = a_model(kind)
    items = np.arange(M + 1)  # the anonymous news among them
    news = model.encode_news(items)
    slow = [SLOW_NEWS[kind](model.news, int(j)) for j in items]
    np.testing.assert_allclose(array(news), slow, rtol=1e-4, atol=1e-5)
    history = [3, 7, M, 1]
    clicked = [slow[j] for j in history]
    users: Any = model.users
    user = additive(
        users.pool, clicked if kind == "naml" else self_attended(users.attention, clicked)
    )
    u = model.encode_users(news, torch.tensor([history]))
    np.testing.assert_allclose(array(u)[0], user, rtol=1e-4, atol=1e-5)
    scores = model.scores(u, news, torch.tensor([[5, 9, -1]]))
    np.testing.assert_allclose(
        array(scores)[0], [user @ slow[5], user @ slow[9], -np.inf], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["nrms", "naml"])
def test_news_that_say_the_same_are_encoded_once_and_learn_from_all_their_uses(kind: str) -> None:
    """Half of the catalogue repeats the other; the last says nothing, as the anonymous one."""
    once = a_catalogue()
    twice = News(*((*column, *column[:-1], column[-1][:0]) for column in vars(once).values()))
    rng = Streams(0).numpy("model")
    tokens = tokenise(twice, title_length=6, abstract_length=7)
    words = word_vectors(tokens.vocabulary, 10, rng=rng)
    model = scrambled((nrms if kind == "nrms" else naml)(tokens, words, SETTINGS, rng=rng), rng)
    asked = np.array([5, M + 5, 0, 2 * M, 2 * M - 1, 3])
    encoded = []
    encode = model.news.encode
    model.news.encode = lambda items, dropout=None: encoded.extend(items.tolist()) or encode(items)
    found = model.encode_news(asked)
    alone = encode(torch.from_numpy(asked))
    assert encoded == ([0, 3, 5] if kind == "nrms" else [0, 3, 5, 2 * M - 1])
    np.testing.assert_allclose(array(found), array(alone), rtol=1e-5, atol=1e-6)
    weights = torch.from_numpy(rng.standard_normal(found.shape).astype(np.float32))
    gradients = []
    for vectors in (found, alone):
        model.zero_grad()
        (vectors * weights).sum().backward()
        gradients.append(model.gradient_vector())
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_news_has_one_vector_whatever_else_is_encoded_with_it(kind: str) -> None:
    """Few news gather words before multiplying, many after: the same to rounding."""
    model = a_model(kind)
    together = array(model.encode_news(np.arange(M + 1)))
    alone = np.concatenate([array(model.encode_news(np.array([j]))) for j in range(M + 1)])
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_absent_clicks_change_nothing_wherever_they_stand(kind: str) -> None:
    model = a_model(kind)
    news = model.encode_news(np.arange(M))
    plain = array(model.encode_users(news, torch.tensor([[4, 8, 15]])))
    padded = array(model.encode_users(news, torch.tensor([[-1, 4, -1, 8, 15, -1, -1]])))
    np.testing.assert_allclose(padded, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_at_absent_places_changes_no_bit(kind: str) -> None:
    model = a_model(kind)
    news = model.encode_news(np.arange(M))
    mask = torch.tensor([[False, True, True]])
    one, other = (model.users.encode(news, torch.tensor([[j, 4, 8]]), mask) for j in (0, 19))
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_history_is_the_zero_vector_with_a_finite_gradient(kind: str) -> None:
    model = a_model(kind)
    news = model.encode_news(np.arange(M))
    u = model.encode_users(news, torch.tensor([[-1, -1], [2, 3]]))
    assert not u[0].any()
    u.sum().backward()
    assert np.isfinite(model.gradient_vector()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_clicks_changes_nothing(kind: str) -> None:
    model = a_model(kind)
    news = model.encode_news(np.arange(M))
    one, other = (
        array(model.encode_users(news, torch.tensor([h]))) for h in ([4, 8, 15, 16], [16, 8, 4, 15])
    )
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_each_news_of_a_step_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model("nrms")
    calls = []
    news: Any = model.news
    encode = news.encode
    monkeypatch.setattr(
        news,
        "encode",
        lambda items, dropout=None: calls.append(items.tolist()) or encode(items, dropout),
    )
    rng = Streams(0).numpy("clicks")
    history = rng.integers(0, 9, (50, 20))
    candidates = rng.integers(5, 12, (50, 10))
    step = needed_news(history, candidates, num_news=M)
    news_vectors = model.encode_news(step.items)
    model.scores(
        model.encode_users(news_vectors, torch.from_numpy(step.history)),
        news_vectors,
        torch.from_numpy(step.candidates),
    )
    assert calls == [list(range(12))]  # 1,500 clicks and candidates, twelve news, one call


def test_needed_news_are_found_again_at_their_positions() -> None:
    history = np.array([[5, -1], [2, 24]])
    candidates = np.array([[2, 9, -1]])
    step = needed_news(history, candidates, num_news=M)
    assert step.items.tolist() == [2, 5, 9, 24]
    found = np.append(step.items, -1)
    np.testing.assert_array_equal(found[step.history], history)
    np.testing.assert_array_equal(found[step.candidates], candidates)
    assert needed_news(np.array([-1]), np.array([-1]), num_news=M).items.tolist() == [M]
    with pytest.raises(ValueError, match="25"):
        needed_news(np.array([25]), candidates, num_news=M)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_trained_by_the_anonymous_news_and_by_short_titles(kind: str) -> None:
    model = a_model(kind)
    padding: Any = model.news.padding if kind == "plm-nr" else model.news.words  # type: ignore[attr-defined]
    model.encode_news(np.array([model.news.anonymous])).square().sum().backward()
    assert padding.grad[0].any()
    assert not padding.grad[1:].any()
    if kind != "plm-nr":
        model.zero_grad()
        model.encode_news(np.array([1])).square().sum().backward()
        assert padding.grad[0].any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_planted_set_is_learned(kind: str) -> None:
    """Users who click one topic are told what comes next; chance is a loss of log 4, all but sure
    is below a tenth of it."""
    model = a_model(kind)
    rng = Streams(3).numpy("clicks")
    topic = rng.integers(0, TOPICS, 40)

    def draw(topics: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        return TOPICS * rng.integers(1, M // TOPICS, np.shape(topics)) + topics

    history = draw(np.repeat(topic[:, None], 5, 1))
    candidates = draw(np.tile(np.arange(TOPICS), (40, 1)))
    step = needed_news(history, candidates, num_news=M)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(120):
        news = model.encode_news(step.items)
        users = model.interests(model.encode_users(news, torch.from_numpy(step.history)))
        loss = functional.cross_entropy(
            model.scores(users, news, torch.from_numpy(step.candidates)), torch.from_numpy(topic)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.1 * np.log(TOPICS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_goes_out_and_comes_back_bit_by_bit(kind: str) -> None:
    sender = a_model(kind, seed=1)
    receiver = a_model(kind, seed=2)
    receiver.load_vector(sender.parameters_vector())
    assert receiver.parameters_vector().tobytes() == sender.parameters_vector().tobytes()
    for wrong in (sender.parameters_vector()[1:], np.full_like(sender.parameters_vector(), np.nan)):
        with pytest.raises(ValueError, match="finite vector of shape"):
            receiver.load_vector(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_a_function_of_its_stream(kind: str) -> None:
    before = torch.get_rng_state()
    vectors = [a_model(kind, seed=seed).parameters_vector() for seed in (1, 1, 2)]
    assert vectors[0].tobytes() == vectors[1].tobytes() != vectors[2].tobytes()
    assert torch.equal(torch.get_rng_state(), before)


def test_longer_rows_of_padding_reach_the_news_vector() -> None:
    """Padding tokens are not masked: that is what trains e0.

    So the length of rows belongs to a model."""
    short, long = (
        array(a_model("nrms", title_length=length).encode_news(np.array([4]))) for length in (8, 12)
    )
    assert np.abs(short - long).max() > 1e-3


def test_dropout_keeps_the_mean_and_its_rate() -> None:
    dropout = Dropout(0.2, torch.Generator().manual_seed(1))
    x = dropout(torch.ones(200_001))
    kept = float((x != 0).double().mean())
    # 205/256 of 200,001 coins: five standard deviations are 4.5e-3
    assert kept == pytest.approx(205 / 256, abs=0.0045)
    np.testing.assert_allclose(x[x != 0], 256 / 205, rtol=1e-6)
    assert torch.equal(Dropout(0.0, torch.Generator())(x), x)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="3 and 8"):
        a_model("nrms", settings=NewsModelSettings(width=8, heads=3))


class LettersNetwork(torch.nn.Module):  # type: ignore[misc]
    """A stand-in for a Hugging Face encoder: same arguments, same result."""

    def forward(self, *, input_ids: Any, attention_mask: Any) -> Any:
        noise_at_padding = 100.0 * (1 - attention_mask)
        states = torch.stack(
            [input_ids.float(), input_ids.float() ** 2], -1
        ) + noise_at_padding.unsqueeze(-1)
        return SimpleNamespace(last_hidden_state=states)


def letters(
    texts: list[str], *, padding: bool, truncation: bool, max_length: int, return_tensors: str
) -> dict[str, Any]:
    assert (padding, truncation, return_tensors) == (True, True, "pt")
    rows = [[ord(c) - 96 for c in text][:max_length] for text in texts]
    longest = max(map(len, rows))
    filled = [row + [0] * (longest - len(row)) for row in rows]
    return {
        "input_ids": torch.tensor(filled),
        "attention_mask": torch.tensor([[int(t > 0) for t in row] for row in filled]),
    }


def test_language_model_vectors_are_means_over_real_tokens_up_to_the_length() -> None:
    encoder = language_model.HuggingFaceEncoder(letters, LettersNetwork(), "letters", length=3)
    texts = ["a", "abc", "cccccc"] * 50
    np.testing.assert_allclose(encoder.encode(texts), [[1, 1], [2, 14 / 3], [3, 9]] * 50, rtol=1e-6)


def test_vectors_are_computed_once_and_again_only_for_other_texts_or_another_encoder(
    tmp_path: Path,
) -> None:
    asked = []

    class Counting:
        def __init__(self, fingerprint: str) -> None:
            self.fingerprint = fingerprint

        def encode(self, texts: Any) -> npt.NDArray[np.float32]:
            asked.append((self.fingerprint, tuple(texts)))
            return np.full((len(texts), 2), len(asked), np.float32)

    one = Counting("one")
    other = Counting("other")
    calls = [
        (["ab", "c"], one),
        (["ab", "c"], one),
        (["a", "bc"], one),
        (["ab", "c"], other),
        (["ab", "c"], one),
    ]
    values = [
        text_encoder.cached_vectors(tmp_path / "cache", texts, encoder)[0, 0]
        for texts, encoder in calls
    ]
    assert values == [1, 1, 2, 3, 1]
    assert len(text_encoder.cached_vectors(tmp_path / "cache", ["x", "", "x", ""], one)) == 4
    assert asked[-1] == ("one", ("x", "")), "equal texts are encoded once"
    assert not list((tmp_path / "cache").glob("*.partial"))


def test_opening_a_folder_that_is_no_encoder_or_without_transformers_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"config\.json"):
        language_model.open_encoder(tmp_path)
    (tmp_path / "config.json").write_text("{}")

    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(SettingsError) as caught:
        language_model.open_encoder(tmp_path)
    assert caught.value.remedy == "Install it: pip install 'fedrec[plm]'."


def test_a_folder_is_opened_locally_and_any_changed_byte_changes_its_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(what: Any) -> Any:
        def from_pretrained(folder: Path, *, local_files_only: bool) -> Any:
            assert folder == tmp_path
            assert local_files_only
            return what

        return SimpleNamespace(from_pretrained=from_pretrained)

    fake = SimpleNamespace(AutoTokenizer=opened(letters), AutoModel=opened(LettersNetwork()))
    monkeypatch.setattr(language_model, "import_module", lambda name: fake)
    monkeypatch.setattr(errors, "find_spec", lambda name: fake)
    (tmp_path / "config.json").write_text("{}")
    fingerprints = []
    for weights in (b"a", b"a", b"b"):
        (tmp_path / "model.safetensors").write_bytes(weights)
        encoder = language_model.open_encoder(tmp_path, length=3)
        fingerprints.append(encoder.fingerprint)
        np.testing.assert_allclose(encoder.encode(["abc"]), [[2, 14 / 3]], rtol=1e-6)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_a_real_encoder_is_opened_by_path_and_plm_nr_s_rows_are_what_it_says_of_title_and_abstract(
    tmp_path: Path,
) -> None:
    """A tiny BERT of random weights, written here in the format that models are passed on in; its
    mean over tokens by hand."""
    transformers = pytest.importorskip("transformers", reason="the extra plm is not installed")
    folder = tmp_path / "encoder"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "court", "rules", "on", "taxes", "."]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(
        vocab={word: i for i, word in enumerate(words)}, do_lower_case=True
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    network = transformers.BertModel(config).eval()
    network.save_pretrained(folder)
    news = News(
        ("N1", "N2"), ("Court rules", "Taxes"), ("on taxes", ""), ("", ""), ("", ""), ((), ())
    )
    scenario = load(
        None,
        [
            "recipe=privaterec",
            "data.format=planted-news",
            "news.variant=fedrec",
            "privacy.epsilon=inf",
            "news.model=plm-nr",
            f"news.language_model={folder}",
            f"run.directory={tmp_path}",
        ],
    )
    model = news_model(scenario, news, np.zeros((2, 4), np.float32), basis=0)
    encoder = model.news
    assert isinstance(encoder, PlmNews)
    for row, text in enumerate(("court rules . on taxes", "taxes")):
        ids = [2, *map(words.index, text.split()), 3]
        with torch.no_grad():
            states = network(input_ids=torch.tensor([ids])).last_hidden_state[0]
        np.testing.assert_allclose(encoder.vectors[row], states.mean(0), atol=1e-5)
