"""What an aggregator's ledger says, as a chain of hashes: an entry cannot be changed, dropped or put back in time unseen.

The hash of an entry is SHA-256 of the hash before it and of its own canonical JSON. Whoever has seen a head can tell later
whether a ledger still holds all that it held then (`Chain.knows`), which is how a restored old copy gives itself away.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedrec.federation.protocol import Phase, RoundStatus
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

    @staticmethod
    def of(status: RoundStatus, sha256: str, *, bytes_in: int) -> Released:
        """The final entry of a round. bytes_in: of all batches; it stays with the aggregator, since it tells how much users rated."""
        return Released(
            status.run, status.round, status.digest, status.attempt, status.enrolled, status.reported, status.clipped,
            dict(status.rejected), bytes_in, sha256,
        )  # fmt: skip

    def status(self, ledger_head: str) -> RoundStatus:
        """The round as anybody asks for it from now on."""
        told = {name: value for name, value in asdict(self).items() if name != "bytes_in"}
        return RoundStatus(phase=Phase.RELEASED, ledger_head=ledger_head, **told)


Entry = Birth | Charge | Released
_KINDS: Mapping[str, type[Entry]] = {"birth": Birth, "charge": Charge, "released": Released}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True)
class Link:
    """An entry in its place: `content` is its canonical JSON with kind and time (seconds since 1970), `hash` closes over all before it."""

    entry: Entry
    time_s: float
    content: str
    hash: str


def link(entry: Entry, *, time_s: float, after: str) -> Link:
    """The entry as it follows the hash `after` ("" for the first)."""
    content = json.dumps({"kind": _NAMES[type(entry)], "time_s": time_s, **asdict(entry)}, sort_keys=True, separators=(",", ":"))
    return Link(entry, time_s, content, _hash(after, content))


def read(rows: Iterable[tuple[str, str]]) -> tuple[Link, ...]:
    """The links from (content, hash) rows in order. Raises ValueError at the first that does not follow from those before it."""
    links, head = list[Link](), ""
    for content, stated in rows:
        if _hash(head, content) != stated:
            raise ValueError(f"entry {len(links)} does not follow from those before it")
        fields: dict[str, Any] = json.loads(content)
        kind, time_s = _KINDS[fields.pop("kind")], float(fields.pop("time_s"))
        links.append(Link(kind(**fields), time_s, content, stated))
        head = stated
    return tuple(links)


def _hash(before: str, content: str) -> str:
    return hashlib.sha256(f"{before}\n{content}".encode()).hexdigest()


class Chain:
    """The links of one ledger, and what follows from them: who was charged for what, and which rounds may be served."""

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
