"""Users' shares of one attempt at one aggregator: taken, and once all three agree on the users,
checked and summed.

Rules of its own: a share counts where it is that of its hash; explicit shares are passed on to
aggregator 2 alone, which sums them where they are those of the clients' hashes; the coin of checks
is told after the users are fixed; openings leave once, masked. What agreement is, and why, is
`agreement`; what may leave of the sums, `one_of_three`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedrec.arrays import UInt64s
from fedrec.errors import ProtocolError
from fedrec.federation.messages import Question
from fedrec.privacy.calibration import Plan
from fedrec.sharing.holding import Holding
from fedrec.sharing.layout import CheckedRow, RowLayout
from fedrec.sharing.protocol import Peer, Standing
from fedrec.sharing.record import SharedUser, passed_on_as_committed, users_a_piece
from fedrec.sharing.servers import ShareSums, accepted, coin_term, opening, projection
from fedrec.sharing.shares import NONCE_BYTES, SEED_BYTES, Committed, batch_digest, held_alike
from fedrec.sharing.site_sums import row_names, site_rows

TOO_FEW = "fewer users are held alike than are needed"
"""How an attempt ends that may be opened again when more users report."""

UNEQUAL = "peers did not agree on the users"
"""How an attempt ends where another sums other users, and who that is."""


@dataclass
class Attempt:
    """In memory only: a crash ends it. named: what its ticket names of the question. needed:
    people.

    held: fixed once no more are taken. alike, agreed: who all three hold, and the digest of it.
    differ: in how many people a peer's list is another, by its index. summed: digest of who is in
    the sums, once they are final. ended: why nothing comes of it."""

    number: int
    question: Question
    plan: Plan
    named: bytes
    needed: int
    batch: SharedUsers = field(repr=False)
    nonce: bytes = field(default_factory=lambda: os.urandom(NONCE_BYTES))
    key: bytes = field(default_factory=lambda: os.urandom(SEED_BYTES), repr=False)
    following_key: bytes = field(default=b"", repr=False)
    ticket: bytes = b""
    held: tuple[Committed, ...] | None = None
    alike: tuple[Committed, ...] = ()
    agreed: bytes = b""
    differ: dict[int, int] = field(default_factory=dict)
    summed: bytes = b""
    people: int = 0
    ended: str = ""

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """Its own masking key and the following aggregator's."""
        return self.key, self.following_key

    def end(self, why: str) -> None:
        """Nothing comes of it: what it holds is forgotten."""
        self.ended = why
        self.batch.close()


