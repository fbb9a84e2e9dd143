"""Renewal of certificates by the authority of a trial: new dates, same keys, so no pin changes."""

from __future__ import annotations

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
from fedrec.storage import PRIVATE, write_bytes

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
    read_certificate(folder / f"{name}.pem")  # what is missing is named before the key
    own_key = folder / f"{name}-key.pem"
    key = read_key(own_key)
    if new_key:
        key = ec.generate_private_key(ec.SECP256R1())
    path = reissue(folder, name, key.public_key(), days=days)
    if new_key:
        content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_bytes(own_key, content, mode=PRIVATE)
    return path


def reissue(folder: Path, name: str, key: ec.EllipticCurvePublicKey, *, days: int) -> Path:
    """Replace `name`.pem by one of that key and of new dates, the same otherwise. Returns its path.
    Raises SettingsError where it or its authority is not in the folder."""
    path = folder / f"{name}.pem"
    old = read_certificate(path)
    authority = read_certificate(folder / f"{AUTHORITY}.pem")
    signer = read_key(folder / f"{AUTHORITY}-key.pem")
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(authority.subject)
    builder = builder.public_key(key).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - BACKDATED).not_valid_after(now + timedelta(days=days))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    renewed = builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)
    write_bytes(path, renewed, mode=PRIVATE)
    return path


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate of PEM. Raises SettingsError."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as failure:
        raise SettingsError(
            f"{path}: {failure}", "Name the folder that fedrec certs made, and a party that it has."
        ) from None


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key of PEM. Raises SettingsError."""
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
