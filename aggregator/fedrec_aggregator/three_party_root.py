"""The root of one of three parties with leaves: it takes its leaves' terms, agrees with the other
two roots on ranges, and is the aggregator that the server knows.

NOT YET REVIEWED from outside. The rules and the proof are `sharing.root_of_three`. Leaves are
heard, opened and asked for terms as the root of a trusted tree does (`leaf_attempt`): a leaf that
was started again while it took shares ends the attempt. Once no more are taken, a range is left out
whose leaf does not answer for `patience_s`, or says that its attempt ended.

A leaf of one of three parties: it takes shares of a range of pseudonyms, agrees with the two
sister leaves, and gives its term of the sums to its own root.

NOT YET REVIEWED from outside. The rules are `sharing.root_of_three`, the proof
`sharing.root_of_three`. Guarantee: none of its own; it releases and charges nothing. Who may call
is decided at the edge: the root's calls (`visit`, `open`, `freeze`) are its own root's alone. Its
ledger keeps who is enrolled and which attempts were begun.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedrec.errors import FedRecError, ProtocolError
from fedrec.federation.leaves import LeafStanding, PartialSums, TokenRange
from fedrec.federation.protocol import (
    LedgerGrowth,
    LedgerHead,
    Opening,
    Phase,
    Receipt,
    Refusal,
    ShareEndpoint,
)
from fedrec.federation.releases import PartyStreams
from fedrec.federation.wire import refused
from fedrec.operations import logs
from fedrec.privacy.calibration import Plan
from fedrec.randomness import Streams, SystemStreams
from fedrec.sharing.agreement import Agreement
from fedrec.sharing.protocol import AttemptProgress
from fedrec.sharing.root_of_three import LeafOfThree, ListedRange, RangeTerm, RootOfThree
from fedrec.sharing.shares import HASH_BYTES, Listed
from fedrec_aggregator.collection import Collection
from fedrec_aggregator.leaf import LeafRole
from fedrec_aggregator.leaf_attempt import LeafAttempt, LeafVisits, ListedLeaf, distrusted
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.opening_checks import Limits
from fedrec_aggregator.peers import PeerEndpoint, read_ranges
from fedrec_aggregator.root import RootRole, no_reports, say_lost
from fedrec_aggregator.share_intake import ThreePartyAttempt
from fedrec_aggregator.three_party import ThreePartyAggregator, log


class LeafOfThreeAggregator(LeafRole, ThreePartyAggregator):
    """The leaf `name` of the party at `place`, owner of the pseudonyms in `range`. names, peers: of
    the three leaves of the range. epoch: drawn when it starts."""

    def __init__(
        self,
        ledger: ReleaseLedger,
        limits: Limits,
        *,
        name: str,
        range: TokenRange,
        place: int,
        names: Sequence[bytes],
        peers: Mapping[int, PeerEndpoint],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._begin_leaf(name, range)
        self._frozen = dict[tuple[str, int], tuple[int, bytes]]()
        party = {"place": place, "names": names, "peers": peers, "clock": clock, "sleep": sleep}
        super().__init__(ledger, limits, noise=SystemStreams(), **party)  # type: ignore[arg-type]

    def _rules(self, names: Sequence[bytes]) -> Agreement:
        folder = self.ledger.folder
        return LeafOfThree(self.place, names, self._peers, self._store, self.range, folder=folder)

    # --- the root's side ---

    def visit(
        self,
        since: LedgerHead,
        growth: LedgerGrowth,
        *,
        run: str = "",
        round: int = 0,
        ended: bool = False,
    ) -> LeafStanding:
        """Implements `LeafEndpoint.visit`."""
        self._root.extend(since, growth)
        if ended:
            self._forget_attempt(run, round)
        return self._where(run, round)

    def open(self, opening: Opening, plan: Plan) -> LeafStanding:
        """Implements `LeafEndpoint.open`; shares are of one attempt, and go on in no other.

        Raises RefusedError (`STALE_LEDGER`) on an attempt before the last: the root's ledger went
        back; `ROUND_CLOSED` on one that was begun here before and is lost."""
        self.open_run(opening.run, plan)
        key = opening.run, opening.round
        with self._one_at_a_time:
            self._require_newest(opening)
            now = self._shares.get(key)
            if now is None or (now.number, now.quorum) != (opening.attempt, opening.quorum):
                # a root has one round of a run at a time
                for other in [each for each in self._shares if each[0] == opening.run]:
                    self._forget_attempt(*other)
                self._begin(opening)
        self._advance(*key)
        return self._where(*key)

    def freeze(self, run: str, round: int, *, digest: str, attempt: int, epoch: str) -> bytes:
        """Implements `LeafEndpoint.freeze`: its term. Raises RefusedError also with `BUSY`: the
        three leaves have not agreed yet; `ROUND_CLOSED`: nothing comes of the attempt here."""
        known = self._shares.get((run, round))
        held = (known.digest, known.number) if known else None
        self._require_held(run, round, held, (digest, attempt), epoch)
        assert known is not None
        self._stop_taking(run, round)
        self._advance(run, round)
        number, content = self._frozen.get((run, round), (0, b""))
        if number == attempt:
            return content
        assert isinstance(self._party, LeafOfThree)
        try:
            with self._turn:
                term = self._party.term(run, round, attempt)
        except ProtocolError as failure:
            raise refused(Refusal.ROUND_CLOSED, failure.cause, failure.remedy) from None
        if term is None:
            raise refused(
                Refusal.BUSY,
                f"leaf {self.name!r} has not agreed with its sister leaves yet",
                "Ask again; if it never does, see that the three leaves reach each other.",
            )
        of_what = self.name, epoch, run, round, digest, known.quorum, attempt
        content = PartialSums(
            *of_what,
            reported=term.listed.people,
            clipped=0,
            bytes_in=0,
            rejected=dict(known.rejected),
            blocks=tuple(block.view(np.int64) for block in term.blocks),
            ticket=term.listed.ticket.hex(),
            summed=term.listed.summed.hex(),
        ).packed()
        self._frozen[run, round] = attempt, content
        return content

    # --- what differs from an aggregator that releases ---

    def _where(self, run: str, round: int) -> LeafStanding:
        told = self._told()
        with self._turn:
            known = self._shares.get((run, round))
            progress = self._party.progress(run, round)
        if known is None or progress is None:
            return told
        return replace(
            told,
            attempt=known.number,
            digest=known.digest,
            reported=progress.users,
            rejected=dict(known.rejected),
        )

    def _forget_attempt(self, run: str, round: int) -> None:
        assert isinstance(self._party, LeafOfThree)
        with self._turn:
            self._party.drop(run, round)
            self._shares.pop((run, round), None)
            self._frozen.pop((run, round), None)
        for peer in self._peers.values():
            peer.forget(run, round)

    def _needed(self, opening: Opening) -> int:
        """Roots enforce the quorum, over all ranges."""
        return 0


class RootOfThreeAggregator(RootRole, ThreePartyAggregator):
    """The root of the party at `place`. names, peers: of the three roots. patience_s: for a leaf
    that has no term when terms are taken.

    Raises ValueError as `LeafVisits`."""

    read_list: Callable[[bytes], tuple[Listed, ...]] = staticmethod(read_ranges)

    def __init__(
        self,
        ledger: ReleaseLedger,
        limits: Limits,
        *,
        noise: Streams | SystemStreams,
        place: int,
        names: Sequence[bytes],
        peers: Mapping[int, PeerEndpoint],
        leaves: Sequence[ListedLeaf],
        patience_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._visits = LeafVisits(ledger, leaves)
        self._patience_s = patience_s
        self._trees = dict[tuple[str, int], LeafAttempt]()
        party = {"place": place, "names": names, "peers": peers, "clock": clock, "sleep": sleep}
        super().__init__(ledger, limits, noise=noise, **party)  # type: ignore[arg-type]

    def _rules(self, names: Sequence[bytes]) -> Agreement:
        ranges = [leaf.range for leaf in self._visits.leaves]
        noise = PartyStreams(self._noise, self.place)
        return RootOfThree(self.place, names, self._peers, self._store, noise, ranges)

    def share_endpoint(self, sender: str, *, max_users: int | None = None) -> ShareEndpoint:
        """Raises RefusedError (`FORBIDDEN`)."""
        raise no_reports()

    def report(
        self, sender: str, run: str, round: int, batch: bytes, *, names_quorum: bool = True
    ) -> Receipt:
        """Turned away."""
        return Receipt(0, {Refusal.FORBIDDEN.value: 1})

    # --- a round ---

    def _begin(self, opening: Opening) -> None:
        super()._begin(opening)
        self._trees[opening.run, opening.round] = LeafAttempt(opening, self._visits)

    def _stop_taking(self, run: str, round: int) -> None:
        """From now on terms are taken; the list follows."""
        tree = self._trees.get((run, round))
        if tree is not None and tree.frozen_s is None:
            tree.frozen_s = self._clock()

    def _advance(self, run: str, round: int) -> None:
        self._leaves_go_on(run, round)
        super()._advance(run, round)
        if (run, round) not in self._shares and self._trees.pop((run, round), None) is not None:
            self._visits.hear_all(run=run, round=round, ended=True)

    def _leaves_go_on(self, run: str, round: int) -> None:
        """Open leaves and hear them; or take their terms, then say the list."""
        tree = self._trees.get((run, round))
        attempt = self._shares.get((run, round))
        if tree is None or attempt is None or not tree.turn.acquire(blocking=False):
            return
        try:
            with self._turn:
                progress = self._party.progress(run, round)
            if progress is None or progress.ended or progress.closed:
                return
            if tree.frozen_s is None:
                lost = list[str]()
                left_s = attempt.deadline_s - self._clock()
                lost = tree.look(attempt.plan, left_s)
            else:
                lost = self._take_terms(tree, attempt)
            if lost:
                say_lost(run, round, lost)
                with self._turn:
                    self._party.give_up(run, round, "a leaf was started again")
        except FedRecError as failure:
            attempt.failure = failure
        finally:
            tree.turn.release()

    def _take_terms(self, tree: LeafAttempt, attempt: ThreePartyAttempt) -> list[str]:
        """Names of leaves that lost their shares. Once every term is here that will be, the list is
        said."""
        run = tree.opening.run
        round = tree.opening.round
        frozen_s = tree.frozen_s
        assert isinstance(self._party, RootOfThree)
        assert frozen_s is not None
        party = self._party

        def check(leaf: ListedLeaf, partial: PartialSums) -> None:
            with self._turn:
                party.take(run, round, _term(leaf, partial))
            about = {"run": run, "round": round, "attempt": partial.attempt}
            logs.say(log, "leaf-frozen", sender=leaf.name, users=partial.reported, **about)  # type: ignore[arg-type]

        lost, waiting = tree.take(attempt.question.blocks, check)
        if not lost and (not waiting or self._clock() - frozen_s >= self._patience_s):
            with self._turn:
                party.close(run, round)
        return lost

    def _seen(
        self, run: str, attempt: ThreePartyAttempt, progress: AttemptProgress | None
    ) -> Collection:
        """Counted as leaves said, until their terms are listed."""
        seen = super()._seen(run, attempt, progress)
        tree = self._trees.get((run, attempt.question.round))
        if tree is None or progress is None or progress.ended or progress.closed:
            return seen
        seen.phase = Phase.OPEN if tree.frozen_s is None else Phase.RELEASING
        seen.reported = sum(one.reported for one in tree.standings)
        seen.rejected = sum((Counter(one.rejected) for one in tree.standings), Counter[str]())
        return seen


def _term(leaf: ListedLeaf, partial: PartialSums) -> RangeTerm:
    """Raises ProtocolError where the leaf's hashes are none."""
    try:
        ticket = bytes.fromhex(partial.ticket)
        summed = bytes.fromhex(partial.summed)
    except (TypeError, ValueError):
        ticket = summed = b""
    if {len(ticket), len(summed)} != {HASH_BYTES}:
        raise distrusted(leaf, "sent a term without ticket and digest: is it one of three parties?")
    listed = ListedRange(leaf.range, ticket, summed, partial.reported)
    blocks = tuple(block.view(np.uint64) for block in partial.blocks)
    return RangeTerm(listed, partial.attempt, blocks)
