"""Pins of all parties' keys: a file with the SHA-256 of every party's public key, by the identity
in its certificate; renewal of certificates, and files that are read again when they change.

    "fedrec:aggregator:aggregator" = "9f86d0..."
    "fedrec:client:hospital" = "60303a..."

A certificate says a role and a name because its authority believed so. A pin says which key they
belong to, whoever signs: with it, not even the authority's key can pose as somebody. A public key
outlives its certificate, so a renewal that keeps the key changes no pin.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fedrec.errors import SettingsError
from fedrec.operations.certificates import BACKDATED, Identity, Role, identity, pins_of, uris_of
from fedrec.settings_tables import read_toml
from fedrec.storage import write_bytes

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
        if b"BEGIN CERTIFICATE" not in (content := path.read_bytes()):
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
    return found


def of_role(pins: Mapping[str, str], role: Role) -> dict[str, str]:
    """Pins by name, of one role."""
    start = f"fedrec:{role}:"
    return {name.removeprefix(start): pin for name, pin in pins.items() if name.startswith(start)}


AUTHORITY = "ca"


def renew(folder: Path, name: str, *, days: int, new_key: bool = False) -> Path:
    """Replace `name`.pem (aggregator, server, client-hospital, ca), and its key where `new_key`.
    Returns the certificate's path.

    Raises SettingsError where the certificate or its authority is not in the folder, and on a new
    key for the authority.

    With the same key nothing else changes: pins are of keys. With a new key every party needs the
    new pins.toml, and refuses the renewed party until it has them. The authority is renewed with
    its own key always: what it vouched for stays vouched for.
    """
    if new_key and name == AUTHORITY:
        raise SettingsError(
            "the authority keeps its key: with another one every certificate is void",
            "Make a new folder with fedrec certs.",
        )
    path = folder / f"{name}.pem"
    own_key = folder / f"{name}-key.pem"
    old = _certificate(path)
    authority = _certificate(folder / f"{AUTHORITY}.pem")
    signer = _key(folder / f"{AUTHORITY}-key.pem")
    key = _key(own_key)
    if new_key:
        key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(authority.subject)
        .public_key(key.public_key())
    )
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - BACKDATED)
    builder = builder.not_valid_after(now + timedelta(days=days))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    if new_key:
        _replace(own_key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    _replace(path, builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM))
    return path


def _replace(path: Path, content: bytes) -> None:
    """Atomically, readable by its owner alone from its first moment."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as failure:
        raise SettingsError(
            f"{path}: {failure}", "Name the folder that fedrec certs made, and a party that it has."
        ) from None


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as failure:
        raise SettingsError(
            f"{path}: {failure}", "Renew where the keys of the party and of the authority are."
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(
            f"{path} is not an elliptic-curve key",
            "Renew it with the tool of the authority that issued it.",
        )
    return key


LOOK_S = 1.0
"""How often a party looks at its files."""

_Stamp = tuple[int, int, int] | None


class WatchedFiles:
    """Some files, and whether SIGHUP or a change asks for them to be read again.

    A file that is replaced by a rename counts as changed, one that vanishes too."""

    def __init__(self, paths: Iterable[Path | str]) -> None:
        self._paths = [Path(path) for path in paths if str(path)]
        self._stamps = self._now()
        self._asked = threading.Event()

    def due(self) -> bool:
        """Whether to read them again; each reason is told once."""
        stamps = self._now()
        due = self._asked.is_set() or stamps != self._stamps
        self._asked.clear()
        self._stamps = stamps
        return due

    def ask(self) -> None:
        """Make them due."""
        self._asked.set()

    @contextmanager
    def on_hangup(self) -> Iterator[None]:
        """SIGHUP asks for them in the body, besides what it did before; in the main thread only."""
        if threading.current_thread() is not threading.main_thread() or not hasattr(
            signal, "SIGHUP"
        ):
            yield
            return
        before = signal.getsignal(signal.SIGHUP)

        def handle(number: int, frame: FrameType | None) -> None:
            self.ask()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGHUP, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, before)

    def _now(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
