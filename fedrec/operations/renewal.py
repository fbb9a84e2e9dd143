"""Renewal of certificates by the authority of a trial: new dates, same keys, so no pin changes."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

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
from fedrec.operations.certificates import BACKDATED

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
