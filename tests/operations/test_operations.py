"""Logs that cannot carry a value, metrics by the names that are promised, and certificates that say
who holds them."""

import json
import stat
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedrec.errors import RunError, SettingsError
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import (
    Identity,
    KeyPair,
    identity,
    issue,
    make_ca,
    pins,
    write_development_certificates,
)
from fedrec.operations.metrics import Metrics
from fedrec.operations.pins import of_role, read_pins, write_pins
from tests.waiting import HANG_S


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_time_level_party_event_and_its_fields(tmp_path: Path) -> None:
    log = logs.configure("client", file=tmp_path / "log.jsonl")
    logs.say(log, "answered", run="r", round=3, accepted=2, rejected={"replayed": 1}, sender=None)
    logs.close(log)
    (line,) = lines_of(tmp_path / "log.jsonl")
    assert {key: line[key] for key in ("level", "party", "event", "run", "round", "accepted")} == {
        "level": "info",
        "party": "client",
        "event": "answered",
        "run": "r",
        "round": 3,
        "accepted": 2,
    }
    assert str(line["time"]).endswith("+00:00")
    assert "sender" not in line


def test_a_field_that_nobody_thought_about_cannot_be_logged(tmp_path: Path) -> None:
    log = logs.configure("client", file=tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match="rating"):
        logs.say(log, "answered", rating=4.5)
    logs.close(log)


def test_an_error_is_logged_by_type_and_place_without_its_words(tmp_path: Path) -> None:
    log = logs.configure("server", file=tmp_path / "log.jsonl")
    try:
        raise ValueError("user 7 rated it badly")
    except ValueError as failure:
        logs.say_failure(log, "round", failure, run="r")
    logs.close(log)
    (line,) = lines_of(tmp_path / "log.jsonl")
    assert (line["level"], line["error"]) == ("error", "ValueError")
    assert str(line["place"]).startswith("test_operations.py:")
    assert "rated it badly" not in json.dumps(line)


def test_a_log_that_cannot_be_written_is_a_settings_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError):
        logs.configure("server", file=tmp_path / "file/log.jsonl")


def test_metrics_are_served_under_their_names_and_nothing_is_shared_between_parties() -> None:
    one = Metrics("aggregator", "1")
    other = Metrics("client", "1")
    one.reports(accepted=3, rejected={"replayed": 2})
    one.moved(bytes_in=10, bytes_out=20)
    one.decided("released", took_s=1.5)
    one.refused("busy")
    one.budget(spent=1.25, left=float("inf"))
    with (
        one.serve("127.0.0.1", 0) as endpoint,
        urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=HANG_S) as page,
    ):
        shown = page.read().decode().splitlines()
    for line in (
        'fedrec_info{party="aggregator",version="1"} 1.0',
        'fedrec_reports_total{result="accepted"} 3.0',
        'fedrec_reports_total{result="rejected"} 2.0',
        'fedrec_reports_rejected_total{reason="replayed"} 2.0',
        'fedrec_requests_refused_total{reason="busy"} 1.0',
        'fedrec_bytes_total{direction="in"} 10.0',
        'fedrec_bytes_total{direction="out"} 20.0',
        'fedrec_rounds_total{phase="released"} 1.0',
        'fedrec_round_seconds_bucket{le="2.0"} 1.0',
        "fedrec_round_seconds_sum 1.5",
        "fedrec_budget_epsilon_spent 1.25",
        "fedrec_budget_epsilon_left +Inf",
    ):
        assert line in shown
    with (
        other.serve("127.0.0.1", 0) as endpoint,
        urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=HANG_S) as page,
    ):
        assert 'fedrec_reports_total{result="accepted"} 0.0' in page.read().decode().splitlines()


def test_a_metrics_address_that_is_taken_is_a_settings_error() -> None:
    with Metrics("client", "1").serve("127.0.0.1", 0) as endpoint, pytest.raises(SettingsError):
        Metrics("client", "1").serve("127.0.0.1", endpoint.port)


