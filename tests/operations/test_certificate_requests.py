"""A party makes its own key; the authority signs for whom its operator names, and for nobody else."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from fedrec.cli.main import app
from fedrec.errors import SettingsError
from fedrec.operations.certificate_requests import request, sign
from fedrec.operations.certificates import LOCAL_HOSTS, pins, uris_of
from fedrec.operations.pins import read_pins


def public(path: Path) -> str:
    return pins(path.read_bytes()).public_key


def hosts_of(path: Path) -> list[str]:
    made = x509.load_pem_x509_certificate(path.read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]


@pytest.mark.parametrize(
    ("name", "uri", "hosts"),
    [
        ("client-hospital", "fedrec:client:hospital", []),
        ("aggregator", "fedrec:aggregator:aggregator", list(LOCAL_HOSTS)),
        ("aggregator-2", "fedrec:aggregator:2", list(LOCAL_HOSTS)),
        ("server", "fedrec:server:server", list(LOCAL_HOSTS)),
    ],
)
def test_the_key_stays_with_the_party_and_renewal_keeps_key_and_hosts(
    name: str, uri: str, hosts: list[str], tmp_path: Path
) -> None:
    own, authority = tmp_path / "own", tmp_path / "authority"
    for _ in range(2):
        result = CliRunner().invoke(app, ["certs", "request", name, "--folder", str(own)])
        assert result.exit_code == 0, result.output
        sent = shutil.copy(own / f"{name}.csr", tmp_path)
        words = ["certs", "sign", str(authority), str(sent), "--for", name]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    made = authority / f"{name}.pem"
    assert uris_of(x509.load_pem_x509_certificate(made.read_bytes())) == [uri]
    assert hosts_of(made) == hosts
    assert read_pins(authority / "pins.toml") == {uri: public(made)}
    assert {path.name for path in authority.iterdir()} == {
        "ca.pem",
        "ca-key.pem",
        "pins.toml",
        f"{name}.pem",
    }
    key = own / f"{name}-key.pem"
    assert key.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in Path(sent).read_bytes()


def test_nobody_is_signed_for_but_whom_the_operator_names(tmp_path: Path) -> None:
    _, sent = request(tmp_path / "own", "client-hospital")
    authority = tmp_path / "authority"

    def refuses(words: str, path: Path, name: str, **more: Any) -> None:
        with pytest.raises(SettingsError, match=words):
            sign(authority, path, name, hosts=(), days=9, **more)

    for other in ("aggregator", "server", "client-library"):
        refuses("asks for fedrec:client:hospital", sent, other)
    for nobody in ("", "client", "operator", "client-", "client-a-key", "aggregator/../x"):
        refuses("names no party", sent, nobody)
    changed = tmp_path / "changed.csr"
    content = x509.load_pem_x509_csr(sent.read_bytes()).public_bytes
    der = bytearray(content(Encoding.DER))
    der[-1] ^= 1  # of the signature by the request's own key
    middle = base64.encodebytes(bytes(der)).decode()
    head, tail = "-----BEGIN CERTIFICATE REQUEST-----\n", "-----END CERTIFICATE REQUEST-----\n"
    changed.write_text(head + middle + tail)
    refuses("hospital", changed, "client-hospital")
    changed.write_text("no request")
    refuses("changed.csr", changed, "client-hospital")
    assert not authority.exists()
    first = public(sign(authority, sent, "client-hospital", hosts=(), days=9))
    _, another = request(tmp_path / "next", "client-hospital")
    refuses("has another key", another, "client-hospital")
    assert public(authority / "client-hospital.pem") == first
    sign(authority, another, "client-hospital", hosts=(), days=9, new_key=True)
    assert public(authority / "client-hospital.pem") != first
