"""Pins of all parties' keys: a file with the SHA-256 of every party's public key, by the identity
in its certificate.

    "fedrec:aggregator:aggregator" = "9f86d0..."
    "fedrec:client:hospital" = "60303a..."

A certificate says a role and a name because its authority believed so. A pin says which key they
belong to, whoever signs: with it, not even the authority's key can pose as somebody. A public key
outlives its certificate, so a renewal that keeps the key changes no pin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509

from fedrec.errors import SettingsError
from fedrec.operations.certificates import Identity, identity, pins_of, uris_of
from fedrec.settings_tables import read_toml
from fedrec.storage import bounded_bytes, write_bytes

FILE = "pins.toml"
_HEAD = (
    "# SHA-256 of public keys (DER, SubjectPublicKeyInfo), by `fedrec certs`. Let it reach the "
    "parties\n"
    "# another way than their certificates did.\n"
)


def write_pins(folder: Path) -> Path:
    """`pins.toml` in a folder, with the keys of all parties of a training whose certificates lie
    there."""
    lines = list[str]()
    for path in sorted(folder.glob("*.pem")):
        if b"BEGIN CERTIFICATE" not in (content := bounded_bytes(path)):
            continue
        shown = x509.load_pem_x509_certificate(content)
        holder = Identity.among(uris_of(shown))
        if holder and holder.role != "serving":  # it calls no party, and none calls it
            lines.append(
                f'"{identity(holder.role, holder.name)}" = "{pins_of(shown).public_key}"\n'
            )
    write_bytes(folder / FILE, (_HEAD + "".join(lines)).encode())
    return folder / FILE


def read_pins(path: Path) -> Mapping[str, str]:
    """Public keys' SHA-256 by identity. Raises SettingsError on what is no such file."""
    remedy = "Name the pins.toml that `fedrec certs` wrote."
    found = read_toml(path, remedy, remedy, said=f"pins: {path}")
    for name, pin in found.items():
        if Identity.among([name]) is None or not (
            isinstance(pin, str) and re.fullmatch("[0-9a-f]{64}", pin)
        ):
            remedy = 'A line is "fedrec:<role>:<name>" = "<64 hexadecimal digits>".'
            raise SettingsError(f"pins: {path}: {name!r} is no identity with a SHA-256", remedy)
    if len(set(found.values())) < len(found):
        remedy = "A key is of one party: make another with `fedrec certs`."
        raise SettingsError(f"pins: {path} names one key twice", remedy)
    return found


def of_role(pins: Mapping[str, str], role: str) -> dict[str, str]:
    """Pins by name, of one role."""
    start = f"fedrec:{role}:"
    return {name.removeprefix(start): pin for name, pin in pins.items() if name.startswith(start)}
