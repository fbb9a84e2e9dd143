"""The root of one of three parties whose leaves hold the users: it agrees with the other two roots
on ranges of pseudonyms, and releases the sum of its leaves' terms.

A party is its root and its leaves, of one operator. To roots a range is what a user is to an
aggregator without leaves: it is listed with what its leaf summed, and counts where all three list
it alike.

Guarantee: that of `one_of_three`, against the server, one other party with its root and all its
leaves, and any clients.

Why. (a) to (f) of `one_of_three` speak of roots and hold as they stand, with "ranges" for "users".
(g) A listed range has the ticket of its three leaves and the digest of the users, with the hashes
of their shares, whom its leaf summed (`agreement`). The ticket has a nonce of each leaf, and names
the question, the quorum, the leaves' keys, the range and the attempt. So two honest roots that list
a range alike hold terms of the same shares of the same users. (h) Two honest roots that publish
under one ticket summed the same ranges by (b), and by (g) the same users. Ranges of a root share no
pseudonym, a leaf takes its own alone and a range counts once, so nobody is in two terms. (i) A root
lists a range only while it holds the term. So from the list on no leaf is needed: one that ends
changes nothing. Before, the range is not in the list, or the attempt ends. A root that ends before
it kept an output has lost the attempt, as without leaves. (j) A leaf gives its term to its own root
alone; what leaves the party is the sum of terms, with noise, under the mask of the roots' keys. A
term alone would confirm a guess of a report (`zeros`). (k) Leaves of a range say to each other what
aggregators without leaves do, under keys that each draws for one range and one attempt; their users
are of that range alone. So a corrupt party sees of every user what one corrupt aggregator would.

What a lying party can do more than without leaves: drop a range in place of users.

A leaf of one of three parties through an attempt: it takes shares of a range of pseudonyms,
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

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedrec.arrays import UInt64s
from fedrec.errors import ProtocolError
from fedrec.federation.leaves import TokenRange, require_all_once
from fedrec.federation.messages import Question
from fedrec.federation.releases import Source
from fedrec.privacy.calibration import Plan
from fedrec.sharing.agreement import Agreement
from fedrec.sharing.one_of_three import OneOfThree
from fedrec.sharing.protocol import Attempt, Attempts, Peer, SharedBatch, Standing, Store
from fedrec.sharing.shares import HASH_BYTES, named_range

_LISTED = struct.Struct(f"<HHI{HASH_BYTES}s{HASH_BYTES}s")


@dataclass(frozen=True)
class ListedRange:
    """What a root lists of a range: the ticket of its leaves, the digest of whom they summed, and
    how many people that is."""

    range: TokenRange
    ticket: bytes
    summed: bytes
    people: int

    @property
    def packed(self) -> bytes:
        """All of it, of one length for every range."""
        first = self.range.first
        last = self.range.last
        return _LISTED.pack(first, last, self.people, self.ticket, self.summed)


LISTED_BYTES = _LISTED.size


def listed_range(content: bytes) -> ListedRange:
    """What `ListedRange.packed` made. Raises ValueError on another length, or on no range."""
    if len(content) != LISTED_BYTES:
        raise ValueError(f"a listed range has {LISTED_BYTES} bytes, found {len(content)}")
    first, last, people, ticket, summed = _LISTED.unpack(content)
    return ListedRange(TokenRange(first, last), ticket, summed, people)


@dataclass(frozen=True)
class RangeTerm:
    """What a leaf gives its root: of an attempt, its listed range and its party's term of the sums,
    (rows, columns) a block, modulo 2^64."""

    listed: ListedRange
    attempt: int
    blocks: tuple[UInt64s, ...] = field(repr=False)


@dataclass
class RangeSums:
    """A `SharedBatch`: terms of ranges, each once. shapes: (rows, columns) of the blocks."""

    ranges: Sequence[TokenRange]
    shapes: Sequence[tuple[int, int]]
    _terms: dict[TokenRange, RangeTerm] = field(default_factory=dict, init=False, repr=False)
    _total: list[UInt64s] = field(default_factory=list, init=False, repr=False)

    def take(self, term: RangeTerm) -> None:
        """Once a range. Raises ProtocolError on a range that is not the root's, on blocks of other
        shapes, and on another term than was taken before."""
        listed = term.listed
        known = self._terms.get(listed.range)
        if listed.range not in self.ranges or (known is not None and known.listed != listed):
            raise ProtocolError(
                f"a leaf's term is of {listed.range}, of which there is none to take",
                "Compare the ranges in the settings of the root and of its leaves.",
            )
        if [block.shape for block in term.blocks] != list(self.shapes):
            raise ProtocolError(
                f"a leaf's term of {listed.range} has other shapes than the question",
                "Use the same version of fedrec everywhere.",
            )
        self._terms[listed.range] = known or term

    def everybody(self) -> tuple[ListedRange, ...]:
        """Implements `SharedBatch.everybody`: the ranges whose terms are here."""
        return tuple(
            self._terms[one].listed for one in sorted(self._terms, key=lambda each: each.first)
        )

    def alike(self, lists: Sequence[Sequence[ListedRange]]) -> tuple[ListedRange, ...]:
        """Implements `SharedBatch.alike`, by first pseudonym."""
        first, *others = lists
        return tuple(sorted(set(first).intersection(*others), key=lambda one: one.range.first))

    def count(self, listed: Sequence[ListedRange]) -> int:
        """Implements `SharedBatch.count`."""
        return sum(one.people for one in listed)

    def go_on(
        self, run: str, attempt: Attempt, theirs: Mapping[int, Standing], peers: Mapping[int, Peer]
    ) -> None:
        """Implements `SharedBatch.go_on`: terms of the ranges that all list alike, of no other."""
        terms = [self._terms[one.range].blocks for one in attempt.alike]
        zeros = tuple(np.zeros(shape, np.uint64) for shape in self.shapes)
        self._total = [
            np.sum(blocks, axis=0, dtype=np.uint64) for blocks in zip(zeros, *terms, strict=True)
        ]
        attempt.people = self.count(attempt.alike)
        attempt.summed = attempt.agreed

    def told(self, said: Standing) -> Standing:
        """Implements `SharedBatch.told`: leaves judged already."""
        return said

    def packed(self) -> tuple[UInt64s, ...]:
        """Implements `SharedBatch.packed`."""
        return tuple(self._total)

    def close(self) -> None:
        """Implements `SharedBatch.close`."""
        self._terms.clear()


class RootOfThree(OneOfThree):
    """Root `index` of three, as `OneOfThree`; names, peers: of the three roots. ranges: of its
    leaves. Raises ValueError unless every pseudonym is of exactly one."""

    def __init__(
        self,
        index: int,
        names: Sequence[bytes],
        peers: Mapping[int, Peer],
        store: Store,
        noise: Source,
        ranges: Sequence[TokenRange],
    ) -> None:
        super().__init__(index, names, peers, store, noise)
        require_all_once(ranges)
        self.ranges = tuple(ranges)

    def _batch(self, question: Question, plan: Plan) -> SharedBatch:
        shapes = [(spec.rows, spec.columns) for spec in question.blocks]
        return RangeSums(self.ranges, shapes)

    def take(self, run: str, round: int, term: RangeTerm) -> None:
        """Hold a leaf's term, until the list is fixed; again is the same. Raises ProtocolError as
        `RangeSums.take`, and on a term of another attempt, or too late."""
        attempt = self._attempts.get((run, round))
        if attempt is None or attempt.ended or attempt.number != term.attempt:
            raise ProtocolError(
                f"a leaf's term is of attempt {term.attempt} at round {round}, which is not open",
                "Open the next attempt.",
            )
        assert isinstance(attempt.batch, RangeSums)
        if attempt.held is not None:
            raise ProtocolError(
                f"a leaf's term of {term.listed.range} came after the list was said",
                "The range is left out of this attempt.",
            )
        attempt.batch.take(term)


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
