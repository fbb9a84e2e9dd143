"""Folder where a run keeps everything: named by its scenario, so that the same run finds its folder
again. One process at a time works in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedrec.errors import RunError
from fedrec.output_folders import clear, finish, reopen, require_ours
from fedrec.run.job import RuntimeChoice
from fedrec.settings import Scenario
from fedrec.storage import finite, lock, read_json, write_json, writing

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
    `resume`; nobody else's until the block ends. Its name holds that of the scenario and of the
    method that was asked for. at: the folder itself.

    Raises RunError where there is nothing to resume, where the folder belongs to another scenario
    or another process is at work in it, or where it cannot be written.
    """
    asked = "recipe" in scenario.model_fields_set and scenario.recipe not in name
    method = f"-{scenario.recipe}" if asked else ""
    named = f"{name}{method}-{scenario.digest()[:10]}{choice.suffix}"
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
        with writing(folder, _ELSEWHERE):
            if resume:
                reopen(folder, "run")
            else:
                clear(folder, "run", private=True)  # it holds private data
                write_json(folder / SETTINGS, settings)
        yield folder
        finish(folder, "run")


def require_free(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Raises RunError where a run may not be written to a folder of the user's own: it is a file,
    it holds something else, or a run that is to be kept."""
    if resume or not require_ours(folder, "run"):
        return
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
                # two trainings in one folder would write over each other's rounds
                lock(file.fileno())
            except BlockingIOError:
                raise RunError(
                    f"another process is running this scenario in {folder}",
                    f"Wait for it. {_ELSEWHERE}",
                ) from None
        yield


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
