"""What one person reports is a function of that person's rows and of the question: not of who else
is in the batch, of its order, of whose report fails, nor of a threshold that a batch can cross.

Every step of every recipe, and of the news variants whose reports are summed, is asked by public
arrays as they are and by those that a server can choose to make any rounding large. Sizes are
crossed twice: by 300 people at the constants of the code, and by 40 at constants lowered into the
batch. The constants are read from the source, so that a new one is crossed too.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedrec.factorization
import fedrec.federation
import fedrec.news
import fedrec.numerics
import fedrec.privacy
import fedrec.recipes
from fedrec.data.impressions import Impressions
from fedrec.data.interactions import Interactions
from fedrec.encoders.user_gradients import UserExamples, per_user_gradients, softmax_loss
from fedrec.errors import FedRecError
from fedrec.factorization import least_squares
from fedrec.factorization.default_clicks.recency import report_recency
from fedrec.factorization.default_ratings.client import posterior_means
from fedrec.factorization.default_ratings.cross_fitting import cross_fit
from fedrec.factorization.least_squares import solve_users
from fedrec.federation.messages import BlockSpec, ClientStep, Question, Reports
from fedrec.news import central_client, encoder_client, local_update
from fedrec.news.attention import gaussian_plan
from fedrec.news.local_update import released_weights
from fedrec.privacy.guarantee import non_private
from fedrec.recipes import Prepared
from fedrec.sharing.layout import plain_numbers, plan_layout
from fedrec_client import answering
from tests.encoders.test_user_gradients import B, M, a_model
from tests.factorization.test_recency import _question, _walks
from tests.factorization.test_recipes import (
    ITEMS,
    RECIPES,
    prepared_for,
    questions_of,
    some_events,
)
from tests.factorization.test_recipes import _clicks_of_few as _clicks_of_few  # a fixture

WIDE = "model.dimension=17"  # BLAS and sums along rows take other ways from eight numbers on
SMALLEST = 64
"""Constants from here on may be sizes of batches; smaller ones are lanes, bits and paddings."""
LOWERED = 20
"""Between the ratings of one person and those of forty; also below the number of items."""
NEWS = 150
KEY = bytes(32)
Arrays = dict[str, np.ndarray]
Changed = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def _singular(x: np.ndarray, rng: np.random.Generator, length: float) -> np.ndarray:
    """Rank one up to rounding, beside hardly any variance, but for the rows that a client rehearses
    on: systems whose solution is all rounding."""
    if x.ndim == 1:
        found = np.full(len(x), 1e-12)
    else:
        found = np.outer(rng.uniform(1, 2, len(x)), length * rng.standard_normal(x.shape[1]))
    found[:5] = x[:5]
    return found


HOSTILE: dict[str, Changed] = {
    "singular": lambda x, rng: _singular(x, rng, 1e3),
    "singular and long": lambda x, rng: _singular(x, rng, 3e7),
    "huge": lambda x, rng: x * 1e150,
    "denormal": lambda x, rng: x * 1e-310,
    "wide": lambda x, rng: x * 10.0 ** rng.uniform(-25, 25, x.shape),
    "constant": lambda x, rng: np.full(x.shape, 1e-12),
    "trap": lambda x, rng: np.where(np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1)) < 25, x, 0),
    "negative": lambda x, rng: -x * 1e3,
}


def _hostile(question: Question, kind: str, rng: np.random.Generator) -> Question:
    """All arrays of items changed or, every other time but where they must be singular together,
    one."""
    tables = [n for n, a in question.public.items() if a.ndim and a.dtype.kind == "f" and a.size]
    every = kind.startswith("singular") or not tables or rng.random() < 0.5
    chosen = tables if every else [tables[rng.integers(len(tables))]]
    public: Arrays = dict(question.public)
    with np.errstate(all="ignore"):
        for name in chosen:
            made = np.asarray(HOSTILE[kind](np.asarray(public[name], np.float64), rng))
            # a client refuses numbers that are not finite before any private row is looked at
            public[name] = np.nan_to_num(made.astype(public[name].dtype))
    return replace(question, public=public)


def _of_person(reports: Reports, k: int, specs: tuple[BlockSpec, ...]) -> list[bytes]:
    a, b = reports.user_ptr[k : k + 2]
    parts = [reports.items[a:b].tobytes()]
    for block, spec in zip(reports.blocks, specs, strict=True):
        own = block.coefficients[k : k + 1] if spec.rows == 1 else block.coefficients[a:b]
        vectors = block.vectors[k * spec.folds : (k + 1) * spec.folds]
        parts += [own.tobytes(), vectors.tobytes()]
    return parts


def _require_apart(
    question: Question, step: ClientStep, people: Any, rng: np.random.Generator, *, alone: int
) -> None:
    """A batch, the same without a person and in another order, and some alone: equal integers."""
    specs = question.blocks
    n = people.num_users
    whole = answering.answered(question, step, people, np.arange(n))
    fewer = rng.permutation(n)[:-1]
    subset = people.users_subset(fewer)
    again = answering.answered(question, step, subset, np.arange(n - 1))
    for place, k in enumerate(fewer):
        assert _of_person(whole, k, specs) == _of_person(again, place, specs), (question.step, k)
    for k in [n - 1, *rng.integers(0, n, alone)]:
        one = answering.answered(question, step, people, np.array([k]))
        assert _of_person(whole, k, specs) == _of_person(one, 0, specs), (question.step, k)


def _modules() -> Iterator[Any]:
    """All from which a step may be made, and what carries it."""
    for package in (
        fedrec.factorization,
        fedrec.federation,
        fedrec.news,
        fedrec.numerics,
        fedrec.privacy,
        fedrec.recipes,
    ):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            yield importlib.import_module(found.name)
    yield answering


@functools.cache
def _sizes() -> tuple[tuple[str, int], ...]:
    """Names and values of the modules' whole numbers that a batch could cross."""
    found = set()
    for module in _modules():
        assert module.__file__
        with open(module.__file__, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for line in tree.body:
            match line:
                case (
                    ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name))
                ):
                    value = getattr(module, name, None)
                    if type(value) is int and value >= SMALLEST:
                        found.add((name, value))
    return tuple(sorted(found))