def test_certificates_name_role_and_hosts_and_keys_are_for_their_owner_alone(
    tmp_path: Path,
) -> None:
    hosts = {
        "aggregator_hosts": ["aggregator.example.org", "192.0.2.7"],
        "server_hosts": ["server.example.org"],
    }
    paths = write_development_certificates(tmp_path / "c", clients=["hospital"], **hosts)
    names = ["ca", "aggregator", "server", "serving", "client-hospital"]
    assert [path.name for path in paths] == [
        f"{name}{end}.pem" for name in names for end in ("", "-key")
    ]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
    certificate = x509.load_pem_x509_certificate((tmp_path / "c/aggregator.pem").read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.UniformResourceIdentifier) == [
        identity("aggregator", "aggregator")
    ]
    assert found.get_values_for_type(x509.DNSName) == ["aggregator.example.org"]
    assert [str(ip) for ip in found.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    authority = x509.load_pem_x509_certificate((tmp_path / "c/ca.pem").read_bytes())
    certificate.verify_directly_issued_by(authority)


def names_of(path: Path) -> x509.SubjectAlternativeName:
    return (
        x509.load_pem_x509_certificate(path.read_bytes())
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )


def test_no_certificate_names_another_roles_host_and_one_host_is_not_two_parties(
    tmp_path: Path,
) -> None:
    write_development_certificates(
        tmp_path,
        clients=["a"],
        aggregator_hosts=["sums.example.org"],
        server_hosts=["server.example.org"],
    )
    hosts = {
        name: names_of(tmp_path / f"{name}.pem").get_values_for_type(x509.DNSName)
        for name in ("aggregator", "server", "client-a")
    }
    assert hosts == {
        "aggregator": ["sums.example.org"],
        "server": ["server.example.org"],
        "client-a": [],
    }
    with pytest.raises(SettingsError, match="the aggregator's host and the server's"):
        write_development_certificates(
            tmp_path / "b", clients=[], aggregator_hosts=["one"], server_hosts=["one"]
        )


def test_a_client_certificate_opens_no_listener_and_an_aggregators_calls_nobody(
    tmp_path: Path,
) -> None:
    write_development_certificates(tmp_path, clients=["a"])
    purposes = {
        name: {usage._name for usage in x509.load_pem_x509_certificate((tmp_path / f"{name}.pem").read_bytes())
               .extensions.get_extension_for_class(x509.ExtendedKeyUsage).value}
        for name in ("aggregator", "server", "client-a")
    }  # fmt: skip
    assert purposes == {
        "aggregator": {"serverAuth"},
        "server": {"serverAuth", "clientAuth"},
        "client-a": {"clientAuth"},
    }


@pytest.mark.parametrize(
    "uris",
    [
        ["fedrec:server:a", "fedrec:client:a"],
        ["fedrec:aggregator:a", "fedrec:admin:a"],
        ["fedrec:client:"],
        ["fedrec:client:a b"],
        ["https://example.org"],
        [],
    ],
)
def test_a_certificate_that_does_not_name_exactly_one_party_names_nobody(uris: list[str]) -> None:
    assert Identity.among(uris) is None
    assert Identity.among(["https://example.org", "fedrec:client:a"]) == Identity("client", "a")


def test_the_pins_file_holds_every_partys_key_and_a_new_client_is_added(tmp_path: Path) -> None:
    write_development_certificates(tmp_path, clients=["a"])
    before = read_pins(write_pins(tmp_path))
    assert set(before) == {
        "fedrec:aggregator:aggregator",
        "fedrec:server:server",
        "fedrec:client:a",
    }
    assert before["fedrec:client:a"] == pins((tmp_path / "client-a.pem").read_bytes()).public_key
    write_development_certificates(tmp_path, clients=["b"])
    after = read_pins(write_pins(tmp_path))
    assert before.items() <= after.items()
    assert set(of_role(after, "client")) == {"a", "b"}


@pytest.mark.parametrize("content", ['"fedrec:client:a" = "abc"', 'client = "x"', "[", None])
def test_a_file_that_pins_nothing_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "pins.toml").write_text(content)
    with pytest.raises(SettingsError, match="pins"):
        read_pins(tmp_path / "pins.toml")


