"""Record of a finished run: digests of the code, of what was trained before the test rows were
read, and of every file that a row rests on.

    code.json       SHA-256 of the code at every start of the run: two where an interrupted run went
                    on with other code
    trained.json    SHA-256 of what each training left, written before the test rows are read for
                    the first time
    record.json     SHA-256 of the files that say what was run and what came out, and of the two
                    above, written last

So a run that did not finish has no record, and one that was edited differs from its own. The record
proves nothing about whoever wrote it, who can write another: a row of seeded noise is proved by
running its command again.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import fedrec
import fedrec_simulations
from fedrec.errors import RunError
from fedrec.run.run_folder import RESULT, SETTINGS
from fedrec.storage import read_json, remove, write_json

CODE, TRAINED, RECORD = "code.json", "trained.json", "record.json"
_DECIDING = (SETTINGS, "data.json", "guarantee.json", "metrics.jsonl", RESULT, CODE, TRAINED)
_AGAIN = "Run its scenario again with this version of fedrec."


@cache
def code_digest() -> str:
    """SHA-256 of every Python file of the library and of its simulations: which code made a row,
    also where only a comment differs."""
    found = hashlib.sha256()
    for package, place in (
        ("fedrec", fedrec.__file__),
        ("fedrec_simulations", fedrec_simulations.__file__),
    ):
        root = Path(place).parent
        for file in sorted(root.rglob("*.py")):
            content = file.read_bytes()
            found.update(
                f"{package}/{file.relative_to(root).as_posix()} {len(content)}\n".encode() + content
            )
    return found.hexdigest()


def begin(folder: Path) -> None:
    """Note the code that goes to work in this run folder; what is recorded of an earlier end holds
    no longer."""
    remove(folder / RECORD)
    known = read_json(folder / CODE)["sha256"] if (folder / CODE).exists() else []
    write_json(
        folder / CODE,
        {"version": fedrec.__version__, "sha256": list(dict.fromkeys([*known, code_digest()]))},
    )


def trained(folder: Path) -> None:
    """Note what the trainings left; to be called when all of them are done and no test row has been
    read."""
    write_json(folder / TRAINED, _of_trainings(folder))


def finish(folder: Path) -> None:
    """Write the record of a run whose other files are all there."""
    write_json(folder / RECORD, {name: _sha256(folder / name) for name in _DECIDING})


def checked(folder: Path) -> dict[str, Any]:
    """`code.json`'s and `trained.json`'s content, as {"version", "code", "models"}.

    Raises RunError on a run that did not finish, kept no record, was changed since, or was trained
    by two versions of the code.
    """
    if not (folder / RESULT).is_file():
        raise RunError(
            f"{folder} holds no finished run: it has no {RESULT}",
            "Give a run folder that `fedrec simulate` finished.",
        )
    if not (folder / RECORD).is_file():
        raise RunError(
            (
                f"{folder} keeps no record of what was trained before the test rows were read: "
                f"it has no {RECORD}"
            ),
            _AGAIN,
        )
    said = read_json(folder / RECORD)
    if not isinstance(said, dict) or set(said) != set(_DECIDING):
        raise RunError(f"{folder / RECORD} does not name the files of a run", _AGAIN)
    for name in _DECIDING:
        if not (folder / name).is_file() or _sha256(folder / name) != said[name]:
            raise RunError(f"{folder / name} was changed after the run had finished", _AGAIN)
    models = read_json(folder / TRAINED)
    for name, digest in _of_trainings(folder).items():
        if models.get(name) != digest:
            raise RunError(f"{folder / name} was changed after the test rows had been read", _AGAIN)
    if missing := [name for name in models if not (folder / name).is_dir()]:
        raise RunError(
            f"{folder / missing[0]} is missing: what was trained cannot be checked", _AGAIN
        )
    code = read_json(folder / CODE)
    if len(code["sha256"]) != 1:
        raise RunError(
            f"{folder} was interrupted, and went on with other code",
            "Run its scenario again without --resume.",
        )
    return {"version": code["version"], "code": code["sha256"][0], "models": models}


def _of_trainings(folder: Path) -> dict[str, str]:
    """By the name of each training's folder: SHA-256 of names and bytes of its files; without its
    log, which tells seconds."""
    found = dict[str, str]()
    for kept in sorted(path for path in folder.glob("epsilon-*") if path.is_dir()):
        digest = hashlib.sha256()
        for file in sorted(
            path for path in kept.rglob("*") if path.is_file() and path.suffix != ".jsonl"
        ):
            digest.update(f"{file.relative_to(kept).as_posix()} {_sha256(file)}\n".encode())
        found[kept.name] = digest.hexdigest()
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
