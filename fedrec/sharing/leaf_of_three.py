"""A leaf of one of three parties through an attempt: it takes shares of a range of pseudonyms,
agrees with the two sister leaves on the users, sums, and gives its term to its own party's root.
Rules, without transport.

Guarantee: none of its own. It publishes nothing, charges nothing, draws no noise and masks no sum:
`root_of_three` has the proof. Three rules are the leaf's. (1) It takes users of its own range
alone. (2) Its ticket names the range and the attempt of the roots too, so that what was shared for
one is never summed for another. (3) A term is given out once it is final, and from then on it is
the same term: whatever the sisters say later, and until the root opens another attempt. A crash
ends the attempt, since no attempt is begun twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedrec.errors import ProtocolError
from fedrec.federation.leaves import TokenRange
from fedrec.federation.messages import Question
from fedrec.privacy.calibration import Plan
from fedrec.sharing.agreement import Agreement
from fedrec.sharing.commitments import named_range
from fedrec.sharing.protocol import Attempts, Peer, Standing
from fedrec.sharing.root_of_three import ListedRange, RangeTerm


class LeafOfThree(Agreement):
    """Leaf `index` of the three of a range, as `Agreement`; names, peers: of the three leaves."""

    def __init__(
        self,
        index: int,
        names: Sequence[bytes],
        peers: Mapping[int, Peer],
        store: Attempts,
        range: TokenRange,
        *,
        folder: Path | None = None,
    ) -> None:
        super().__init__(index, names, peers, store, enrolled=range.__contains__, folder=folder)
        self.range = range

    def open(
        self,
        run: str,
        question: Question,
        plan: Plan,
        digest: bytes,
        *,
        attempt: int,
        needed: int = 0,
        named: bytes = b"",
    ) -> None:
        """Opens an attempt as `Agreement.open` does. needed: 0, since roots enforce the quorum,
        over all ranges."""
        first = self.range.first
        last = self.range.last
        mine = named_range(named or digest, first, last, attempt)
        super().open(run, question, plan, digest, attempt=attempt, needed=needed, named=mine)

    def advance(self, run: str, round: int) -> Standing:
        """Advances as `Agreement.advance` does, until the term is final."""
        attempt = self._attempts.get((run, round))
        if attempt is None or not attempt.summed:
            super().advance(run, round)
            if attempt is not None and attempt.summed and self.index != 1:
                attempt.batch.close()  # leaf 2 may still ask leaf 1 for explicit shares
        return self.standing(run, round)

    def term(self, run: str, round: int, attempt: int) -> RangeTerm | None:
        """The term, for its own party's root alone, the same whenever it is asked; None before it
        is final.

        Raises ProtocolError where nothing comes of the attempt, or it is not in memory."""
        current = self._attempts.get((run, round))
        if current is None or current.number != attempt or current.ended:
            why = current.ended if current and current.number == attempt else "it is not open here"
            raise ProtocolError(
                f"attempt {attempt} at round {round} has no term of {self.range}: {why}",
                "Leave the range out, or open the next attempt.",
            )
        if not current.summed:
            return None
        listed = ListedRange(self.range, current.ticket, current.summed, current.people)
        return RangeTerm(listed, attempt, current.batch.packed())

    def drop(self, run: str, round: int) -> None:
        """A round that is over at the root."""
        self._drop(run, round)
