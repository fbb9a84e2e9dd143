"""`fedrec status` beside a real aggregator with certificates, and serving's routes: up, then
down."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedrec.cli.status import overview
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.pins import write_pins
from fedrec.transport.aggregator_client import RemoteReportEndpoint
from fedrec.transport.channel import Access
from fedrec_aggregator.main import run
from fedrec_aggregator.settings import load
from fedrec_server.serving.batcher import ServingCounts
from tests.threads import saying, serving, web
from tests.waiting import until

pytestmark = pytest.mark.processes


def test_the_aggregator_is_asked_over_grpc_with_the_certificate_of_whose_settings_name_it(
    tmp_path: Path,
) -> None:
    write_development_certificates(tmp_path / "c", clients=["library"])
    write_pins(tmp_path / "c")
    pair: Callable[[str], str] = lambda name: (  # noqa: E731
        f'certificate = "c/{name}.pem"\nkey = "c/{name}-key.pem"\n'
    )
    own = tmp_path / "aggregator.toml"
    own.write_text(
        'listen = "127.0.0.1:0"\nstate = "a"\nmetrics = "127.0.0.1:0"\nlog = "a.jsonl"\npins = '
        '"c/pins.toml"\n[tls]\n'
        f'{pair("aggregator")}client_ca = "c/ca.pem"\n[[clients]]\nname = '
        '"library"\n[privacy]\nmax_epsilon = 5.0\n'
    )
    server = tmp_path / "server.toml"
    client = tmp_path / "client.toml"
    with serving(run, load(own)) as address:
        table = f'pins = "c/pins.toml"\n[aggregator]\naddress = "{address}"\nca = "c/ca.pem"\n'
        server.write_text(
            'state = "s"\npublic = { path = "p" }\nlink = { insecure = true '
            f"}}\n{table}{pair('server')}"
        )
        proxy = f'[server]\naddress = "127.0.0.1:1"\nca = "c/ca.pem"\n{pair("client-library")}'
        head = 'name = "library"\nstate = "l"\ndata = { path = "r.csv" }\n'
        client.write_text(f"{head}{table}{pair('client-library')}{proxy}")
        access = Access(
            str(address),
            ca=str(tmp_path / "c/ca.pem"),
            certificate=str(tmp_path / "c/client-library.pem"),
            key=str(tmp_path / "c/client-library-key.pem"),
        )
        with RemoteReportEndpoint(access) as endpoint:
            endpoint.enroll([bytes([number] * 16) for number in range(7)])
        by_server = overview.asked([server])[1]
        assert (by_server.party, by_server.up, by_server.users, by_server.address) == (
            "aggregator",
            True,
            7,
            str(address),
        )
        by_client = overview.asked([client])[1]
        assert (by_client.party, by_client.up, by_client.users) == ("aggregator", True, None)
        until(
            lambda: overview.asked([own])[0].users == 7,
            "the aggregator's numbers follow at its next tick",
        )
        [itself] = overview.asked([own])
        assert (itself.up, itself.users, itself.epsilon_left, itself.address) == (
            True,
            7,
            5.0,
            str(address),
        )
        assert itself.version
        assert itself.since_s is not None
        # each once
        assert [one.party for one in overview.asked([own, server])] == ["aggregator", "server"]
    assert not overview.asked([own])[0].up
    [_, gone] = overview.asked([server])
    assert not gone.up
    assert "no answer" in gone.why or "no aggregator" in gone.why or gone.why


def test_serving_is_asked_by_its_health_route_and_its_metrics(tmp_path: Path) -> None:
    counts = ServingCounts("7.7")
    statuses = {"/health/ready": 200}
    counts.swapped("loaded", 1)

    with (
        web(lambda to: saying(b"", statuses.get(to.path, 200))(to)) as http,
        counts.served(Address("127.0.0.1", 0)) as watched,
    ):
        (tmp_path / "serving.toml").write_text(
            f'http = "{http}"\ngrpc = ""\nmetrics = "{watched.address}"\n'
        )
        [up] = overview.asked([tmp_path / "serving.toml"])
        assert (up.up, up.version, up.phase, up.epsilon_left) == (True, "7.7", "serving", None)
        assert up.last_success_s is not None
        statuses["/health/ready"] = 503
        [draining] = overview.asked([tmp_path / "serving.toml"])
        assert (draining.up, "not ready" in draining.why) == (False, True)
    assert not overview.asked([tmp_path / "serving.toml"])[0].up
