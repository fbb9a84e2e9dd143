"""Examinations of certificates: readable, in time, with their key, saying the right role, and
vouched for by the authority."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from fedrec.cli.doctor.machine import Doubt
from fedrec.errors import SettingsError
from fedrec.operations.certificates import RENEW, Identity, Role, pins_of, require_in_time, uris_of
from fedrec.operations.pins import read_pins
from fedrec.storage import bounded_bytes

SOON = timedelta(days=14)


def certificate(
    path: Path,
    key: Path,
    *,
    now_s: float,
    role: Role | None = None,
    name: str = "",
    ca: Path | None = None,
    pins: str = "",
) -> str | Doubt:
    """A party's own certificate. `role` None accepts one that names none, `ca` None does not look
    who vouches.

    pins: file with the keys that others believe, "" for none. Raises SettingsError.
    """
    chain = _certificates(path)
    own = chain[0]
    now = datetime.fromtimestamp(now_s, UTC)
    _require_key(own, path, key)
    if role:
        _require_role(own, path, role, name)
    if ca:
        _require_chain(chain, path, _certificates(ca), ca)
    if pins:
        _require_pinned(own, path, Path(pins))
    return _in_time(chain, path, now) or (
        f"{path.name}: {_identity(own) or 'no role'}, until "
        f"{own.not_valid_after_utc:%Y-%m-%d}, pin {pins_of(own).public_key}"
    )


def holder_of(path: Path) -> Identity | None:
    """Who holds the first certificate of a file; None where it names nobody of ours."""
    return Identity.among(uris_of(_certificates(path)[0]))


def authority(path: Path, *, now_s: float) -> str | Doubt:
    """The authorities of a file. Raises SettingsError."""
    known = _certificates(path)
    return (
        _in_time(known, path, datetime.fromtimestamp(now_s, UTC))
        or f"{path.name}: {len(known)} of them, in time"
    )


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(bounded_bytes(path))
    except OSError as failure:
        raise SettingsError(
            f"{path}: {failure.strerror}", "Name a certificate file that this user may read (PEM)."
        ) from None
    except ValueError:
        raise SettingsError(
            f"{path} holds no certificate in PEM", "It begins with -----BEGIN CERTIFICATE-----."
        ) from None


def _require_key(own: x509.Certificate, path: Path, key: Path) -> None:
    try:
        private = load_pem_private_key(bounded_bytes(key), password=None)
    except OSError as failure:
        raise SettingsError(
            f"{key}: {failure.strerror}",
            "Name the certificate's private key, readable by this user.",
        ) from None
    except (ValueError, TypeError):
        raise SettingsError(
            f"{key} holds no private key in PEM without a password",
            "Store the key without one, readable by its owner.",
        ) from None
    spki = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*spki) != own.public_key().public_bytes(*spki):
        raise SettingsError(
            f"{key.name} is not the key of {path.name}", "Name the two that were made together."
        )


def _require_role(own: x509.Certificate, path: Path, role: Role, name: str) -> None:
    holder = Identity.among(uris_of(own))
    if holder is None or holder.role != role:
        found = _identity(own) or "none"
        raise SettingsError(
            f"{path.name} names as its role {found}, needed is fedrec:{role}:<name>",
            "Issue one for this role: fedrec certs.",
        )
    if name and holder.name != name:
        cause = f"{path.name} is of {holder.name!r}, the settings are of {name!r}"
        raise SettingsError(
            cause,
            "The name in the settings must be the certificate's: the others know this party by it.",
        )


def _require_pinned(own: x509.Certificate, path: Path, pins: Path) -> None:
    """Where it was renewed with another key, everybody who has the old pins refuses it."""
    known = read_pins(pins).get(_identity(own), "")
    found = pins_of(own).public_key
    if known != found:
        cause = (
            f"{path.name} has the key {found[:16]}..., but {pins.name} says "
            f"{known[:16] + '...' if known else 'none'} of {_identity(own)}"
        )
        raise SettingsError(
            cause,
            (
                "Renew with the same key, or bring a new pins.toml to every party and start them "
                "again."
            ),
        )


def _require_chain(
    chain: Sequence[x509.Certificate], path: Path, known: Sequence[x509.Certificate], ca: Path
) -> None:
    for lower, upper in pairwise(chain):
        if not _issued(lower, upper):
            raise SettingsError(
                f"{path.name}: its certificates do not follow from each other",
                "The party's own first, then who vouched for it.",
            )
    if not any(_issued(chain[-1], each) for each in known):
        raise SettingsError(
            f"{path.name} is not vouched for by {ca.name}",
            "Use the authority that issued it, or issue one by this authority.",
        )


def _issued(lower: x509.Certificate, upper: x509.Certificate) -> bool:
    try:
        lower.verify_directly_issued_by(upper)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _in_time(chain: Sequence[x509.Certificate], path: Path, now: datetime) -> Doubt | None:
    require_in_time(chain, path.name, now)
    soonest = min(each.not_valid_after_utc for each in chain)
    if soonest - now < SOON:
        return Doubt(f"{path.name} expires on {soonest:%Y-%m-%d %H:%M} UTC", RENEW)
    return None


def _identity(own: x509.Certificate) -> str:
    return next((uri for uri in uris_of(own) if uri.startswith("fedrec:")), "")
