"""Payloads of public arrays: every array comes back bit by bit, in few bytes where it can, and a
hostile payload is only refused."""

import zlib
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedrec.arrays import Array
from fedrec.errors import RefusedError
from fedrec.federation.coding import (
    Announced,
    announced,
    coded,
    decoded,
    encode,
    rounded_numbers,
    rounded_rows,
)

TYPES = [np.dtype(name) for name in ("<f4", "<f8", "<i4", "<i8")]
ANY = st.sampled_from(TYPES).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
)


def there_and_back(array: Array, earlier: Array | None = None) -> Array:
    held = {} if earlier is None else {announced(earlier): earlier}
    public = {} if earlier is None else {"V": earlier}
    return decoded({"V": announced(array)}, coded({"V": array}, public), held, max_bytes=10**8)["V"]


@given(ANY)
def test_any_array_comes_back_bit_by_bit_whatever_its_numbers(array: Array) -> None:
    assert announced(there_and_back(array)) == announced(array)


@given(st.data(), st.sampled_from(TYPES[:2]))
@settings(max_examples=300)
def test_any_matrix_comes_back_from_its_difference_to_any_other(
    data: st.DataObject, dtype: np.dtype[np.floating]
) -> None:
    """Numbers of a coarse grid among any others: infinities, subnormal numbers, both zeros."""
    shape = data.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
    coarse = st.integers(-300, 300).map(lambda n: n / 64)
    one, other = (
        data.draw(arrays(dtype, shape, elements=data.draw(st.sampled_from([coarse, None]))))
        for _ in range(2)
    )
    assert announced(there_and_back(one, other)) == announced(one)


@given(
    arrays(np.float64, (7, 4), elements=st.floats(-1e3, 1e3)),
    st.integers(0, 4),
    st.integers(-60, 60),
)
def test_rounded_rows_come_back_against_rows_of_another_step(
    X: npt.NDArray[np.float64], changed: int, power: int
) -> None:
    Y = X.copy()
    Y[:, :changed] *= 2.0**power
    assert announced(there_and_back(rounded_rows(Y), rounded_rows(X))) == announced(rounded_rows(Y))


def test_what_is_there_already_is_not_sent_under_any_name() -> None:
    V = np.random.default_rng(1).normal(size=(30, 4))
    assert coded({"V": V, "W": V, "x": V[0]}, {"U": V}) == {"V": b"", "W": b"", "x": encode(V[0])}


def normal(*, rows: int = 20_000, width: int = 16, seed: int = 1) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, width)) * rng.lognormal(size=(rows, 1))


def entropy(units: npt.NDArray[np.floating]) -> float:
    counts = np.unique(units, return_counts=True)[1] / units.size
    return float(-np.sum(counts * np.log2(counts)))


def test_rounded_rows_take_about_the_entropy_of_their_integers() -> None:
    X = normal()
    size = np.sqrt(np.mean(X**2, axis=1, keepdims=True))
    units = rounded_rows(X) / 2.0 ** (np.floor(np.log2(size)) - 3)
    # an exponent a row: about 3 bits
    assert 8 * len(encode(rounded_rows(X))) < (1.03 * entropy(units) + 4 / X.shape[1]) * X.size


def test_columns_that_did_not_change_cost_nearly_nothing_though_the_steps_of_rows_did() -> None:
    X = rounded_rows(normal()).astype(np.float64)
    Y = X.copy()
    Y[:, :4] += np.random.default_rng(2).normal(size=(len(X), 4)) * np.abs(X[:, :4]).max(
        axis=1, keepdims=True
    )
    Y = np.column_stack([rounded_rows(Y)[:, :4], X[:, 4:]])
    whole = len(encode(Y))
    difference = len(encode(Y, X))
    assert difference < 0.45 * whole


def test_single_numbers_of_six_bits_take_less_than_half_of_their_four_bytes() -> None:
    x = rounded_numbers(np.random.default_rng(1).lognormal(size=20_000))
    assert len(encode(x)) < 1.5 * len(x)


# --- suspicion ---

V = rounded_rows(normal(rows=50, width=4))
PAYLOAD = encode(V)


def code(
    payload: bytes,
    expected: Announced | None = None,
    held: Array | None = None,
    max_bytes: int = 10**6,
) -> str:
    kept = {} if held is None else {announced(held): held}
    with pytest.raises(RefusedError) as failure:
        decoded({"V": expected or announced(V)}, {"V": payload}, kept, max_bytes=max_bytes)
    return failure.value.code


def bomb(size: int) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    return stream.compress(bytes(size)) + stream.flush()


HOSTILE = {
    "an unknown kind": b"\x07" + PAYLOAD[1:],
    "only its kind": b"\x01",
    "cut within its columns": PAYLOAD[:35],
    "cut within its numbers": PAYLOAD[:-5],
    "more behind": PAYLOAD + b"more",
    "no stream": PAYLOAD[:37] + b"\xff" * 40,
    "integers of six bytes": PAYLOAD[:33] + b"\x06" + PAYLOAD[34:],
    "a stream a thousand times longer": PAYLOAD[:37] + bomb(10**6),
    "bytes a thousand times longer": b"\x00" + bomb(10**6),
    "bytes too few": b"\x00" + bomb(10),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_payload_is_malformed(case: str) -> None:
    assert code(HOSTILE[case]) == "malformed"


@pytest.mark.parametrize("shape", [(-1, 4), (-50, -4), (2**31, 0), (50, 2**17)])
def test_rows_on_a_grid_of_an_impossible_shape_are_malformed_or_too_large(
    shape: tuple[int, ...],
) -> None:
    assert code(PAYLOAD, replace(announced(V), shape=shape)) in {"malformed", "too-large"}


def test_what_is_announced_counts_before_it_is_unpacked() -> None:
    assert code(PAYLOAD, max_bytes=V.nbytes - 1) == "too-large"
    assert (
        code(PAYLOAD, replace(announced(V), shape=(2**40, 2**40)), max_bytes=10**9) == "too-large"
    )


def test_no_more_of_a_stream_is_unpacked_than_the_header_announces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = list[int]()
    honest = zlib.decompressobj

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._stream = honest(wbits)

        def decompress(self, data: bytes, max_length: int = 0) -> bytes:
            most.append(max_length)
            return self._stream.decompress(data, max_length)

        def __getattr__(self, name: str) -> object:
            return getattr(self._stream, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    assert code(b"\x00" + bomb(10**8)) == "malformed"
    assert most == [V.nbytes + 1]


def test_a_difference_to_what_is_not_held_asks_for_everything() -> None:
    earlier = rounded_rows(V + 0.25)
    difference = encode(rounded_rows(V + 0.26), earlier)
    expected = announced(rounded_rows(V + 0.26))
    assert (
        code(b"", expected)
        == code(difference, expected)
        == code(difference, expected, held=V)
        == "arrays-unknown"
    )


def test_other_names_than_the_announced_are_another_question() -> None:
    with pytest.raises(RefusedError) as failure:
        decoded({"V": announced(V)}, {"V": PAYLOAD, "W": PAYLOAD}, {}, max_bytes=10**6)
    assert failure.value.code == "wrong-question"


@given(st.binary(max_size=80), st.integers(0, 37))
@settings(max_examples=200)
def test_any_bytes_are_an_array_of_the_announced_form_or_a_refusal(noise: bytes, kept: int) -> None:
    with suppress(RefusedError):
        found = decoded({"V": announced(V)}, {"V": PAYLOAD[:kept] + noise}, {}, max_bytes=10**6)[
            "V"
        ]
        assert (found.dtype, found.shape) == (V.dtype, V.shape)
