"""Certificates of a development authority, aggregators on free ports in a thread, and a run of a
few users to ask of them."""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.protocol import Opening
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.federation.wire import question_digest, question_header
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import write_development_certificates
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint, Retry
from fedrec.transport.channel import Access
from fedrec_aggregator import main
from fedrec_aggregator.settings import AggregatorSettings, validated
from tests.threads import serving
from tests.waiting import HANG_S

QUICK = Retry(patience_s=HANG_S, first_pause_s=0.02, longest_pause_s=0.2, deadline_s=HANG_S)
ONCE = replace(QUICK, patience_s=0.0)


@dataclass(frozen=True)
class Task:
    """One round of one run: users who each name `events` items of `rows`, with vectors of
    `width`."""

    rows: int = 8
    width: int = 3
    events: int = 2
    run: str = "run-1"
    plan: Plan = field(
        default_factory=lambda: calibrate(Guarantee(5.0, 1e-5), {"sums/0": 1.0, "sums/1": 1.0})
    )

    def question(self, round: int = 0) -> Question:
        specs = (
            block(f"gram/{round}", "outer", rows=self.rows, width=self.width),
            block(f"mean/{round}", "linear", rows=1, width=1),
        )
        return Question(round, "step", {}, (ReleaseSpec(f"sums/{round}", specs),))

    def opening(self, round: int = 0, *, timeout_s: float = HANG_S) -> Opening:
        header = question_header(self.question(round), run=self.run, plan=self.plan.digest())
        return Opening(self.run, round, header, question_digest(header), timeout_s)

    def tokens(self, users: Sequence[int]) -> list[bytes]:
        return [user.to_bytes(16, "little") for user in users]

    def batch(self, users: Sequence[int], round: int = 0) -> bytes:
        question = self.question(round)
        n = len(users)
        user_ptr = np.arange(n + 1, dtype=np.int64) * self.events
        items = np.tile(np.arange(self.events, dtype=np.int32), n)
        vectors = np.array([np.cos(np.arange(1, self.width + 1) * (user + 1)) for user in users])
        real = [
            RealBlock(np.ones(n * self.events), vectors),
            RealBlock(np.ones(n), np.ones((n, 1))),
        ]
        rows = lambda names: np.frombuffer(b"".join(names), np.uint8).reshape(-1, 16)  # noqa: E731
        ids = rows([(1_000 + user).to_bytes(16, "big") for user in users])
        reports = bounded(user_ptr, items, real, question.releases)
        return pack_reports(
            Batch(ids, rows(self.tokens(users)), reports), self.opening(round).digest
        )


@dataclass(frozen=True)
class Certificates:
    folder: Path

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def tls(self, *, mutual: bool = True) -> dict[str, str]:
        own = {"certificate": self.file("aggregator.pem"), "key": self.file("aggregator-key.pem")}
        return own | ({"client_ca": self.file("ca.pem")} if mutual else {})

    def access(self, address: Address, who: str, **other: Any) -> Access:
        words = {
            "ca": self.file("ca.pem"),
            "certificate": self.file(f"{who}.pem"),
            "key": self.file(f"{who}-key.pem"),
        } | other
        return Access(str(address), **words)


@dataclass(frozen=True)
class Running:
    """An aggregator that listens."""

    settings: AggregatorSettings
    address: Address
    certificates: Certificates

    def client(self, name: str = "hospital", retry: Retry = QUICK) -> RemoteReportEndpoint:
        return RemoteReportEndpoint(self.access("client", name), retry=retry)

    def server(self, name: str = "server", retry: Retry = QUICK) -> RemoteReleaseEndpoint:
        return RemoteReleaseEndpoint(self.access("server", name), retry=retry)

    def owners(self) -> dict[bytes, str]:
        """Who enrolled whom, as the ledger on disk says."""
        with closing(
            sqlite3.connect(f"file:{self.settings.state}/ledger.sqlite?mode=ro", uri=True)
        ) as ledger:
            return dict(ledger.execute("SELECT token, sender FROM users"))

    def access(self, role: str, name: str) -> Access:
        if self.settings.insecure:
            return Access(str(self.address), name=name, insecure=True)
        return self.certificates.access(
            self.address, name if role == "server" else f"client-{name}"
        )


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    write_development_certificates(folder, clients=["hospital", "library", "stranger"])
    return Certificates(folder)


@pytest.fixture(scope="session")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("other-authority")
    write_development_certificates(folder, clients=["hospital"])
    return Certificates(folder)


@pytest.fixture
def task() -> Task:
    return Task()


@pytest.fixture
def settings(tmp_path: Path, certificates: Certificates) -> Callable[..., AggregatorSettings]:
    def build(*, tls: dict[str, str] | None = None, **other: Any) -> AggregatorSettings:
        content = {
            "listen": "127.0.0.1:0",
            "state": str(tmp_path / "aggregator"),
            "log": str(tmp_path / "aggregator.jsonl"),
            "simulation": True,
            "tls": certificates.tls() if tls is None else tls,
            "clients": [{"name": "hospital", "max_users": 500}, {"name": "library"}],
            "privacy": {"max_epsilon": 10.0, "noise": "seeded", "seed": 3},
            "limits": {"min_cohort": 2},
        } | other
        return validated({key: value for key, value in content.items() if value != {}})

    return build


@pytest.fixture
def start(
    settings: Callable[..., AggregatorSettings], certificates: Certificates
) -> Iterator[Callable[..., Running]]:
    """Starts aggregators, and stops them when the test ends."""
    with ExitStack() as stack:
        yield lambda **choices: stack.enter_context(running(settings(**choices), certificates))


@pytest.fixture
def plain(start: Callable[..., Running]) -> Running:
    return start(tls={}, insecure=True)


@contextmanager
def running(settings: AggregatorSettings, certificates: Certificates) -> Iterator[Running]:
    with serving(main.run, settings) as address:
        yield Running(settings, address, certificates)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
