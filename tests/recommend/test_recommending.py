"""A person's device: windows, seen items, versions that come and go, caches that break."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedrec.errors import (
    DataError,
    GenericListWarning,
    MalformedRowError,
    ProtocolError,
    SettingsError,
    UnreachableError,
)
from fedrec.randomness import Streams
from fedrec.serving.bundle import Bundle, Texts, read
from fedrec.serving.user_map import Sizes
from fedrec_client.clicks import Click, Clicks, read_clicks
from fedrec_client.explaining import shown
from fedrec_client.public_model import PublicModel
from fedrec_client.recommending import Recommender

from .conftest import HISTORY, ITEMS, TOPICS, Asking, PlainServer, by_rows, write_bundle

pytestmark = pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")

CLICKS = Clicks.of(by_rows(np.arange(7)))
Open = Callable[..., Recommender]


@pytest.fixture
def opened(served: PlainServer, tmp_path: Path) -> Iterator[Open]:
    """A recommender on `tmp_path/state`; the one before is closed first, as a new process would
    find it."""
    running = list[Recommender]()

    def open_(**options: Any) -> Recommender:
        for recommender in running:
            recommender.close()
        running[:] = [Asking(served, tmp_path / "state", **({"keys": Streams(1)} | options))]
        return running[0]

    yield open_
    for recommender in running:
        recommender.close()


def test_the_list_has_k_items_none_of_them_seen_and_is_the_servers_ranking(
    opened: Open, served: PlainServer
) -> None:
    found = opened().recommend(CLICKS, k=10)
    assert len(found.items) == 10
    assert not {item.id for item in found.items} & {click.item for click in CLICKS.events}
    assert [item.score for item in found.items] == sorted(
        (item.score for item in found.items), reverse=True
    )
    assert found.items[0].title == f"Title {found.items[0].id[1:]}"


def test_as_many_items_are_asked_for_whatever_was_seen(opened: Open, served: PlainServer) -> None:
    recommender = opened(limit=1000.0)
    for count in (0, 1, HISTORY, 40):
        recommender.recommend(Clicks.of(by_rows(np.arange(count))), k=10)
    assert {query.k for query in served.queries} == {10 + HISTORY}
    recommender.recommend(CLICKS, k=10, candidates=50)
    assert served.queries[-1].k == 50
    recommender.recommend(CLICKS, k=ITEMS)
    assert served.queries[-1].k == ITEMS


def test_the_latest_clicks_are_the_window_and_low_ratings_are_no_clicks(bundle: Bundle) -> None:
    rated = Clicks(tuple(Click(f"i{j}", rating=float(j % 5 + 1)) for j in range(30)))
    liking = replace(bundle, about=bundle.about.model_copy(update={"liked": 4.0}))
    expected = [j for j in range(30) if j % 5 + 1 >= 4]
    assert PublicModel(liking).window(rated).tolist() == expected[-HISTORY:]
    assert PublicModel(bundle).window(CLICKS).tolist() == [-1] * 3 + list(range(7))


def test_an_item_that_the_catalogue_lacks_is_an_empty_place_and_is_counted(
    opened: Open, bundle: Bundle
) -> None:
    clicks = Clicks.of(["i3", "nobody", "i5"])
    assert PublicModel(bundle).window(clicks).tolist() == [-1] * (HISTORY - 3) + [3, -1, 5]
    found = opened().recommend(clicks)
    assert (found.unknown, len(found.items)) == (1, 10)
    assert opened().local(clicks).unknown == 1
    assert opened().recommend(Clicks.of(["nobody"])).items


def test_blanks_around_ids_and_ratings_off_the_scale_are_counted_and_nothing_is_refused(
    opened: Open, served: PlainServer, tmp_path: Path
) -> None:
    path = served.paths[0]
    write_bundle(path, about={"family": "ratings"}, **{"model.value_range": np.array([1.0, 5.0])})
    (tmp_path / "h.csv").write_text("item,rating\ni3 ,5\n i4,6\ni5,0\nwhat ,5\n")
    clicks = read_clicks(tmp_path / "h.csv")
    assert [click.item for click in clicks.events] == ["i3 ", " i4", "i5", "what "]
    for found in (opened().recommend(clicks), opened().local(clicks)):
        assert (found.without_blanks, found.off_scale, found.unknown) == (2, 2, 1)
    (tmp_path / "h.txt").write_text("i3 \n\ni4\n")
    assert opened().recommend(read_clicks(tmp_path / "h.txt")).without_blanks == 1


def test_an_id_that_has_blanks_in_the_catalogue_is_found_as_it_stands() -> None:
    bundle = SimpleNamespace(ids=Texts.of([" a", "a", "b"]))
    model = PublicModel(cast("Bundle", bundle))
    clicks = Clicks.of([" a", "a", "a ", " b", "c"])
    assert model.rows(clicks).tolist() == [0, 1, 1, 2, -1]
    assert model.without_blanks(clicks) == 2


def test_a_missing_history_is_said_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file") as caught:
        read_clicks(tmp_path / "none.txt")
    assert "--history" in caught.value.remedy


def test_a_table_is_read_oldest_first(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text('item,rating,timestamp\n"a, b",3,30\nb,5,10\nc,4.5,20\n')
    read = read_clicks(tmp_path / "h.csv")
    assert [(click.item, click.rating, click.line) for click in read.events] == [
        ("b", 5.0, 3),
        ("c", 4.5, 4),
        ("a, b", 3.0, 2),
    ]
    (tmp_path / "iso.csv").write_text(
        "item,timestamp\nb,2003-01-02T03:04:05+02:00\na,2003-01-02T00:00Z\nc,2003-01-02 02:00Z\n"
    )
    assert [click.item for click in read_clicks(tmp_path / "iso.csv").events] == ["a", "b", "c"]
    (tmp_path / "bad.csv").write_text("item,timestamp\na,soon\n")
    with pytest.raises(MalformedRowError, match="line 2: expected a time"):
        read_clicks(tmp_path / "bad.csv")
    (tmp_path / "bad.csv").write_text("item,rating\na,much\n")
    with pytest.raises(MalformedRowError, match="line 2: expected a rating"):
        read_clicks(tmp_path / "bad.csv")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match="no item"):
        read_clicks(tmp_path / "empty.txt")


def test_a_table_without_a_header_is_refused_and_not_paid_for_as_unknown_ids(
    tmp_path: Path,
) -> None:
    (tmp_path / "h.csv").write_text("i1,5,2003-01-02\ni2,4,2003-01-03\n")
    with pytest.raises(MalformedRowError, match="line 1: expected one item id a line, or a header"):
        read_clicks(tmp_path / "h.csv")
    for first in (
        "thing,rating",
        "3\t5",
        "3;5",
        "item;rating",
        "item\trating",
        "item;title",
        "user\titem",
        "ITEM ; time",
        "what,timestamp",
    ):
        (tmp_path / "h.txt").write_text(f"{first}\n3,5\n")
        with pytest.raises(MalformedRowError, match="line 1") as failure:
            read_clicks(tmp_path / "h.txt")
        assert "Name the column of items item" in failure.value.remedy
    for name in ("h.csv", "h.TSV"):
        (tmp_path / name).write_text("3\n4\n")
        with pytest.raises(MalformedRowError, match="line 1"):
            read_clicks(tmp_path / name)
    (tmp_path / "ids.txt").write_text("Crouching Tiger, Hidden Dragon\ni2\n")
    assert len(read_clicks(tmp_path / "ids.txt").events) == 2


@pytest.mark.parametrize("name", ["movie", "ASIN", "book"])
def test_a_history_has_the_usual_names_of_its_columns(name: str, tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text(f"{name},stars,date\nb,5,2003-01-02\na,1,2003-01-01\n")
    events = read_clicks(tmp_path / "h.csv").events
    assert [(click.item, click.rating) for click in events] == [("a", 1.0), ("b", 5.0)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("h.txt", "i1\n".encode("utf-16"), "UTF-16"),
        ("h.parquet", b"PAR1\x15", "a Parquet file"),
        ("h.txt", b"\x1f\x8b\x08", "by gzip"),
        ("h.jsonl", b'{"item": "i1"}\n', "one item id a line"),
        ("h.csv", b"item,item\ni1,i2\n", "a column of each name"),
    ],
)
def test_a_history_in_another_form_is_refused_before_it_is_paid_for(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_clicks(tmp_path / name)


def test_an_id_is_found_without_signs_of_no_width() -> None:
    model = PublicModel(cast("Bundle", SimpleNamespace(ids=Texts.of(["7", "b"]))))
    assert model.rows(Clicks.of(["7\u200b", "7.0", "\ufeffb", "B"])).tolist() == [0, 0, 1, -1]


def test_categories_go_by_name_and_an_unknown_one_is_refused(
    opened: Open, served: PlainServer, bundle: Bundle
) -> None:
    found = opened().recommend(CLICKS, categories=["comedy"])
    assert (served.queries[-1].categories, served.queries[-1].category_bits) == (("comedy",), 2)
    assert all(int(bundle.categories[int(item.id[1:])]) & 2 for item in found.items)
    with pytest.raises(SettingsError, match="opera") as caught:
        opened().recommend(CLICKS, categories=["opera"])
    assert "drama, comedy" in caught.value.remedy


def test_the_bundle_is_fetched_once_and_again_when_the_cached_one_is_damaged(
    opened: Open, served: PlainServer, tmp_path: Path
) -> None:
    opened().recommend(CLICKS)
    opened().recommend(CLICKS)
    assert served.fetched == 1
    cached = next((tmp_path / "state" / "bundles").glob("*.safetensors"))
    cached.write_bytes(cached.read_bytes()[:-1] + b"\0")
    assert not opened().recommend(CLICKS).fresh
    assert served.fetched == 2
    cached.write_bytes(b"")
    assert not opened().recommend(CLICKS).fresh


def test_bytes_of_another_version_are_refused_and_nothing_is_asked(
    opened: Open, served: PlainServer, tmp_path: Path
) -> None:
    content = served.paths[0].read_bytes()
    served.bundle = lambda version: iter([content[:-4], b"abcd"])  # type: ignore[method-assign]
    recommender = opened()
    with pytest.raises(ProtocolError, match="its bytes are those of"):
        recommender.recommend(CLICKS)
    assert not served.queries
    assert not recommender.ledger.entries
    assert not list((tmp_path / "state" / "bundles").glob("*.safetensors"))


def test_a_bundle_that_states_less_sensitivity_than_its_rows_have_is_refused(
    opened: Open, served: PlainServer
) -> None:
    write_bundle(served.paths[0], about={"sensitivity": 1e-6})
    recommender = opened()
    with pytest.raises(ProtocolError, match="more than it states"):
        recommender.recommend(CLICKS)
    assert not served.queries


def test_a_new_model_with_the_same_rows_costs_nothing_and_one_with_others_does(
    opened: Open, served: PlainServer, tmp_path: Path
) -> None:
    recommender = opened()
    first = recommender.recommend(CLICKS)
    served.paths.append(tmp_path / "models" / "second.safetensors")
    write_bundle(served.paths[-1], seed=5)
    # it still answers, so nothing changes
    assert recommender.recommend(CLICKS).bundle.version == first.bundle.version
    served.retired.add(first.bundle.version)
    second = recommender.recommend(CLICKS)
    assert (second.fresh, second.bundle.version) == (False, served.newest())
    # the same release, decoded by the new population
    assert served.queries[-1].sent.tobytes() != served.queries[0].sent.tobytes()
    served.paths.append(tmp_path / "models" / "third.safetensors")
    write_bundle(served.paths[-1], seed=5, rows_seed=1)
    served.retired.add(second.bundle.version)
    assert recommender.recommend(CLICKS).fresh
    assert len(recommender.ledger.entries) == 2


def test_one_call_never_pays_twice_however_fast_models_are_retired(
    opened: Open, served: PlainServer, tmp_path: Path
) -> None:
    recommender = opened()
    original = served.recommend

    def retire_at_once(query: Any) -> Any:
        served.retired.add(query.version)
        served.paths.append(tmp_path / "models" / f"{len(served.paths)}.safetensors")
        write_bundle(served.paths[-1], seed=len(served.paths), rows_seed=len(served.paths))
        return original(query)

    served.recommend = retire_at_once  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="retired"):
        recommender.recommend(CLICKS)
    assert len(recommender.ledger.entries) == 1


def test_what_a_lying_server_answers_is_refused(opened: Open, served: PlainServer) -> None:
    recommender = opened()
    for lie in (
        lambda reply: replace(reply, items=reply.items + ITEMS),
        lambda reply: replace(reply, items=reply.items * 0),
        lambda reply: replace(reply, scores=reply.scores * np.nan),
        lambda reply: replace(reply, version="0" * 15 + "1"),
        lambda reply: replace(reply, scores=reply.scores[:-1]),
    ):
        served.answers = lie
        with pytest.raises(ProtocolError, match="the server's list"):
            recommender.recommend(CLICKS)
    assert len(recommender.ledger.entries) == 1


def test_a_lost_question_is_asked_again_for_nothing(opened: Open, served: PlainServer) -> None:
    served.fault = UnreachableError("no answer", "again")
    with pytest.raises(UnreachableError):
        opened().recommend(CLICKS)
    served.fault = None
    again = opened().recommend(CLICKS)
    assert not again.fresh
    assert served.queries[0].sent.tobytes() == served.queries[1].sent.tobytes()


def test_ranking_here_spends_nothing_asks_nothing_and_is_the_ranking_without_noise(
    opened: Open, served: PlainServer
) -> None:

    def lost() -> str:
        raise UnreachableError("no answer", "again")

    recommender = opened()
    here = recommender.local(CLICKS, k=10)
    assert not served.queries
    assert recommender.ledger.epsilon == 0
    exact = opened(epsilon=np.inf, limit=np.inf).recommend(CLICKS, k=10)
    assert [item.id for item in here.items] == [item.id for item in exact.items]
    served.newest = lost  # type: ignore[method-assign]
    assert opened().local(CLICKS, k=3).items == here.items[:3]  # the cached bundle is enough


def test_a_list_of_this_device_that_everybody_gets_says_so(opened: Open) -> None:
    recommender = opened()
    own = recommender.local(CLICKS, k=10)
    assert not own.everybodys
    assert shown(own, recommender) is None
    nobodys = recommender.local(Clicks.of(()), k=10)
    assert nobodys.everybodys
    assert [item.id for item in nobodys.items] != [item.id for item in own.items]
    assert "everybody's" in (shown(nobodys, recommender) or "")
    whole = recommender.local(CLICKS, k=ITEMS)
    assert not whole.everybodys, "an order of its own, of the same items"


def test_an_answer_that_shows_nothing_is_warned_of_before_it_is_paid_for(
    opened: Open, served: PlainServer
) -> None:
    nothing = np.eye(TOPICS)[None]
    alike = Sizes(np.ones(1), np.ones(1), np.zeros((1, TOPICS)), 1e-12 * nothing, nothing)
    write_bundle(served.paths[0], **alike.arrays())
    recommender = opened()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GenericListWarning, match="0% of what 7 clicks say"):
            recommender.recommend(CLICKS)
    assert not recommender.ledger.entries
    assert not served.queries
    with pytest.warns(GenericListWarning, match="will be what everybody gets"):
        assert recommender.recommend(CLICKS).fresh
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not recommender.recommend(CLICKS).fresh  # costs nothing


def test_a_history_of_items_of_which_nothing_is_known_is_warned_of_before_it_is_paid_for(
    opened: Open, served: PlainServer
) -> None:
    rows = np.zeros((ITEMS, TOPICS), np.int32)
    rows[60:] = 2**19 * np.eye(TOPICS, dtype=np.int32)[np.arange(60) % TOPICS]
    write_bundle(served.paths[0], rows=rows)
    recommender = opened()
    unknown = [Click(f"i{j}") for j in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GenericListWarning, match="nothing is known of the 3 items"):
            recommender.recommend(Clicks(tuple(unknown)))
    assert not recommender.ledger.entries
    assert not served.queries
    model = PublicModel(read(served.paths[0]))
    assert model.telling(Clicks((*unknown, Click("i70")))) == 1
