"""Arrays that come over a network as the content of an .npy file, read with suspicion."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt


def read_npy(content: bytes) -> npt.NDArray[Any]:
    """A numeric array.

    Not `numpy.load`, which allocates what the file's header claims before it looks for it. Raises
    ValueError."""
    try:
        stream = io.BytesIO(content)
        if npy.read_magic(stream) != (1, 0):
            raise ValueError("another version than 1.0")
        shape, is_fortran, dtype = npy.read_array_header_1_0(stream)
        offset = stream.tell()
        count = math.prod(shape)
        if dtype.kind not in "fiu" or len(content) - offset != count * dtype.itemsize:
            raise ValueError("another type or length than announced")
        flat = np.frombuffer(content, dtype, count, offset)
        # aligned and writable, as in one process
        return flat.reshape(shape, order="F" if is_fortran else "C").copy()
    except (OverflowError, TypeError) as failure:
        raise ValueError(f"no .npy file: {failure}") from None
