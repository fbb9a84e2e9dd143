"""Folders that fedrec writes: only what it wrote is removed, and a folder with any other file is
left as it is, whoever writes there."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

import fedrec
from fedrec.cli.main import guarded
from fedrec.errors import RunError
from fedrec.output_folders import MARKER, Kind, clear, discard, finish, note, require_ours

ROOT = Path(__file__).parents[1]
PRODUCT = ("fedrec", "aggregator", "client", "server", "simulations", "research/fedrec_research")
OWN_SCRATCH = {  # folders that `tempfile` made for the caller alone
    "fedrec/api/news.py",
}
EXAMPLE: dict[Kind, str] = {
    "model": "model.safetensors",
    "news": "model/manifest.json",
    "run": "epsilon-1/server/runs/default-1/model/manifest.json",
    "seeds": "seeds.csv",
    "split": "train.parquet",
    "pieces": "part-00000/00000.parquet",
    "restoring": "ledger.sqlite",
}
"""A file of each kind."""
LINES = [f"p{u}x,i{(u * 7 + k * 3) % 40}" for u in range(60) for k in range(8)]


def calls(name: str) -> set[str]:
    """Modules of the product that name a function."""
    found = set[str]()
    for room in PRODUCT:
        for path in (ROOT / room).rglob("*.py"):
            if name not in (text := path.read_text()):
                continue
            tree = ast.parse(text)
            names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            if name in names and ".venv" not in path.parts:
                found.add(path.relative_to(ROOT).as_posix())
    return found


def test_whole_folders_are_removed_only_where_the_caller_made_them_for_itself() -> None:
    assert calls("rmtree") == OWN_SCRATCH
    assert not calls("removedirs")


def test_each_kind_of_folder_has_an_example() -> None:
    assert set(EXAMPLE) == set(get_args(Kind))


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("ended", [True, False])
def test_a_folder_with_a_foreign_file_is_left_as_it_is(
    kind: Kind, ended: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "out"

    def written() -> Path:
        clear(folder, kind)
        if kind == "restoring":  # its names come with the archive
            note(folder, kind, [EXAMPLE[kind]])
        path = folder / EXAMPLE[kind]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("ours")
        if ended and kind != "restoring":
            finish(folder, kind)
        return path

    own = written()
    written()  # what is ours alone is replaced
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "kept.txt").write_text("theirs")
    for name in ("thesis.txt", "certificate/key.pem", "model/notes", "epsilon-1/x.txt", "settings"):
        foreign = folder / name
        foreign.parent.mkdir(exist_ok=True)
        for link in (False, True):
            if link:
                foreign.symlink_to(beside)
            else:
                foreign.write_text("theirs")
            discard(folder, kind)
            with pytest.raises(RunError, match=name):
                clear(folder, kind)
            assert own.read_text() == "ours"
            foreign.unlink()
    if own.parent != folder:  # a folder of ours that became a link is another file
        own.unlink()
        own.parent.rmdir()
        own.parent.symlink_to(beside)
        (beside / own.name).write_text("theirs")
        if "model" not in own.parent.name:  # a server's link to its model is its own
            with pytest.raises(RunError):
                clear(folder, kind)
        assert (beside / own.name).read_text() == "theirs"
        own.parent.unlink()
    discard(folder, kind)
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert (beside / "kept.txt").read_text() == "theirs"


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize(
    "marker",
    [None, "[]", "{}", '{"format": "fedrec-folder/1", "kind": "run", "files": ["own"]}', "\xff"],
)
def test_names_alone_make_no_folder_ours(kind: Kind, marker: str | None, tmp_path: Path) -> None:
    names = {EXAMPLE[kind], "settings.json", "manifest.json", "README.md", "own"}
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("theirs")
    if marker is not None:
        (tmp_path / MARKER).write_text(marker, encoding="latin-1")
    with pytest.raises(RunError, match="none that fedrec wrote"):
        require_ours(tmp_path, kind)
    discard(tmp_path, kind)
    assert {(tmp_path / name).read_text() for name in names} == {"theirs"}


def test_a_marker_lists_what_was_written_and_no_more(tmp_path: Path) -> None:
    clear(tmp_path, "model")
    (tmp_path / "model.safetensors").write_text("ours")
    (tmp_path / "thesis.txt").write_text("theirs")
    finish(tmp_path, "model")
    assert json.loads((tmp_path / MARKER).read_text())["files"] == ["model.safetensors"]
    with pytest.raises(RunError, match=r"thesis\.txt"):
        clear(tmp_path, "model")
    (tmp_path / "thesis.txt").unlink()
    (tmp_path / "README.md").write_text("theirs")  # a name of ours that was not there
    with pytest.raises(RunError, match=r"README\.md"):
        clear(tmp_path, "model")


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    path.write_text("user,item\n" + "\n".join(LINES) + "\n")
    return path


def _save(clicks: Path, folder: Path) -> None:
    data = fedrec.Dataset.planted("small", kind="clicks")
    fedrec.Popularity(epsilon=2, noise="seeded").fit(data).save(folder)


def _copy(clicks: Path, folder: Path) -> None:
    source = folder.parent / f"{folder.name}-source"
    if not source.exists():
        _save(clicks, source)
    fedrec.load(source).save(folder)


def _verb(*words: str) -> Callable[[Path, Path], None]:
    def run(clicks: Path, folder: Path) -> None:
        own = [word.format(clicks=clicks, folder=folder) for word in words]
        if code := guarded(own):
            raise RunError(f"exit {code}", "")

    return run


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "model.save": _save,
    "load, save": _copy,
    "train": _verb(
        "train", "{clicks}", "-o", "{folder}", "--epsilon", "1", "--overwrite",
        "--set", "recipe=dp-popularity", "--set", "privacy.noise=seeded",
    ),
    "split": _verb(
        "data", "split", "{clicks}", "--output", "{folder}", "--overwrite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_removes_only_what_it_wrote(name: str, clicks: Path, tmp_path: Path) -> None:
    write = WRITERS[name]
    theirs = tmp_path / "theirs"
    own = {
        "README.md": "my manual",
        "manifest.json": "{}",
        "settings.json": '{"editor": "vim"}',
        "certificate/key.pem": "my key",
    }
    for path, content in own.items():
        (theirs / path).parent.mkdir(parents=True, exist_ok=True)
        (theirs / path).write_text(content)
    with pytest.raises(RunError):
        write(clicks, theirs)
    assert {path: (theirs / path).read_text() for path in own} == own
    folder = tmp_path / "ours"
    write(clicks, folder)
    first = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    write(clicks, folder)
    assert {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} == first
    (folder / "thesis.txt").write_text("theirs")
    with pytest.raises(RunError):
        write(clicks, folder)
    there = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert there == {*first, Path("thesis.txt")}
