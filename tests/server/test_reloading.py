"""Clients whose pins change while the server runs, and training ports that serving's key does not
open."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedrec.errors import RefusedError, SettingsError
from fedrec.federation.protocol import Refusal
from fedrec.operations.certificates import uris_of, write_development_certificates
from fedrec.operations.pins import write_pins
from fedrec.transport.channel import Access, examine
from fedrec_server.main import _followed
from fedrec_server.round_service import RoundService
from fedrec_server.settings import load
from fedrec_server.settings_tables import LinkTable
from tests.waiting import until

SETTINGS = """
state = "server"
pins = "certificates/pins.toml"
[public]
path = "public"
[aggregator]
address = "127.0.0.1:1"
ca = "certificates/ca.pem"
certificate = "certificates/server.pem"
key = "certificates/server-key.pem"
[link]
certificate = "certificates/server.pem"
key = "certificates/server-key.pem"
client_ca = "certificates/ca.pem"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_development_certificates(tmp_path / "certificates", clients=["hospital"])
    write_pins(tmp_path / "certificates")
    (tmp_path / "server.toml").write_text(SETTINGS)
    return tmp_path


def shown(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "certificates" / f"{name}.pem").read_bytes())


def named(service: RoundService, certificate: x509.Certificate) -> str:
    """The client that this certificate makes of its holder."""
    pem = certificate.public_bytes(Encoding.PEM)
    auth = {"x509_pem_cert": [pem], "peer_uri": [uri.encode() for uri in uris_of(certificate)]}
    context = SimpleNamespace(auth_context=lambda: auth)
    try:
        return service._client(context)
    except RefusedError:
        return ""


def test_a_client_whose_pin_is_added_may_join_without_a_restart_and_one_taken_away_may_not(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load(folder / "server.toml")
    service = RoundService(settings.link)

    def name_of(client: str) -> str:
        return named(service, shown(folder, f"client-{client}"))

    with _followed(settings, folder / "server.toml", logging.getLogger("fedrec_server")):
        write_development_certificates(folder / "certificates", clients=["library"])
        assert name_of("library") == ""
        write_pins(folder / "certificates")
        until(lambda: name_of("library") == "library")
        (folder / "certificates" / "client-hospital.pem").rename(folder / "taken.pem")
        write_pins(folder / "certificates")
        until(lambda: set(settings.link.clients) == {"library"})
        (folder / "taken.pem").rename(folder / "certificates" / "client-hospital.pem")
        assert name_of("hospital") == ""
        (folder / "certificates" / "pins.toml").write_text(
            f'"fedrec:aggregator:aggregator" = "{"0" * 64}"\n'
        )
        until(lambda: "clients-not-reloaded" in caplog.messages)
        assert name_of("hospital") == ""  # no name at all would let everybody in
        (folder / "server.toml").write_text(_without_pins(SETTINGS))
        until(lambda: caplog.messages.count("clients-not-reloaded") == 2)
        assert name_of("hospital") == ""


def test_a_server_does_not_start_with_pins_that_name_no_client(folder: Path) -> None:
    """All clients of the authority would join."""
    path = folder / "certificates" / "pins.toml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "client" not in line))
    with pytest.raises(SettingsError, match=r"the pins name no client, .* pins\.toml"):
        load(folder / "server.toml")
    (folder / "server.toml").write_text(_without_pins(SETTINGS))
    assert not load(folder / "server.toml").link.clients


def test_servings_certificate_joins_no_training_and_is_not_taken_for_the_servers(
    folder: Path,
) -> None:
    serving = shown(folder, "serving")
    ca = str(folder / "certificates" / "ca.pem")
    anybody = LinkTable(**{name: str(folder) for name in ("certificate", "key", "client_ca")})
    assert named(RoundService(anybody), serving) == ""
    for party in ("server", "aggregator"):
        with pytest.raises(RefusedError) as refusal:
            examine(serving, Access("127.0.0.1:1", ca=ca, party=party))
        assert refusal.value.code == Refusal.WRONG_CERTIFICATE
    examine(serving, Access("127.0.0.1:1", ca=ca, party="server", also="serving"))


def _without_pins(text: str) -> str:
    return text.replace('pins = "certificates/pins.toml"\n', "")
