"""Sampled cohorts: every round asks a share of the clients, so that a round costs messages and
reports of those alone.

The sample is a function of the run's id, the round and the clients' names: anybody can repeat it,
and a round that begins again asks the same. The server chose the run's id, so that in the end the
choice is the server's. Hence the guarantee does not count on it: nothing is amplified, the plan and
the aggregator charge every round as if everybody were in it. A client's own ledger charges the
rounds that it was asked in, which is exact for its users, because nobody's data have a part in the
choice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fedrec.errors import SettingsError
from fedrec.federation.protocol import Answer
from fedrec.registry import require


@dataclass
class Cohorts:
    """Which clients a round of a run asks. share: of the users, in (0, 1]. users: of each client
    that joined."""

    run: str
    share: float
    users: dict[str, int] = field(default_factory=dict)

    def heard(self, answers: Iterable[Answer]) -> None:
        """Clients that joined, with how many users."""
        self.users |= {answer.client: answer.users for answer in answers if not answer.refusal}

    def asked(self, round: int) -> frozenset[str]:
        """Clients in the order of a hash, until they have the share of all users."""
        chosen = set[str]()
        found = 0
        least = self.planned(sum(self.users.values()))
        for name in sorted(
            self.users,
            key=lambda name: hashlib.sha256(f"{self.run}/{round}/{name}".encode()).digest(),
        ):
            if found >= least:
                break
            chosen.add(name)
            found += self.users[name]
        return frozenset(chosen)

    def num_users(self, round: int) -> int:
        """Users of the clients that a round asks."""
        return sum(self.users[name] for name in self.asked(round))

    def say(self, tell: Callable[[str], None]) -> None:
        """What a sample means for the guarantee."""
        tell(
            f"every round asks {self.share:.0%} of the users; the guarantee is charged as if "
            "everybody were in every round"
        )

    def planned(self, num_users: int) -> int:
        """How many of so many users a round asks for: what the recipe counts on."""
        return math.ceil(self.share * num_users * (1 - 1e-12))


def require_sampled(recipe: str, kind: str) -> None:
    """Raises SettingsError for a recipe that does not learn from other users in every round."""
    if kind not in require(recipe).cohorts:
        raise SettingsError(
            (
                f'rounds.cohort below 1 with recipe = "{recipe}" on {kind}: what it learns in '
                "one round is of the users of another"
            ),
            'Leave rounds.cohort at 1, or set recipe = "default" for ratings.',
        )
