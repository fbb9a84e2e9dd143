"""Signatures by a party's private key, checked by its certificate."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedrec.errors import SettingsError

_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH)


def sign(key: Path, data: bytes) -> bytes:
    """By a private key (PEM) as TLS uses it: on an elliptic curve, RSA, or of Edwards' kind.

    Raises SettingsError on another one."""
    private = load_pem_private_key(key.read_bytes(), password=None)
    if isinstance(private, ec.EllipticCurvePrivateKey):
        return private.sign(data, ec.ECDSA(hashes.SHA256()))
    if isinstance(private, rsa.RSAPrivateKey):
        return private.sign(data, _PSS, hashes.SHA256())
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return private.sign(data)
    raise SettingsError(f"{key} cannot sign", "Use a key on P-256, Ed25519, or RSA.")


def signature_holds(pem: bytes, data: bytes, signature: bytes) -> bool:
    """Whether the key of the first certificate in `pem` made the signature."""
    public = x509.load_pem_x509_certificate(pem).public_key()
    try:
        if isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        elif isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, data, _PSS, hashes.SHA256())
        elif isinstance(public, ed25519.Ed25519PublicKey):
            public.verify(signature, data)
        else:
            return False
    except InvalidSignature:
        return False
    return True