def _lower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes into the batch, wherever a module has them by name: compiled loops keep theirs."""
    loaded = [m for name, m in list(sys.modules.items()) if name.startswith("fedrec")]
    for name, value in _sizes():
        for module in loaded:
            if type(getattr(module, name, None)) is int and getattr(module, name) == value:
                monkeypatch.setattr(module, name, LOWERED)


def test_thresholds_are_found_in_the_code_and_stand_by_name() -> None:
    """A literal size in a function would be crossed by no test."""
    assert {"FEW_ITEMS", "_GRAM_ITEMS", "_BLOCK", "SMALL"} <= {name for name, _ in _sizes()}
    for module in _modules():
        assert module.__file__
        with open(module.__file__, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            match node:
                case ast.Compare(comparators=[ast.Constant(value=int(size))]) if size >= SMALLEST:
                    left = ast.unparse(node.left)
                    sized = any(word in left for word in ("len(", ".size", ".shape", "num_users"))
                    assert not sized, f"{module.__name__}, line {node.lineno}: {ast.unparse(node)}"


@functools.cache
def _many(name: str, users: int) -> Interactions:
    """Copies of eight people of `some_events`, with other values and ids, of each size."""
    parts = [some_events(name, 11 + k) for k in range(-(-users // 8))]
    ptr = np.concatenate([[0], *[np.diff(part.user_ptr) for part in parts]]).cumsum()
    columns = [np.concatenate([getattr(part, c) for part in parts]) for c in ("items", "values")]
    whole = replace(parts[0], user_ptr=ptr, items=columns[0], values=columns[1], times=None)
    return whole.users_subset(np.arange(users))


# a client refuses a run whose unit is an example
NAMES = [name for name in RECIPES if "per example" not in name]


def _questions(name: str, *more: str) -> tuple[list[Question], Prepared]:
    """One of each step, of vectors wide enough, and what answers them."""
    events = some_events(name, 11)
    plain = RECIPES[name]
    keys = [WIDE if key.startswith("model.dimension=") else key for key in plain]
    try:
        RECIPES[name] = [*keys, *more]
        made = prepared_for(name, events, 5)
    finally:
        RECIPES[name] = plain
    return list({q.step: q for q in questions_of(events, made)}.values()), made


@pytest.mark.parametrize("name", NAMES)
def test_each_persons_report_is_the_same_bytes_whoever_else_is_there(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, made = _questions(name)
    rng = np.random.default_rng(len(name))
    for question in questions:
        _require_apart(question, made.steps[question.step], _many(name, 300), rng, alone=3)
    _lower(monkeypatch)
    for question in questions:
        step = made.steps[question.step]
        _require_apart(question, step, _many(name, 40), rng, alone=3)
        for kind in HOSTILE:
            _require_apart(_hostile(question, kind, rng), step, _many(name, 12), rng, alone=1)


def test_how_each_persons_clicks_age_is_hers_whoever_else_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """People of 0 to 20 clicks in the order of their times, some of which are equal."""
    rng = np.random.default_rng(5)
    walked = _walks(drift=True)
    kept = walked.select(rng.random(len(walked)) < np.repeat(rng.random(walked.num_users), 20))
    assert kept.times is not None
    many = replace(kept, times=kept.times // 2)
    _require_apart(_question(), report_recency, many, rng, alone=3)
    _lower(monkeypatch)
    some = many.users_subset(np.arange(12))
    for kind in HOSTILE:
        _require_apart(_hostile(_question(), kind, rng), report_recency, some, rng, alone=1)


def test_each_persons_shared_numbers_are_hers_whoever_else_is_there() -> None:
    """Rows of three aggregators, with the squares that fill up each norm, of every recipe that
    three can sum."""
    tried = 0
    for name in NAMES:
        with suppress(FedRecError):
            questions, made = _questions(name, "privacy.aggregation=three-party")
            people = _many(name, 16)
            for question in questions:
                step = made.steps[question.step]
                shape = plan_layout(question, made.plan)
                whole = plain_numbers(
                    answering.answered(question, step, people, np.arange(16)), shape
                )
                for k in (0, 15):
                    one = answering.answered(question, step, people, np.array([k]))
                    assert plain_numbers(one, shape).tobytes() == whole[k].tobytes(), name
                tried += 1
    assert tried > 20


def _readers(users: int) -> tuple[Impressions, np.random.Generator]:
    """Readers of 150 news, with histories and impressions of many lengths."""
    rng = np.random.default_rng(users)
    owner = np.sort(rng.integers(users, size=2 * users)).astype(np.int32)
    read = rng.integers(0, 9, users)
    sizes = rng.integers(1, 12, len(owner))
    shown = np.concatenate([rng.permutation(NEWS)[:size] for size in sizes]).astype(np.int32)
    data = Impressions(
        NEWS,
        np.concatenate([[0], np.cumsum(read)]).astype(np.int64),
        rng.integers(NEWS, size=read.sum()).astype(np.int32),
        owner,
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        shown,
        rng.random(len(shown)) < 0.4,
    )
    return data, rng


def _asked_of_readers(rng: np.random.Generator) -> Iterator[Question]:
    """The questions of `central` and `central-encoder`."""
    d, topics = 12, 9
    X = rng.standard_normal((NEWS, d))
    of_topics = np.eye(topics)[rng.integers(topics, size=NEWS)]
    public = {
        "topics": of_topics,
        "mean": rng.standard_normal(topics) / topics,
        "matrix": rng.standard_normal((topics, topics)),
        "W": rng.standard_normal((topics + 1, d)),
        "vectors": X,
        "clip": np.array(0.1),
    }
    yield central_client.population_question(topics, {"topics": of_topics})
    yield central_client.gradient_question(1, topics + 1, d, public)
    numbers = encoder_client.numbers_of(d)
    points = {f"parameters-{k}": rng.standard_normal((numbers // d, d)) for k in range(2)}
    fixed = {"vectors": X, "heads": np.array(3), "clip": np.array(0.1), "weights": np.ones(2)}
    yield encoder_client.encoder_question(1, numbers, {**fixed, **points})


def test_each_readers_report_is_the_same_integers_whoever_else_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = {**central_client.client_steps(6), **encoder_client.client_steps(6)}
    many, rng = _readers(200)
    some, _ = _readers(8)
    questions = list(_asked_of_readers(rng))
    for question in questions:
        _require_apart(question, steps[question.step], many, rng, alone=3)
    _lower(monkeypatch)
    for question in questions:
        for kind in HOSTILE:
            asked = _hostile(question, kind, rng)
            _require_apart(asked, steps[question.step], some, rng, alone=1)


@pytest.mark.parametrize("hostile", [1.0, 1e8])
def test_what_a_readers_device_noises_is_a_function_of_that_reader(hostile: float) -> None:
    """`local` and `dp-fedrec`: attention and gradients before noise, beside others who read more
    and other news, and by parameters that a server made large."""
    for kind in ("nrms", "naml"):
        model = a_model(kind, basis=B)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(hostile)
        rng = np.random.default_rng(3)
        history = rng.integers(-1, M + 1, (40, 12))
        keys = [bytes([k]) * 32 for k in range(40)]
        plan = gaussian_plan(non_private(1e-5, "click", "replace"), theta=0.2, padding=0.3)
        candidates = rng.integers(0, M, (40, 6, 9))
        for k in range(40):  # some have few and short impressions: the others make them padding
            candidates[k, 1 + k % 6 :] = -1
            candidates[k, :, 2 + k % 8 :] = -1
        labels = np.where(candidates[:, :, 0] >= 0, 0, -1)
        whole = released_weights(model, history, plan, (keys, keys))
        sizes = list[tuple[int, ...]]()

        def loss(scores: torch.Tensor, wanted: torch.Tensor, sizes: Any = sizes) -> torch.Tensor:
            sizes.append(tuple(scores.shape))
            return softmax_loss(scores, wanted)

        everybody = UserExamples(history, candidates, labels)
        gradients = list(per_user_gradients(model, everybody, loss=loss))
        for k in (0, 7, 39):
            own = slice(k, k + 1)
            one = released_weights(model, history[own], plan, (keys[own], keys[own]))
            assert one.tobytes() == whole[own].tobytes()
            mine = candidates[own, : 1 + k % 6, : 2 + k % 8]
            examples = UserExamples(history[own], mine, labels[own, : 1 + k % 6])
            alone = next(per_user_gradients(model, examples, loss=loss))
            assert alone.tobytes() == gradients[k].tobytes()
            assert (
                sizes[-1] == sizes[k]
            )  # arrays of other sizes have other last bits on some machines


def test_a_solve_of_each_row_is_the_same_bits_whoever_else_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Finer than the grid of a report, and with one row of whose system there is no solution: all
    rows are one thread's, so that what a row leaves in memory meets the next ones."""
    _lower(monkeypatch)
    monkeypatch.setattr(least_squares, "map_rows", lambda work, ptr, **_: work(0, len(ptr) - 1))
    people = _many("noisy-descent", 40)
    rng = np.random.default_rng(1)
    for items in (LOWERED - 1, ITEMS):  # NumPy's form, and the compiled one
        kept = people.select(people.items < items)
        V = rng.standard_normal((items, 9))
        ridge = np.ones(40)
        found = solve_users(kept, V, ridge=ridge)
        for k in range(40):
            one = solve_users(kept.users_subset(np.array([k])), V, ridge=1.0)
            assert one.tobytes() == found[k : k + 1].tobytes()
        ridge[7] = -1e9
        with pytest.raises(ValueError, match=r"1 of 40 systems .* row 7"):
            solve_users(kept, V, ridge=ridge)


