"""A run's checkpoints are of its inputs: another one is named, and refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from fedrec.cli.main import guarded
from fedrec.data.planted import SHAPES, planted
from fedrec.errors import RunError
from fedrec.federation import releases
from fedrec.run.input_digests import FILE, bind, content_digest, inputs_of
from fedrec.run.job import RuntimeChoice
from fedrec.run.run_folder import open_folder
from fedrec.settings import load
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
    assert len({*digests}) == len(digests)


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


def rows(turned: bool = False) -> list[str]:
    rng = np.random.default_rng(1)
    return [
        f"u{u},i{i},{6 - value if turned else value}"
        for u in range(120)
        for i, value in zip(rng.permutation(60)[:20], rng.integers(1, 6, 20), strict=True)
    ]


def items(order: int = 1) -> str:
    lines = [f"i{i},kind {i % 7}" for i in range(60)]
    return "\n".join(["item,kind", *lines[::order]]) + "\n"


@pytest.mark.parametrize("change", ["people", "ratings", "items"])
def test_a_resumed_run_refuses_other_data_by_name(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the people gone, every rating turned round, or the file of items in another order;
    nothing is drawn, and the files put back go on."""
    monkeypatch.chdir(tmp_path)
    files = {"log.csv": "\n".join(["user,item,rating", *rows()]) + "\n", "items.csv": items()}
    for name, content in files.items():
        Path(name).write_text(content)
    keys = [
        "data.path=log.csv",
        "data.format=table",
        "data.features_path=items.csv",
        "data.rating_range=[1,5]",
        "privacy.allow_large_delta=true",
        "recipe=dp-bias",
        "compare.als=false",
        "compare.baselines=false",
    ]
    command = ["simulate", "--json", *(word for key in keys for word in ("--set", key))]
    assert guarded(command) == 0
    if change == "people":
        Path("log.csv").write_text("\n".join(["user,item,rating", *rows()[:1200]]) + "\n")
    elif change == "ratings":
        Path("log.csv").write_text("\n".join(["user,item,rating", *rows(turned=True)]) + "\n")
    else:
        Path("items.csv").write_text(items(order=-1))
    capsys.readouterr()
    monkeypatch.setattr(
        releases, "_integers", lambda *given, **named: pytest.fail("noise was drawn")
    )
    assert guarded([*command, "--resume"]) == RunError.exit_code
    named = "features" if change == "items" else "training data"
    assert named in capsys.readouterr().err
    for name, content in files.items():
        Path(name).write_text(content)
    assert guarded([*command, "--resume"]) == 0


def test_titles_and_user_ids_are_inputs() -> None:
    source = planted(SHAPES["small"], seed=1)
    names = replace(source.catalogue, titles=tuple(source.catalogue.item_ids))
    people = replace(source.catalogue, user_ids=source.catalogue.user_ids[::-1])
    found = [inputs_of(replace(source, catalogue=one)) for one in (source.catalogue, names, people)]
    digests = [{name: content_digest(part) for name, part in one.items()} for one in found]
    changed = [
        {name for name, digest in other.items() if digest != digests[0][name]}
        for other in digests[1:]
    ]
    assert changed == [{"catalogue"}, {"user ids"}]


def test_another_setting_is_named(tmp_path: Path) -> None:
    small = ("data.preset=small", "compare.als=false", "compare.baselines=false")
    first = load(None, [*small, "recipe=dp-bias", f"run.directory={tmp_path}"])
    with open_folder(first, "a", RuntimeChoice(), resume=False, at=tmp_path / "a"):
        pass
    other = load(None, [*small, "recipe=dp-bias", "privacy.delta=1e-6"])
    with (
        pytest.raises(RunError, match=r"began with another privacy\.delta\n"),
        open_folder(other, "a", RuntimeChoice(), resume=True, at=tmp_path / "a"),
    ):
        pass
