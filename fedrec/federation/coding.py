"""Public arrays as few bytes: without loss, against what a device has from the question before. A
payload is empty or

    u8 kind | body
    kind 0, any array:        zlib of the numbers' bytes, first the first byte of every number, then
                              the second, and so on
    kind 1, rows on a grid:   32 s SHA-256 of the array it is coded against, or zeros | a byte for
                              each column | zlib of i16 exponent of each row | the integers, column
                              by column

Empty means: the device has the very array that the question's header names. Kind 1 is for matrices
whose rows are integers times a power of two, as `rounded_rows` makes them. A column's byte
is the number of bytes an integer takes there, 0 where all are zero, plus 128 where they are
differences to the earlier array on the new grid; integers are mapped to 0, -1, 1, -2 ... -> 0, 1,
2, 3 ..., their bytes apart as in kind 0. Powers of two and rounding to the nearest integer are
exact, so that every machine decodes the same numbers; and the header's SHA-256 decides whether they
are the announced ones. zlib without its search for repetitions (`Z_RLE`) is within 0.05 bits of the
entropy of rounded normal numbers, and stays bounded: how long a stream may become follows from the
header, before it is read.

Numbers are rounded to as many bits as their noise leaves meaning in, once, by the server, before
anybody computes with them. What a recipe broadcasts it rounds itself, and it learns around the
rounded numbers: devices, server and a run that is resumed then hold the same ones. Rounding what
was released is post-processing: it costs nothing, and no promise rests on it.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Array, Float32s, Float64s, Int64s
from fedrec.federation.protocol import Refusal, refused

ROW_BITS = 3
"""A row's step is 1/16 to 1/8 of its root mean square: rounding is 0.03 to 0.13% of its energy, in
5 to 6 bits a number if they are normal.

Below what any release leaves: a row measured as well as 30 to 1 would need more.
"""
NUMBER_BITS = 6
"""Significant bits of single numbers (a bias, a weight): off by at most 0.8%."""
_ANY = 0  # code of a column of any numbers
_GRID = 1  # ... of numbers on a grid
_SHA_BYTES = 32  # of SHA-256
_DIFFERENCE = 128  # bit of a column's size: it holds differences to the round before
_MOST_COLUMNS = 2**16  # bounds what a header may make a reader allocate
_BITS = 24
"""Most magnitude bits of an integer of a grid: numbers that need more were not rounded."""
_MOST_BYTES = 5
"""Of an integer: 2^32 of a difference, and its sign."""
_LARGEST = 2.0**32
_ROWS_AT_ONCE = 2**14
"""A difference is at most so many steps either way: it fits `_MOST_BYTES`. Rows are packed in
parts, so that their float64 copies are small."""


def rounded_rows(X: npt.NDArray[np.floating], *, bits: int = ROW_BITS) -> Float32s:
    """X (m, d), each row on a grid of its own: the largest power of two up to its root mean square,
    over 2^bits.

    All coordinates of a row share the step: of a product v_j . u with u of similar size in every
    direction, that is the least error for the bits (reverse water-filling). Rows of zeros stay.
    Ties go to even.
    """
    X = np.asarray(X, np.float64)
    sizes = np.sqrt(np.mean(X**2, axis=1, keepdims=True))
    exponents = np.frexp(sizes)[1] - 1 - bits  # 2^(e - 1) <= size < 2^e
    return _float32(np.ldexp(np.rint(np.ldexp(X, -exponents)), exponents))


def rounded_numbers(x: npt.NDArray[np.floating], *, bits: int = NUMBER_BITS) -> Float32s:
    """Each number of x, of any shape, with `bits` significant bits. Ties go to even."""
    mantissas, exponents = np.frexp(np.asarray(x, np.float64))
    # the nearest number of so many bits: what is rounded is public, and costs bytes
    return _float32(np.ldexp(np.rint(np.ldexp(mantissas, bits)), exponents - bits))


def _float32(rounded: npt.NDArray[np.float64]) -> Float32s:
    return np.asarray(rounded + 0.0, np.float32)  # -0.0 + 0.0 is 0.0: one zero, one way to write it


@dataclass(frozen=True)
class Announced:
    """An array as a question's header names it."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def numbers(self) -> int:
        """How many it has. Raises RefusedError where its shape is none."""
        if any(length < 0 for length in self.shape):
            raise refused(Refusal.MALFORMED, f"no array has the shape {self.shape}")
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return self.numbers * np.dtype(self.dtype).itemsize


def announced(array: Array) -> Announced:
    """What a header says of an array."""
    content = np.asarray(array, order="C")
    return Announced(
        content.dtype.str, content.shape, hashlib.sha256(content.tobytes()).hexdigest()
    )


