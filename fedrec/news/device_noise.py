"""Keys of devices' noise: one for each user, purpose and round, and for each question where there
is one.

A user's draws depend on no other user, on no number that a server gives out, and not on who else is
asked: neither dividing the users among sites nor asking them in another order or company makes a
draw again. In a deployment the source is a site's secret for one run (`fedrec_client.news`), and
users are pseudonyms; in an experiment it is the seed, and users are their numbers among all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrec.news.checkpoints import NOTHING, Kept
from fedrec.randomness import SecretStreams, Streams, SystemStreams

Source = Streams | SystemStreams | SecretStreams


@dataclass(frozen=True)
class DeviceNoise:
    """users: a name for each. question: the digest of what is being answered; "" where draws belong
    to the whole run. kept: where draws of the whole run are kept, of a source that does not draw
    them again."""

    source: Source
    users: tuple[str, ...]
    question: str = ""
    kept: Kept = NOTHING

    @staticmethod
    def numbered(source: Source, users: int) -> DeviceNoise:
        """Noise of users who are named by their numbers."""
        return DeviceNoise(source, tuple(map(str, range(users))))

    def key(self, user: int, purpose: str, *, round: int = 0) -> bytes:
        """32 bytes of this user's own."""
        return self.source.key(f"{purpose}/{self.question}/{self.users[user]}", round=round)

    def keys(
        self,
        users: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.integer]],
        purpose: str,
        *,
        round: int = 0,
    ) -> list[bytes]:
        """One for each of these users."""
        return [self.key(int(user), purpose, round=round) for user in users]

    def numpy(self, user: int, purpose: str) -> np.random.Generator:
        """A generator of this user's own, for choices that need no exact law."""
        return np.random.Generator(
            np.random.Philox(key=np.frombuffer(self.key(user, purpose)[:16], np.uint64))
        )
