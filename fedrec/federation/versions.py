"""Versions of the messages between parties, and what two parties of different versions do.

A version is a whole number that grows whenever the messages change. Version N works with N and N -
1: the newer party speaks as the older one does. Parties further apart refuse each other with
`Refusal.WRONG_PROTOCOL`, whose words say which of them to upgrade.

The number travels beside a message and never in it: in Flower's record as `protocol`, over gRPC as
metadata of request and reply. So bytes that are hashed (terms, questions, plans, reports) are the
same in both versions, and so is every digest. A party that says no number is of version 1. Serving
states its number with a model, and devices check it; a device says none, since the server need not
know.

    1   messages without a number
    2   the number; the quorum of a round, which reports name (`wire.report_digest`). A client of
        version 1 reports without it, and is counted; an aggregator of version 1 keeps no quorum, so
        a server that wants one refuses it. Blocks with folds: a question that has one is refused by
        a client of version 1 as malformed, and nothing is charged
"""

from __future__ import annotations

from fedrec.errors import RefusedError
from fedrec.federation.protocol import Refusal

PROTOCOL = 2
"""The version that this installation speaks."""

FIRST = 1
"""Of a party that says no number."""

KEY = "fedrec-protocol"
"""Name of the number in gRPC's metadata."""

FIELD = "protocol"
"""Its name in Flower's records and in serving's messages."""


def spoken(theirs: object, *, who: str, ours: int = PROTOCOL) -> int:
    """The version to speak with a party: the lower of both. `theirs` is what it said, None or ""
    where it said nothing.

    Raises RefusedError (`WRONG_PROTOCOL`) where the two are not adjacent, and where `theirs` is no
    version.
    """
    version = FIRST if theirs is None or theirs == "" else _number(theirs)
    if version is None:
        raise _refused(
            f"{who} names {str(theirs)[:20]!r} as its version of the messages, which is "
            "not a version",
            "Look what runs there.",
        )
    if version > ours + 1:
        raise _refused(
            _apart(who, version, ours),
            f"Upgrade fedrec here: version {ours} works with {ours - 1} to {ours + 1}.",
        )
    if version < ours - 1:
        raise _refused(
            _apart(who, version, ours),
            f"Upgrade fedrec there ({who}): version {ours} works with {ours - 1} to {ours + 1}.",
        )
    return min(version, ours)


def _number(said: object) -> int | None:
    """A version from an integer, or from ASCII digits as metadata holds them."""
    if isinstance(said, bool) or not isinstance(said, int | str):
        return None
    if isinstance(said, str) and not (said.isascii() and said.isdigit() and len(said) < 7):
        return None
    return int(said) if FIRST <= int(said) < 10**6 else None


def _apart(who: str, version: int, ours: int) -> str:
    return f"{who} speaks version {version} of the messages, this party version {ours}"


def _refused(cause: str, remedy: str) -> RefusedError:
    return RefusedError(Refusal.WRONG_PROTOCOL.value, cause, remedy)
