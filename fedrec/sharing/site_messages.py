"""Message by which a site hands one aggregator shares of its users' sum, and names them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from fedrec.sharing.shares import ID_BYTES

_SITE = b"FRG1"


_HEAD = struct.Struct("<4sI")


def pack_site(users: Sequence[bytes], shares: bytes) -> bytes:
    """What one aggregator is sent. users: pseudonyms. shares: `record.pack_shares` of the rows."""
    return b"".join((_HEAD.pack(_SITE, len(users)), *users, shares))


def read_site(content: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """Users and shares of `pack_site`; no users where it is a message of users' own rows.

    Raises ValueError where the list is cut off, or names nobody or somebody twice."""
    if content[: len(_SITE)] != _SITE:
        return (), content
    if len(content) < _HEAD.size:
        raise ValueError("a site's sum without a head")
    _, count = _HEAD.unpack_from(content)
    end = _HEAD.size + count * ID_BYTES
    # the head may say billions
    within = range(_HEAD.size, min(end, len(content)), ID_BYTES)
    users = tuple(content[at : at + ID_BYTES] for at in within)
    if end > len(content) or not users or len(set(users)) != count:
        raise ValueError("a site's list of users is cut off, empty, or names somebody twice")
    return users, content[end:]
