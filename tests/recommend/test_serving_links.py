"""The device against the real server, over gRPC and HTTP, with and without TLS."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import ProtocolError, RefusedError, SettingsError, UnreachableError
from fedrec.federation.protocol import Refusal
from fedrec.operations.certificates import pins, write_development_certificates
from fedrec.transport.channel import Access
from fedrec.transport.serving_api import serving_pb2 as pb
from fedrec_client.clicks import Clicks
from fedrec_client.explaining import decoded, explained
from fedrec_client.serving_http import HttpServer, connect
from fedrec_client.serving_link import ServingQuery, Trust
from tests.ports import free_port
from tests.threads import saying, web

from .conftest import HISTORY, Asking, PlainServer, write_bundle

CLICKS = Clicks.of(["i1", "i2", "i3"])
pytestmark = pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")

Start = Callable[..., Any]


def urls(serving: Any) -> dict[str, str]:
    secure = serving.http.startswith("https")
    return {"grpc": f"grpc{'s' if secure else ''}://{serving.grpc}", "http": serving.http}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("certificates")
    write_development_certificates(folder, clients=["reader"])
    write_development_certificates(folder / "others", clients=["reader"])
    return {path.relative_to(folder).as_posix(): str(path) for path in folder.rglob("*.pem")}


def test_both_ways_give_the_same_list_and_carry_the_noised_numbers(
    served: PlainServer, real_server: Start, tmp_path: Path
) -> None:
    serving = real_server(served.paths[0])
    lists = {}
    for kind, url in urls(serving).items():
        with Asking(url, tmp_path / "state") as recommender:
            found = recommender.recommend(CLICKS, categories=["drama"])
            lists[kind] = [(item.id, item.score) for item in found.items]
            sent = recommender.ledger.entries[0].sent
            if kind == "grpc":
                assert found.left[-1].what == "/fedrec.serving.v1.Recommender/Recommend"
                message = pb.RecommendRequest.FromString(found.left[-1].body)
                assert (list(message.coefficients), message.k, message.categories) == (
                    sent.tolist(),
                    10 + HISTORY,
                    1,
                )
                assert (f"{message.version:016x}", len(message.ListFields())) == (serving.newest, 4)
            else:
                body = json.loads(found.left[-1].body)
                expected = {
                    "version": serving.newest,
                    "coefficients": sent.tolist(),
                    "k": 10 + HISTORY,
                    "categories": ["drama"],
                }
                assert body == expected
                assert {name.lower() for name, _ in found.left[-1].headers} == {
                    "host", "accept", "accept-encoding", "connection", "user-agent",
                    "content-length", "content-type",
                }  # fmt: skip
            assert len(recommender.ledger.entries) == 1
    assert lists["grpc"] == lists["http"]
    assert len(lists["grpc"]) == 10


def test_an_explanation_shows_every_byte_in_hex_and_in_words(
    served: PlainServer, real_server: Start, tmp_path: Path
) -> None:
    serving = real_server(served.paths[0])
    for url in urls(serving).values():
        with Asking(url, tmp_path / "state") as recommender:
            found = recommender.recommend(CLICKS)
            words = explained(found, recommender)
            shown = "".join(
                line[10:].replace(" ", "") for line in words.splitlines() if line.startswith("  0")
            )
            assert shown == b"".join(message.body for message in found.left).hex()
            assert serving.newest in decoded(found.left[-1])
            for expected in (
                "Stayed on this device",
                "noise of std",
                "asked for, whatever the history",
            ):
                assert expected in words
        assert all(f"i{j}" not in words for j in (1, 2, 3))
    with Asking(url, tmp_path / "state") as recommender:
        here = recommender.local(CLICKS)
        assert b"".join(left.body for left in here.left) in (b"", here.left[0].body)
        assert "coefficients" not in explained(here, recommender).partition("Stayed")[0]


def test_tls_by_authority_pin_or_both_and_with_a_certificate_of_ones_own(
    served: PlainServer, real_server: Start, tmp_path: Path, certificates: dict[str, str]
) -> None:
    pair = {"certificate": certificates["serving.pem"], "key": certificates["serving-key.pem"]}
    pin = pins(Path(certificates["serving.pem"]).read_bytes()).certificate
    mine = {
        "certificate": certificates["client-reader.pem"],
        "key": certificates["client-reader-key.pem"],
    }
    open_to_all = real_server(served.paths[0], tls=pair)
    for number, trust in enumerate(
        (
            Trust(ca=certificates["ca.pem"]),
            Trust(pin=pin),
            Trust(ca=certificates["ca.pem"], pin=pin),
        )
    ):
        for kind, url in urls(open_to_all).items():
            with Asking(url, tmp_path / f"{kind}-{number}", trust=trust) as recommender:
                assert len(recommender.recommend(CLICKS).items) == 10
    closed = real_server(served.paths[0], tls=pair | {"client_ca": certificates["ca.pem"]})
    for kind, url in urls(closed).items():
        with Asking(
            url, tmp_path / f"closed-{kind}", trust=Trust(ca=certificates["ca.pem"], **mine)
        ) as recommender:
            assert len(recommender.recommend(CLICKS).items) == 10
        with Asking(
            url, tmp_path / f"stranger-{kind}", trust=Trust(ca=certificates["ca.pem"])
        ) as recommender:
            with pytest.raises(ProtocolError):
                recommender.recommend(CLICKS)
            assert not recommender.ledger.entries


def test_a_wrong_certificate_is_refused_before_anything_is_asked(
    served: PlainServer, real_server: Start, tmp_path: Path, certificates: dict[str, str]
) -> None:
    serving = real_server(
        served.paths[0],
        tls={"certificate": certificates["server.pem"], "key": certificates["server-key.pem"]},
    )
    for trust in (Trust(), Trust(ca=certificates["others/ca.pem"]), Trust(pin="0" * 64)):
        for kind, url in urls(serving).items():
            with Asking(
                url, tmp_path / f"{kind}-{trust.pin}-{bool(trust.ca)}", trust=trust
            ) as recommender:
                with pytest.raises(RefusedError, match=r"certificate") as caught:
                    recommender.recommend(CLICKS)
                assert caught.value.code == Refusal.WRONG_CERTIFICATE
                assert not recommender.ledger.entries


def test_a_certificate_of_another_role_is_no_serving_servers(
    served: PlainServer, real_server: Start, tmp_path: Path, certificates: dict[str, str]
) -> None:
    serving = real_server(
        served.paths[0],
        tls={
            "certificate": certificates["aggregator.pem"],
            "key": certificates["aggregator-key.pem"],
        },
    )
    pin = pins(Path(certificates["aggregator.pem"]).read_bytes()).public_key
    for trust in (
        Trust(ca=certificates["ca.pem"]),
        Trust(pin=pin),
        Trust(ca=certificates["ca.pem"], pin=pin),
    ):
        for kind, url in urls(serving).items():
            with Asking(
                url, tmp_path / f"{kind}-{trust.pin}-{bool(trust.ca)}", trust=trust
            ) as recommender:
                with pytest.raises(RefusedError, match="needed is fedrec:server") as caught:
                    recommender.recommend(CLICKS)
                assert caught.value.code == Refusal.WRONG_CERTIFICATE
                assert not recommender.ledger.entries


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_nobody_there_is_said_in_a_line_and_nothing_is_paid(kind: str, tmp_path: Path) -> None:
    with Asking(
        f"{kind}://127.0.0.1:{free_port('127.0.0.1')}", tmp_path / "state", timeout_s=1.0
    ) as recommender:
        with pytest.raises(UnreachableError, match=r"no answer from the server at 127.0.0.1"):
            recommender.recommend(CLICKS)
        assert not recommender.ledger.entries


def test_tls_with_a_server_without_it_is_named_in_both_ways(
    served: PlainServer, real_server: Start, tmp_path: Path
) -> None:
    for kind, url in urls(real_server(served.paths[0])).items():
        secure = url.replace(kind, f"{kind}s", 1)
        with (
            Asking(secure, tmp_path / kind) as recommender,
            pytest.raises(UnreachableError, match=r"no TLS with .*WRONG_VERSION_NUMBER"),
        ):
            recommender.recommend(CLICKS)
    nobody = f"grpcs://127.0.0.1:{free_port('127.0.0.1')}"
    with (
        Asking(nobody, tmp_path / "nobody") as recommender,
        pytest.raises(UnreachableError, match="no server answers") as caught,
    ):
        recommender.recommend(CLICKS)
    assert caught.value.remedy == "Start it, or correct --server."


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_a_version_that_is_retired_in_between_gives_way_to_the_newest(
    kind: str, served: PlainServer, real_server: Start, tmp_path: Path
) -> None:
    first = real_server(served.paths[0])
    with Asking(urls(first)[kind], tmp_path / "state", limit=100.0) as recommender:
        recommender.recommend(CLICKS)
        cached = recommender._current()
        assert cached is not None
    write_bundle(served.paths[0], seed=9)
    second = real_server(served.paths[0])
    with Asking(urls(second)[kind], tmp_path / "state", limit=100.0) as recommender:
        # as if this server had served it until now
        recommender._cache.use(urls(second)[kind], cached.bundle)
        found = recommender.recommend(CLICKS)
        assert (found.bundle.version, found.fresh) == (second.newest, False)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a:1",
        "grpc://",
        "http://a:1/path",
        "https://me@a:1",
        "grpc://a:notaport",
        "grpc://a:1",
        "http://a",
    ],
)
def test_an_address_that_is_none_or_would_be_readable_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        connect(url, Trust())


@pytest.mark.parametrize(
    "ask",
    [HttpServer.newest, lambda server: server.recommend(ServingQuery("0" * 16, np.zeros(3), 5))],
    ids=["newest", "recommend"],
)
@pytest.mark.parametrize(
    "content",
    [b"[" * 200_000, b'{"version": "0", "items": [%d], "scores": [1.0]}' % 10**30],
    ids=["nested", "past int64"],
)
def test_an_answer_that_cannot_be_read_is_a_protocol_error(
    ask: Callable[[HttpServer], Any], content: bytes
) -> None:
    with web(saying(content)) as address:
        server = HttpServer(Access(address, insecure=True, party="server"))
        with pytest.raises(ProtocolError, match=address):
            ask(server)
        server.close()
