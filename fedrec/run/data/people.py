"""Sketch of whose rows a table holds, by which people are found again in another version of it:
with rows more or less, items renamed, other values.

Of every user id, without the blanks around it, in small letters, and 7 for 007 and 7.0, an
HMAC-SHA256 under a secret key, of which the 1,024 smallest are kept, and beside each how many rows
that person has. The sketch is encrypted (AES-256-GCM) under the same key, which lies beside it with
mode 0600: without it, the sketch says nothing, and nobody can ask whether a person is in it. 12
bytes a person, 12 kB at most.

Two tables share people where anybody of the one is in the other, of those whose hash is small in
both: of everybody up to 1,024 people. Of larger tables of one size, 1% in common is missed with a
chance of e^-10. Ids are often numbers from 1 on, also behind one word: of tables with such ids,
those are of the same people where who has many rows in one has many in the other, and where that
is not so, nobody can know.

What is not found: people under other ids. Name one `privacy.budget_file` for them.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedrec.data.ids import person_id
from fedrec.data.interactions import Dataset
from fedrec.errors import RunError, SettingsError
from fedrec.storage import PRIVATE, write_bytes, writing

MOST = 1_024
"""People of a sketch."""
KEY = "people.key"
SUFFIX = ".people"
_ABOUT = b"fedrec people 1"
_LEAST_CORRELATION = 0.5  # below, the same ids are taken for other people
_FEW = 30
"""People in common below whom counts of rows tell nothing."""
_NONCE_BYTES = 12  # of AES-GCM
_COUNTING = re.compile(r"\D*0*([1-9]\d{0,9}|0)", re.ASCII)
_SPARSE = 1_000
"""Ids up to so many times the people are numbers from 1 on."""
_ELSEWHERE = "Correct the permissions of its folder, or name a privacy.budget_file."


@dataclass(frozen=True)
class People:
    """Hashes (n,) of people, increasing, and their rows (n,); n <= `MOST`. whole: whether it is all
    of them. numbered: whether ids are numbers from 1 on, which other people have too."""

    hashes: npt.NDArray[np.uint64]
    rows: npt.NDArray[np.uint32]
    whole: bool
    numbered: bool = True

    @staticmethod
    def of(ids: Sequence[str], rows: npt.NDArray[np.integer], *, key: bytes) -> People:
        """The sketch of a table. rows (n,): of each id; who has none is left out."""
        there = np.flatnonzero(rows)
        plain = [_plain(ids[k]) for k in there.tolist()]
        digests = b"".join(
            hmac.digest(key, one.encode("utf-8", "surrogatepass"), "sha256")[:8] for one in plain
        )
        hashes, each = np.unique(np.frombuffer(digests, "<u8"), return_inverse=True)
        numbers = map(_COUNTING.fullmatch, plain[:MOST])
        return _smallest(
            hashes,
            np.bincount(each, rows[there]),
            whole=True,
            numbered=all(one and int(one[1]) <= _SPARSE * len(there) for one in numbers),
        )

    def with_more(self, other: People) -> People:
        """The sketch of the people of both, with the rows that `other` says. One that is not whole
        has `MOST`, so that none of the smallest of both is missing."""
        hashes = np.concatenate([other.hashes, self.hashes])
        found, first = np.unique(hashes, return_index=True)
        rows = np.concatenate([other.rows, self.rows])[first]
        return _smallest(
            found,
            rows,
            whole=self.whole and other.whole,
            numbered=self.numbered and other.numbered,
        )

    def same_as(self, other: People) -> bool | None:
        """Whether anybody of the one table is in the other one too; None where ids are, and may be
        other people's."""
        bound = min((p.hashes[-1] for p in (self, other) if not p.whole), default=None)
        mine, theirs = (
            p.hashes if bound is None else p.hashes[p.hashes <= bound] for p in (self, other)
        )
        common, here, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
        if not len(common):
            return False
        x, y = np.log(self.rows[here]), np.log(other.rows[there])
        ambiguous = self.numbered and other.numbered
        if not ambiguous or len(common) < _FEW or not (np.ptp(x) and np.ptp(y)):
            return True
        return float(np.corrcoef(x, y)[0, 1]) >= _LEAST_CORRELATION or None

    def sealed(self, key: bytes) -> bytes:
        """What is kept in a file."""
        nonce = os.urandom(_NONCE_BYTES)
        marks = self.whole | (not self.numbered) << 1
        content = bytes([marks]) + self.hashes.tobytes() + self.rows.tobytes()
        return nonce + AESGCM(key).encrypt(nonce, content, _ABOUT)

    @staticmethod
    def opened(content: bytes, key: bytes) -> People:
        """Raises ValueError where it was changed, or sealed under another key."""
        try:
            nonce, hidden = content[:_NONCE_BYTES], content[_NONCE_BYTES:]
            plain = AESGCM(key).decrypt(nonce, hidden, _ABOUT)
        except (InvalidTag, ValueError):
            raise ValueError("not sealed under this key") from None
        n = (len(plain) - 1) // 12
        hashes = np.frombuffer(plain[1 : 1 + 8 * n], "<u8")
        rows = np.frombuffer(plain[1 + 8 * n :], "<u4")
        return People(hashes, rows, bool(plain[0] & 1), not plain[0] & 2)


