"""No client asks a proxy for the way to its own machine, and an error names the proxy that is set."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from fedrec.cli.doctor.parties import proxied
from fedrec.errors import UnreachableError
from fedrec.operations.addresses import proxy_words
from fedrec.operations.party_settings import AggregatorAccess
from fedrec.transport.channel import Access, handshake, open_channel
from fedrec_aggregator.device_server import _opener
from fedrec_client.serving_http import HttpServer
from fedrec_client.serving_link import lost
from tests.threads import saying, web
from tests.waiting import HANG_S

VARIABLES = ("http_proxy", "HTTP_PROXY", "https_proxy", "grpc_proxy", "all_proxy")
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(params=VARIABLES)
def proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in (*VARIABLES, "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(request.param, NOWHERE)
    return str(request.param)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_grpc_to_this_machine_takes_no_proxy(proxy: str, host: str) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open_channel(Access(f"{host}:{port}", insecure=True)) as channel:
        grpc.channel_ready_future(channel).result(timeout=HANG_S)
    server.stop(None).wait()


def test_http_to_this_machine_takes_no_proxy(proxy: str) -> None:
    with web(saying(b'{"version": "0123456789abcdef"}')) as address:
        opener = _opener("https://127.0.0.1", "")
        assert b"version" in opener.open(f"http://{address}/v1/round", timeout=HANG_S).read()
        link = HttpServer(Access(address, insecure=True, party="serving"), timeout_s=5.0)
        assert link._json("GET", "/v1/models", b"")["version"] == "0123456789abcdef"
        link.close()


def test_whoever_reaches_nobody_is_told_of_the_proxy(proxy: str) -> None:
    assert proxy in lost("rec.example.org:443", "no route").remedy
    assert proxy in proxy_words("10.255.255.1:50051")
    assert "no_proxy" in proxy_words("10.255.255.1:50051")
    with pytest.raises(UnreachableError) as failure:
        handshake(Access("nobody.invalid:1"), timeout_s=1.0)
    assert proxy in failure.value.remedy
    assert proxy_words("127.0.0.1:50051") == proxy_words("[::1]:50051") == ""


@pytest.mark.parametrize("form", ["*", "rec.example.org", ".example.org", "a.b, example.org"])
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_an_address_that_goes_past_the_proxy_is_not_blamed_on_it(
    form: str, name: str, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, form)
    assert proxy_words("rec.example.org:50051") == ""
    assert (proxy in proxy_words("other.org:50051")) == (form != "*")


def test_the_doctor_names_the_proxy_of_each_way_to_another_machine(proxy: str) -> None:
    ways = {
        "aggregator": AggregatorAccess(address="rec.example.org:50051", pin="0" * 64),
        "here": AggregatorAccess(address="127.0.0.1:50051", pin="0" * 64),
    }
    (found,) = proxied("client", ways)
    assert (found.verdict, found.name) == ("doubt", "proxy to aggregator")
    assert proxy in found.words
    assert "rec.example.org to no_proxy" in found.remedy