def test_a_second_call_adds_clients_and_keeps_what_is_there(tmp_path: Path) -> None:
    first = write_development_certificates(tmp_path, clients=["a"])
    before = {path: path.read_bytes() for path in first}
    second = write_development_certificates(tmp_path, clients=["a", "b"])
    assert {path: path.read_bytes() for path in first} == before
    assert [path.name for path in second if path not in before] == [
        "client-b.pem",
        "client-b-key.pem",
    ]


def test_nothing_is_overwritten_and_names_are_checked(tmp_path: Path) -> None:
    ca = make_ca(tmp_path, days=1)
    issue(ca, "client", "a", days=1)
    with pytest.raises(SettingsError, match="there already"):
        issue(ca, "client", "a", days=1)
    with pytest.raises(SettingsError, match="there already"):
        make_ca(tmp_path, days=1)
    with pytest.raises(SettingsError, match="name"):
        write_development_certificates(tmp_path, clients=["../a"])


@pytest.mark.parametrize("other", ["client:b", "server:server", "aggregator:aggregator-1"])
def test_pins_that_name_one_key_twice_are_refused(tmp_path: Path, other: str) -> None:
    """Two clients of one holder, or one holder in two roles."""
    lines = [f'"fedrec:{name}" = "{"ab" * 32}"\n' for name in ("client:a", other)]
    path = tmp_path / "pins.toml"
    path.write_text("".join(lines))
    with pytest.raises(SettingsError, match="one key twice"):
        read_pins(path)
    path.write_text(lines[0] + lines[1].replace("ab", "cd"))
    assert len(read_pins(path)) == 2


def test_pins_are_what_other_tools_compute(tmp_path: Path) -> None:
    import hashlib
    import ssl

    pair: KeyPair = make_ca(tmp_path, days=1)
    pem = pair.certificate.read_text()
    assert (
        pins(pem.encode()).certificate == hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    )


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:1", "localhost", 1),
        ("[::1]:0", "::1", 0),
        ("192.0.2.7:65535", "192.0.2.7", 65535),
    ],
)
def test_addresses_are_read_and_written(text: str, host: str, port: int) -> None:
    assert Address.of(text) == Address(host, port)
    assert str(Address.of(text)) == text


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:65536", "host:-1", "::1:5", "host:1x"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        Address.of(text)


def test_only_loopback_is_loopback() -> None:
    assert all(Address(host, 1).loopback for host in ("localhost", "127.0.0.1", "127.8.0.1", "::1"))
    assert not any(
        Address(host, 1).loopback
        for host in ("0.0.0.0", "::", "192.0.2.7", "localhost.example.org")
    )


@pytest.mark.parametrize("name", ["x-key", "two words"])
def test_a_name_whose_certificate_would_lie_where_a_key_does_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=name):
        write_development_certificates(tmp_path / "c", clients=["x", name])
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("soft", [64, 4_096])
def test_a_party_may_open_as_many_files_as_the_system_allows_and_never_fewer(soft: int) -> None:
    program = (
        "import resource as r; from fedrec.operations.descriptors import raise_limit as up;"
        f"r.setrlimit(r.RLIMIT_NOFILE, ({soft}, 4096)); up(); print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert said.stdout.decode().strip() == "(4096, 4096)"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX")
def test_a_party_that_may_open_too_few_files_says_so_before_it_opens_any(tmp_path: Path) -> None:
    start = f"ulimit -n 20; exec {sys.executable} -m fedrec.cli serve {tmp_path}"
    ended = subprocess.run(["bash", "-c", start], capture_output=True, text=True, check=False)
    assert ended.returncode == RunError.exit_code
    assert "may open 20 files, and a party needs 64" in ended.stderr
    assert "Allow more: ulimit -n 1024" in ended.stderr
