"""TLS of servers, whose files may be replaced while they run.

A connection that begins after one of the files was replaced is shown the new one. Files that cannot
be used change nothing, and a certificate that is not valid yet waits until it is.
"""

from __future__ import annotations

import logging
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

import grpc
from cryptography import x509

from fedrec.errors import SettingsError
from fedrec.operations import logs
from fedrec.operations.certificates import require_in_time
from fedrec.operations.watched_files import LOOK_S, WatchedFiles

_log = logging.getLogger(__name__)


def server_credentials(
    certificate: Path, key: Path, client_ca: Path | None = None
) -> grpc.ServerCredentials:
    """TLS of gRPC with a server's certificate; mutual where an authority for callers is given.

    Raises SettingsError where the files cannot be used. Those that replace them are logged where
    they cannot, and change nothing."""
    _require_usable(certificate, key, client_ca)
    watched = WatchedFiles(path for path in (certificate, key, client_ca) if path)

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(_read(key), _read(certificate))],
            root_certificates=_read(client_ca) if client_ca else None,
        )

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        try:
            if not watched.due():
                return None
            _require_usable(certificate, key, client_ca)
            return configuration() if _has_begun(certificate, watched) else None
        # OSError: replaced in this very moment
        except (SettingsError, OSError, ValueError) as failure:
            logs.say_failure(_log, "certificate-not-reloaded", failure)
            return None

    return grpc.dynamic_ssl_server_credentials(
        configuration(), renewed, require_client_authentication=client_ca is not None
    )


def say_where_out_of_time(certificate: Path, log: logging.Logger) -> None:
    """An error line where a server's certificate has expired or is not valid yet by this machine's
    clock: callers see only that they do not take it."""
    try:
        chain = x509.load_pem_x509_certificates(_read(certificate))
        require_in_time(chain, certificate.name, datetime.now(UTC))
    except (SettingsError, ValueError) as failure:
        logs.say_failure(log, "certificate-out-of-time", failure)


class RenewedContext:
    """A server's context of `ssl` that shows what its files hold now; `look` is to be called every
    so often, by one thread. A certificate that is out of time is logged."""

    def __init__(
        self, context: ssl.SSLContext, certificate: Path, key: Path, log: logging.Logger
    ) -> None:
        self._context = context
        self._pair = (certificate, key)
        self._log = log
        self._watched = WatchedFiles(self._pair)
        self._looked_s = time.monotonic()
        say_where_out_of_time(certificate, log)

    def look(self) -> None:
        """Load files that were replaced, for connections that begin from now on. Those that do not
        belong together are logged, and change nothing."""
        if (now_s := time.monotonic()) < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        if not self._watched.due():
            return
        try:
            _require_usable(*self._pair)
            if _has_begun(self._pair[0], self._watched):
                self._context.load_cert_chain(*self._pair)
                logs.say(self._log, "certificate-reloaded")
        except (SettingsError, OSError, ValueError) as failure:
            logs.say_failure(self._log, "certificate-not-reloaded", failure)


def _require_usable(certificate: Path, key: Path, client_ca: Path | None = None) -> None:
    """Raises SettingsError unless the files are whole, and certificate and key belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    named = f"{certificate.name} with {key.name}"
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            named = client_ca.name
            context.load_verify_locations(client_ca)
    except OSError as failure:  # of ssl too, whose numbers are not the system's
        raise SettingsError(
            f"{named} cannot be used: {failure.strerror}",
            "Put whole PEM files in place, the certificate beside its own key; `fedrec doctor` "
            "examines them.",
        ) from None


def _has_begun(certificate: Path, watched: WatchedFiles) -> bool:
    """Whether a certificate is valid already; one that is not makes `watched` due again."""
    begins = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_before_utc
    begun = begins.timestamp() <= time.time()
    if not begun:
        watched.ask()
    return begun


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as failure:
        raise SettingsError(
            f"{path}: {failure.strerror or failure}",
            "Name a readable PEM file; `fedrec certs` makes some.",
        ) from None
