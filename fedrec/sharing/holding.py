"""Shares of one attempt as an aggregator holds them until all three agree on the users: bounded
memory, whatever their number.

Ids, hashes and seeds stay in memory, a few hundred bytes a user. Explicit shares, 8 bytes a number,
go to a file without a name in the aggregator's folder, encrypted with AES-256 under a key that is
in memory only and is of this object: after a crash, or once it is closed, what the disk still has
cannot be read, so that no two aggregators' disks together hold a report of a round that is over.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedrec.arrays import UInt64s
from fedrec.sharing.record import SharedUser, explicit_bytes, explicit_of, sent_numbers
from fedrec.sharing.shares import SEED_BYTES, SEEDS, Committed, expanded


@dataclass(frozen=True, slots=True)
class _Held:
    committed: Committed
    seeds: bytes
    slot: int


@dataclass(eq=False)
class Holding:
    """Shares of users whose rows have `length` numbers, held at aggregator `aggregator`. folder: of
    the file; None holds everything in memory."""

    aggregator: int
    length: int
    folder: Path | None = None
    _users: dict[bytes, _Held] = field(default_factory=dict, repr=False)
    _pseudonyms: set[bytes] = field(default_factory=set, repr=False)
    _key: bytes = field(default_factory=lambda: os.urandom(SEED_BYTES), repr=False)
    _file: BinaryIO | None = field(default=None, repr=False)
    _memory: dict[int, bytes] = field(default_factory=dict, repr=False)
    _slots: int = 0
    _sites: dict[bytes, tuple[tuple[bytes, ...], int]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self._users)

    def committed(self, report: bytes) -> Committed | None:
        """What is committed under a report id; None where it is not held."""
        held = self._users.get(report)
        return None if held is None else held.committed

    def names(self, user: bytes) -> bool:
        """Whether a report of this pseudonym is held."""
        return user in self._pseudonyms

    def expects(self, row: bytes) -> bool:
        """Whether a row of this name is of a site that was taken."""
        return row in self._sites

    def take_site(self, users: tuple[bytes, ...], rows: Sequence[bytes]) -> bool:
        """Expect a site's sum of these users in rows of these names; again is the same. False where
        one of the users is held otherwise."""
        if rows[0] not in self._sites:
            if not self._pseudonyms.isdisjoint(users):
                return False
            self._pseudonyms.update(users)
            self._sites |= {row: (tuple(rows), len(users)) for row in rows}
        return True

    def whole(self, users: Sequence[Committed]) -> list[Committed]:
        """Without rows of sites of which a row is missing."""
        names = {user.user for user in users}
        return [
            user
            for user in users
            if user.user not in self._sites or names.issuperset(self._sites[user.user][0])
        ]

    def count(self, users: Sequence[Committed]) -> int:
        """People: a site's are counted with the first of its rows. Also after `close`."""
        sites = [self._sites[user.user] for user in users if user.user in self._sites]
        of_sites = sum(count for rows, count in dict.fromkeys(sites))
        return len(users) - len(sites) + of_sites

    def everybody(self) -> tuple[Committed, ...]:
        """By report id."""
        return tuple(self._users[report].committed for report in sorted(self._users))

    def add(self, user: SharedUser) -> None:
        """A user that is not held yet, whose lengths are right.

        Raises OSError where the disk has no room; nothing is held then."""
        # also where the write fails: a slot's key stream is for one user
        slot = self._slots
        self._slots = self._slots + 1
        if SEEDS in sent_numbers(self.aggregator):
            self._write(slot, user.blind + user.shares[-1])
        seeds = b"".join(
            share
            for number, share in zip(sent_numbers(self.aggregator), user.shares, strict=True)
            if number != SEEDS
        )
        self._users[user.committed.report] = _Held(user.committed, seeds, slot)
        self._pseudonyms.add(user.committed.user)

    def explicit(self, users: Sequence[Committed]) -> bytes:
        """Blind and explicit share of each, one after the other: what aggregator 1 passes on to
        aggregator 2."""
        return b"".join(self._read(self._users[user.report].slot) for user in users)

    def rows(self, users: Sequence[Committed], explicit: bytes = b"") -> tuple[UInt64s, UInt64s]:
        """The two shares (n, length), its own and the following. explicit: what was passed on of
        these users, at aggregator 2."""
        held = [self._users[user.report] for user in users]
        seeds = np.frombuffer(b"".join(one.seeds for one in held), np.uint8).reshape(
            len(held), -1, SEED_BYTES
        )
        if self.aggregator == 0:
            return expanded(seeds[:, 0], self.length), expanded(seeds[:, 1], self.length)
        if self.aggregator == 1:
            return expanded(seeds[:, 0], self.length), explicit_of(
                self.explicit(users), self.length
            )
        return explicit_of(explicit, self.length), expanded(seeds[:, 0], self.length)

    def close(self) -> None:
        """Forget everything."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._key = b""
        self._users.clear()
        self._pseudonyms.clear()
        self._memory.clear()

    def _write(self, slot: int, content: bytes) -> None:
        if self.folder is None:
            self._memory[slot] = content
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115  # lives as long as the attempt
            weakref.finalize(self, self._file.close)
        sealed = self._cipher(slot, content)
        at = slot * explicit_bytes(self.length)
        while sealed:
            written = os.pwrite(self._file.fileno(), sealed, at)
            sealed = sealed[written:]
            at = at + written

    def _read(self, slot: int) -> bytes:
        if self.folder is None:
            return self._memory[slot]
        assert self._file is not None
        size = explicit_bytes(self.length)
        return self._cipher(slot, os.pread(self._file.fileno(), size, slot * size))

    def _cipher(self, slot: int, content: bytes) -> bytes:
        """Encrypts and decrypts: every slot has key stream of its own."""
        return (
            Cipher(algorithms.AES(self._key), modes.CTR(slot.to_bytes(8, "big") + bytes(8)))
            .encryptor()
            .update(content)
        )
