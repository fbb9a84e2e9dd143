"""Answers of the other two aggregators, kept so that the rules are applied to what is there
already.

An aggregator that asked while it holds its own lock would wait for one that waits for it. So a
thread asks first, without any lock, and keeps the answers; the rules then read what was kept. An
answer that is kept for a moment is an answer that came late, which the rules of
`sharing.one_of_three` allow for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fedrec.errors import FedRecError, ProtocolError, UnreachableError
from fedrec.sharing.protocol import Standing
from fedrec.sharing.shares import COMMITTED_BYTES, Committed, committed

Round = tuple[str, int]


class PeerEndpoint(Protocol):
    """Another aggregator as this one asks it."""

    def standing(self, run: str, round: int) -> tuple[Standing, bool]:
        """Where it is in a round, without the list of whom it holds; and whether it has one.

        Raises UnreachableError, RefusedError."""

    def held(self, run: str, round: int, attempt: int) -> bytes:
        """`packed_list` of whom it holds in an attempt. Raises as `standing`."""

    def key(self, run: str, round: int, attempt: int) -> bytes:
        """Its masking key of an attempt. Raises as `standing`."""

    def explicit(self, run: str, round: int, attempt: int, first: int, last: int) -> bytes:
        """Explicit shares of agreed users, as `sharing.protocol.Peer`. Raises as `standing`."""

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        """Its terms of the checks, as `sharing.protocol.Peer`. Raises as `standing`."""


def packed_list(listed: Sequence[Committed]) -> bytes:
    """Every user's ids and hashes, one after the other."""
    return b"".join(one.packed for one in listed)


def read_list(content: bytes) -> tuple[Committed, ...]:
    """Users. Raises ValueError where it is not what `packed_list` made."""
    return tuple(
        committed(content[at : at + COMMITTED_BYTES])
        for at in range(0, len(content), COMMITTED_BYTES)
    )


class PeerCore(Protocol):
    """An aggregator of three in this process, as a peer is answered."""

    def standing(self, run: str, round: int) -> Standing:
        """Where it is in a round."""

    def held(self, run: str, round: int, attempt: int) -> bytes:
        """Answers `PeerEndpoint.held`."""

    def key(self, run: str, round: int, attempt: int, *, caller: int) -> bytes:
        """Answers `PeerEndpoint.key` for the aggregator `caller`."""

    def explicit(
        self, run: str, round: int, attempt: int, first: int, last: int, *, caller: int
    ) -> bytes:
        """Answers `PeerEndpoint.explicit` for the aggregator `caller`."""

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        """Answers `PeerEndpoint.openings`."""


@dataclass(frozen=True)
class CoreAsPeer:
    """A `PeerEndpoint` of an aggregator in this process: number `place` of `cores`, which may not
    be there yet."""

    cores: Sequence[PeerCore]
    place: int
    caller: int

    def standing(self, run: str, round: int) -> tuple[Standing, bool]:
        """Implements `PeerEndpoint.standing`."""
        said = self._core.standing(run, round)
        return replace(said, held=None), said.held is not None

    def held(self, run: str, round: int, attempt: int) -> bytes:
        """Implements `PeerEndpoint.held`."""
        return self._core.held(run, round, attempt)

    def key(self, run: str, round: int, attempt: int) -> bytes:
        """Implements `PeerEndpoint.key`."""
        return self._core.key(run, round, attempt, caller=self.caller)

    def explicit(self, run: str, round: int, attempt: int, first: int, last: int) -> bytes:
        """Implements `PeerEndpoint.explicit`."""
        return self._core.explicit(run, round, attempt, first, last, caller=self.caller)

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        """Implements `PeerEndpoint.openings`."""
        return self._core.openings(run, round, attempt)

    @property
    def _core(self) -> PeerCore:
        if self.place >= len(self.cores):
            raise UnreachableError(f"aggregator {self.place + 1} is not there yet", "Wait for it.")
        return self.cores[self.place]


