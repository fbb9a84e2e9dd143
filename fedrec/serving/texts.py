"""Many short strings as two arrays, so that a million titles are one block of memory and load
without being parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Texts:
    """content: uint8, UTF-8 of all one after another; ptr: (n + 1,) int64, where each begins."""

    content: npt.NDArray[np.uint8]
    ptr: npt.NDArray[np.int64]

    @staticmethod
    def of(texts: Sequence[str]) -> Texts:
        """The given strings."""
        encoded = [text.encode() for text in texts]
        ptr = np.concatenate(
            [[0], np.cumsum([len(part) for part in encoded], dtype=np.int64)]
        ).astype(np.int64)
        return Texts(np.frombuffer(b"".join(encoded), np.uint8), ptr)

    @property
    def whole(self) -> bool:
        """Whether `ptr` divides `content` into strings."""
        ptr = self.ptr
        if ptr.ndim != 1 or self.content.ndim != 1 or not len(ptr):
            return False
        return bool(ptr[0] == 0 and ptr[-1] == len(self.content) and (np.diff(ptr) >= 0).all())

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, index: int) -> str:
        """The string; bytes that are no UTF-8 become U+FFFD, so that no string of a hostile file
        raises."""
        return (
            self.content[self.ptr[index] : self.ptr[index + 1]].tobytes().decode("utf-8", "replace")
        )

    def all(self) -> tuple[str, ...]:
        """Every string."""
        return tuple(self[index] for index in range(len(self)))
