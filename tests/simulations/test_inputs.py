"""A run's checkpoints are of its inputs: another one is named, and refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from fedrec.errors import RunError
from fedrec.run.inputs import FILE, bind, content_digest
from fedrec.storage import read_json, write_json


@dataclass(frozen=True)
class Pair:
    first: Any
    second: Any


A = np.arange(6.0)

DIFFERENT: list[Any] = [
    A,
    A.reshape(2, 3),
    A[::-1],
    A.astype(np.float32),
    A.astype(">f8"),
    sparse.csr_matrix(A.reshape(2, 3)),
    sparse.csr_matrix(A.reshape(3, 2)),
    "ab",
    b"ab",
    ("a", "b"),
    ("ab", ""),
    ("", "ab"),
    {"a": "b"},
    {"b": "a"},
    Pair("a", "b"),
    Pair("b", "a"),
    None,
    0,
    0.0,
    False,
    (),
    {},
    np.zeros(0),
    np.array(["a", "b"]),
    np.array(["a", "b"], object),
]


def test_values_that_differ_have_different_digests() -> None:
    digests = [content_digest(value) for value in DIFFERENT]
    assert len({*digests}) == len(digests) - 1
    # the same texts in the same order, kept as objects or not, are one sequence
    assert content_digest(("a", "b")) == content_digest(np.array(["a", "b"], object))


def test_what_is_equal_has_one_digest_however_it_lies_in_memory() -> None:
    assert content_digest(A[::-1]) == content_digest(A[::-1].copy())
    assert content_digest({"a": 1, "b": 2}) == content_digest({"b": 2, "a": 1})
    square = sparse.csr_matrix(A.reshape(2, 3))
    assert content_digest(square) == content_digest(square.tocsc())


def test_a_file_is_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    before = content_digest(tmp_path / "a")
    (tmp_path / "b").write_bytes(b"one")
    assert content_digest(tmp_path / "b") == before
    (tmp_path / "a").write_bytes(b"other")
    assert content_digest(tmp_path / "a") != before


def test_what_has_no_digest_is_an_error() -> None:
    with pytest.raises(TypeError, match="has no digest"):
        content_digest(object())


def test_another_input_is_refused_by_its_name(tmp_path: Path) -> None:
    bind(tmp_path, {"training data": A, "items": ("a", "b")})
    bind(tmp_path, {"training data": A, "items": ("a", "b")})
    with pytest.raises(RunError, match="began with another items\n"):
        bind(tmp_path, {"training data": A, "items": ("b", "a")})
    with pytest.raises(RunError, match="another items, another training data\n"):
        bind(tmp_path, {"training data": A + 1, "items": ("b", "a")})
    with pytest.raises(RunError, match="another public users\n"):
        bind(tmp_path, {"training data": A, "items": ("a", "b"), "public users": A})
    with pytest.raises(RunError, match="another items\n"):
        bind(tmp_path, {"training data": A})


def test_a_run_of_another_version_is_not_resumed(tmp_path: Path) -> None:
    bind(tmp_path, {})
    write_json(tmp_path / FILE, read_json(tmp_path / FILE) | {"version of fedrec": "0.0.1"})
    with pytest.raises(RunError, match="another version of fedrec"):
        bind(tmp_path, {})