def _plain(text: str) -> str:
    """An id however it is written: 7 is 7.0 and 007 too, and Ann is ann: of two people who are
    taken for one, each pays for both, which no limit minds."""
    plain = person_id(text).casefold()
    return plain.lstrip("0") or "0" if plain.isdecimal() else plain


def _smallest(
    hashes: npt.NDArray[np.uint64], rows: npt.NDArray[np.integer], *, whole: bool, numbered: bool
) -> People:
    order = np.argsort(hashes)[:MOST]
    kept = np.asarray(hashes[order], "<u8"), np.asarray(rows[order], "<u4")
    return People(*kept, whole and len(hashes) <= MOST, numbered)


def people_of(dataset: Dataset, folder: Path) -> People:
    """The sketch of a data set's people, under the key of this folder of budgets."""
    rows = np.diff(dataset.interactions.user_ptr)
    return People.of(dataset.catalogue.user_ids, rows, key=key_of(folder))


def key_of(folder: Path) -> bytes:
    """The folder's secret key, made when it is first asked for. Raises RunError."""
    path = folder / KEY
    with writing(path, _ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(32))
                file.flush()
                os.fsync(file.fileno())
        key = path.read_bytes()
    if len(key) != 32:
        raise RunError(f"{path} is not a key of 32 bytes", "Put it back as it was.")
    return key


def budgets_with(people: People, folder: Path, *, certain: bool = False) -> tuple[Path, ...]:
    """The budgets of any of these people in this folder, by when they were charged.

    Raises SettingsError, where it must be `certain`, on a budget of people who may be the same."""
    key = key_of(folder)
    found = dict[bool | None, list[Path]]()
    for path in sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns):
        same = None
        with suppress(ValueError):  # of another key: nobody knows whose
            same = people.same_as(People.opened(path.read_bytes(), key))
        found.setdefault(same, []).append(path.with_suffix(".jsonl"))
    if True in found:
        return tuple(found[True])
    if certain and None in found:
        raise SettingsError(
            "people of this table may be those of another budget, whose ids are the same numbers "
            "or whose sketch has another key: nobody can know what they have spent of "
            "privacy.max_total_epsilon",
            f"If they are the same: privacy.budget_file={found[None][-1]}. Otherwise name a file "
            "of their own there.",
        )
    return ()


def remember(people: People, budget: Path) -> None:
    """Keep the sketch beside a budget, joined with what lies there. Raises RunError."""
    key = key_of(budget.parent)
    path = budget.with_suffix(SUFFIX)
    with suppress(FileNotFoundError, ValueError):
        people = People.opened(path.read_bytes(), key).with_more(people)
    with writing(path, _ELSEWHERE):
        write_bytes(path, people.sealed(key), mode=PRIVATE)
