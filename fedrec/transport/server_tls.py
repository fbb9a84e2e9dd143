"""TLS of a gRPC server, whose files may be replaced while it runs."""

from __future__ import annotations

from pathlib import Path

import grpc

from fedrec.errors import SettingsError
from fedrec.operations.pins import WatchedFiles


def server_credentials(
    certificate: Path, key: Path, client_ca: Path | None = None
) -> grpc.ServerCredentials:
    """TLS with a server's certificate; mutual where an authority for callers is given.

    A connection that begins after one of the files was replaced is shown the new one; files that
    cannot be used change nothing. Raises SettingsError.
    """
    watched = WatchedFiles(path for path in (certificate, key, client_ca) if path)

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(_read(key), _read(certificate))],
            root_certificates=_read(client_ca) if client_ca else None,
        )

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        try:
            return configuration() if watched.due() else None
        except SettingsError:
            return None

    return grpc.dynamic_ssl_server_credentials(
        configuration(), renewed, require_client_authentication=client_ca is not None
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as failure:
        raise SettingsError(
            f"{path}: {failure.strerror or failure}",
            "Name a readable PEM file; `fedrec certs` makes some.",
        ) from None