@pytest.mark.parametrize("items", [LOWERED - 1, ITEMS])
def test_a_fit_of_each_person_is_the_same_bits_whoever_else_is_there(
    items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of NumPy's form and of the compiled one: finer than the grid of a report."""
    _lower(monkeypatch)
    people = _many("noisy-descent", 40)
    people = replace(people.select(people.items < items), num_items=items)
    rng = np.random.default_rng(2)
    phi = rng.standard_normal((items, 9))
    variance = rng.uniform(0.2, 2, items)
    t = rng.standard_normal(len(people))
    whole = cross_fit(people, phi, t, variance, width=4, folds=3)
    means = posterior_means(people, phi, t, variance)
    for k in range(40):
        one = people.users_subset(np.array([k]))
        events = slice(*people.user_ptr[k : k + 2])
        found = cross_fit(one, phi, t[events], variance, width=4, folds=3)
        assert found.residuals.tobytes() == whole.residuals[events].tobytes()
        assert found.noise_share.tobytes() == whole.noise_share[events].tobytes()
        assert found.vectors.tobytes() == whole.vectors[3 * k : 3 * k + 3].tobytes()
        mean = posterior_means(one, phi, t[events], variance)
        assert mean.tobytes() == means[k : k + 1].tobytes()


def test_news_are_encoded_in_blocks_that_the_catalogue_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is encoded together is whole blocks, whatever was clicked."""
    monkeypatch.setattr(local_update, "_TOGETHER", 4)
    model = a_model("nrms", basis=B)
    asked = list[list[int]]()
    encode = model.encode_news

    def seen(items: np.ndarray) -> torch.Tensor:
        asked.append(items.tolist())
        return encode(items)

    monkeypatch.setattr(model, "encode_news", seen)
    plan = gaussian_plan(non_private(1e-5, "click", "replace"), theta=0.2)
    released_weights(model, np.array([[1, 9, -1], [9, 10, M]]), plan, ([KEY] * 2, [KEY] * 2))
    assert asked == [[0, 1, 2, 3], [8, 9, 10, 11], [28, 29, M]]
