"""A server that chooses its bundles to learn of a history: between the download and the query
nothing shows it but noised numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import BudgetExceededError, ProtocolError
from fedrec.privacy.accounting import mu_for
from fedrec.serving import bundle as bundles
from fedrec.serving.bundle import Texts
from fedrec_client import recommending
from fedrec_client.clicks import Click, Clicks
from fedrec_client.public_model import PublicModel

from .conftest import HISTORY, ITEMS, TOPICS, WIDTH, Asking, PlainServer, write_bundle

pytestmark = pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")

X = 17
HISTORIES = (
    Clicks.of(["i3", f"i{X}", "i5"]),
    Clicks.of(["i3", "i4", "i5"]),
    Clicks.of([f"i{X}"]),
    Clicks.of([]),
)


def without(*gone: int) -> dict[str, Any]:
    """A catalogue that lacks items."""
    texts = Texts.of([f"gone{j}" if j in gone else f"i{j}" for j in range(ITEMS)])
    return {"ids.content": texts.content, "ids.ptr": texts.ptr}


def attention(**changed: Any) -> dict[str, Any]:
    """Arrays of an attention form with a small NRMS user encoder; two heads."""
    rng = np.random.default_rng(2)
    parts = {
        "attention.project": (WIDTH, 3 * WIDTH),
        "pool.dense": (WIDTH, 4),
        "pool.bias": (4,),
        "pool.query": (4, 1),
    }
    arrays = {
        f"encoder.{name}": rng.normal(size=shape).astype(np.float32)
        for name, shape in parts.items()
    }
    numbers = {"theta": np.array(0.3), "padding": np.array(0.2), "heads": np.array(2)}
    nothing = {
        "rows": np.zeros((0, TOPICS), np.int32),
        "mean": np.zeros(TOPICS),
        "covariance": np.zeros((TOPICS, TOPICS)),
    }
    anonymous = {"anonymous": rng.normal(size=WIDTH).astype(np.float32)}
    return {
        "about": {"form": "attention", "sensitivity": math.nextafter(math.sqrt(2) * 0.3, 1)},
        **arrays,
        **numbers,
        **nothing,
        **anonymous,
        **changed,
    }


def items_with(number: float, row: int = X) -> dict[str, Any]:
    items = np.random.default_rng(0).normal(size=(ITEMS, WIDTH)).astype(np.float32)
    items[row] = number
    return {"items": items}


def seen_by(server: PlainServer, state: Path, clicks: Clicks, **options: Any) -> tuple[Any, ...]:
    """Everything that a server sees of one call but for the noised numbers, and what was
    charged."""
    before = len(server.queries)
    fetched = server.fetched
    with Asking(server, state, **options) as recommender:
        try:
            recommender.recommend(clicks)
            refused = ""
        except ProtocolError as failure:
            refused = failure.cause
        spent = recommender.ledger.epsilon
    queries = [
        (query.version, query.sent.shape, query.k, query.category_bits)
        for query in server.queries[before:]
    ]
    return queries, server.fetched - fetched, refused, spent


def all_seen(tmp_path: Path, bundle: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Of each history, on a device of its own."""
    path = tmp_path / "hostile.safetensors"
    write_bundle(path, **bundle)
    return [
        seen_by(PlainServer([path]), tmp_path / str(number), clicks)
        for number, clicks in enumerate(HISTORIES)
    ]


