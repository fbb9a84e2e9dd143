"""A table of wrong settings: what the doctor says of each, and that a start is refused with the
same words. Sites are those of test_doctor.py; each row spoils one thing."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.cli.doctor.preflight import preflight
from fedrec.errors import FedRecError
from tests.simulations.test_doctor import Site, site

__all__ = ["site"]


@dataclass(frozen=True)
class Wrong:
    """party: whose doctor is asked. old, new: words of its settings, or of a file of `site` (file)
    that gets another content or mode. check, says: the examination that names it, and how."""

    party: str
    old: str
    new: str
    check: str
    says: str
    mode: int = 0
    starts: bool = False
    """Somebody should look, and a start is not refused."""


def settings(party: str, old: str, new: str, says: str) -> Wrong:
    return Wrong(party, old, new, "settings", says)


TABLE = [
    # keys and values
    settings("aggregator", "listen =", "listn =", "Did you mean listen?"),
    settings("client", "[data]", "[dta]", "Did you mean data?"),
    settings("client", 'name = "library"', 'name = "my library"', "name:"),
    settings("client", 'name = "library"', "", "name: Field required"),
    settings("client", 'state = "client"', 'state = ""', "state:"),
    settings("client", 'state = "client"', "state = client", "is not TOML"),
    settings("client", "[data]", '[privacy]\nmax_epsilon = "five"\n[data]', "privacy.max_epsilon"),
    settings("client", "[data]", "[privacy]\nmax_epsilon = -1.0\n[data]", "privacy.max_epsilon"),
    settings("client", "[data]", "[privacy]\ndelta = 2.0\n[data]", "privacy.delta"),
    settings("client", "[data]", '[privacy]\nunit = "person"\n[data]', "privacy.unit"),
    settings("aggregator", "max_epsilon = 7.0", "max_epsilon = -7.0", "max_epsilon"),
    settings("aggregator", "max_epsilon = 7.0", "max_epsilon = true", "max_epsilon"),
    Wrong("aggregator", "any_client = true", "", "clients", "no client", starts=True),
    settings("aggregator", 'client_ca = "certificates/ca.pem"', "", "client_ca"),
    settings("aggregator", 'key = "certificates/aggregator-key.pem"', "", "tls.key"),
    settings("aggregator", "any_client = true", 'pins = "no.toml"', "no.toml"),
    settings("client", 'key = "certificates/client-library-key.pem"', "", "come together"),
    settings(
        "client",
        '[aggregator]\naddress = "127.0.0.1:1"',
        '[aggregator]\naddress = "aggregator.example.org:7001"',
        "has no pin",
    ),
    settings("client", '"127.0.0.1:1"\nca', '"server.example.org:7002"\nca', "has no pin"),
    settings(
        "server",
        '[aggregator]\naddress = "127.0.0.1:1"',
        '[aggregator]\naddress = "aggregator.example.org:7001"',
        "has no pin",
    ),
    settings("server", "[link]", "[link]\nlisten = 7002", "link.listen"),
    settings("server", "[public]", "[gathering]\nmin_clients = 0\n[public]", "min_clients"),
    settings("server", "[public]", "[rounds]\nmin_share = 1.5\n[public]", "rounds.min_share"),
    settings("server", "[public]", "[rounds]\ntimeout = 9\n[public]", "rounds.timeout_s"),
    settings("server", "[public]", "[pubic]", "Did you mean public?"),
    # addresses and ports
    Wrong("aggregator", '"127.0.0.1:0"', '"127.0.0.1"', "settings", "host:port"),
    Wrong("aggregator", '"127.0.0.1:0"', '"203.0.113.9:7001"', "port", "203.0.113.9:7001"),
    Wrong("server", "[link]", '[link]\nlisten = "203.0.113.9:7002"', "port", "203.0.113.9:7002"),
    # certificates
    Wrong("aggregator", "aggregator.pem", "absent.pem", "certificate", "absent.pem"),
    Wrong("aggregator", "aggregator-key.pem", "ca.pem", "certificate", "no private key"),
    Wrong("aggregator", "aggregator-key.pem", "server-key.pem", "certificate", "is not the key of"),
    Wrong("aggregator", "/aggregator", "/server", "certificate", "needed is fedrec:aggregator"),
    Wrong("client", "client-library", "aggregator", "certificate", "needed is fedrec:client"),
    Wrong(
        "client", 'name = "library"', 'name = "clinic"', "certificate", "settings are of 'clinic'"
    ),
    Wrong("client", "ca.pem", "client-library-key.pem", "authority", "no certificate in PEM"),
    Wrong("server", "/server.pem", "/aggregator.pem", "certificate", "is not the key of"),
    # files, modes and data
    Wrong("client", "certificates/client-library-key.pem", "", "private files", "chmod 600", 0o644),
    Wrong("client", '"data.safetensors"', '"absent.csv"', "data", "absent.csv"),
    Wrong("client", 'state = "client"', 'state = "data.safetensors/client"', "disk", "written"),
    Wrong("server", "/public", "/absent", "public data", "absent"),
    # privacy
    Wrong("client", "epsilon = 5.0", "epsilon = 5.5", "limit", "the limit is epsilon 5"),
    Wrong("aggregator", "epsilon = 5.0", "epsilon = 8.0", "limit", "the limit is epsilon 7"),
    Wrong("client", "epsilon = 5.0", "epsilon = 5.0\ndelta = 1e-4", "limit", "delta"),
]


def test_the_table_has_forty_rows() -> None:
    assert len(TABLE) >= 40


def test_every_wrong_setting_is_named_by_the_doctor_and_refused_at_the_start_in_the_same_words(
    site: Site,
) -> None:
    wrong = list[str]()
    for row in TABLE:
        site.write({} if row.mode else {row.old: row.new})
        file = site.folder / row.old
        if row.mode:
            file.chmod(row.mode)
            file.parent.chmod(0o755)
        found = site.examine(**{row.party: True, "scenario": True})
        said = [check for check in found.checks if check.verdict != "ok"]
        named = [f"{check.name}: {check.words} {check.remedy}" for check in said]
        if not any(each.startswith(f"{row.check}:") and row.says in each for each in named):
            wrong.append(f"{row}: {named}")
        try:
            preflight(
                **{
                    row.party: site.folder / f"{row.party}.toml",
                    "scenario": site.folder / "scenario.toml",
                }
            )
        except FedRecError as refusal:
            if not any(check.words in refusal.cause for check in said):
                wrong.append(f"{row}: a start says {refusal.cause}")
        else:
            if not row.starts:
                wrong.append(f"{row}: starts")
        if row.mode:
            file.chmod(0o600)
    assert not wrong, "\n".join(wrong)
