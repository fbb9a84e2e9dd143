"""A tiny population, two clients that each hold half of it, and an aggregator on a clock that only
a test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import first_words
from fedrec.federation.messages import BlockReports, Question, ReleaseSpec, Reports
from fedrec.federation.protocol import Opening, Phase
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.federation.wire import pack_release, question_digest, question_header
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger

USERS = 12
ITEMS = 6
WIDTH = 3


@dataclass
class Clock:
    now_s: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


def population() -> Interactions:
    rng = np.random.default_rng(5)
    pairs = [
        (user, item)
        for user in range(USERS)
        for item in sorted(rng.choice(ITEMS, size=1 + user % 4, replace=False))
    ]
    users, items = np.array(pairs).T
    return Interactions.from_columns(
        users, items, None, num_users=USERS, num_items=ITEMS, value_range=(0, 1), kind="clicks"
    )


def answer(question: Question, mine: Interactions) -> Reports:
    """Every user has a vector of its own, whatever its number among those of `mine`."""
    numbers = [first_words(USERS).tolist().index(word) for word in mine.user_words.tolist()]
    x = np.stack([np.cos(np.arange(1, WIDTH + 1) * (user + 1)) for user in numbers])
    targets = np.sin(mine.items + 1.0)
    ones = np.ones(mine.num_users)
    per_release = [
        [RealBlock(np.ones(len(mine)), x), RealBlock(targets, x)],
        [RealBlock(ones, x[:, :1])],
    ]
    blocks = [
        b
        for spec, parts in zip(question.releases, per_release, strict=False)
        for b in parts[: len(spec.blocks)]
    ]
    return bounded(mine.user_ptr, mine.items, blocks, question.releases)


@dataclass
class World:
    """One run: its plan, its questions, and what each of two clients sends."""

    folder: Path
    limit: Guarantee | None = None
    limits: Limits = field(default_factory=lambda: Limits(min_cohort=5))
    clock: Clock = field(default_factory=Clock)
    seed: int = 7
    run: str = "run-1"
    plan: Plan = field(
        default_factory=lambda: calibrate(
            Guarantee(5.0, 1e-5), {f"{kind}/{t}": 1.0 for t in range(3) for kind in ("s", "m")}
        )
    )
    data: Interactions = field(default_factory=population)
    kept_in: Callable[..., ReleaseLedger] = ReleaseLedger
    aggregator: Aggregator = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> Aggregator:
        ledger = self.kept_in(self.folder, limit=self.limit, clock=self.clock)
        self.aggregator = Aggregator(
            ledger, self.limits, noise=Streams(self.seed), clock=self.clock
        )
        return self.aggregator

    def stop(self) -> None:
        self.aggregator.ledger.close()

    def restart(self) -> Aggregator:
        """What a crash leaves: the folder."""
        self.stop()
        return self.start()

    def question(self, round: int = 0) -> Question:
        outer = block(f"gram/{round}", "outer", rows=ITEMS, width=WIDTH)
        linear = block(f"moment/{round}", "linear", rows=ITEMS, width=WIDTH)
        mean = block(f"mean/{round}", "linear", rows=1, width=1, radius=2.0)
        return Question(
            round,
            "step",
            {},
            (
                ReleaseSpec(f"s/{round}", (outer, linear)),
                ReleaseSpec(f"m/{round}", (mean,), radius=2.0),
            ),
        )

    def opening(
        self, question: Question | None = None, *, timeout_s: float = 60.0, head: str = ""
    ) -> Opening:
        question = question or self.question()
        header = question_header(question, run=self.run, plan=self.plan.digest())
        return Opening(self.run, question.round, header, question_digest(header), timeout_s, head)

    def open(self, round: int = 0) -> None:
        self.aggregator.open_run(self.run, self.plan)
        self.aggregator.open_round(self.opening(self.question(round)))

    def begun(self) -> World:
        """Everybody is enrolled, and round 0 is open."""
        self.enroll()
        self.open()
        return self

    def check_release(self) -> None:
        """Round 0 ends with what a loopback releases."""
        assert self.aggregator.close(self.run, 0).phase is Phase.RELEASED
        assert self.aggregator.release(self.run, 0) == self.expected()

    def enroll(self) -> None:
        for client in (0, 1):
            self.aggregator.enroll(f"client-{client}", self.tokens(self.users_of(client)))

    def users_of(self, client: int) -> list[int]:
        return list(range(USERS // 2)) if client == 0 else list(range(USERS // 2, USERS))

    def tokens(self, users: Sequence[int]) -> list[bytes]:
        return [user.to_bytes(16, "little") for user in users]

    def batch(
        self, users: Sequence[int], question: Question | None = None, *, salt: int = 0
    ) -> Batch:
        question = question or self.question()
        mine = [answer(question, self.data.users_subset(np.array([user]))) for user in users]
        ids = [(1_000 + 100 * salt + user).to_bytes(16, "big") for user in users]
        as_rows = lambda names: np.frombuffer(b"".join(names), np.uint8).reshape(-1, 16)  # noqa: E731
        return Batch(as_rows(ids), as_rows(self.tokens(users)), joined(mine))

    def packed(
        self, users: Sequence[int], question: Question | None = None, *, salt: int = 0
    ) -> bytes:
        question = question or self.question()
        return pack_reports(self.batch(users, question, salt=salt), self.opening(question).digest)

    def send(self, users: Sequence[int], round: int = 0) -> None:
        """Each user's report, from the client it belongs to."""
        for client in (0, 1):
            mine = [user for user in users if user in self.users_of(client)]
            if mine:
                self.aggregator.report(
                    f"client-{client}", self.run, round, self.packed(mine, self.question(round))
                )

    def expected(self, question: Question | None = None) -> bytes:
        """What a loopback of the same seed releases."""
        question = question or self.question()
        link = Loopback(
            self.data, {"step": answer}, self.plan, Streams(self.seed), Ledger(self.plan.guarantee)
        )
        return pack_release(link.answer(question))


def joined(parts: Sequence[Reports]) -> Reports:

    lengths = np.concatenate([np.diff(part.user_ptr) for part in parts])
    blocks = tuple(
        BlockReports(
            np.concatenate([p.blocks[b].coefficients for p in parts]),
            np.concatenate([p.blocks[b].vectors for p in parts]),
        )
        for b in range(len(parts[0].blocks))
    )
    return Reports(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([p.items for p in parts]),
        blocks,
    )


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Worlds in this test's folder, stopped when it ends."""
    with ExitStack() as stack:

        def build(**choices: object) -> World:
            world = World(tmp_path / "aggregator", **choices)  # type: ignore[arg-type]
            stack.callback(lambda: world.aggregator.ledger.close())
            return world

        yield build


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """Twelve users of two clients, enrolled, and round 0 open."""
    return make().begun()
