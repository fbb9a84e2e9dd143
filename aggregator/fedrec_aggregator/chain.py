"""Chain of hashes over an aggregator's ledger: an entry cannot be changed, dropped or put back in
time unseen.

The hash of an entry is SHA-256 of the hash before it and of the SHA-256 of its own canonical JSON
(`federation.protocol`), in which its number stands. Whoever has seen a head can tell later
whether a ledger still holds all that it held then, which is how a restored old copy gives itself
away. The order is the entries' numbers; their times are written down, and decide nothing: clocks
jump.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Phase, RoundStatus, next_hash
from fedrec.ledgers.chain import EntryType
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.guarantee import Neighbours, Unit

RESTORE = (
    "Restore the newest backup of the ledger. Never go on from an older one: what was released "
    "since would not be counted."
)


@dataclass(frozen=True)
class Birth:
    """The first entry: 16 random bytes (hex), so that no two ledgers share a head."""

    nonce: str


@dataclass(frozen=True)
class Charge:
    """One release of a round, charged before its noise was drawn."""

    run: str
    round: int
    release: str
    mu: float
    unit: Unit
    neighbours: Neighbours

    @property
    def event(self) -> GaussianEvent:
        """What accountants compose."""
        return GaussianEvent(self.release, self.mu, self.unit, self.neighbours)


@dataclass(frozen=True)
class RoundReleased:
    """A round's release may leave from here on: its SHA-256, and what was counted."""

    run: str
    round: int
    digest: str
    attempt: int
    enrolled: int
    reported: int
    clipped: int
    rejected: Mapping[str, int]
    bytes_in: int
    release_sha256: str
    quorum: int = 0

    @staticmethod
    def of(status: RoundStatus, sha256: str, *, bytes_in: int) -> RoundReleased:
        """The final entry of a round. bytes_in: of all batches; it stays with the aggregator, since
        it tells how much users rated."""
        return RoundReleased(
            status.run, status.round, status.digest, status.attempt, status.enrolled,
            status.reported, status.clipped,
            dict(status.rejected), bytes_in, sha256, status.quorum,
        )  # fmt: skip

    def status(self, ledger_head: str) -> RoundStatus:
        """The round as anybody asks for it from now on."""
        told = {name: value for name, value in asdict(self).items() if name != "bytes_in"}
        return RoundStatus(phase=Phase.RELEASED, ledger_head=ledger_head, **told)


@dataclass(frozen=True)
class ClockSet:
    """Before the entry that follows, the machine's clock was set, ahead or back. Seconds since
    1970: what it should have shown at least (the time of the last entry, or what a process that saw
    it had counted), and what it did."""

    last_s: float
    now_s: float


@dataclass(frozen=True)
class Departure:
    """From here on no report of this user counts. user: the pseudonym in hexadecimal digits.
    sender: whose user it was. unfinished: runs with a round that was begun and not released, which
    may hold a report already."""

    user: str
    sender: str
    unfinished: Sequence[str]


Entry = Birth | Charge | RoundReleased | ClockSet | Departure
_KINDS: Mapping[str, type[Entry]] = {
    "birth": Birth,
    "charge": Charge,
    "released": RoundReleased,
    "clock": ClockSet,
    "departure": Departure,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True)
class LedgerLink:
    """An entry in its place: `content` is its canonical JSON with kind, number and time (seconds
    since 1970), `head` closes over all before it."""

    entry: Entry
    number: int
    time_s: float
    content: str
    head: str


def link(entry: Entry, *, time_s: float, after: LedgerHead) -> LedgerLink:
    """The entry as it follows that head."""
    number = after.number + 1
    told = {"kind": _NAMES[type(entry)], "number": number, "time_s": time_s, **asdict(entry)}
    content = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return LedgerLink(entry, number, time_s, content, LINKS.head(after.head, content))


def _head(before: str, content: str) -> str:
    return next_hash(before, _sha256(content))


def _read(_: int, content: str, head: str) -> LedgerLink:
    fields: dict[str, Any] = json.loads(content)
    kind = _KINDS[fields.pop("kind")]
    number = fields.pop("number")
    time_s = fields.pop("time_s")
    return LedgerLink(kind(**fields), number, float(time_s), content, head)


LINKS = EntryType("", _head, _read, RESTORE)


def read(database: Any, where: object) -> tuple[LedgerLink, ...]:
    """The links of a ledger, over a connection.

    Raises RunError at the first that does not follow from those before it, and whatever the
    connection raises."""
    rows = database.execute("SELECT content, hash FROM entries ORDER BY seq")
    return tuple(LINKS.verified(rows, where))


def _sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


class Chain:
    """The links of one ledger, and what follows from them: who was charged for what, and which
    rounds may be served."""

    def __init__(self, links: Iterable[LedgerLink]) -> None:
        self.links: tuple[LedgerLink, ...] = ()
        self._hashes = {""}
        self._charged = dict[tuple[str, str], int]()
        self._released = dict[tuple[str, int], RoundStatus]()
        self.departed = dict[bytes, LedgerLink]()
        """By pseudonym, who left."""
        self.extend(links)

    @property
    def head(self) -> str:
        """Hash of the last entry; "" before the first."""
        return self.links[-1].head if self.links else ""

    @property
    def end(self) -> LedgerHead:
        """The head, and how many entries lead to it."""
        return LedgerHead(len(self.links), self.head)

    def growth(self, since: LedgerHead, *, most: int) -> LedgerGrowth | None:
        """How the chain grew after that head, at most so many entries of it; None where it never
        had that head at that number."""
        if (
            not 0 <= since.number <= len(self.links)
            or (self.links[since.number - 1].head if since.number else "") != since.head
        ):
            return None
        new = self.links[since.number : since.number + most]
        reached = LedgerHead(since.number + len(new), new[-1].head if new else since.head)
        return LedgerGrowth(
            reached,
            tuple(_sha256(each.content) for each in new),
            more=reached.number < len(self.links),
        )

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Every charge, in order."""
        return tuple(link.entry for link in self.links if isinstance(link.entry, Charge))

    def extend(self, links: Iterable[LedgerLink]) -> None:
        """Take links that are durable."""
        added = tuple(links)
        for new in added:
            self._hashes.add(new.head)
            if isinstance(new.entry, Charge):
                self._charged[new.entry.run, new.entry.release] = new.entry.round
            elif isinstance(new.entry, RoundReleased):
                self._released[new.entry.run, new.entry.round] = new.entry.status(new.head)
            elif isinstance(new.entry, Departure):
                self.departed[bytes.fromhex(new.entry.user)] = new
        self.links += added

    def knows(self, head: str) -> bool:
        """Whether this ledger ever had that head; "" is known to all."""
        return head in self._hashes

    def charged(self, run: str, release: str) -> int | None:
        """The round that a release of a run was charged for."""
        return self._charged.get((run, release))

    def released(self, run: str, round: int) -> RoundStatus | None:
        """The round's final status, if its release may leave."""
        return self._released.get((run, round))
