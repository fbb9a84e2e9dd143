"""Chain of hashes over an aggregator's ledger: an entry cannot be changed, dropped or put back in
time unseen.

The hash of an entry is SHA-256 of the hash before it and of the SHA-256 of its own canonical JSON
(`federation.ledger_heads`), in which its number stands. Whoever has seen a head can tell later
whether a ledger still holds all that it held then, which is how a restored old copy gives itself
away. The order is the entries' numbers; their times are written down, and decide nothing: clocks
jump.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedrec.federation.ledger_heads import next_hash
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Phase, RoundStatus
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.guarantee import Neighbours, Unit


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
class Released:
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
    def of(status: RoundStatus, sha256: str, *, bytes_in: int) -> Released:
        """The final entry of a round. bytes_in: of all batches; it stays with the aggregator, since
        it tells how much users rated."""
        return Released(
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


Entry = Birth | Charge | Released | ClockSet
_KINDS: Mapping[str, type[Entry]] = {
    "birth": Birth,
    "charge": Charge,
    "released": Released,
    "clock": ClockSet,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True)
class Link:
    """An entry in its place: `content` is its canonical JSON with kind, number and time (seconds
    since 1970), `hash` closes over all before it."""

    entry: Entry
    time_s: float
    content: str
    hash: str


def link(entry: Entry, *, time_s: float, after: LedgerHead) -> Link:
    """The entry as it follows that head."""
    told = {
        "kind": _NAMES[type(entry)],
        "number": after.number + 1,
        "time_s": time_s,
        **asdict(entry),
    }
    content = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return Link(entry, time_s, content, next_hash(after.head, _sha256(content)))


def read(rows: Iterable[tuple[str, str]]) -> tuple[Link, ...]:
    """The links from (content, hash) rows in order.

    Raises ValueError at the first that does not follow from those before it."""
    links, head = list[Link](), ""
    for content, stated in rows:
        fields: dict[str, Any] = json.loads(content)
        if next_hash(head, _sha256(content)) != stated or fields.pop("number") != len(links) + 1:
            raise ValueError(f"entry {len(links) + 1} does not follow from those before it")
        kind, time_s = _KINDS[fields.pop("kind")], float(fields.pop("time_s"))
        links.append(Link(kind(**fields), time_s, content, stated))
        head = stated
    return tuple(links)


def _sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


class Chain:
    """The links of one ledger, and what follows from them: who was charged for what, and which
    rounds may be served."""

    def __init__(self, links: Iterable[Link]) -> None:
        self.links: tuple[Link, ...] = ()
        self._hashes = {""}
        self._charged = dict[tuple[str, str], int]()
        self._released = dict[tuple[str, int], RoundStatus]()
        self.extend(links)

    @property
    def head(self) -> str:
        """Hash of the last entry; "" before the first."""
        return self.links[-1].hash if self.links else ""

    @property
    def end(self) -> LedgerHead:
        """The head, and how many entries lead to it."""
        return LedgerHead(len(self.links), self.head)

    def growth(self, since: LedgerHead, *, most: int) -> LedgerGrowth | None:
        """How the chain grew after that head, at most so many entries of it; None where it never
        had that head at that number."""
        if (
            not 0 <= since.number <= len(self.links)
            or (self.links[since.number - 1].hash if since.number else "") != since.head
        ):
            return None
        new = self.links[since.number : since.number + most]
        reached = LedgerHead(since.number + len(new), new[-1].hash if new else since.head)
        return LedgerGrowth(
            reached,
            tuple(_sha256(each.content) for each in new),
            more=reached.number < len(self.links),
        )

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Every charge, in order."""
        return tuple(link.entry for link in self.links if isinstance(link.entry, Charge))

    def extend(self, links: Iterable[Link]) -> None:
        """Take links that are durable."""
        added = tuple(links)
        for new in added:
            self._hashes.add(new.hash)
            if isinstance(new.entry, Charge):
                self._charged[new.entry.run, new.entry.release] = new.entry.round
            elif isinstance(new.entry, Released):
                self._released[new.entry.run, new.entry.round] = new.entry.status(new.hash)
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
