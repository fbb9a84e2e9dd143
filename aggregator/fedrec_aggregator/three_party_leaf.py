"""A leaf of one of three parties: it takes shares of a range of pseudonyms, agrees with the two
sister leaves, and gives its term of the sums to its own root.

NOT YET REVIEWED from outside. The rules are `sharing.root_of_three`, the proof
`sharing.root_of_three`. Guarantee: none of its own; it releases and charges nothing. Who may call
is decided at the edge: the root's calls (`visit`, `open`, `freeze`) are its own root's alone. Its
ledger keeps who is enrolled and which attempts were begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedrec.errors import ProtocolError
from fedrec.federation.leaves import LeafStanding, PartialSums, TokenRange
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Opening, Refusal
from fedrec.federation.wire import refused
from fedrec.privacy.calibration import Plan
from fedrec.randomness import SystemStreams
from fedrec.sharing.agreement import Agreement
from fedrec.sharing.root_of_three import LeafOfThree
from fedrec_aggregator.leaf import LeafRole
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.limits import Limits
from fedrec_aggregator.peers import PeerEndpoint
from fedrec_aggregator.three_party import ThreePartyAggregator


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
