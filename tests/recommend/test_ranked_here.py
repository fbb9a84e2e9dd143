"""Who ranks: this device, where the public model is a small download, or the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import DataError, SettingsError, UnreachableError
from fedrec.factorization.default_ratings.model import DefaultModel
from fedrec.factorization.released import arrays_of
from fedrec_client.clicks import Clicks
from fedrec_client.explaining import cost, shown
from fedrec_client.public_model import PublicModel
from fedrec_client.recommending import Recommender

from .conftest import HISTORY, ITEMS, PlainServer, by_rows, write_bundle
from .test_hostile_bundles import attention

pytestmark = pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")

CLICKS = Clicks.of(by_rows(np.arange(7)))


def solved() -> dict[str, Any]:
    """Arrays of a released factorisation model."""
    rng = np.random.default_rng(3)
    vectors, biases = rng.normal(size=(ITEMS, 5)), rng.normal(size=ITEMS)
    model = DefaultModel(vectors, biases, np.full(ITEMS, 0.1), 0.2, 0.5, (1.0, 5.0))
    return {f"model.{name}": np.asarray(array) for name, array in arrays_of(model).items()}


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "news, by a mean of rows": dict,
    "news, by attention": attention,
    "ratings, with the released model": lambda: {
        "about": {"family": "ratings", "liked": 4.0},
        **solved(),
    },
    "clicks, without it": lambda: {"about": {"family": "clicks"}},
}


@pytest.fixture(params=KINDS)
def server(request: Any, tmp_path: Path) -> PlainServer:
    """A server of each kind of bundle."""
    write_bundle(tmp_path / "kind.safetensors", **KINDS[request.param]())
    return PlainServer([tmp_path / "kind.safetensors"])


def test_a_small_public_model_is_ranked_here_and_nothing_is_sent_or_spent(
    server: PlainServer, tmp_path: Path
) -> None:
    lists = []
    for number, options in enumerate(({}, {"via": "device", "device_mb": 0.0})):
        with Recommender(server, tmp_path / f"{number}", **options) as device:
            found = device.recommend(CLICKS)
            lists.append([item.id for item in found.items])
            assert "exact" in cost(found, device)
            assert (len(device.ledger.entries), found.left, found.answer) == (0, (), None)
    assert lists[0] == lists[1]
    assert not server.queries


@pytest.mark.parametrize("clicks", [Clicks.of([]), Clicks.of(["of", "elsewhere"])])
def test_who_of_whom_nothing_is_known_gets_everybodys_list_each_time(
    server: PlainServer, tmp_path: Path, clicks: Clicks
) -> None:
    with Recommender(server, tmp_path / "here") as device:
        here = device.recommend(clicks)
    lists = {tuple(item.id for item in here.items)}
    for number in range(20):
        with Recommender(server, tmp_path / f"{number}", via="server") as device:
            asked = device.recommend(clicks)
            said = shown(asked, device)
        lists.add(tuple(item.id for item in asked.items))
        assert asked.everybodys
        assert PublicModel(asked.bundle).telling(clicks) == 0
        assert "everybody's" in (said or "")
    assert here.everybodys
    assert len(lists) == 1
    assert len({query.sent.tobytes() for query in server.queries}) == 20


def test_the_size_of_the_public_model_alone_decides_who_ranks(
    served: PlainServer, tmp_path: Path
) -> None:
    size_mb = served.paths[0].stat().st_size / 1e6
    for number, clicks in enumerate((CLICKS, Clicks.of([]), Clicks.of(["i3"] * 40))):
        with Recommender(served, tmp_path / f"{number}", device_mb=size_mb) as device:
            assert device.recommend(clicks).answer is None
        with Recommender(served, tmp_path / f"{number}", device_mb=size_mb - 1e-6) as device:
            assert device.recommend(clicks).answer is not None
    assert {query.k for query in served.queries} == {10 + HISTORY}


def test_what_is_of_queries_asks_the_server_or_is_refused(
    served: PlainServer, tmp_path: Path
) -> None:
    with Recommender(served, tmp_path / "auto") as device:
        assert device.recommend(CLICKS, candidates=50).answer is not None
        assert device.recommend(CLICKS, last=True).answer is not None
    with Recommender(served, tmp_path / "device", via="device") as device:
        for asked in ({"last": True}, {"candidates": 50}):
            with pytest.raises(SettingsError, match="--last and --candidates"):
                device.recommend(CLICKS, **asked)  # type: ignore[arg-type]


def test_a_new_model_is_ranked_at_once_and_the_old_one_where_the_server_is_away(
    served: PlainServer, tmp_path: Path
) -> None:
    with Recommender(served, tmp_path / "state") as device:
        first = device.recommend(CLICKS).bundle.version
        served.paths.append(tmp_path / "second.safetensors")
        second = write_bundle(served.paths[-1], seed=1)
        assert device.recommend(CLICKS).bundle.version == second != first

    def lost() -> str:
        raise UnreachableError("no answer", "again")

    served.newest = lost  # type: ignore[method-assign]
    with Recommender(served, tmp_path / "state") as device:
        assert device.recommend(CLICKS).bundle.version == second
    with Recommender(served, tmp_path / "other") as device, pytest.raises(UnreachableError):
        device.recommend(CLICKS)


@pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")
def test_these_items_alone_are_ranked_here_and_what_was_seen_may_be_kept(
    server: PlainServer, tmp_path: Path
) -> None:
    asked = by_rows(np.array([2, 5, 11, 19, 3]))
    with Recommender(server, tmp_path / "d", device_mb=0.0) as device:
        kept = device.recommend(CLICKS, items=asked, keep_seen=True)
        dropped = device.recommend(CLICKS, items=[*asked, "elsewhere"])
        whole = device.local(CLICKS, k=ITEMS, keep_seen=True)
        order = [item.id for item in whole.items]
        assert [item.id for item in kept.items] == sorted(asked, key=order.index)
        seen = {click.item for click in CLICKS.events}
        assert [item.id for item in dropped.items] == [
            one.id for one in kept.items if one.id not in seen
        ]
        assert (kept.left, len(device.ledger.entries)) == ((), 0)
        # one item is in everybody's order, and says nothing of whose list this is
        assert not device.recommend(CLICKS, items=asked[:1], keep_seen=True).everybodys
        assert device.recommend(Clicks.of(["elsewhere"]), items=asked).everybodys
        with pytest.raises(DataError, match="none of the 1 items"):
            device.recommend(CLICKS, items=["elsewhere"])
        with pytest.raises(SettingsError, match="--items are ranked by this device"):
            device.recommend(CLICKS, items=asked, candidates=50)
    assert not server.queries
