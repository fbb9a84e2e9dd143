"""Files from strangers: whatever lies in the place of one that a command reads, it ends soon, in
words and with the code of a refusal, and never as a defect.

The walk is doors x files. A door is a way into a reader; a file is what a stranger puts there."""

from __future__ import annotations

import gzip
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fedrec import storage
from fedrec.certificates import writing
from fedrec.cli.main import guarded
from fedrec.data import frame_files, opening
from fedrec.errors import DataError, FedRecError
from fedrec.factorization import released
from fedrec.operations.pins import read_pins
from fedrec.serving import bundle
from fedrec.settings_tables import read_toml
from fedrec_client.clicks import read_clicks
from tests.limits import limited

MOST_BYTES = 3 << 30
"""Of memory beyond what the tests have."""


def _zip_bomb(path: Path) -> None:
    with gzip.open(path, "wb", 1) as file:
        for _ in range(40):
            file.write(bytes(1 << 20))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 43)  # file systems on disks hold at most twice as much


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # a name of at most 107 bytes


FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": _socket,
    "link to itself": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "deep": lambda path: path.write_bytes(b"[" * 200_000),
    "deep TOML": lambda path: path.write_bytes(b"a = " + b"[" * 200_000),
    "long number": lambda path: path.write_bytes(b'{"format": ' + b"9" * 100_000 + b"}"),
    "other JSON": lambda path: path.write_bytes(b'[1, "a", null]'),
    "not a number": lambda path: path.write_bytes(b'{"format": NaN, "sha256": Infinity}'),
    "holes": _sparse,
    "empty": Path.touch,
    "cut": lambda path: path.write_bytes(b'{"format": "fedrec-'),
    "zeros": lambda path: path.write_bytes(bytes(4_000)),
    "no text": lambda path: path.write_bytes(bytes(range(255, -1, -1)) * 20),
    "header that says too much": lambda path: path.write_bytes((1 << 62).to_bytes(8, "little")),
    "packed zeros": _zip_bomb,
}


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "JSON": ("a.json", storage.read_json),
    "arrays": ("a.safetensors", storage.read_arrays),
    "bytes": ("a.bin", lambda path: storage.bounded_bytes(path, 1_000)),
    "digest": ("a.bin", storage.sha256_of),
    "digests of a folder": ("a.bin", lambda path: writing.digests(path.parent)),
    "TOML": ("a.toml", lambda path: read_toml(path, "Give one.")),
    "pins": ("pins.toml", read_pins),
    "bundle": ("a.safetensors", bundle.read),
    "what is ranked of a bundle": ("a.safetensors", bundle.read_ranked),
    "history": ("history.txt", read_clicks),
    "model": ("manifest.json", lambda path: released.load(path.parent)),
    "Parquet": ("a.parquet", frame_files.parquet),
    "array": ("a.npy", frame_files.array),
    "matrix": ("a.npz", frame_files.npz_matrix),
}
HARMLESS = {
    *(("bytes", file) for file in ("other JSON", "not a number", "empty", "cut")),
    *(("bytes", file) for file in ("header that says too much",)),
    *((reader, file) for reader in ("digest", "digests of a folder") for file in FILES),
    *(("JSON", file) for file in ("other JSON", "not a number")),
    *((reader, "empty") for reader in ("TOML", "pins")),  # no keys
    *(("history", file) for file in ("other JSON", "cut", "not a number", "deep", "deep TOML")),
    *(("history", file) for file in ("long number",)),  # ids of items that nobody knows
}
"""A reader may take what the file holds for its own."""


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_refuses_what_is_no_file_of_its_kind(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, make in FILES.items():
        (folder := tmp_path / file).mkdir()
        monkeypatch.chdir(folder)
        name, read = READERS[reader]
        make(folder / name)
        with limited(MOST_BYTES):
            try:
                read(folder / name)
            except (FedRecError, OSError):  # which the command line says in a line
                continue
        assert (reader, file) in HARMLESS, file


VERBS: dict[str, tuple[str, list[str]]] = {
    "train": ("clicks.csv", ["train", "{file}", "-o", "{folder}/out"]),
    "train, packed": ("clicks.csv.gz", ["train", "{file}", "-o", "{folder}/out"]),
    "train on JSON lines": ("clicks.jsonl", ["train", "{file}", "-o", "{folder}/out"]),
    "a scenario": ("a.toml", ["simulate", "{file}"]),
    "partitions": ("partitions.json", ["simulate", "--data", "{folder}"]),
    "describe": ("clicks.csv", ["data", "describe", "{file}"]),
    "verify": ("certificate/certificate.json", ["verify", "{folder}"]),
    "export": ("manifest.json", ["export", "{folder}", "-o", "{folder}/out"]),
    "serve": ("model.safetensors", ["serve", "{file}"]),
    "recommend": (
        "history.txt",
        ["recommend", "--server", "http://127.0.0.1:9", "--history", "{file}"],
    ),
    "doctor": ("a.toml", ["doctor", "{file}"]),
    "restore": ("a.tar", ["restore", "{folder}/a.toml", "--input", "{file}"]),
    "compare": ("results.json", ["compare", "{folder}"]),
    "inspect": ("a.toml", ["inspect", "{file}"]),
    "aggregator": ("a.toml", ["aggregator", "{file}"]),
    "client": ("a.toml", ["client", "{file}"]),
    "server": ("a.toml", ["server", "{file}"]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_refuses_a_stranger_s_file_in_words(
    verb: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every kind of file in the place that the command reads first."""
    name, words = VERBS[verb]
    # without a word, a scenario trains on invented data
    for file in FILES.keys() - ({"empty"} if verb == "a scenario" else set()):
        make = FILES[file]
        (folder := tmp_path / file.replace(" ", "-")).mkdir()
        monkeypatch.chdir(folder)
        (folder / name).parent.mkdir(exist_ok=True)
        make(folder / name)
        given = [word.format(file=folder / name, folder=folder) for word in words]
        with limited(MOST_BYTES):
            code = guarded(given)
        said = capsys.readouterr().err
        # a history may hold ids that nobody knows, and then there is no server
        assert code in {2, 3, 5, 6} | ({7} if verb == "recommend" else set()), (file, code, said)
        assert "Traceback" not in said


def test_a_line_and_a_table_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MOST_LINE_BYTES", 1_000)
    monkeypatch.setattr(opening, "_SMALL_BYTES", 10_000)
    cases = {
        "long.csv": b"user,item\n" * 3 + b"x" * 1_500,
        "first.csv": b"user,item" + b"x" * 2_000 + b"\na,b\n",
        "wide.csv": b",".join(b"c%d" % k for k in range(300_000)) + b"\n",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with limited(MOST_BYTES):
            assert guarded(["train", str(tmp_path / name), "-o", str(tmp_path / "out")]) == 3
    _zip_bomb(tmp_path / "a.csv.gz")
    with pytest.raises(DataError, match="unpacks to more than"):
        opening.content_of(tmp_path / "a.csv.gz")
