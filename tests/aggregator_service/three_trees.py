"""Settings of three roots with two leaves each, under certificates of a development authority."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from fedrec.federation.leaves import even_ranges
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.pins import write_pins
from fedrec_client.ledger import ClientLedger
from fedrec_client.opened import _endpoint
from fedrec_client.participant import Participant
from fedrec_client.settings import ClientSettings
from fedrec_client.settings import validated as client_settings
from tests.aggregator_service.conftest import QUICK
from tests.sharing.three_cores import PROMISE, SEED, Federation

RANGES = even_ranges(2)
ROOTS = ("1", "2", "3")
LEAVES = tuple(f"{letter}-{place}" for letter in "ab" for place in ROOTS)
NAMES = (*ROOTS, *LEAVES)


def write_certificates(folder: Path) -> Path:
    """As `fedrec certs --three-party --leaf a-1 ...` does."""
    leaves = dict.fromkeys(LEAVES, ())
    clients = ["client-1", "client-2"]
    write_development_certificates(folder, clients=clients, three_aggregators=True, leaves=leaves)
    write_pins(folder)
    return folder


def ends(number: int) -> dict[str, str]:
    return {"first": f"{RANGES[number].first:04x}", "last": f"{RANGES[number].last:04x}"}


def settings_of(
    certificates: Path, state: Path, name: str, addresses: dict[str, str], **other: Any
) -> dict[str, Any]:
    """Of a root "1", or a leaf "a-1", in the form of its file."""
    letter, _, place = name.rpartition("-")
    own = {
        "certificate": f"{certificates}/aggregator-{name}.pem",
        "key": f"{certificates}/aggregator-{name}-key.pem",
    }
    before = f"{letter}-" if letter else ""
    peers = [
        {"place": int(other), "name": before + other, "address": addresses[before + other]}
        for other in ROOTS
        if other != place
    ]
    common = {
        "listen": addresses[name],
        "state": str(state / f"aggregator-{name}"),
        "log": str(state / f"aggregator-{name}.jsonl"),
        "pins": str(certificates / "pins.toml"),
        "tls": {**own, "client_ca": str(certificates / "ca.pem")},
        "limits": {"min_cohort": 5},
        "three_party": {"place": int(place), "peers": peers},
    }
    if letter:
        clients = [{"name": "client-1"}, {"name": "client-2"}]
        return (
            common
            | {"clients": clients, "leaf": {"name": name, **ends("ab".index(letter))}}
            | other
        )
    leaves = [
        {"name": f"{each}-{place}", "address": addresses[f"{each}-{place}"], **ends(number)}
        for number, each in enumerate("ab")
    ]
    privacy = {
        "max_epsilon": PROMISE.epsilon,
        "delta": PROMISE.delta,
        "noise": "seeded",
        "seed": SEED,
    }
    return common | {"simulation": True, "privacy": privacy, "leaves": leaves} | other


def of_client(
    certificates: Path, state: Path, name: str, addresses: dict[str, str], **other: Any
) -> ClientSettings:
    """A client's settings: three leaves of each range."""
    pair = {
        "ca": f"{certificates}/ca.pem",
        "certificate": f"{certificates}/client-{name}.pem",
        "key": f"{certificates}/client-{name}-key.pem",
    }
    leaves = [
        {
            "name": leaf,
            "address": addresses[leaf],
            "place": int(leaf[-1]),
            **ends("ab".index(leaf[0])),
            **pair,
        }
        for leaf in LEAVES
    ]
    link = {"address": "server:1", "certificate": pair["certificate"], "key": pair["key"]}
    table = {
        "name": name,
        "state": str(state / name),
        "data": {"path": "x"},
        "server": link,
        "pins": f"{certificates}/pins.toml",
        "leaves": leaves,
    }
    return client_settings(table | other)


def participants(
    made: Federation, certificates: Path, state: Path, addresses: dict[str, str], stack: ExitStack
) -> list[Participant]:
    """Clients by their settings, with the users of a federation's."""
    found = []
    for each in made.participants:
        ledger = stack.enter_context(
            closing(ClientLedger(state / f"{each.name}.sqlite", limit=PROMISE))
        )
        settings = of_client(certificates, state, each.name, addresses)
        way: Any = _endpoint(settings, QUICK, stack)
        found.append(Participant(each.name, each.users, ledger, way, state / each.name))
    return found
