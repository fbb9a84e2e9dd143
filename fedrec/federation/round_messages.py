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
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.federation.versions import FIELD, PROTOCOL

JOIN = "join"
ASK = "ask"
TELL = "tell"
KINDS = (JOIN, ASK, TELL)


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