@dataclass
class HeardPeer:
    """A `sharing.protocol.Peer` that says what `endpoint` said when `listen` was called last.

    One thread listens at a time."""

    endpoint: PeerEndpoint
    _standings: dict[Round, Standing | FedRecError] = field(default_factory=dict)
    _held: dict[tuple[str, int, int], tuple[Committed, ...]] = field(default_factory=dict)
    _keys: dict[tuple[str, int, int], bytes] = field(default_factory=dict, repr=False)
    _openings: dict[tuple[str, int, int], bytes] = field(default_factory=dict, repr=False)
    _explicit: dict[Round, tuple[tuple[int, int, int], bytes]] = field(
        default_factory=dict, repr=False
    )

    def listen(
        self,
        run: str,
        round: int,
        *,
        attempt: int,
        wants_key: bool = False,
        wants_explicit: tuple[int, int] | None = None,
        wants_openings: bool = False,
    ) -> None:
        """Ask where it is. Where it is at `attempt` too: also whom it holds once it has a list, and
        what is wanted: its key, explicit shares of users whom it agreed on, its openings once they
        are whole."""
        try:
            said, has_list = self.endpoint.standing(run, round)
            here = said.attempt == attempt
            if here and has_list:
                said = replace(said, held=self._list(run, round, attempt))
            if here and wants_key and (run, round, attempt) not in self._keys:
                self._keys[run, round, attempt] = self.endpoint.key(run, round, attempt)
            if here and wants_explicit and said.agreed and said.nonce:
                piece = (attempt, *wants_explicit)
                if self._explicit.get((run, round), ((), b""))[0] != piece:
                    self._explicit[run, round] = piece, self.endpoint.explicit(run, round, *piece)
            if (
                here
                and wants_openings
                and said.opened
                and (run, round, attempt) not in self._openings
            ):
                self._openings[run, round, attempt] = self.endpoint.openings(run, round, attempt)
            self._standings[run, round] = said
        except FedRecError as failure:
            # also a refusal, and words that are none: it says nothing that could be used
            self._standings[run, round] = failure
        except ValueError as failure:
            self._standings[run, round] = ProtocolError(
                f"a peer's list cannot be read: {failure}", "Use the same version of fedrec."
            )

    def failure(self, run: str, round: int) -> FedRecError | None:
        """Why nothing was heard; None where something was."""
        heard = self._standings.get((run, round))
        return heard if isinstance(heard, FedRecError) else None

    def standing(self, run: str, round: int) -> Standing:
        """The standing that was heard. Raises UnreachableError where nothing was."""
        heard = self._standings.get((run, round))
        if not isinstance(heard, Standing):
            cause = heard.cause if heard is not None else "it was not asked yet"
            raise UnreachableError(
                f"a peer does not answer: {cause}",
                "Check that all three aggregators run, and go on.",
            )
        return heard

    def key(self, run: str, round: int, attempt: int) -> bytes:
        """The key that was heard. Raises UnreachableError where it was not."""
        found = self._keys.get((run, round, attempt))
        if found is None:
            raise UnreachableError(
                "a peer has not told its key", "Check that all three aggregators run, and go on."
            )
        return found

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        """The openings that were heard. Raises UnreachableError where there were none."""
        found = self._openings.get((run, round, attempt))
        if found is None:
            raise UnreachableError(
                "a peer has not told its openings",
                "Check that all three aggregators run, and go on.",
            )
        return found

    def explicit(self, run: str, round: int, attempt: int, first: int, last: int) -> bytes:
        """The piece that was heard. Raises UnreachableError where it was not."""
        piece, content = self._explicit.get((run, round), ((), b""))
        if piece != (attempt, first, last):
            raise UnreachableError(
                "a peer has not passed these shares on",
                "Check that all three aggregators run, and go on.",
            )
        return content

    def forget(self, run: str, round: int) -> None:
        """A round that is over."""
        self._standings.pop((run, round), None)
        self._explicit.pop((run, round), None)
        self._held = {key: users for key, users in self._held.items() if key[:2] != (run, round)}
        self._openings = {
            key: found for key, found in self._openings.items() if key[:2] != (run, round)
        }
        self._keys = {key: found for key, found in self._keys.items() if key[:2] != (run, round)}

    def _list(self, run: str, round: int, attempt: int) -> tuple[Committed, ...]:
        """Once for an attempt: what was said first stays."""
        if (run, round, attempt) not in self._held:
            self._held[run, round, attempt] = read_list(self.endpoint.held(run, round, attempt))
        return self._held[run, round, attempt]