def coded(public: Mapping[str, Array], earlier: Mapping[str, Array]) -> dict[str, bytes]:
    """A payload for each public array of a question; `earlier` are those of the question before, {}
    for whoever has none."""
    held = {announced(array) for array in earlier.values()}
    return {
        name: b"" if announced(array) in held else encode(array, earlier.get(name))
        for name, array in public.items()
    }


def encode(array: Array, earlier: Array | None = None) -> bytes:
    """One payload, never empty."""
    content = np.asarray(array, order="C")
    grid = (
        _grid(content)
        if content.ndim == 2 and content.dtype.kind == "f" and 0 < content.shape[1] <= _MOST_COLUMNS
        else None
    )
    if grid is None:
        raw = np.frombuffer(content.tobytes(), np.uint8)
        return bytes([_ANY]) + _packed(raw.reshape(-1, content.dtype.itemsize).T.tobytes())
    exponents, columns = grid
    base = (
        earlier
        if earlier is not None and earlier.shape == content.shape and earlier.dtype.kind == "f"
        else None
    )
    named = bytes(_SHA_BYTES) if base is None else bytes.fromhex(announced(base).sha256)
    sizes = bytearray()
    parts = [_planes(exponents.astype("<i2"))]
    for c in range(content.shape[1]):
        integers = _zigzag(columns[:, c])
        flag = 0
        if base is not None:
            differences = _zigzag(columns[:, c] - _on_grid(base[:, c], exponents))
            if _bits(differences) < _bits(integers):
                integers = differences
                flag = _DIFFERENCE
        size = (int(integers.max(initial=0)).bit_length() + 7) // 8
        sizes.append(size + flag)
        parts.append(_planes(integers.astype("<u8"))[: size * len(integers)])
    return bytes([_GRID]) + named + bytes(sizes) + _packed(b"".join(parts))


def decoded(
    expected: Mapping[str, Announced],
    payloads: Mapping[str, bytes],
    held: Mapping[Announced, Array],
    *,
    max_bytes: int,
) -> dict[str, Array]:
    """The arrays that a header expects, for `wire.read_question` to check. held: what this device
    has.

    Raises RefusedError: `MALFORMED` and `TOO_LARGE` before anything of that size is allocated,
    `ARRAYS_UNKNOWN` where a payload stands on an array that is not held, and the server should send
    all.
    """
    if set(payloads) != set(expected):
        raise refused(
            Refusal.WRONG_QUESTION,
            f"the question announces arrays {sorted(expected)}, found {sorted(payloads)}",
        )
    size = sum(each.nbytes for each in expected.values())
    if size > max_bytes:
        raise refused(
            Refusal.TOO_LARGE, f"public arrays have at most {max_bytes} bytes, announced are {size}"
        )
    return {
        name: held[each].copy() if each in held else _decode(payloads[name], each, held)
        for name, each in expected.items()
    }