@dataclass
class SharedUsers:
    """Shares that are held, checked and added up. enrolled: whether a pseudonym may report.

    folder: as `Holding`'s."""

    index: int
    layout: RowLayout
    enrolled: Callable[[bytes], bool]
    folder: Path | None
    holding: Holding = field(init=False, repr=False)
    sums: ShareSums = field(init=False, repr=False)
    done: int = field(default=0, init=False)
    coin: tuple[bytes, bytes] | None = field(default=None, init=False)
    projection: UInt64s | None = field(default=None, init=False, repr=False)
    openings: list[UInt64s] = field(default_factory=list, init=False, repr=False)
    opened: bytes = field(default=b"", init=False)
    accepted: tuple[Committed, ...] = field(default=(), init=False)
    verdict: bytes = field(default=b"", init=False)
    refused: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.holding = Holding(self.index, self.layout.length, self.folder)
        self.sums = ShareSums(self.layout)

    # --- clients ---

    def receive(self, attempt: Attempt, user: SharedUser) -> str:
        """Take one user's shares; "" or why not."""
        known = self.holding.committed(user.committed.report)
        if known is not None:
            return "" if known == user.committed and self._is_sound(attempt, user) else "replayed"
        if attempt.held is not None:
            return "round-closed"
        of_site = self.holding.expects(user.committed.user)
        if not (of_site or self.enrolled(user.committed.user)):
            return "unknown-user"
        if self.holding.names(user.committed.user):
            return "replayed"
        if not self._is_sound(attempt, user):
            return "malformed"
        try:
            self.holding.add(user)
        except OSError:
            return "no-room"
        return ""

    def receive_site(
        self, attempt: Attempt, users: tuple[bytes, ...], rows: list[SharedUser]
    ) -> str:
        """Take a site's sum of its users (`site_sums`), as `receive`."""
        names = row_names(users, len(rows))
        if (
            self.layout.checked is not None
            or len(rows) != site_rows(self.layout)
            or [row.committed.user for row in rows] != names
        ):
            return "malformed"
        if attempt.held is not None and any(
            self.holding.committed(row.committed.report) is None for row in rows
        ):
            return "round-closed"
        if not all(self.enrolled(user) for user in users):
            return "unknown-user"
        if not self.holding.take_site(users, names):
            return "replayed"
        return next(filter(None, (self.receive(attempt, row) for row in rows)), "")

    def _is_sound(self, attempt: Attempt, user: SharedUser) -> bool:
        return user.fits(self.index, self.layout.length) and user.is_committed(
            self.index, attempt.ticket
        )

    # --- the list of users ---

    def everybody(self) -> tuple[Committed, ...]:
        """Whom it holds, by report id: the order in which lists are compared."""
        return self.holding.everybody()

    def alike(self, lists: Sequence[Sequence[Committed]]) -> tuple[Committed, ...]:
        """Who stands in all lists alike."""
        alike = held_alike(lists)
        return tuple(self.holding.whole(alike))

    def count(self, listed: Sequence[Committed]) -> int:
        """People, also after `close`."""
        return self.holding.count(listed)

    def packed(self) -> tuple[UInt64s, ...]:
        """(rows, columns) a block: this aggregator's term of the sums, not masked."""
        return self.sums.packed()

    def close(self) -> None:
        """Forget what was held; the sums stay."""
        self.holding.close()

    # --- what peers may know ---

    def told(self, said: Standing) -> Standing:
        """With what peers may know of its steps."""
        return replace(said, coin=self.coin, opened=self.opened, accepted=self.verdict)

    def explicit(self, attempt: Attempt, first: int, last: int, *, caller: int) -> bytes:
        """`Holding.explicit` of users first..last of the agreed list, for aggregator 2. Raises
        ProtocolError for anybody else, and where nothing is agreed: aggregator 0 has both seeds of
        every user."""
        if (self.index, caller) != (1, 2) or not attempt.agreed or attempt.ended:
            raise ProtocolError(
                f"aggregator {caller} gets no explicit shares of attempt {attempt.number}",
                "Only aggregator 2 may ask 1.",
            )
        last_there = min(len(attempt.alike), first + users_a_piece(self.layout.length))
        if not 0 <= first < last <= last_there:
            raise ProtocolError(
                f"there are no users {first}..{last} to pass on",
                "Ask for the users that were agreed on.",
            )
        return self.holding.explicit(attempt.alike[first:last])

    def all_openings(self) -> bytes:
        """The bytes of `protocol.Peer.openings`, once they are whole, the same bytes every time."""
        return b"".join(piece.astype("<u8").tobytes() for piece in self.openings)

    # --- after all agreed on the users ---

    def go_on(
        self, run: str, attempt: Attempt, theirs: Mapping[int, Standing], peers: Mapping[int, Peer]
    ) -> None:
        """After all agreed, the next of: the coin, a piece of the users, the verdict, a refused
        user's part, the end of the sums.

        Raises UnreachableError; asked again, it goes on."""
        checked = self.layout.checked if attempt.alike else None
        if checked is not None and self.projection is None:
            return self._toss(attempt, theirs, checked)
        if (piece := self.next_piece(attempt)) is not None:
            self._sum_piece(run, attempt, theirs, peers, piece)
            if checked is not None or attempt.ended or self.next_piece(attempt) is not None:
                return None
        if checked is not None and not self.verdict:
            return self._judge(run, attempt, theirs, peers, checked)
        if checked is not None and any(other.accepted != self.verdict for other in theirs.values()):
            differ = any(other.accepted not in {b"", self.verdict} for other in theirs.values())
            return attempt.end("peers did not agree on the verdict") if differ else None
        attempt.summed = self.verdict or attempt.agreed
        attempt.people = self.count(self.accepted if self.verdict else attempt.alike)
        return None

    def _toss(self, attempt: Attempt, theirs: Mapping[int, Standing], checked: CheckedRow) -> None:
        """Tell the two terms of the coin that it knows; with the third, which both others tell,
        draw the projection.

        Only now: all three have fixed the users, so that nobody chose a share knowing C.
        """
        after = (self.index + 1) % 3
        before = (self.index + 2) % 3
        own, following = (coin_term(key, attempt.ticket, attempt.agreed) for key in attempt.keys)
        self.coin = own, following
        said = theirs[after].coin, theirs[before].coin
        if said[0] is None or said[1] is None:
            return None
        if said[0] != (following, said[1][0]) or said[1][1] != own:
            return attempt.end("peers did not agree on the coin")
        terms = {self.index: own, after: following, before: said[1][0]}
        self.projection = projection([terms[i] for i in range(3)], checked.data.stop)
        return None

    def _judge(
        self,
        run: str,
        attempt: Attempt,
        theirs: Mapping[int, Standing],
        peers: Mapping[int, Peer],
        checked: CheckedRow,
    ) -> None:
        """Who is within the bounds, by all three openings, which left once each."""
        if any(not other.opened for other in theirs.values()):
            return None
        shape = (len(attempt.alike), -1)
        found = dict[int, UInt64s]()
        found[self.index] = np.concatenate(self.openings)
        for i, other in theirs.items():
            content = peers[i].openings(run, attempt.question.round, attempt.number)
            if (
                len(content) != found[self.index].nbytes
                or hashlib.sha256(content).digest() != other.opened
            ):
                return attempt.end("a peer's openings are not those that it said")
            found[i] = np.frombuffer(content, "<u8").astype(np.uint64).reshape(shape)
        fine = accepted([found[i] for i in range(3)], checked)
        self.accepted = tuple(user for user, well in zip(attempt.alike, fine, strict=True) if well)
        self.refused = np.flatnonzero(~fine).tolist()
        self.verdict = batch_digest(attempt.ticket, self.accepted)
        return attempt.end(TOO_FEW) if len(self.accepted) < attempt.needed else None

    def next_piece(self, attempt: Attempt) -> tuple[int, int] | None:
        """Positions of users to add, or after the verdict of one to take off again."""
        last = min(len(attempt.alike), self.done + users_a_piece(self.layout.length))
        if last > self.done:
            return self.done, last
        return (self.refused[0], self.refused[0] + 1) if self.refused else None

    def _sum_piece(
        self,
        run: str,
        attempt: Attempt,
        theirs: Mapping[int, Standing],
        peers: Mapping[int, Peer],
        piece: tuple[int, int],
    ) -> None:
        """Add users, and open their checks; or take a refused one off: sums modulo 2^64 are
        exact."""
        users = attempt.alike[slice(*piece)]
        explicit = b""
        length = self.layout.length
        if self.index == 2:
            if not theirs[1].nonce:
                return attempt.end("a peer has lost the attempt")
            explicit = peers[1].explicit(run, attempt.question.round, attempt.number, *piece)
            if not passed_on_as_committed(explicit, users, attempt.ticket, length):
                return attempt.end("a peer passed on shares that are not those of their hashes")
        own, following = self.holding.rows(users, explicit)
        if self.done == len(attempt.alike):
            self.sums.add(own, following, off=True)
            del self.refused[0]
            return None
        self.sums.add(own, following)
        checked = self.layout.checked
        if checked is not None and self.projection is not None:
            context = attempt.ticket + attempt.agreed + f"/open/{piece[0]}".encode()
            self.openings.append(
                opening(own, following, checked, self.projection, self.index, attempt.keys, context)
            )
        self.done = piece[1]
        if checked is not None and self.done == len(attempt.alike):
            self.opened = hashlib.sha256(self.all_openings()).digest()
        return None
