"""Requests for certificates (PKCS #10): a party makes its own key, which never leaves it, and the
authority signs for the role and name that its operator states, and never sees a key.

    client-hospital-key.pem  client-hospital.csr    with the party, by `request`
    client-hospital.pem                             at the authority, by `sign`, for the party
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedrec.errors import SettingsError
from fedrec.operations.certificates import (
    LOCAL_HOSTS,
    PLACES,
    Identity,
    identity,
    make_ca,
    pins_of,
    signed,
    uris_of,
)
from fedrec.operations.renewal import read_certificate, read_key, reissue
from fedrec.storage import PRIVATE, bounded_bytes, write_bytes


def party(name: str) -> Identity:
    """Who has a certificate in `name`.pem: aggregator, server, serving, aggregator-2,
    client-hospital. Raises SettingsError on a name of nobody."""
    role, _, rest = name.partition("-")
    single = {"aggregator", "server", "serving"}
    try:
        found = Identity.among([identity(role, rest or role)])  # type: ignore[arg-type]
    except ValueError:
        found = None
    if found is None or (not rest and role not in single) or rest.endswith("-key"):
        raise SettingsError(
            f"{name!r} names no party", "Say client-hospital, aggregator, server or serving."
        )
    return found


def request(folder: Path, name: str) -> list[Path]:
    """The key of a party, made where there is none, and a request for its certificate. Returns the
    paths of both. Raises SettingsError on a name of nobody, and on a key that cannot be read."""
    holder = party(name)
    path = folder / f"{name}-key.pem"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_bytes(path, content, mode=PRIVATE)
    uri = x509.UniformResourceIdentifier(identity(holder.role, holder.name))
    asked = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .sign(read_key(path), hashes.SHA256())
    )
    write_bytes(folder / f"{name}.csr", asked.public_bytes(Encoding.PEM), mode=PRIVATE)
    return [path, folder / f"{name}.csr"]


def sign(
    folder: Path, path: Path, name: str, *, hosts: Sequence[str], days: int, new_key: bool = False
) -> Path:
    """The certificate of `name` for the key of a request, in the authority's folder, in place of an
    earlier one; an authority is made where there is none. Returns its path.

    hosts: where the party is reached, of a first certificate; without any this machine's own.
    new_key: take another key than the earlier certificate's. Raises SettingsError on a request that
    is none, is not signed by its own key, names another party, or has another key.
    """
    holder = party(name)
    try:
        asked = x509.load_pem_x509_csr(bounded_bytes(path))
        uris = uris_of(asked)
        key = asked.public_key()
        sound = asked.is_signature_valid and isinstance(key, ec.EllipticCurvePublicKey)
    except (OSError, ValueError) as failure:
        raise SettingsError(
            f"{path}: {failure}", "Name what `fedrec certs request` wrote."
        ) from None
    if not sound or Identity.among(uris) != holder:
        raise SettingsError(
            f"{path} asks for {', '.join(uris) or 'nobody'}, and is to be signed for {name}",
            "Ask who sent it: sign for nobody else than you mean.",
        )
    made = folder / f"{name}.pem"
    if made.exists():
        before = read_certificate(made)
        if pins_of(before).public_key != pins_of(asked).public_key and not new_key:
            raise SettingsError(
                f"{path} has another key than {made}",
                "Ask the party whether it changed its key; --new-key takes it, with new pins.",
            )
        return reissue(folder, name, key, days=days)  # type: ignore[arg-type]
    if not (folder / "ca.pem").exists():
        make_ca(folder, days=days)
    called = hosts or (() if holder.role == "client" else LOCAL_HOSTS)
    calls = holder.role == "aggregator" and holder.name in PLACES
    authority = read_certificate(folder / "ca.pem"), read_key(folder / "ca-key.pem")
    issued = signed(authority, holder, key, hosts=called, days=days, calls=calls)  # type: ignore[arg-type]
    write_bytes(made, issued.public_bytes(Encoding.PEM), mode=PRIVATE)
    return made