def deflated(words: bytes) -> bytes:
    """Words, such as a catalogue's, by zlib as it comes."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    return stream.compress(words) + stream.flush()


def inflated(content: bytes, *, max_bytes: int) -> bytes:
    """What `deflated` got. Raises RefusedError, before more than `max_bytes` are unpacked."""
    found, whole = _unpacked(content, max_bytes + 1)
    if len(found) > max_bytes:
        raise refused(Refusal.TOO_LARGE, f"a message unpacks to more than {max_bytes} bytes")
    if not whole:
        raise refused(Refusal.MALFORMED, "a message is cut short, or has more behind it")
    return found


def _decode(payload: bytes, expected: Announced, held: Mapping[Announced, Array]) -> Array:
    match payload[:1]:
        case b"":
            raise refused(
                Refusal.ARRAYS_UNKNOWN,
                "this client does not have an array that the question leaves out",
            )
        case b"\x00":
            itemsize = np.dtype(expected.dtype).itemsize
            raw = np.frombuffer(_inflated(payload[1:], expected.nbytes), np.uint8).reshape(
                itemsize, -1
            )
            # writable, as in one process
            return np.frombuffer(raw.T.tobytes(), expected.dtype).reshape(expected.shape).copy()
        case b"\x01":
            return _decode_grid(payload, expected, held)
    raise refused(Refusal.MALFORMED, f"an array of unknown kind {payload[0]}")


def _decode_grid(payload: bytes, expected: Announced, held: Mapping[Announced, Array]) -> Array:
    if (
        len(expected.shape) != 2
        or expected.dtype[-2] != "f"
        or not 0 < expected.shape[1] <= _MOST_COLUMNS
    ):
        raise refused(
            Refusal.MALFORMED,
            f"an array of shape {expected.shape} and type {expected.dtype} has no rows on a grid",
        )
    (rows, width), start = expected.shape, 1 + _SHA_BYTES
    named = payload[1:start]
    sizes = payload[start : start + width]
    taken = [size & ~_DIFFERENCE for size in sizes]
    if len(sizes) != width or max(taken, default=0) > _MOST_BYTES:
        raise refused(
            Refusal.MALFORMED, "an array's columns are cut short, or their numbers too long"
        )
    base = held.get(Announced(expected.dtype, expected.shape, named.hex()))
    if base is None and any(size & _DIFFERENCE for size in sizes):
        raise refused(
            Refusal.ARRAYS_UNKNOWN,
            "this client does not have the array that a public array is a difference to",
        )
    stream = _inflated(payload[start + width :], rows * (2 + sum(taken)))
    exponents = (
        _whole(stream[: 2 * rows], rows, 2).astype(np.uint16).astype(np.int16).astype(np.int32)
    )
    at = 2 * rows
    array = np.empty((rows, width), np.dtype(expected.dtype))
    for c, (size, flag) in enumerate(zip(taken, sizes, strict=True)):
        mapped = _whole(stream[at : at + size * rows], rows, size)
        integers = (mapped >> np.uint64(1)).astype(np.int64) ^ -(mapped & np.uint64(1)).astype(
            np.int64
        )
        at = at + size * rows
        if base is not None and flag & _DIFFERENCE:
            integers += _on_grid(base[:, c], exponents)
        with np.errstate(over="ignore"):  # too large for the type: not what was announced
            array[:, c] = np.ldexp(integers.astype(np.float64), exponents)
    return array


def _grid(X: Array) -> tuple[npt.NDArray[np.int32], Int64s] | None:
    """Exponents (m,) and integers (m, d) with X = integers * 2^exponents, bit by bit; None where
    they would need more than `_BITS`."""
    exponents = np.empty(len(X), np.int32)
    integers = np.empty(X.shape, np.int64)
    for start in range(0, len(X), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        found = _grid_of(np.asarray(X[part], np.float64))
        if found is None:
            return None
        exponents[part], integers[part] = found
    return exponents, integers


def _grid_of(X: Float64s) -> tuple[npt.NDArray[np.int32], Int64s] | None:
    if not np.isfinite(X).all() or (np.signbit(X) & (X == 0)).any():
        return None
    mantissas, exponents = np.frexp(X)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1  # zero bits at the end
    nothing = whole == 0
    lowest = np.min(
        np.where(nothing, 2**14, exponents - 53 + trailing), axis=1, initial=2**14
    ).astype(np.int32)
    lowest[lowest == 2**14] = 0
    if (np.where(nothing, 0, exponents - lowest[:, None]) > _BITS).any():
        return None
    return lowest, np.ldexp(X, -lowest[:, None]).astype(np.int64)


def _on_grid(earlier: npt.NDArray[np.generic], exponents: npt.NDArray[np.int32]) -> Int64s:
    """(m,) the earlier column in units of the new grid: what a difference is taken to."""
    with np.errstate(over="ignore", invalid="ignore"):
        units = np.rint(np.ldexp(np.asarray(earlier, np.float64), -exponents))
    return np.asarray(np.clip(np.nan_to_num(units, nan=0.0), -_LARGEST, _LARGEST), np.int64)


def _zigzag(integers: Int64s) -> npt.NDArray[np.uint64]:
    return np.asarray((integers << 1) ^ (integers >> 63), np.uint64)


def _bits(mapped: npt.NDArray[np.uint64]) -> float:
    """About how long a column will be: to choose by, not to be relied on."""
    return float(np.sum(np.log2(1.0 + mapped.astype(np.float64))))


def _planes(numbers: npt.NDArray[np.generic]) -> bytes:
    """The first byte of every number, then the second, and so on."""
    return (
        np.ascontiguousarray(numbers)
        .view(np.uint8)
        .reshape(len(numbers), numbers.dtype.itemsize)
        .T.tobytes()
    )


def _whole(planes: bytes, count: int, size: int) -> npt.NDArray[np.uint64]:
    """The numbers of `size` bytes that `_planes` took apart."""
    numbers = np.zeros(count, np.uint64)
    for place, plane in enumerate(np.frombuffer(planes, np.uint8).reshape(size, count)):
        numbers |= plane.astype(np.uint64) << np.uint64(8 * place)
    return numbers


def _packed(content: bytes) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return stream.compress(content) + stream.flush()


def _inflated(content: bytes, size: int) -> bytes:
    """`size` bytes exactly; a stream that would go on is not read on."""
    found, whole = _unpacked(content, size + 1)
    if len(found) != size or not whole:
        raise refused(
            Refusal.MALFORMED, f"an array unpacks to another length than its {size} bytes"
        )
    return found


def _unpacked(content: bytes, most: int) -> tuple[bytes, bool]:
    """At most so many bytes, and whether the stream ends with them and the content with the
    stream."""
    stream = zlib.decompressobj(-15)
    try:
        found = stream.decompress(content, most)
    except zlib.error as failure:
        raise refused(Refusal.MALFORMED, f"a message cannot be unpacked: {failure}") from None
    return found, stream.eof and not stream.unused_data