ANSWERED: dict[str, Callable[[], dict[str, Any]]] = {
    "an item is missing": lambda: without(X),
    "all items are missing": lambda: without(*range(ITEMS)),
    "an item is there twice": lambda: {
        "ids.content": Texts.of(["i3"] * ITEMS).content,
        "ids.ptr": Texts.of(["i3"] * ITEMS).ptr,
    },
    "only the best rating counts": lambda: {"about": {"liked": 5.0}},
    "a title is no text": lambda: {
        "titles.content": np.full_like(Texts.of([f"Title {j}" for j in range(ITEMS)]).content, 255)
    },
    "attention": attention,
    "attention with an item of 1e6": lambda: attention(**items_with(1e6)),
    "attention with an anonymous item of 1e6": lambda: attention(
        anonymous=np.full(WIDTH, 1e6, np.float32)
    ),
}
REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "attention with an item of 3e38": lambda: attention(**items_with(3e38)),
    "attention with an item of 1e30": lambda: attention(**items_with(1e30)),
    "an item that is not finite": lambda: items_with(np.nan),
    "two items that are not finite": lambda: items_with(np.inf),
    "an anonymous item of 3e38": lambda: attention(anonymous=np.full(WIDTH, 3e38, np.float32)),
    "an encoder of 3e38": lambda: attention(
        **{"encoder.pool.query": np.full((4, 1), 3e38, np.float32)}
    ),
    "an encoder that lacks a part": lambda: attention(
        **{"encoder.pool.query": np.zeros((3, 1), np.float32)}
    ),
    "heads that do not divide the width": lambda: attention(heads=np.array(4)),
    "padding of 1 - delta": lambda: attention(padding=np.array(1 - 1e-6)),
    "a sensitivity that its clipping does not have": lambda: attention(theta=np.array(0.2)),
    "padding of nearly all clicks": lambda: attention(padding=np.array(0.995)),
    "padding that is no number": lambda: attention(padding=np.array(np.nan)),
    "a clipping of nothing": lambda: attention(theta=np.array(1e-300)),
    "two hundred million places": lambda: {"about": {"history": 200_000_000, "sensitivity": 1.0}},
    "five thousand places": lambda: {"about": {"history": 5_000, "sensitivity": 1.0}},
    "a mean that is not finite": lambda: {"mean": np.full(TOPICS, np.nan)},
    "a covariance of 1e300": lambda: {"covariance": np.eye(TOPICS) * 1e300},
    "a scale of 1e-300": lambda: {"about": {"scale": 1e-300}},
    "a sensitivity of 1e300": lambda: {"about": {"sensitivity": 1e300}},
    "rows longer than 1": lambda: {
        "rows": np.full((ITEMS, TOPICS), 2**20, np.int32),
        "about": {"sensitivity": 100.0},
    },
    "rows of another type": lambda: {"rows": np.full((ITEMS, TOPICS), 0.5)},
    "ids of another type": lambda: {
        "ids.ptr": Texts.of([f"i{j}" for j in range(ITEMS)]).ptr.astype(np.float64)
    },
    "ids that overlap": lambda: {
        "ids.ptr": Texts.of([f"i{j}" for j in range(ITEMS)]).ptr[::-1].copy()
    },
    "too many coefficients": lambda: {
        "users.linear": np.zeros((2_000, WIDTH), np.float32),
        **_wide(2_000),
    },
}


def _wide(B: int) -> dict[str, Any]:
    rows = {"rows": np.zeros((ITEMS, B), np.int32), "mean": np.zeros(B), "covariance": np.eye(B)}
    return rows | {"users.first": np.zeros((B, 0), np.float32)}


@pytest.mark.parametrize("bundle", ANSWERED.values(), ids=list(ANSWERED))
def test_whatever_a_bundle_holds_a_query_leaves_for_every_history_and_costs_the_same(
    tmp_path: Path, bundle: Any
) -> None:
    seen = all_seen(tmp_path, bundle())
    assert len(seen[0][0]) == 1
    assert seen[0][3] > 4.9
    assert all(other == seen[0] for other in seen)


