"""State of a party. Over HTTP: its metrics, read by Prometheus's own parser, and the health of
serving. In its folder: whether its process runs, since when, and how far it came; read only, also
while it runs.
"""

from __future__ import annotations

import json
import math
import os
import ssl
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from fedrec.cli.ledgers import account
from fedrec.errors import FedRecError
from fedrec.operations.addresses import Address
from fedrec.privacy.guarantee import Guarantee
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_client.settings import ClientSettings
from fedrec_server.runs import run_folder
from fedrec_server.serving.settings import TlsTable

_MAX_BYTES = 4 * 2**20
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


_START_SLACK_S = 120.0
"""A process that started so much after its file was written last is another one, with the number of
the first."""


@dataclass(frozen=True)
class Process:
    """told: what its file says. since_s: when it started, or when the file was written last. here:
    its folder is on this machine."""

    running: bool
    told: dict[str, Any]
    since_s: float | None = None
    why: str = ""
    here: bool = True


@dataclass(frozen=True)
class KnownProgress:
    """How far a party came, by its ledger or its notes; None where they do not say."""

    round: int | None = None
    users: int | None = None
    epsilon_left: float | None = None
    last_success_s: float | None = None
    phase: str = ""


def process(state: Path, name: str) -> Process:
    """The process that wrote `name` in a state folder."""
    path = state / name
    if not state.is_dir():
        return Process(False, {}, None, "it has no state folder on this machine", here=False)
    try:
        told = json.loads(path.read_text())
        written_s = path.stat().st_mtime
        pid = int(told["pid"])
    except FileNotFoundError:
        return Process(False, {}, None, "it is not running: it never started, or was stopped")
    except (OSError, ValueError, KeyError, TypeError):
        return Process(False, {}, None, f"{path} cannot be read")
    started_s = _started_s(pid)
    if started_s is None or started_s > written_s + _START_SLACK_S:
        return Process(
            False,
            told,
            written_s,
            "its process is gone without having been stopped: see its log, and start it again",
        )
    return Process(True, told, started_s)


def kept_by_aggregator(settings: AggregatorSettings) -> KnownProgress:
    """Users, the last round released, and what its limit leaves."""
    with suppress(FedRecError):
        found = account.of_aggregator(settings)
        if found.entries:
            return _kept(found, settings.limit)
    return KnownProgress()


def kept_by_client(settings: ClientSettings) -> KnownProgress:
    """The last round charged, and what is left for each user, or click."""
    with suppress(FedRecError):
        if account.ledger_path(settings).exists():
            return _kept(account.of_client(settings), settings.privacy.limit)
    return KnownProgress()


def _kept(found: account.Account, limit: Guarantee | None) -> KnownProgress:
    users = None if found.users is None else sum(found.users.values())
    return KnownProgress(found.last_round, users, found.left(limit), found.last_success_s)


def kept_by_server(state: Path) -> KnownProgress:
    """The last round that is kept of the newest training, when, and whether its model is there."""
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError, FedRecError):
        folder = run_folder(state)
        phase = "finished" if (folder / "model" / "manifest.json").exists() else ""
        lines = folder / "rounds.jsonl"
        if not lines.exists():
            return KnownProgress(phase=phase)
        last = json.loads(lines.read_text().splitlines()[-1])
        return KnownProgress(
            int(last["round"]), int(last["enrolled"]), None, lines.stat().st_mtime, phase
        )
    return KnownProgress()


def _started_s(pid: int) -> float | None:
    """When the process with this number started, unix time; None where there is none that is
    alive."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        boot_s = next(
            float(line.split()[1])
            for line in Path("/proc/stat").read_text().splitlines()
            if line.startswith("btime")
        )
        return None if fields[0] == "Z" else boot_s + float(fields[19]) / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError:
        if Path("/proc/stat").exists():
            return None
    try:  # not Linux: whether it is there must do
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0.0
