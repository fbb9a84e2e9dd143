"""State of a party. Over HTTP: its metrics, read by Prometheus's own parser, and the health of
serving. In its folder: whether its process runs, since when, and how far it came; read only, also
while it runs.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from fedrec.operations.addresses import Address
from fedrec_server.serving.settings import TlsTable

_MAX_BYTES = 4 * 2**20
"""Of an answer: a party's metrics are a few kilobytes, but a stranger may listen at its address."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Measured:
    """Values by name and labels."""

    samples: dict[str, list[tuple[dict[str, str], float]]]

    @staticmethod
    def of(families: Iterable[Metric]) -> Measured:
        """What an exposition holds."""
        samples = dict[str, list[tuple[dict[str, str], float]]]()
        for family in families:
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
        return Measured(samples)

    def value(self, name: str, otherwise: float | None = None) -> float | None:
        """Value of a gauge without labels."""
        return next(
            (value for labels, value in self.samples.get(name, []) if not labels), otherwise
        )

    def number(self, name: str, otherwise: int | None = None) -> int | None:
        """Value of a gauge without labels, as a whole number."""
        found = self.value(name)
        return otherwise if found is None or not math.isfinite(found) else int(found)

    def label(self, name: str, label: str) -> str:
        """The label's value of which the gauge is 1; "" for none."""
        return next(
            (labels.get(label, "") for labels, value in self.samples.get(name, []) if value == 1.0),
            "",
        )


@dataclass(frozen=True)
class Ready:
    """Whether serving answers, and whether it wants queries."""

    answers: bool
    ready: bool
    why: str = ""


def scraped(address: Address, *, timeout_s: float) -> Measured | None:
    """The metrics at an address; None where nobody answers with any."""
    try:
        status, content = _got(address, "/metrics", None, timeout_s)
        return (
            Measured.of(text_string_to_metric_families(content.decode())) if status == 200 else None
        )
    except (OSError, ValueError, HTTPException):
        return None


def ready(address: Address, tls: TlsTable | None, *, timeout_s: float) -> Ready:
    """The health of serving at an address."""
    try:
        status, _ = _got(address, "/health/ready", tls, timeout_s)
    except (OSError, ValueError, HTTPException) as failure:
        return Ready(
            False,
            False,
            (
                f"nobody answers at {address}: "
                f"{getattr(failure, 'strerror', None) or type(failure).__name__}"
            ),
        )
    return Ready(
        True,
        status == 200,
        ""
        if status == 200
        else "it answers, and is not ready: it has no model, or is being stopped",
    )


def _got(address: Address, path: str, tls: TlsTable | None, timeout_s: float) -> tuple[int, bytes]:
    host = _EVERYWHERE.get(address.host, address.host)
    if tls:
        line: HTTPConnection = HTTPSConnection(
            host, address.port, timeout=timeout_s, context=_trusting(tls)
        )
    else:
        line = HTTPConnection(host, address.port, timeout=timeout_s)
    with closing(line):
        line.request("GET", path)
        answer = line.getresponse()
        return answer.status, answer.read(_MAX_BYTES)


def _trusting(tls: TlsTable) -> ssl.SSLContext:
    """TLS to the very certificate that the settings name, whatever hosts stand in it; shown itself
    where callers must show one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(tls.certificate)
    if tls.client_ca:
        context.load_cert_chain(tls.certificate, tls.key)
    return context
