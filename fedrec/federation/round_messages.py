"""Messages of a round between server and clients, whatever carries them: our own gRPC service
(`transport.rounds_client`, `fedrec_server.round_service`) or Flower.

    join   said: terms                     answer: answer
    ask    said: header, plan, quorum      answer: answer
           arrays: the question's
    tell   said: ask                       answer: answer
           arrays: the ask's               arrays: the reply's

Each says "protocol" too, the sender's version of the messages (`versions`). The bytes are those of
`wire`, terms by zlib; a question's arrays are payloads of `coding`, which stand on the question
before, and a client that lacks it says so (`ARRAYS_UNKNOWN`) and gets all of them. Other arrays are
.npy files.

Versions of the messages between parties, and what two parties of different versions do.

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
    3   rounds between server and clients by our own gRPC service. In version 2 Flower's SuperLink
        carried them over HTTP/1.1, so these two are upgraded together: a client says that its
        server is older, and the server names the clients that are missing

Arrays that come over a network as the content of an .npy file, read with suspicion.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.federation.protocol import Refusal, refused

PROTOCOL = 3
"""The version that this installation speaks."""
FIRST = 1
"""Of a party that says no number."""
KEY = "fedrec-protocol"
"""Name of the number in gRPC's metadata."""
FIELD = "protocol"
"""Its name in Flower's records and in serving's messages."""
JOIN = "join"
ASK = "ask"
TELL = "tell"
KINDS = (JOIN, ASK, TELL)
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00(?P<size>..)"
    rb"\{'descr': '(?P<dtype>[<>|](?:f[248]|[iu][1248]))', "
    rb"'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>(?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n",
    re.DOTALL,
)


def read_npy(content: bytes) -> npt.NDArray[Any]:
    """A numeric array.

    Not `numpy.load`, which allocates what the file's header claims before it looks for it, and
    parses the header as Python, which fails in many ways on what is none. Raises ValueError."""
    header = _NPY.match(content)
    if header is None or int.from_bytes(header["size"], "little") != header.end() - 10:
        raise ValueError("no .npy file of version 1.0 as NumPy writes one")
    shape = tuple(int(number) for number in header["shape"].split(b",") if number.strip())
    dtype = np.dtype(header["dtype"].decode())
    if len(content) - header.end() != math.prod(shape) * dtype.itemsize:
        raise ValueError("another length than announced")
    flat = np.frombuffer(content, dtype, math.prod(shape), header.end())
    # aligned and writable, as in one process
    return flat.reshape(shape, order="F" if header["fortran"] == b"True" else "C").copy()


def spoken(theirs: object, *, who: str, ours: int = PROTOCOL) -> int:
    """The version to speak with a party: the lower of both. `theirs` is what it said, None or ""
    where it said nothing.

    Raises RefusedError (`WRONG_PROTOCOL`) where the two are not adjacent, and where `theirs` is no
    version.
    """
    version = FIRST if theirs is None or theirs == "" else _number(theirs)
    if version is None:
        raise refused(
            Refusal.WRONG_PROTOCOL,
            f"{who} names {str(theirs)[:20]!r} as its version of the messages, which is "
            "not a version",
            "Look what runs there.",
        )
    if version > ours + 1:
        raise refused(
            Refusal.WRONG_PROTOCOL,
            _apart(who, version, ours),
            f"Upgrade fedrec here: version {ours} works with {ours - 1} to {ours + 1}.",
        )
    if version < ours - 1:
        raise refused(
            Refusal.WRONG_PROTOCOL,
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


@dataclass(frozen=True)
class RoundMessage:
    """One message. kind: of `KINDS`, "" of an answer."""

    said: Mapping[str, Any]
    arrays: Mapping[str, bytes] = field(default_factory=dict)
    kind: str = ""

    def bytes_of(self, key: str) -> bytes | None:
        """What is said under this key, None where that is no bytes."""
        value = self.said.get(key)
        return value if isinstance(value, bytes) else None


def said(**parts: bytes | int) -> Mapping[str, Any]:
    """What is said, with the version of the messages."""
    return {**parts, FIELD: PROTOCOL}


def npy_files(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, bytes]:
    """Each array as the bytes of an .npy file."""
    files = dict[str, bytes]()
    for name, array in arrays.items():
        file = io.BytesIO()
        np.save(file, np.asarray(array, order="C"), allow_pickle=False)
        files[name] = file.getvalue()
    return files
