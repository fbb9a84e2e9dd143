"""Three parties, each a root and two leaves, in memory: messages that are lost, processes that end
wherever their store is called, one party that lies."""

import os
from dataclasses import dataclass

import numpy as np

from fedrec.errors import ProtocolError, UnreachableError
from fedrec.federation.leaves import even_ranges
from fedrec.privacy.calibration import Plan
from fedrec.randomness import SystemStreams
from fedrec.sharing.agreement import Agreement
from fedrec.sharing.protocol import Standing
from fedrec.sharing.root_of_three import LeafOfThree, RangeTerm, RootOfThree
from tests.sharing.three_worlds import (
    DIGEST,
    NAMES,
    PLAN,
    RUN,
    USERS,
    CrashError,
    Disk,
    Line,
    World,
)

RANGES = even_ranges(2)
LEAVES = [(place, number) for place in range(3) for number in range(len(RANGES))]


@dataclass
class Between(Line):
    """From one process to another of its level: roots, or the leaves of range `level`."""

    world: "TreeWorld"
    level: int

    @property
    def there(self) -> Agreement:
        return super().there if self.level < 0 else self.world.leaves[self.callee, self.level]

    def standing(self, run: str, round: int) -> Standing:
        said = super().standing(run, round)
        return self.world.says(self.level, self.caller, self.callee, said)


class TreeWorld(World):
    """`parties` are roots. given: terms that left a leaf, by leaf and attempt."""

    def __init__(self, rng: np.random.Generator, *, loss: float = 0.0, plan: Plan = PLAN) -> None:
        self.leaf_disks = {leaf: Disk() for leaf in LEAVES}
        self.leaves: dict[tuple[int, int], LeafOfThree] = {}
        self.given = dict[tuple[int, int, int], bytes]()
        super().__init__(rng, loss=loss, plan=plan)
        for leaf in LEAVES:
            self.leaves[leaf] = self.leaf(*leaf)
        # the first bit says the range
        self.names = [bytes([128 * (user % 2)]) + os.urandom(15) for user in range(USERS)]

    def party(self, i: int) -> RootOfThree:
        peers = {j: Between(self, i, j, -1) for j in range(3) if j != i}
        return RootOfThree(i, NAMES, peers, self.disks[i], SystemStreams(), RANGES)

    def leaf(self, place: int, number: int) -> LeafOfThree:
        peers = {j: Between(self, place, j, number) for j in range(3) if j != place}
        names = [name + bytes([number]) for name in NAMES]
        return LeafOfThree(place, names, peers, self.leaf_disks[place, number], RANGES[number])

    def says(self, level: int, caller: int, callee: int, said: Standing) -> Standing:
        """What the callee says in place of the truth."""
        return said

    def term(self, place: int, term: RangeTerm) -> RangeTerm:
        """A leaf's term on its way to the root."""
        return term

    def begin(self, attempt: int, needed: int = 1) -> None:
        """As the server and the roots do."""
        for place in range(3):
            self.open(place, attempt, needed)
        for leaf in LEAVES:
            self.open_leaf(leaf, attempt)

    def open_leaf(self, leaf: tuple[int, int], attempt: int) -> None:
        try:
            self.leaves[leaf].open(RUN, self.question, self.plan, DIGEST, attempt=attempt)
        except CrashError:
            self.restart_leaf(leaf)
        except ProtocolError:
            pass

    def restart_leaf(self, leaf: tuple[int, int]) -> None:
        self.leaf_disks[leaf].at = -1
        self.leaves[leaf] = self.leaf(*leaf)

    def share(self, user: int, to: tuple[int, ...] = (0, 1, 2)) -> list[str]:
        """A client shares under the ticket that the leaves of its range state alike."""
        number = user % 2
        tickets = {self.leaves[i, number].standing(RUN, 1).ticket for i in range(3)}
        if len(tickets) != 1 or not (found := tickets.pop()):
            return ["no ticket"]
        sent = self.sent(user, found)
        return [self.leaves[i, number].receive(RUN, 1, found, sent[i]) for i in to]

    def user_name(self, user: int) -> bytes:
        return self.names[user]

    def close_leaves(self) -> None:
        for leaf in self.leaves.values():
            leaf.close(RUN, 1)

    def hand_over(self, place: int) -> None:
        """A root takes what its leaves have."""
        attempt = self.parties[place].progress(RUN, 1)
        for number in range(len(RANGES)):
            if attempt is None or attempt.ended or attempt.closed:
                return
            try:
                self.maybe_lose()
                term = self.leaves[place, number].term(RUN, 1, attempt.attempt)
                if term is not None:
                    content = b"".join(block.tobytes() for block in term.blocks)
                    where = place, number, term.attempt
                    assert self.given.setdefault(where, content) == content, "a second term"
                    self.parties[place].take(RUN, 1, self.term(place, term))  # type: ignore[attr-defined]
            except (ProtocolError, UnreachableError):
                continue

    def go_on(self, times: int = 6) -> None:
        """All of them, until nothing follows."""
        for _ in range(times):
            for leaf in self.leaves.values():
                leaf.advance(RUN, 1)
            for place in range(3):
                self.hand_over(place)

    def finish(self) -> None:
        """Leaves close, roots take what there is, list it and release."""
        for place in range(3):
            self.advance(place)
        self.close_leaves()
        self.go_on()
        for party in self.parties:
            party.close(RUN, 1)
        for _ in range(6):
            for place in range(3):
                self.advance(place)
        self.fetch()


def tree(*, plan: Plan = PLAN, needed: int = 1, users: int = USERS) -> TreeWorld:
    """An attempt that is open everywhere, with tickets, and has so many users."""
    world = TreeWorld(np.random.default_rng(1), plan=plan)
    world.begin(1, needed)
    world.go_on(2)
    for user in range(users):
        assert world.share(user) == [""] * 3
    return world
