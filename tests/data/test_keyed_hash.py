"""Draws of users, items and events are SipHash-2-4, in NumPy's form and in the compiled one."""

import numpy as np
import pytest

from fedrec.data import keyed_hash
from fedrec.data.keyed_hash import hashed, hashed_events

KEY = bytes(range(16))
WORDS = np.frombuffer(bytes(range(16)), "<u8").astype(np.uint64)
"""Messages of the authors' test vectors: bytes 0, 1, 2, ..."""


def test_one_word_and_two_are_the_authors_test_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hashed(KEY, WORDS[:1]).tolist() == [0x93F5F5799A932462]
    for few in (1, -1):
        monkeypatch.setattr(keyed_hash, "_FEW_EVENTS", few)
        one_event = np.array([0, 1]), np.zeros(1, np.int32)
        assert hashed_events(KEY, *one_event, WORDS[:1], WORDS[1:]).tolist() == [0x3F2ACC7F57C29BDB]


def test_the_compiled_form_draws_what_numpy_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    ptr = np.concatenate([[0], np.cumsum(rng.integers(0, 90, 300))])
    items = rng.integers(0, 50, ptr[-1]).astype(np.int32)
    users, names = (rng.integers(0, 2**64, size, np.uint64) for size in (300, 50))
    found = hashed_events(KEY, ptr, items, users, names)
    monkeypatch.setattr(keyed_hash, "_FEW_EVENTS", -1)
    np.testing.assert_array_equal(hashed_events(KEY, ptr, items, users, names), found)
