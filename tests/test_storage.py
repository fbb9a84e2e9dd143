import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrec.errors import RunError
from fedrec.storage import (
    Checkpoints,
    UnreadableError,
    read_arrays,
    read_json,
    write_arrays,
    write_bytes,
    write_json,
)
from tests.descriptors import none_left


def test_arrays_come_back_bit_for_bit_and_the_same_arrays_make_the_same_file(
    tmp_path: Path,
) -> None:
    arrays = {
        "V": np.arange(6, dtype=np.float32).reshape(2, 3),
        "round": np.array(3),
        "empty": np.zeros((0, 2)),
    }
    first = write_arrays(tmp_path / "a", arrays)
    second = write_arrays(tmp_path / "b", dict(reversed(arrays.items())))
    assert first == second
    back = read_arrays(tmp_path / "a")
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)


def test_the_newest_state_is_where_a_run_continues(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    assert kept.latest() is None
    for t in (1, 2, 10):
        kept.save({"round": np.array(t)}, round=t)
    assert [int(s["round"]) for s in kept.all()] == [1, 2, 10]
    latest = kept.latest()
    assert latest is not None
    assert int(latest["round"]) == 10


def test_a_damaged_file_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"not safetensors")
    for read in (read_arrays, read_json):
        with pytest.raises(RunError, match="cannot be read"):
            read(tmp_path / "x")


def test_a_file_that_cannot_be_opened_now_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {})
    write_arrays(tmp_path / "x.safetensors", {"x": np.ones(2)})
    read_arrays(tmp_path / "x.safetensors")  # imports what it needs
    for read, name in ((read_json, "x.json"), (read_arrays, "x.safetensors")):
        with none_left(), pytest.raises(UnreadableError) as refused:
            read(tmp_path / name)
        assert "may be whole" in refused.value.remedy
        with pytest.raises(RunError) as refused:
            read(tmp_path / f"no-{name}")
        assert not isinstance(refused.value, UnreadableError)


def test_a_file_that_is_opened_once_and_not_twice_is_not_taken_for_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_arrays(tmp_path / "x.safetensors", {"x": np.ones(2)})

    def none_left_by_then(path: Path) -> None:
        raise FileNotFoundError(f"No such file or directory: {path}")  # as safetensors says it

    monkeypatch.setattr("safetensors.numpy.load_file", none_left_by_then)
    with pytest.raises(UnreadableError):
        read_arrays(tmp_path / "x.safetensors")
    with pytest.raises(RunError) as refused:
        read_arrays(tmp_path / "no-x.safetensors")
    assert not isinstance(refused.value, UnreadableError)


def test_infinite_numbers_stay_readable_json(tmp_path: Path) -> None:
    write_json(
        tmp_path / "x.json", {"epsilon": float("inf"), "list": (np.float64(1.5), np.int64(2))}
    )
    assert json.loads((tmp_path / "x.json").read_text()) == {"epsilon": "inf", "list": [1.5, 2]}


def test_a_writer_killed_at_any_write_leaves_the_old_bytes_or_the_new(tmp_path: Path) -> None:
    target = tmp_path / "state"
    write_bytes(target, b"old" * 1000)
    child = """
import sys
from pathlib import Path
from fedrec.storage import write_bytes
while True:
    write_bytes(Path(sys.argv[1]), b"new" * 1000)
"""
    process = subprocess.Popen([sys.executable, "-c", child, str(target)])
    try:
        while target.read_bytes() == b"old" * 1000 and process.poll() is None:
            os.sched_yield()
    finally:
        process.kill()
        process.wait()
    assert target.read_bytes() in (b"old" * 1000, b"new" * 1000)


def test_a_full_disk_is_said_with_the_file_that_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fedrec.storage.os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_bytes(tmp_path / "model.safetensors", b"bytes")
    assert caught.value.filename == str(tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())