@pytest.mark.parametrize("bundle", REFUSED.values(), ids=list(REFUSED))
def test_a_bundle_out_of_bounds_is_refused_before_a_history_is_looked_at(
    tmp_path: Path, bundle: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(PublicModel, "window", lambda *_: pytest.fail("the history was looked at"))
    seen = all_seen(tmp_path, bundle())
    assert all((queries, spent) == ([], 0) for queries, _, _, spent in seen)
    assert all("the server's bundle cannot be used" in refused for _, _, refused, _ in seen)


def test_no_catalogue_finds_an_item_by_bisection(tmp_path: Path) -> None:
    """Half of the items are missing, again and again: every bundle is asked and charged, so the
    answers say nothing."""
    server = PlainServer([])
    secret = Clicks.of(["i37"])
    for number, half in enumerate([range(60), range(60, 120), range(30), range(30, 60)]):
        server.paths.append(tmp_path / f"{number}.safetensors")
        write_bundle(server.paths[-1], **without(*half))
        queries, _, refused, spent = seen_by(server, tmp_path / "state", secret, epsilon=1.0)
        assert (len([q for q in queries if q[0] == server.newest()]), refused) == (1, "")
        server.retired.add(server.newest())
        together = math.sqrt(number + 1) * mu_for(1.0, 1e-5)
        assert mu_for(spent, 1e-5) == pytest.approx(together, rel=1e-6)


@pytest.mark.parametrize("rating", [4.0, 5.0])
def test_whether_bytes_repeat_does_not_tell_a_rating(tmp_path: Path, rating: float) -> None:
    """The same rows and another `liked`: a fresh answer, whether a rating lies between the two or
    not."""
    server = PlainServer([tmp_path / "first.safetensors", tmp_path / "second.safetensors"])
    for path, liked in zip(server.paths, (3.5, 4.5), strict=True):
        write_bundle(path, about={"liked": liked})
    clicks = Clicks((Click("i1", 5.0, 1), Click("i2", rating, 2), Click("i3", 2.0, 3)))
    second = server.paths.pop()
    with Asking(server, tmp_path / "state") as recommender:
        assert recommender.recommend(clicks).fresh
        server.retired.add(server.newest())
        server.paths.append(second)
        assert recommender.recommend(clicks).fresh
        assert len(recommender.ledger.entries) == 2


def test_an_earlier_history_that_comes_back_is_a_new_question(
    served: PlainServer, tmp_path: Path
) -> None:
    """Who takes a title out and puts one back must not tell whether it is the same one."""
    first = Clicks.of(["i1", "i2"])
    other = Clicks.of(["i1"])
    with Asking(served, tmp_path / "state", limit=100.0) as recommender:
        assert recommender.recommend(first).fresh
        assert recommender.recommend(other).fresh
    with Asking(served, tmp_path / "state", limit=100.0) as recommender:
        assert recommender.recommend(first).fresh
        assert not recommender.recommend(first).fresh
        assert not recommender.recommend(other, last=True).fresh
        # it was away, though nothing fresh was asked meanwhile
        assert recommender.recommend(first).fresh
    assert len({query.sent.tobytes() for query in served.queries}) == 4


@pytest.mark.parametrize(
    "more",
    [Click("i9", 1.0), Click("i9", 5.0), Click("nowhere", 5.0)],
    ids=["disliked", "liked", "unknown"],
)
def test_every_event_is_a_change_whatever_the_model_takes_for_a_click(
    tmp_path: Path, more: Click
) -> None:
    write_bundle(tmp_path / "b.safetensors", about={"liked": 4.0})
    clicks = (Click("i1", 5.0), Click("i2", 4.0))
    with Asking(PlainServer([tmp_path / "b.safetensors"]), tmp_path / "state") as recommender:
        recommender.recommend(Clicks(clicks))
        assert recommender.recommend(Clicks((*clicks, more))).fresh


def test_a_history_that_alone_fails_is_asked_for_as_an_empty_one_at_the_same_price(
    served: PlainServer, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    real = recommending.ask

    def failing(bundle: bundles.Bundle, history: Any, **how: Any) -> Any:
        if X in history:
            raise FloatingPointError("this item alone")
        return real(bundle, history, **how)

    monkeypatch.setattr(recommending, "ask", failing)
    seen = [
        seen_by(served, tmp_path / str(number), clicks) for number, clicks in enumerate(HISTORIES)
    ]
    assert all(other[0] == seen[0][0] and other[3] == seen[0][3] > 0 for other in seen)
    assert [record.message for record in caplog.records] == ["history-stays-silent"] * 2


def test_every_bundle_is_charged_to_the_one_ledger_and_past_the_limit_none_is_answered(
    tmp_path: Path,
) -> None:
    """A bundle with rows of its own for every question: each answer is fresh, so each is paid
    for."""
    server = PlainServer([])
    with Asking(server, tmp_path / "state", epsilon=5.0, limit=10.0) as recommender:
        for number in range(4):
            server.retired |= {server.newest()} if server.paths else set()
            server.paths.append(tmp_path / f"{number}.safetensors")
            # which tells them apart no more
            write_bundle(server.paths[-1], rows_seed=number, about={"sensitivity": 0.5})
            if number < 3:
                assert recommender.recommend(HISTORIES[0]).fresh
        with pytest.raises(BudgetExceededError):
            recommender.recommend(HISTORIES[0])
        assert len(recommender.ledger.entries) == 3
        assert not [query for query in server.queries if query.version == server.newest()]
        assert mu_for(recommender.ledger.epsilon, 1e-5) == pytest.approx(
            math.sqrt(3) * mu_for(5.0, 1e-5), rel=1e-6
        )


def test_a_cached_bundle_out_of_bounds_does_not_block_the_next(
    served: PlainServer, tmp_path: Path
) -> None:
    hostile = tmp_path / "hostile.safetensors"
    version = write_bundle(hostile, about={"history": 10**6, "sensitivity": 1.0})
    folder = tmp_path / "state" / "bundles"
    folder.mkdir(parents=True)
    (folder / f"{version}.safetensors").write_bytes(hostile.read_bytes())
    (folder / "current.json").write_text(f'{{"server": "{version}"}}')
    with Asking(served, tmp_path / "state") as recommender:
        assert recommender.recommend(HISTORIES[0]).fresh
    assert not (folder / f"{version}.safetensors").exists()


def test_where_a_model_pads_no_word_of_the_server_makes_a_click_an_empty_place(
    tmp_path: Path,
) -> None:
    """Padding hides clicks, not empty places: a click that is none would cost more than the
    answer's price."""
    clicks = Clicks((Click("i1", 5.0), Click(f"i{X}", 5.0), Click("i3", 2.0)))
    for name, changed, expected in (
        ("padded", without(X), [1, ITEMS, ITEMS]),
        ("padded, all known", {}, [1, X, ITEMS]),
        ("not padded", {**without(X), "padding": np.array(0.0)}, [-1, 1, -1]),
    ):
        content = attention(**changed)
        content["about"] = content["about"] | {"liked": 4.0}
        write_bundle(tmp_path / name, **content)
        window = PublicModel(bundles.read(tmp_path / name)).window(clicks)
        assert window.tolist() == [-1] * (HISTORY - 3) + expected, name


def test_the_window_of_an_unknown_item_stays_in_its_place(bundle: bundles.Bundle) -> None:
    known = PublicModel(bundle).window(Clicks.of(["i1", "i2", "i3"]))
    unknown = PublicModel(bundle).window(Clicks.of(["i1", "nowhere", "i3"]))
    assert (known != unknown).sum() == 1
    assert len(known) == HISTORY
