"""Types of arrays, one name for each: plural, after what an entry is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating]
"""Of either width."""
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]
UInt64s = npt.NDArray[np.uint64]
UInt8s = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.integer]
"""Of any width."""
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[np.generic]
"""Of anything: as files and messages hold them."""
