"""Ownership of the folders that fedrec writes: what one of them holds is removed only where fedrec
wrote it.

A folder is ours by its marker, `.fedrec.json`: its kind, and the names of all files in it with
their SHA-256, which are there when everything is written. Only these names are removed, one by
one. In a folder that is not finished, as a killed process leaves it, those are removed that
fedrec gives to files of this kind. A folder with any other file is left as it is, and the file is
named. Links are never followed, and a folder inside that was replaced by a link is another file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fedrec.errors import RunError
from fedrec.storage import read_json, write_json

MARKER = ".fedrec.json"
FORMAT = "fedrec-folder/1"
Kind = Literal["model", "news", "run", "seeds", "split", "pieces", "restoring"]

_MODEL = (
    r"README\.md|(manifest|training|serving)\.json|(model|popularity|serving)\.safetensors|"
    r"certificate/(certificate|public)\.json|certificate/(features|earlier|news)\.safetensors|"
    r"certificate/round-\d{3,}(\.safetensors|-[123]\.output)"
)
_PARTY = r"((settings|shards|public|server|client-\d+|aggregator(-\w+)?)/)"
_WRITTEN: dict[Kind, str] = {
    "model": _MODEL,
    "news": rf"guarantee\.json|serving\.safetensors|model/({_MODEL}|\.fedrec\.json)",
    "run": (
        r"(result|guarantee|data|inputs|code|settings)\.json|report\.html|metrics\.jsonl|"
        rf"serving\.safetensors|model/({_MODEL}|\.fedrec\.json)|"
        # a training, and in it the state folders of its parties
        rf"(published/)?epsilon-[^/]+/({_PARTY}([\w.-]+/)*)?((checkpoints|releases)/)?"
        r"([\w.-]+\.(json|jsonl|safetensors|frr|toml|log|log\.1|lock|pem|sqlite|sqlite-\w+|output)"
        r"|lock|model)"
    ),
    "seeds": r"report\.html|seeds\.(json|csv)",
    "split": r"(train|validation|test)\.parquet|split\.json",
    "pieces": (r"asked\.json|scattered|(report|done)-\d{5,}\.json|part-\d{5,}/\d{5,}\.parquet"),
    "restoring": r"(?!)",  # an archive says itself what it holds
}
"""Names of the files of a kind, in a folder that is not finished."""
_LATER = "serving.safetensors"
"""Made of a finished model when it is first served."""
_PART = re.compile(r"\.(.+)\.\d+\.part")
"""Beside a file that is being written (`storage.write_bytes`)."""


def require_ours(folder: Path, kind: Kind) -> tuple[Path, ...]:
    """Files of a folder that fedrec wrote as one of this kind, its marker last; () of an empty one
    and of none.

    Raises RunError where it is a file, or holds anything else, which is named."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file", "Give an empty or a new folder.")
    there = _files(folder)
    marker = folder / MARKER
    listed = _listed(marker, kind)
    written = re.compile(_WRITTEN[kind] if listed is None else r"(?!)")
    names = {*(listed or ()), MARKER, *([_LATER] if listed else [])}
    for path in there:
        name = path.relative_to(folder).as_posix()
        part = _PART.fullmatch(path.name)
        whole = name if part is None else f"{name.removesuffix(path.name)}{part[1]}"
        if not (whole in names or written.fullmatch(whole)):
            raise RunError(
                f"{folder} holds files of something else: {name} is none that fedrec wrote there",
                "Give an empty or a new folder, or move that file away.",
            )
    return tuple(sorted(there, key=lambda path: path == marker))


def clear(folder: Path, kind: Kind, *, private: bool = False) -> None:
    """Make the folder, or remove what fedrec wrote there, and mark it as one that is not finished.

    private: whether its user alone may read it. Raises RunError as `require_ours`, before anything
    is removed."""
    _remove(folder, require_ours(folder, kind))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    if private:
        folder.chmod(0o700)
    write_json(folder / MARKER, {"format": FORMAT, "kind": kind})


def reopen(folder: Path, kind: Kind) -> None:
    """Mark a folder of ours as one that is not finished, in which a run goes on."""
    if _listed(folder / MARKER, kind):
        write_json(folder / MARKER, {"format": FORMAT, "kind": kind})


def finish(folder: Path, kind: Kind, more: Iterable[str] = ()) -> None:
    """Note the names of the files that are there. more: of those that will be, whose content says
    what the marker holds.

    A file of a name that fedrec does not write is left out: it is somebody else's."""
    written = re.compile(_WRITTEN[kind])
    names = {path.relative_to(folder).as_posix() for path in _files(folder)}
    names = {name for name in names if written.fullmatch(name)}
    note(folder, kind, {*names, *more})


def note(folder: Path, kind: Kind, names: Iterable[str]) -> None:
    """Mark a folder whose files have these names, and no others."""
    write_json(folder / MARKER, noted(kind, names))


def noted(kind: Kind, names: Iterable[str]) -> dict[str, Any]:
    """What the marker of a folder says whose files have these names."""
    listed = sorted(names)
    return {"format": FORMAT, "kind": kind, "files": listed, "sha256": _digest(listed)}


def discard(folder: Path, kind: Kind) -> None:
    """Remove a folder that fedrec wrote. One with any other file is left as it is."""
    try:
        found = require_ours(folder, kind)
    except RunError:
        return
    _remove(folder, found)
    with suppress(OSError):  # as in `_remove`, or it was never made
        folder.rmdir()


def _remove(folder: Path, files: Iterable[Path]) -> None:
    """By name, then folders that are empty, the deepest first."""
    within = set[Path]()
    for path in files:
        path.unlink()
        within.update(above for above in path.parents if folder in above.parents)
    for path in sorted(within, key=lambda path: -len(path.parts)):
        with suppress(OSError):  # somebody else made a folder in it
            path.rmdir()


def _files(folder: Path) -> list[Path]:
    """Everything in it that is no folder, and links to folders."""
    found = list[Path]()
    for place, inside, files in os.walk(folder):
        here = Path(place)
        found += [here / name for name in files]
        found += [here / name for name in inside if (here / name).is_symlink()]
    return sorted(found)


def _listed(marker: Path, kind: Kind) -> tuple[str, ...] | None:
    """Names in a marker, () where it is none of this kind, None of a folder that is not
    finished."""
    try:
        content: Any = None if marker.is_symlink() else read_json(marker)
        if (content["format"], content["kind"]) != (FORMAT, kind):
            return ()
        if "files" not in content:
            return None
        names = [str(name) for name in content["files"]]
        return tuple(names) if content["sha256"] == _digest(names) else ()
    except (RunError, KeyError, TypeError):
        return ()


def _digest(names: list[str]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()
