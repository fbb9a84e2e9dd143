"""One of three aggregators through a round: take shares, agree on the users, sum, keep, publish.
Rules, without transport or disk.

Guarantee, unit user (report replaced by the empty one). Against the server, one other aggregator
and any clients, if this aggregator and the third are honest: what leaves them of a round is one
release of two noises (`servers`, `privacy.three_noises`), mu-GDP as planned.

Why. (a) An output leaves only by `output`, after `publish`, which is durable and once a round;
asked again, the same bytes leave. (b) An aggregator publishes what it kept for one ticket after
both others said directly, for the same ticket, that they keep an output of the same users. So of
two honest ones that publish under one ticket, both summed the same users. (c) A ticket holds a
nonce that each draws once for an attempt, so masks and noise are fresh in every attempt, and an
attempt has one ticket or none: a peer that shows two nonces ends it. (d) Outputs of two honest
aggregators under different tickets never meet: each is masked by a key of its own attempt that only
they know. (e) Aggregator 2 sums the explicit shares that aggregator 1 passes on
only where they are those of the clients' hashes; to anybody else none is passed on, since
aggregator 0 has both seeds. (f) What was kept and not published may be given up for another
attempt, since it never left and from then on never will. What a lying peer can do: drop users, end
attempts, keep a round from being published.

Peers are asked, they do not call: an answer that is lost or comes twice changes nothing. `advance`
does what can be done next.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedrec.arrays import UInt64s
from fedrec.errors import ProtocolError
from fedrec.federation.messages import Question
from fedrec.federation.releases import Source, party_noise
from fedrec.privacy.calibration import Plan
from fedrec.sharing.checks import accepted, coin_term, opening, projection
from fedrec.sharing.commitments import NONCE_BYTES, Committed, batch_digest, held_alike, ticket
from fedrec.sharing.holding import Holding
from fedrec.sharing.layout import Checked, plan_layout
from fedrec.sharing.protocol import Kept, Peer, Standing, Store
from fedrec.sharing.record import SharedUser, packed_output, passed_on_as_committed, users_a_piece
from fedrec.sharing.ring import SEED_BYTES
from fedrec.sharing.servers import ShareSums
from fedrec.sharing.site_sums import row_names, site_rows

TOO_FEW = "fewer users are held alike than are needed"
"""How an attempt ends that may be opened again when more users report."""


@dataclass
class _Attempt:
    """In memory only: a crash ends it."""

    number: int
    question: Question
    plan: Plan
    named: bytes
    needed: int
    nonce: bytes = field(default_factory=lambda: os.urandom(NONCE_BYTES))
    key: bytes = field(default_factory=lambda: os.urandom(SEED_BYTES), repr=False)
    following_key: bytes = field(default=b"", repr=False)
    ticket: bytes = b""
    holding: Holding = field(kw_only=True)
    sums: ShareSums = field(kw_only=True, repr=False)
    summed: int = 0
    held: tuple[Committed, ...] | None = None
    coin: tuple[bytes, bytes] | None = None
    projection: UInt64s | None = field(default=None, repr=False)
    openings: list[UInt64s] = field(default_factory=list, repr=False)
    opened: bytes = b""
    accepted: tuple[Committed, ...] = ()
    verdict: bytes = b""
    refused: list[int] = field(default_factory=list)
    alike: tuple[Committed, ...] = ()
    agreed: bytes = b""
    ended: str = ""


@dataclass(frozen=True)
class Progress:
    """What the server and clients may know of an attempt. ticket: b"" until it is fixed. users:
    whose shares are held.

    closed: no more are taken. ended: why nothing will come of it. wanted: positions of the users
    who are summed next, in the agreed list. opened: of its own openings, as long as it waits for
    the others'.
    """

    attempt: int
    nonce: bytes
    ticket: bytes
    users: int
    closed: bool
    ended: str
    wanted: tuple[int, int] | None = None
    opened: bytes = b""
    rows: int = 0


class OneOfThree:
    """Aggregator `index` of three. names: of all three with their keys, in order. peers: the other
    two, by index.

    enrolled: whether a pseudonym may report. noise: where its own comes from. folder: for shares
    until they are summed (`Holding`).
    """

    def __init__(
        self,
        index: int,
        names: Sequence[bytes],
        peers: Mapping[int, Peer],
        store: Store,
        noise: Source,
        *,
        enrolled: Callable[[bytes], bool] = lambda user: True,
        folder: Path | None = None,
    ) -> None:
        if index not in range(3) or set(peers) != {0, 1, 2} - {index} or len(set(names)) != 3:
            raise ValueError(
                f"aggregator {index} needs two peers and three different names, found "
                f"{sorted(peers)} and {list(names)}"
            )
        self.index, self._names, self._peers, self._store, self._noise = (
            index,
            tuple(names),
            peers,
            store,
            noise,
        )
        self._enrolled, self._folder = enrolled, folder
        self._attempts: dict[tuple[str, int], _Attempt] = {}

    # --- the server's and the clients' side ---

    def open(
        self,
        run: str,
        question: Question,
        plan: Plan,
        digest: bytes,
        *,
        attempt: int,
        needed: int,
        named: bytes = b"",
    ) -> None:
        """Begin an attempt at a round, which ends every earlier one. needed: users, without whom
        nothing is released.

        digest: of the question, the same for all attempts. named: what the ticket names in its
        place, where it says more (the quorum). Raises ProtocolError where it was begun before, or
        where something was published; UnreachableError where a peer might have published what is
        kept here and does not answer.
        """
        round = question.round
        if plan.aggregation != "three-party":
            raise ProtocolError("the plan is of one trusted aggregator", "Use a plan of three.")
        if self._store.published(run, round):
            raise ProtocolError(
                f"round {round} was published: it has no other attempt", "Fetch its output."
            )
        if attempt <= self._store.attempt(run, round):
            raise ProtocolError(
                f"attempt {attempt} at round {round} was begun before", "Open the next one."
            )
        if (kept := self._store.kept(run, round)) is not None:
            if any(self._published_elsewhere(run, round, kept.ticket)):
                raise ProtocolError(
                    f"round {round} was published by a peer",
                    "Wait for this aggregator to publish it too.",
                )
            self._store.abandon(run, round)
        shape = plan_layout(question, plan)
        self._store.begin(run, round, attempt, digest)
        self._drop(run, round)
        holding = Holding(self.index, shape.length, self._folder)
        self._attempts[run, round] = _Attempt(
            attempt, question, plan, named or digest, needed, holding=holding, sums=ShareSums(shape)
        )

    def receive(self, run: str, round: int, ticket: bytes, user: SharedUser) -> str:
        """Take one user's shares; "" or why not.

        A client that sends the same again is told the same."""
        if (attempt := self._taking(run, round, ticket)) is None:
            return "another-ticket"
        holding = attempt.holding
        known, checked = (
            holding.committed(user.committed.report),
            functools.partial(self._is_sound, attempt, user),
        )
        if known is not None:
            return "" if known == user.committed and checked() else "replayed"
        if attempt.held is not None:
            return "round-closed"
        if not self._enrolled(user.committed.user):
            return "unknown-user"
        if holding.names(user.committed.user):
            return "replayed"
        if not checked():
            return "malformed"
        try:
            holding.add(user)
        except OSError:
            return "no-room"
        return ""

    def receive_site(
        self, run: str, round: int, ticket: bytes, users: tuple[bytes, ...], rows: list[SharedUser]
    ) -> str:
        """Take a site's sum of its users (`site_sums`), as `receive`."""
        if (attempt := self._taking(run, round, ticket)) is None:
            return "another-ticket"
        names, layout = row_names(users, len(rows)), attempt.sums.layout
        if (
            layout.checked is not None
            or len(rows) != site_rows(layout)
            or [row.committed.user for row in rows] != names
        ):
            return "malformed"
        if attempt.held is not None and any(
            attempt.holding.committed(row.committed.report) is None for row in rows
        ):
            return "round-closed"
        if not all(self._enrolled(user) for user in users):
            return "unknown-user"
        if not attempt.holding.take_site(users, names):
            return "replayed"
        return next(filter(None, (self.receive(run, round, ticket, row) for row in rows)), "")

    def _taking(self, run: str, round: int, ticket: bytes) -> _Attempt | None:
        """The attempt of this ticket."""
        attempt = self._attempts.get((run, round))
        if attempt is None or attempt.ended or not attempt.ticket or ticket != attempt.ticket:
            return None
        return attempt

    def _is_sound(self, attempt: _Attempt, user: SharedUser) -> bool:
        return user.fits(self.index, attempt.holding.length) and user.is_committed(
            self.index, attempt.ticket
        )

    def close(self, run: str, round: int) -> None:
        """Take no more shares."""
        attempt = self._attempts.get((run, round))
        if attempt is not None and attempt.ticket and attempt.held is None:
            attempt.held = attempt.holding.everybody()

    def output(self, run: str, round: int) -> bytes:
        """`record.packed_output` of a published round, the same bytes every time.

        Raises ProtocolError before."""
        kept = self._store.kept(run, round) if self._store.published(run, round) else None
        if kept is None:
            raise ProtocolError(f"round {round} is not published", "Ask again later.")
        return kept.content

    def progress(self, run: str, round: int) -> Progress | None:
        """Of the attempt that is in memory; None where there is none."""
        attempt = self._attempts.get((run, round))
        if attempt is None:
            return None
        holding = attempt.holding
        held = holding.everybody() if attempt.held is None else attempt.held
        wanted = self._next_piece(attempt) if attempt.agreed else None
        opened = attempt.opened if not attempt.verdict else b""
        return Progress(
            attempt.number,
            attempt.nonce,
            attempt.ticket,
            holding.count(held),
            attempt.held is not None,
            attempt.ended,
            wanted,
            opened,
            rows=len(held),
        )

    def forget(self, run: str, round: int) -> None:
        """An attempt that has ended, or whose output was published: nobody asks for more of it than
        is kept."""
        attempt = self._attempts.get((run, round))
        if attempt is not None and (attempt.ended or self._store.published(run, round)):
            self._drop(run, round)

    def _drop(self, run: str, round: int) -> None:
        if (attempt := self._attempts.pop((run, round), None)) is not None:
            attempt.holding.close()

    # --- the peers' side ---

    def standing(self, run: str, round: int) -> Standing:
        """What peers may know. A kept output is stood by after a crash too."""
        attempt, kept = self._attempts.get((run, round)), self._store.kept(run, round)
        if kept is not None:
            ready, published = (
                hashlib.sha256(kept.content).digest(),
                self._store.published(run, round),
            )
            if attempt is None or attempt.number != kept.attempt:
                return Standing(
                    kept.attempt,
                    b"",
                    kept.ticket,
                    agreed=kept.agreed,
                    accepted=kept.agreed,
                    ready=ready,
                    published=published,
                )
            return replace(
                self._said(attempt), accepted=kept.agreed, ready=ready, published=published
            )
        if attempt is None or attempt.ended:
            return Standing(self._store.attempt(run, round))
        return self._said(attempt)

    def _said(self, attempt: _Attempt) -> Standing:
        return Standing(
            attempt.number,
            attempt.nonce,
            attempt.ticket,
            attempt.held,
            attempt.agreed,
            attempt.coin,
            attempt.opened,
            attempt.verdict,
        )

    def key(self, run: str, round: int, attempt: int, *, caller: int) -> bytes:
        """The masking key of an attempt, for the aggregator before this one.

        Raises ProtocolError for anybody else."""
        current = self._attempts.get((run, round))
        if caller != (self.index - 1) % 3 or current is None or current.number != attempt:
            raise ProtocolError(
                f"aggregator {caller} gets no key of attempt {attempt}",
                "Only the one before this may ask.",
            )
        return current.key

    def explicit(
        self, run: str, round: int, attempt: int, first: int, last: int, *, caller: int
    ) -> bytes:
        """`Holding.explicit` of users first..last of the agreed list, for aggregator 2. Raises
        ProtocolError for anybody else, and where nothing is agreed: aggregator 0 has both seeds of
        every user."""
        current = self._attempts.get((run, round))
        if (
            (self.index, caller) != (1, 2)
            or current is None
            or current.number != attempt
            or not current.agreed
            or current.ended
        ):
            raise ProtocolError(
                f"aggregator {caller} gets no explicit shares of attempt {attempt}",
                "Only aggregator 2 may ask 1.",
            )
        if (
            not 0
            <= first
            < last
            <= min(len(current.alike), first + users_a_piece(current.holding.length))
        ):
            raise ProtocolError(
                f"there are no users {first}..{last} to pass on",
                "Ask for the users that were agreed on.",
            )
        return current.holding.explicit(current.alike[first:last])

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        """As `protocol.Peer`, for both others, the same bytes every time.

        Raises ProtocolError before they are whole."""
        current = self._attempts.get((run, round))
        if current is None or current.number != attempt or not current.opened:
            raise ProtocolError(
                f"attempt {attempt} at round {round} has opened nothing here",
                "Ask where the round is.",
            )
        return b"".join(piece.astype("<u8").tobytes() for piece in current.openings)

    # --- what follows ---

    def advance(self, run: str, round: int) -> Standing:
        """Do what can be done, and say where that leads.

        Raises UnreachableError, and what the store raises; ask again."""
        attempt = self._attempts.get((run, round))
        if attempt is not None and not attempt.ended and self._store.kept(run, round) is None:
            self._towards_an_output(run, attempt)
        self._publish_if_all_are_ready(run, round)
        return self.standing(run, round)

    def _towards_an_output(self, run: str, attempt: _Attempt) -> None:
        theirs = {i: peer.standing(run, attempt.question.round) for i, peer in self._peers.items()}
        if any(other.attempt > attempt.number for other in theirs.values()):
            return self._end(attempt, "a peer began a later attempt")
        if any(other.attempt < attempt.number for other in theirs.values()):
            return None
        if any(not other.nonce and not other.ready for other in theirs.values()):
            return self._end(attempt, "a peer has lost the attempt") if attempt.ticket else None
        if all(other.nonce for other in theirs.values()):
            self._fix_ticket(run, attempt, {i: other.nonce for i, other in theirs.items()})
        lists = [other.held for other in theirs.values()]
        if (
            attempt.ended
            or not attempt.ticket
            or attempt.held is None
            or (not attempt.agreed and None in lists)
        ):
            return None
        if not attempt.agreed:
            alike = held_alike([attempt.held, *(held or () for held in lists)])
            attempt.alike = tuple(attempt.holding.whole(alike))
            attempt.agreed = batch_digest(attempt.ticket, attempt.alike)
        if any(
            other.ticket != attempt.ticket or other.agreed not in {b"", attempt.agreed}
            for other in theirs.values()
        ):
            return self._end(attempt, "peers did not agree on the users")
        if attempt.holding.count(attempt.alike) < attempt.needed:
            return self._end(attempt, TOO_FEW)
        if all(other.agreed == attempt.agreed for other in theirs.values()):
            self._after_agreement(run, attempt, theirs)
        return None

    def _after_agreement(self, run: str, attempt: _Attempt, theirs: Mapping[int, Standing]) -> None:
        """The next of: the coin, a piece of the users, the verdict, a refused user's part, the
        output."""
        checked = attempt.sums.layout.checked
        if checked is not None and attempt.projection is None:
            return self._toss(attempt, theirs, checked)
        if (piece := self._next_piece(attempt)) is not None:
            self._sum_piece(run, attempt, theirs, piece)
            if checked is not None or attempt.ended or self._next_piece(attempt) is not None:
                return None
        if checked is not None and not attempt.verdict:
            return self._judge(run, attempt, theirs, checked)
        if checked is not None and any(
            other.accepted != attempt.verdict for other in theirs.values()
        ):
            differ = any(other.accepted not in {b"", attempt.verdict} for other in theirs.values())
            return self._end(attempt, "peers did not agree on the verdict") if differ else None
        return self._keep_output(run, attempt)

    def _toss(self, attempt: _Attempt, theirs: Mapping[int, Standing], checked: Checked) -> None:
        """Tell the two terms of the coin that it knows; with the third, which both others tell,
        draw the projection.

        Only now: all three have fixed the users, so that nobody chose a share knowing C.
        """
        after, before = (self.index + 1) % 3, (self.index + 2) % 3
        own, following = (
            coin_term(key, attempt.ticket, attempt.agreed)
            for key in (attempt.key, attempt.following_key)
        )
        attempt.coin = own, following
        said = theirs[after].coin, theirs[before].coin
        if said[0] is None or said[1] is None:
            return None
        if said[0] != (following, said[1][0]) or said[1][1] != own:
            return self._end(attempt, "peers did not agree on the coin")
        terms = {self.index: own, after: following, before: said[1][0]}
        attempt.projection = projection([terms[i] for i in range(3)], checked.data.stop)
        return None

    def _judge(
        self, run: str, attempt: _Attempt, theirs: Mapping[int, Standing], checked: Checked
    ) -> None:
        """Who is within the bounds, by all three openings, which left once each."""
        if any(not other.opened for other in theirs.values()):
            return None
        shape, found = (len(attempt.alike), -1), dict[int, UInt64s]()
        found[self.index] = np.concatenate(attempt.openings)
        for i, other in theirs.items():
            content = self._peers[i].openings(run, attempt.question.round, attempt.number)
            if (
                len(content) != found[self.index].nbytes
                or hashlib.sha256(content).digest() != other.opened
            ):
                return self._end(attempt, "a peer's openings are not those that it said")
            found[i] = np.frombuffer(content, "<u8").astype(np.uint64).reshape(shape)
        fine = accepted([found[i] for i in range(3)], checked)
        attempt.accepted = tuple(
            user for user, well in zip(attempt.alike, fine, strict=True) if well
        )
        attempt.refused = np.flatnonzero(~fine).tolist()
        attempt.verdict = batch_digest(attempt.ticket, attempt.accepted)
        return self._end(attempt, TOO_FEW) if len(attempt.accepted) < attempt.needed else None

    def _next_piece(self, attempt: _Attempt) -> tuple[int, int] | None:
        """Positions of users to add, or after the verdict of one to take off again."""
        last = min(len(attempt.alike), attempt.summed + users_a_piece(attempt.holding.length))
        if last > attempt.summed:
            return attempt.summed, last
        return (attempt.refused[0], attempt.refused[0] + 1) if attempt.refused else None

    def _sum_piece(
        self, run: str, attempt: _Attempt, theirs: Mapping[int, Standing], piece: tuple[int, int]
    ) -> None:
        """Add users, and open their checks; or take a refused one off: sums modulo 2^64 are
        exact."""
        users, explicit, length = attempt.alike[slice(*piece)], b"", attempt.holding.length
        if self.index == 2:
            if not theirs[1].nonce:
                return self._end(attempt, "a peer has lost the attempt")
            explicit = self._peers[1].explicit(run, attempt.question.round, attempt.number, *piece)
            if not passed_on_as_committed(explicit, users, attempt.ticket, length):
                return self._end(
                    attempt, "a peer passed on shares that are not those of their hashes"
                )
        own, following = attempt.holding.rows(users, explicit)
        if attempt.summed == len(attempt.alike):
            attempt.sums.add(own, following, off=True)
            del attempt.refused[0]
            return None
        attempt.sums.add(own, following)
        checked = attempt.sums.layout.checked
        if checked is not None and attempt.projection is not None:
            context = attempt.ticket + attempt.agreed + f"/open/{piece[0]}".encode()
            keys = attempt.key, attempt.following_key
            attempt.openings.append(
                opening(own, following, checked, attempt.projection, self.index, keys, context)
            )
        attempt.summed = piece[1]
        if checked is not None and attempt.summed == len(attempt.alike):
            attempt.opened = hashlib.sha256(
                b"".join(one.astype("<u8").tobytes() for one in attempt.openings)
            ).digest()
        return None

    def _fix_ticket(self, run: str, attempt: _Attempt, nonces: Mapping[int, bytes]) -> None:
        """Once. Another nonce afterwards ends the attempt: there is no second ticket."""
        question = attempt.question
        all_nonces = [attempt.nonce if i == self.index else nonces[i] for i in range(3)]
        if len(set(all_nonces)) != 3:
            return self._end(attempt, "two aggregators have one nonce")
        found = ticket(run, question.round, attempt.named, self._names, all_nonces)
        if attempt.ticket:
            return (
                self._end(attempt, "a peer changed its nonce") if found != attempt.ticket else None
            )
        attempt.following_key = self._peers[(self.index + 1) % 3].key(
            run, question.round, attempt.number
        )
        attempt.ticket = found
        return None

    def _keep_output(self, run: str, attempt: _Attempt) -> None:
        """Charge, then noise and mask, then keep."""
        question, plan = attempt.question, attempt.plan
        self._store.charge(run, question, plan)
        parts = attempt.sums.output(
            party_noise(question, plan, self._noise),
            (attempt.key, attempt.following_key),
            attempt.ticket,
        )
        users, agreed = (
            (attempt.accepted, attempt.verdict)
            if attempt.verdict
            else (attempt.alike, attempt.agreed)
        )
        people = attempt.holding.count(users)
        content = packed_output(attempt.ticket, people, parts)
        output = Kept(attempt.number, attempt.ticket, agreed, people, content)
        self._store.keep(run, question.round, output)
        if self.index != 1:  # aggregator 2 may still ask it for explicit shares
            attempt.holding.close()

    def _publish_if_all_are_ready(self, run: str, round: int) -> None:
        kept = self._store.kept(run, round)
        if kept is None or self._store.published(run, round):
            return
        theirs = [peer.standing(run, round) for peer in self._peers.values()]
        if all(
            other.ready and (other.ticket, other.accepted) == (kept.ticket, kept.agreed)
            for other in theirs
        ):
            self._store.publish(run, round)

    def _published_elsewhere(self, run: str, round: int, ticket: bytes) -> list[bool]:
        theirs = [peer.standing(run, round) for peer in self._peers.values()]
        return [other.published and other.ticket == ticket for other in theirs]

    def _end(self, attempt: _Attempt, why: str) -> None:
        attempt.ended = why
        attempt.holding.close()
