"""Three aggregators agree on whom an attempt sums: nonces, a ticket, lists that are compared, keys.
Rules of one of them, without transport or disk.

Why two honest ones sum the same. A ticket holds a nonce that each draws once for an attempt, and an
attempt has one ticket or none: a peer that shows two nonces ends it. Whom an aggregator holds is
said once, when it takes no more; who stands in all three lists alike is summed. Each says the
digest of these to both others directly, and goes on where both say the same. So of two honest ones
that go on under one ticket, both sum the same. A masking key is told to the aggregator before, and
to nobody else.

Peers are asked, they do not call: an answer that is lost or comes twice changes nothing. `advance`
does what can be done next. What becomes of the sums is `one_of_three`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedrec.errors import ProtocolError
from fedrec.federation.messages import Question
from fedrec.privacy.calibration import Plan
from fedrec.sharing.layout import plan_layout
from fedrec.sharing.protocol import AttemptProgress, Peer, Standing, Store
from fedrec.sharing.record import SharedUser
from fedrec.sharing.shared_users import TOO_FEW, UNEQUAL, Attempt, SharedUsers
from fedrec.sharing.shares import Committed, batch_digest, ticket


class Agreement:
    """Aggregator `index` of three. names: of all three with their keys, in order. peers: the other
    two, by index.

    enrolled: whether a pseudonym may report. folder: for shares until they are summed (`Holding`).
    """

    def __init__(
        self,
        index: int,
        names: Sequence[bytes],
        peers: Mapping[int, Peer],
        store: Store,
        *,
        enrolled: Callable[[bytes], bool] = lambda user: True,
        folder: Path | None = None,
    ) -> None:
        if index not in range(3) or set(peers) != {0, 1, 2} - {index} or len(set(names)) != 3:
            raise ValueError(
                f"aggregator {index} needs two peers and three different names, found "
                f"{sorted(peers)} and {list(names)}"
            )
        self.index = index
        self._names = tuple(names)
        self._peers = peers
        self._store = store
        self._enrolled = enrolled
        self._folder = folder
        self._attempts: dict[tuple[str, int], Attempt] = {}

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
        nothing is summed.

        digest: of the question, the same for all attempts. named: what the ticket names in its
        place, where it says more (the quorum). Raises ProtocolError where it was begun before.
        """
        round = question.round
        if plan.aggregation != "three-party":
            raise ProtocolError("the plan is of one trusted aggregator", "Use a plan of three.")
        if attempt <= self._store.attempt(run, round):
            raise ProtocolError(
                f"attempt {attempt} at round {round} was begun before", "Open the next one."
            )
        layout = plan_layout(question, plan)
        batch = SharedUsers(self.index, layout, self._enrolled, self._folder)
        self._store.begin(run, round, attempt, digest)
        self._drop(run, round)
        self._attempts[run, round] = Attempt(
            attempt, question, plan, named or digest, needed, batch
        )

    def receive(self, run: str, round: int, ticket: bytes, user: SharedUser) -> str:
        """Take one user's shares; "" or why not.

        A client that sends the same again is told the same."""
        attempt = self._taking(run, round, ticket)
        return attempt.batch.receive(attempt, user) if attempt else "another-ticket"

    def receive_site(
        self, run: str, round: int, ticket: bytes, users: tuple[bytes, ...], rows: list[SharedUser]
    ) -> str:
        """Take a site's sum of its users (`site_sums`), as `receive`."""
        attempt = self._taking(run, round, ticket)
        return attempt.batch.receive_site(attempt, users, rows) if attempt else "another-ticket"

    def _taking(self, run: str, round: int, ticket: bytes) -> Attempt | None:
        """The attempt of this ticket."""
        attempt = self._attempts.get((run, round))
        if attempt is None or attempt.ended or not attempt.ticket or ticket != attempt.ticket:
            return None
        return attempt

    def close(self, run: str, round: int) -> None:
        """Take no more."""
        attempt = self._attempts.get((run, round))
        if attempt is not None and attempt.ticket and attempt.held is None:
            attempt.held = attempt.batch.everybody()

    def progress(self, run: str, round: int) -> AttemptProgress | None:
        """Progress of the attempt that is in memory; None where there is none."""
        attempt = self._attempts.get((run, round))
        if attempt is None:
            return None
        batch = attempt.batch
        held = batch.everybody() if attempt.held is None else attempt.held
        if attempt.ended == TOO_FEW:
            held = batch.accepted if batch.verdict else attempt.alike
        wanted = batch.next_piece(attempt) if attempt.agreed else None
        opened = batch.opened if not batch.verdict else b""
        return AttemptProgress(
            attempt.number,
            attempt.nonce,
            attempt.ticket,
            batch.count(held),
            attempt.held is not None,
            attempt.ended,
            wanted,
            opened,
            rows=len(held),
            differ=dict(attempt.differ),
        )

    def give_up(self, run: str, round: int, why: str) -> None:
        """End the attempt in memory."""
        if (attempt := self._attempts.get((run, round))) is not None and not attempt.ended:
            attempt.end(why)

    def forget(self, run: str, round: int) -> None:
        """An attempt that has ended: nobody asks for more of it."""
        attempt = self._attempts.get((run, round))
        if attempt is not None and attempt.ended:
            self._drop(run, round)

    def _drop(self, run: str, round: int) -> None:
        if (attempt := self._attempts.pop((run, round), None)) is not None:
            attempt.batch.close()

    # --- the peers' side ---

    def standing(self, run: str, round: int) -> Standing:
        """What peers may know. Where too few are held alike, what was said stays, so that each
        finds that out; where a peer sums others, all but what was agreed, so that no other
        goes on to sums that are charged."""
        attempt = self._attempts.get((run, round))
        if attempt is None or (attempt.ended and not attempt.ended.startswith((TOO_FEW, UNEQUAL))):
            return Standing(self._store.attempt(run, round))
        told = self._said(attempt)
        return replace(told, agreed=b"") if attempt.ended.startswith(UNEQUAL) else told

    def _said(self, attempt: Attempt) -> Standing:
        return attempt.batch.told(
            Standing(attempt.number, attempt.nonce, attempt.ticket, attempt.held, attempt.agreed)
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
        """The pieces of `SharedUsers.explicit`, for the aggregator `caller`."""
        current = self._attempts.get((run, round))
        if current is None or current.number != attempt:
            raise ProtocolError(
                f"aggregator {caller} gets no explicit shares of attempt {attempt}",
                "Only aggregator 2 may ask 1.",
            )
        return current.batch.explicit(current, first, last, caller=caller)

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        """Implements `protocol.Peer.openings`, for both others, the same bytes every time.

        Raises ProtocolError before they are whole."""
        current = self._attempts.get((run, round))
        if current is None or current.number != attempt or not current.batch.opened:
            raise ProtocolError(
                f"attempt {attempt} at round {round} has opened nothing here",
                "Ask where the round is.",
            )
        return current.batch.all_openings()

    # --- what follows ---

    def advance(self, run: str, round: int) -> Standing:
        """Do what can be done, and say where that leads.

        Raises UnreachableError, and what the store raises; ask again."""
        attempt = self._attempts.get((run, round))
        if attempt is not None and not attempt.ended:
            self._towards_sums(run, attempt)
        return self.standing(run, round)

    def _towards_sums(self, run: str, attempt: Attempt) -> None:
        theirs = {i: peer.standing(run, attempt.question.round) for i, peer in self._peers.items()}
        if any(other.attempt > attempt.number for other in theirs.values()):
            return attempt.end("a peer began a later attempt")
        if any(other.attempt < attempt.number for other in theirs.values()):
            return None
        if any(not other.nonce and not other.ready for other in theirs.values()):
            return attempt.end("a peer has lost the attempt") if attempt.ticket else None
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
            self._compare(attempt, attempt.held, {i: one.held or () for i, one in theirs.items()})
        if attempt.batch.count(attempt.alike) < attempt.needed:
            return attempt.end(TOO_FEW)
        unequal = [
            f"aggregator {i + 1}"
            for i, other in theirs.items()
            if other.ticket != attempt.ticket or other.agreed not in {b"", attempt.agreed}
        ]
        if unequal:
            named = " and ".join(unequal)
            return attempt.end(f"{UNEQUAL}: {named} names others")
        if all(other.agreed == attempt.agreed for other in theirs.values()):
            attempt.batch.go_on(run, attempt, theirs, self._peers)
        return None

    def _compare(
        self,
        attempt: Attempt,
        held: tuple[Committed, ...],
        theirs: Mapping[int, tuple[Committed, ...]],
    ) -> None:
        """Who stands in all three lists alike, and whose list is another."""
        attempt.alike = attempt.batch.alike([held, *theirs.values()])
        attempt.agreed = batch_digest(attempt.ticket, attempt.alike)
        for i, others in theirs.items():
            missing, more = {*held} - {*others}, {*others} - {*held}
            # its own last: of a site the people are known then, who else are one an entry
            apart = {one.report: one for one in (*more, *missing)}
            if count := attempt.batch.count(tuple(apart.values())):
                attempt.differ[i] = count

    def _fix_ticket(self, run: str, attempt: Attempt, nonces: Mapping[int, bytes]) -> None:
        """Once. Another nonce afterwards ends the attempt: there is no second ticket."""
        question = attempt.question
        all_nonces = [attempt.nonce if i == self.index else nonces[i] for i in range(3)]
        if len(set(all_nonces)) != 3:
            return attempt.end("two aggregators have one nonce")
        found = ticket(run, question.round, attempt.named, self._names, all_nonces)
        if attempt.ticket:
            return attempt.end("a peer changed its nonce") if found != attempt.ticket else None
        attempt.following_key = self._peers[(self.index + 1) % 3].key(
            run, question.round, attempt.number
        )
        attempt.ticket = found
        return None
