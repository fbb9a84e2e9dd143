"""Three aggregators in memory that lose messages and crash wherever their store is called, and
clients that send to all of them."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedrec.arrays import UInt64s
from fedrec.errors import ProtocolError, UnreachableError
from fedrec.federation.hostile_clients import on_checked_grid
from fedrec.federation.messages import Question, ReleaseSpec, Reports
from fedrec.federation.releases import noise_mu
from fedrec.federation.reports import RealBlock, block, bounded, exact_sums
from fedrec.privacy.calibration import Plan, among_three, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import SystemStreams
from fedrec.sharing.agreement import Agreement
from fedrec.sharing.layout import RowLayout, plain_numbers, plan_layout, with_own_noise
from fedrec.sharing.one_of_three import OneOfThree
from fedrec.sharing.protocol import KeptOutput, Standing
from fedrec.sharing.record import SharedUser, addressed, noise_keys, read_output
from fedrec.sharing.servers import total

RUN = "run"
USERS = 5
QUESTION = Question(
    1, "s", {}, (ReleaseSpec("s", (block("s", "linear", rows=4, width=2, folds=2),)),)
)
PLAN = among_three(calibrate(Guarantee(5.0, 1e-5), {"s": 1.0}), calibrated_for="one-corrupt")
CHECKED = among_three(
    calibrate(Guarantee(5.0, 1e-5), {"s": 1.0}),
    calibrated_for="one-corrupt",
    hostile_clients="checked",
)
DIGEST = hashlib.sha256(b"question").digest()
NAMES = (b"a", b"b", b"c")


class CrashError(Exception):
    """The process ends here."""


@dataclass
class Disk:
    """A store; `at` counts calls down to a crash, before or after the call does something."""

    begun: int = 0
    charged: int = 0
    output: KeptOutput | None = None
    is_published: bool = False
    history: list[bytes] = field(default_factory=list)
    at: int = -1
    after: bool = False

    def _call(self, change: object = None) -> None:
        self.at -= 1
        if self.at == 0 and not self.after:
            raise CrashError
        change() if callable(change) else None
        if self.at == 0:
            raise CrashError

    def attempt(self, run: str, round: int) -> int:
        return self.begun

    def begin(self, run: str, round: int, attempt: int, digest: bytes) -> None:
        assert attempt > self.begun
        self._call(lambda: setattr(self, "begun", attempt))

    def charge(self, run: str, question: Question, plan: Plan) -> None:
        self._call(lambda: setattr(self, "charged", 1))

    def keep(self, run: str, round: int, output: KeptOutput) -> None:
        assert not self.is_published, "a second output after one was published"
        assert self.charged
        self._call(lambda: setattr(self, "output", output))

    def kept(self, run: str, round: int) -> KeptOutput | None:
        return self.output

    def abandon(self, run: str, round: int) -> None:
        assert not self.is_published
        self._call(lambda: setattr(self, "output", None))

    def publish(self, run: str, round: int) -> None:
        assert self.output is not None
        self._call(lambda: setattr(self, "is_published", True))

    def published(self, run: str, round: int) -> bool:
        return self.is_published


@dataclass
class Line:
    """From one aggregator to another; loses an answer with probability `loss`."""

    world: "World"
    caller: int
    callee: int

    @property
    def there(self) -> Agreement:
        return self.world.parties[self.callee]

    def standing(self, run: str, round: int) -> Standing:
        self.world.maybe_lose()
        return self.world.lies(self.caller, self.callee, self.there.standing(run, round))

    def key(self, run: str, round: int, attempt: int) -> bytes:
        return self._told(lambda: self.there.key(run, round, attempt, caller=self.caller))

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        told = self._told(lambda: self.there.openings(run, round, attempt))
        return self.world.opened(self.callee, told)

    def explicit(self, run: str, round: int, attempt: int, first: int, last: int) -> bytes:
        asked = run, round, attempt, first, last
        told = self._told(lambda: self.there.explicit(*asked, caller=self.caller))
        return self.world.passed_on(told)

    def _told(self, ask: Callable[[], bytes]) -> bytes:
        self.world.maybe_lose()
        try:
            return ask()
        except ProtocolError as failure:
            raise UnreachableError(failure.cause, "Ask again.") from None


def reports_of(users: list[int], question: Question = QUESTION) -> Reports:
    rng = np.random.default_rng(3)
    ptr = np.arange(len(users) + 1, dtype=np.int64) * 3
    items = np.tile(np.array([0, 1, 3], np.int32), len(users))
    every = RealBlock(rng.normal(size=3 * USERS), rng.normal(size=(2 * USERS, 2)))
    rows = (
        np.concatenate([np.arange(3 * k, 3 * k + 3) for k in users])
        if users
        else np.empty(0, np.int64)
    )
    pairs = (
        np.concatenate([np.arange(2 * k, 2 * k + 2) for k in users])
        if users
        else np.empty(0, np.int64)
    )
    return bounded(
        ptr, items, [RealBlock(every.coefficients[rows], every.vectors[pairs])], question.releases
    )


class World:
    """One round. `rng` decides what is lost; everything else is the script's."""

    def __init__(self, rng: np.random.Generator, *, loss: float = 0.0, plan: Plan = PLAN) -> None:
        self.rng = rng
        self.loss = loss
        self.plan = plan
        self.question = on_checked_grid(QUESTION, plan)
        self.disks = [Disk() for _ in range(3)]
        self.parties: list[OneOfThree] = []
        self.parties = [self.party(i) for i in range(3)]
        self.secrets = [os.urandom(32) for _ in range(USERS)]
        self.left: list[set[bytes]] = [set(), set(), set()]

    def party(self, i: int) -> OneOfThree:
        peers = {j: Line(self, i, j) for j in range(3) if j != i}
        return OneOfThree(i, NAMES, peers, self.disks[i], SystemStreams())

    def maybe_lose(self) -> None:
        if self.rng.random() < self.loss:
            raise UnreachableError("lost", "Ask again.")

    def lies(self, caller: int, callee: int, said: Standing) -> Standing:
        """What the callee says to the caller in place of the truth."""
        return said

    def opened(self, callee: int, content: bytes) -> bytes:
        """Openings on their way."""
        return content

    def passed_on(self, content: bytes) -> bytes:
        """Explicit shares on their way."""
        return content

    def restart(self, i: int) -> None:
        self.disks[i].at = -1
        self.parties[i] = self.party(i)

    def open(self, i: int, attempt: int, needed: int = 1) -> bool:
        return self.does(
            i,
            lambda party: party.open(
                RUN, self.question, self.plan, DIGEST, attempt=attempt, needed=needed
            ),
        )

    def advance(self, i: int) -> bool:
        return self.does(i, lambda party: party.advance(RUN, 1))

    def does(self, i: int, what: object) -> bool:
        """Whether it was done; a crash restarts the aggregator."""
        try:
            what(self.parties[i])  # type: ignore[operator]
        except CrashError:
            self.restart(i)
            return False
        except ProtocolError:
            return False
        return True

    def sent(self, user: int, ticket: bytes) -> tuple[SharedUser, ...]:
        shape = plan_layout(self.question, self.plan)
        numbers = self.numbers(user, plain_numbers(reports_of([user], self.question), shape), shape)
        report = hashlib.sha256(self.secrets[user] + ticket).digest()[:16]
        ids = [report, self.user_name(user)]
        numbers = with_own_noise(
            numbers, shape, noise_keys(numbers, ids[:1], ticket, secret=self.secrets[user])
        )
        return tuple(
            one[0]
            for one in addressed(numbers, ids[:1], ids[1:], ticket, secret=self.secrets[user])
        )

    def user_name(self, user: int) -> bytes:
        """The user's pseudonym."""
        return hashlib.sha256(self.secrets[user] + b"user").digest()[:16]

    def numbers(self, user: int, honest: UInt64s, shape: RowLayout) -> UInt64s:
        """What a user shares in place of its honest row, before its noise."""
        return honest

    def tickets(self) -> list[bytes]:
        return [party.standing(RUN, 1).ticket for party in self.parties]

    def fetch(self) -> None:
        """The server asks everybody for an output."""
        for party, seen in zip(self.parties, self.left, strict=True):
            try:
                seen.add(party.output(RUN, 1))
            except ProtocolError:
                continue

    def check(self, honest: tuple[int, ...] = (0, 1, 2)) -> None:
        """One output of each at most; under one ticket one set of users; all three together are
        their sums and noise of three."""
        outputs = [next(iter(seen)) for i, seen in enumerate(self.left) if seen and i in honest]
        assert all(len(self.left[i]) <= 1 for i in honest), "a second output of one round"
        read = [read_output(content, self.question) for content in outputs]
        for ticket in {t for t, *_ in read}:
            agreed = {
                disk.output.agreed
                for disk in (self.disks[i] for i in honest)
                if disk.output and disk.output.ticket == ticket
            }
            assert len(agreed) == 1, "outputs of different users left"
        assert all(disk.charged for disk, seen in zip(self.disks, self.left, strict=True) if seen)
        if len(read) == 3 and len({t for t, *_ in read}) == 1:
            self.check_total([parts for *_, parts in read], read[0][1])

    def check_total(self, parts: list[tuple[np.ndarray, ...]], users: int) -> None:
        (made,), step = total(parts), self.question.blocks[0].step
        (expected,) = exact_sums(
            reports_of(list(range(USERS)), self.question), self.question.blocks
        )
        std = np.sqrt(1.5) / noise_mu(self.question, self.plan)["s"]
        assert np.abs(made * step).max() < 8 * std + USERS, "the masks do not cancel"
        if users == USERS:
            # once in 10^14 rounds by chance
            assert np.abs((made - expected) * step).max() < 8 * std
