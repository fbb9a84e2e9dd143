"""Renewed certificates: another time, the same holder; with the same key the same pin, and nobody
else has anything to do."""

from pathlib import Path

import pytest
from cryptography import x509

from fedrec.cli.main import guarded
from fedrec.errors import SettingsError
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.pins import read_pins, write_pins
from fedrec.operations.renewal import renew


def shown(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.parametrize("name", ["aggregator", "server", "client-hospital", "serving"])
@pytest.mark.parametrize("new_key", [False, True])
def test_a_renewed_certificate_says_what_the_old_one_said_and_its_pin_is_its_key_s(
    name: str, new_key: bool, tmp_path: Path
) -> None:
    write_development_certificates(
        tmp_path, clients=["hospital"], aggregator_hosts=["a.example.org"], days=1
    )
    before = read_pins(write_pins(tmp_path))
    old = shown(tmp_path / f"{name}.pem")
    path = renew(tmp_path, name, days=30, new_key=new_key)
    new = shown(path)
    after = read_pins(write_pins(tmp_path))
    assert new.not_valid_after_utc > old.not_valid_after_utc
    assert (new.subject, new.issuer) == (old.subject, old.issuer)
    assert [extension.value for extension in new.extensions] == [
        extension.value for extension in old.extensions
    ]
    new.verify_directly_issued_by(shown(tmp_path / "ca.pem"))
    assert {who for who in before if before[who] != after[who]} == (
        {f"fedrec:{_identity(name)}"} if new_key and name != "serving" else set()
    )
    assert all(each.stat().st_mode & 0o077 == 0 for each in tmp_path.glob("*.pem"))


def test_a_renewed_authority_vouches_for_what_it_vouched_for(tmp_path: Path) -> None:
    write_development_certificates(tmp_path, clients=["hospital"], days=1)
    renew(tmp_path, "ca", days=30)
    for name in ("aggregator", "server", "client-hospital"):
        shown(tmp_path / f"{name}.pem").verify_directly_issued_by(shown(tmp_path / "ca.pem"))
    with pytest.raises(SettingsError, match="keeps its key"):
        renew(tmp_path, "ca", days=30, new_key=True)


def test_the_command_renews_and_writes_pins_and_refuses_what_it_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path)
    assert guarded(["certs", folder, "--client", "hospital"]) == 0
    made = set(tmp_path.iterdir())
    assert guarded(["certs", folder, "--renew", "client-hospital", "--renew", "ca"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "pins.toml")
    assert set(tmp_path.iterdir()) == made
    assert guarded(["certs", folder, "--renew", "client-nobody"]) == SettingsError.exit_code
    assert guarded(["certs", folder, "--new-key"]) == SettingsError.exit_code
    assert "client-nobody.pem" in capsys.readouterr().err


def _identity(name: str) -> str:
    return name.replace("-", ":") if name.startswith("client-") else f"{name}:{name}"
