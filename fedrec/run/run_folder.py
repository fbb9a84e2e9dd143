"""Folder where a run keeps everything: named by its scenario, so that the same run finds its folder
again. One process at a time works in it.

What a run is computed from is kept as digests: its checkpoints are those of these inputs, and go on
with no others. A checkpoint of one data set under another would be a model of neither, and what was
charged for it would be known to the budget of neither.

code.json    {"version", "commit"} of every start of the run, in order: two where an interrupted
             run went on with other code; the commit where the code is a checkout of git

The right to go on with a training that was charged ahead is a file beside the budget's. Aggregators
draw each release once as long as they have their folder, so a stopped training goes on without a
second charge. A copy of its folder would draw the same releases with other noise. So the right has
a random name, which the training's folder keeps. Each start gives it another name, and the end of
the training removes it: of two copies the first goes on, the second is charged anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from scipy import sparse

import fedrec
from fedrec import __version__
from fedrec.data.interactions import Dataset
from fedrec.errors import RunError
from fedrec.run.job import RuntimeChoice
from fedrec.settings import Scenario
from fedrec.storage import finite, read_json, write_json, writing

RESULT = "result.json"
SETTINGS = "settings.json"
_ELSEWHERE = "Choose another folder: -o of train, --set run.directory=... of simulate."


@contextmanager
def open_folder(
    scenario: Scenario,
    name: str,
    choice: RuntimeChoice,
    *,
    resume: bool,
    at: Path | None = None,
) -> Iterator[Path]:
    """The scenario's run folder for this choice, fresh, or as an interrupted run left it where
    `resume`; nobody else's until the block ends. at: the folder itself.

    Raises RunError where there is nothing to resume, where the folder belongs to another scenario
    or another process is at work in it, or where it cannot be written.
    """
    named = f"{name}-{scenario.digest()[:10]}{choice.suffix}"
    folder = at or Path(scenario.run.directory) / named
    settings = finite(scenario.model_dump(mode="json"))  # as it will be read
    if resume and not (folder / SETTINGS).exists():
        raise RunError(
            f"there is no run to resume in {folder}",
            "Run the command without --resume; the scenario must be the same.",
        )
    # a folder may have been moved
    if resume and (changed := _changed(read_json(folder / SETTINGS), settings)):
        raise RunError(
            f"{folder} belongs to another scenario: it began with another {', '.join(changed)}",
            "Resume with the same file, flags and --set values.",
        )
    with _locked(folder):
        if not resume:
            _empty(folder, settings)
        yield folder


def require_free(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Raises RunError where a run may not be written to a folder of the user's own: it is a file,
    it holds something else, or a run that is to be kept."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file", "Give a folder for the model.")
    if resume or not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / SETTINGS).exists():
        raise RunError(f"{folder} holds files of something else", "Give a new folder.")
    if (folder / RESULT).exists() and not overwrite:
        raise RunError(
            f"{folder} holds a trained model",
            "Give another folder, or --overwrite to train anew, which spends epsilon again.",
        )
    if any(folder.glob("**/checkpoints/*")) and not overwrite:
        raise RunError(
            f"{folder} holds an interrupted training",
            "--resume continues it; --overwrite begins anew, which spends epsilon again.",
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """By a file beside the folder, which outlives it; the system lets go when a process ends."""
    with writing(folder, _ELSEWHERE):
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = open(folder.with_name(f".{folder.name}.lock"), "a")  # noqa: SIM115 - closed below
    with file:
        with writing(folder, _ELSEWHERE):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"another process is running this scenario in {folder}",
                    f"Wait for it. {_ELSEWHERE}",
                ) from None
        yield


def _empty(folder: Path, settings: object) -> None:
    with writing(folder, _ELSEWHERE):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, mode=0o700)  # it holds private data
        write_json(folder / SETTINGS, settings)


CODE = "code.json"


@cache
def code_version() -> dict[str, str]:
    """`commit` ends in -dirty where files were changed since, and is empty where the package was
    installed from a wheel."""
    return {"version": fedrec.__version__, "commit": _commit(Path(fedrec.__file__).parents[1])}


def note_code(folder: Path) -> None:
    """Note in a run folder which code goes to work in it."""
    known = read_json(folder / CODE) if (folder / CODE).exists() else []
    if code_version() not in known:
        write_json(folder / CODE, [*known, code_version()])


def _commit(root: Path) -> str:
    if not (root / ".git").exists():
        return ""
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        asked = subprocess.run([*words, "--abbrev=40"], capture_output=True, text=True, check=True)
        return asked.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""  # without git, or a checkout that git refuses to read


FILE = "inputs.json"


def _changed(kept: Mapping[str, Any], found: Mapping[str, Any], above: str = "") -> list[str]:
    """Keys whose values are others, but for where the folder is."""
    names = list[str]()
    for key in sorted({*kept, *found} - ({"run"} if not above else set())):
        before = kept.get(key)
        now = found.get(key)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            names += _changed(before, now, f"{above}{key}.")
        elif before != now:
            names.append(f"{above}{key}")
    return names


def bind(folder: Path, inputs: Mapping[str, Any]) -> None:
    """Keep the digest of each input, by its name, in a folder that has none; in one that a run
    began, compare.

    Raises RunError with the names of those that are others.
    """
    found = {"version of fedrec": __version__} | {
        name: content_digest(value) for name, value in inputs.items()
    }
    path = folder / FILE
    if not path.exists():
        if any(folder.glob("epsilon-*")):
            raise RunError(
                f"{folder} cannot be resumed: its run kept no digests of its inputs",
                "An earlier version made it. Run the command without --resume.",
            )
        write_json(path, found)
        return
    kept = read_json(path)
    if changed := sorted(name for name in {*kept, *found} if kept.get(name) != found.get(name)):
        raise RunError(
            f"{folder} cannot be resumed: its run began with another {', another '.join(changed)}",
            "Put back what it began with, or run the command without --resume: a new training, "
            "which is charged anew.",
        )


def inputs_of(dataset: Dataset) -> dict[str, Any]:
    """What is public of a data set, by name: its items and scale, and each bag of features."""
    catalogue = dataset.catalogue
    events = dataset.interactions
    return {
        "catalogue": (catalogue.item_ids, catalogue.titles, events.kind, events.value_range),
        "user ids": "\n".join(catalogue.user_ids),
        **{f"features ({name})": bag for name, bag in dataset.features.bags.items()},
    }


def content_digest(value: Any) -> str:
    """SHA-256 of a value that is made of arrays, texts, numbers, files, and dataclasses, mappings
    and sequences of such; the same in every process.

    Raises TypeError on anything else.
    """
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Every part with its type and length before it, so that no two values have one text."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        whole = np.ascontiguousarray(value)
        digest.update(f"array {whole.dtype.str} {whole.shape} ".encode())
        digest.update(whole.data.cast("B") if whole.size else b"")
    elif sparse.issparse(value):
        rows = cast(Any, value).tocsr()
        _add(digest, (rows.shape, rows.indptr, rows.indices, rows.data))
    elif isinstance(value, Path):
        with value.open("rb") as file:
            digest.update(b"file " + hashlib.file_digest(file, "sha256").digest())
    elif isinstance(value, str | bytes):
        content = value.encode() if isinstance(value, str) else value
        digest.update(f"{type(value).__name__} {len(content)} ".encode() + content)
    elif is_dataclass(value):
        _add(digest, {field.name: getattr(value, field.name) for field in fields(value)})
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)} ".encode())
        for key in sorted(value):
            _add(digest, key)
            _add(digest, value[key])
    elif isinstance(value, tuple | list) and all(isinstance(part, str) for part in value):
        # ids of a million items, at the speed of C
        digest.update(b"texts " + json.dumps(value).encode())
    elif isinstance(value, tuple | list | np.ndarray):
        digest.update(f"sequence {len(value)} ".encode())
        for part in value:
            _add(digest, part)
    elif value is None or isinstance(value, bool | int | float | np.generic):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    elif hasattr(value, "numpy"):  # a tensor
        _add(digest, value.numpy())
    else:
        raise TypeError(f"{type(value).__name__} has no digest")


KEPT = "charged.json"
"""Name of the right, in the folder of the training."""


@contextmanager
def charged_ahead(
    budget: Path, folder: Path, charge: Callable[[], None], *, resumable: bool
) -> Iterator[None]:
    """While the training in `folder` runs. `charge` is called first, unless the folder holds the
    right to what was charged before.

    resumable: whether the aggregators still know what they drew. Raises what `charge` raises, and
    RunError where the right cannot be written."""
    name = secrets.token_hex(16)
    right = _right(budget, name)
    file = _taken(budget, folder, right) if resumable else None
    if file is None:
        charge()
    try:
        # the charge first, then its right: a crash in between charges twice, never too little
        file = file or _held(right)
        write_json(folder / KEPT, {"right": name})
    except OSError as failure:
        raise RunError(
            f"{right} cannot be written: {failure.strerror or failure}",
            "Free space or correct permissions, then --resume.",
        ) from None
    with file:
        yield
    right.unlink(missing_ok=True)


def _taken(budget: Path, folder: Path, right: Path) -> IO[str] | None:
    """The right that the folder names, moved to `right`; None where another copy has it, runs with
    it or has finished."""
    try:
        name = str(read_json(folder / KEPT)["right"])
    except (RunError, TypeError, KeyError):
        return None
    before = _right(budget, name)
    file = None
    if not re.fullmatch("[0-9a-f]{32}", name) or not before.exists():
        return None
    try:
        file = _held(before)
        before.rename(right)  # fails where another process was faster
    except OSError:
        if file is not None:
            file.close()
        return None
    return file


def _held(path: Path) -> IO[str]:
    """Raises BlockingIOError while another process runs with it."""
    file = path.open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    return file


def _right(budget: Path, name: str) -> Path:
    return budget.with_name(f"{budget.stem}.{name}.paid")
